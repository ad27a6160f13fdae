package engine

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"quire/capture/checkpoint"
	"quire/engine/format"
	"quire/ledger"
)

// FileCheck is one file of an output compared with its recorded digest.
type FileCheck struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	What string `json:"what,omitempty"`
}

// VerifySums compares an output directory with its SHA256SUMS, and tells of files that the sums do not name.
func VerifySums(ctx context.Context, dir string) ([]FileCheck, error) {
	b, err := os.ReadFile(filepath.Join(dir, SumsFile))
	if err != nil {
		return nil, &Error{Code: "E0810", Exit: ExitUsage, What: "the directory has no " + SumsFile, Where: dir, Err: err, Try: "give an output directory of quire, or a run directory"}
	}
	want := map[string]string{}
	var names []string
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		sum, name, ok := strings.Cut(sc.Text(), "  ")
		if !ok || len(sum) != 64 {
			return nil, &Error{Code: "E0811", Exit: ExitMismatch, What: SumsFile + " has a line that is no digest", Where: sc.Text(), Try: "restore the file"}
		}
		want[name] = sum
		names = append(names, name)
	}
	return checkFiles(ctx, dir, names, want)
}

func checkFiles(ctx context.Context, dir string, names []string, want map[string]string) ([]FileCheck, error) {
	var out []FileCheck
	for _, n := range names {
		if ctx.Err() != nil {
			return out, context.Cause(ctx)
		}
		got, err := hashFile(filepath.Join(dir, filepath.FromSlash(n)))
		c := FileCheck{Name: n, OK: err == nil && got == want[n]}
		switch {
		case err != nil:
			c.What = err.Error()
		case !c.OK:
			c.What = fmt.Sprintf("SHA-256 is %s, recorded %s", got, want[n])
		}
		out = append(out, c)
	}
	return out, nil
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}

// RunView is a closed run opened for questions.
type RunView struct {
	*ledger.Reader
	Dir     string
	Genesis GenesisRecord
	Output  string
	Modules []ModulePlan // as planned
}

// OpenRun opens a closed run. Codes that moved into the output are read from there.
func OpenRun(dir string) (*RunView, error) {
	v := &RunView{Dir: dir}
	b, err := os.ReadFile(filepath.Join(dir, "plan.json"))
	if err != nil {
		return nil, &Error{Code: "E0702", Exit: ExitNoRun, What: "no run here", Where: dir, Err: err, Try: "give the run directory, by default OUTPUT.run"}
	}
	var plan struct {
		Advice struct {
			Modules []ModulePlan `json:"modules"`
		} `json:"advice"`
	}
	if err := json.Unmarshal(b, &plan); err != nil {
		return nil, &Error{Code: "E0906", Exit: ExitLedgerDamaged, What: "plan.json does not parse", Where: dir, Err: err, Try: "give the original `quire run` command again with the same -o"}
	}
	v.Modules = plan.Advice.Modules
	rb, err := os.ReadFile(filepath.Join(dir, RecipeFile))
	if err != nil {
		return nil, err
	}
	r, err := ReadRecipe(RecipeFile, rb)
	if err != nil {
		return nil, err
	}
	v.Output = deref(r.Output, "")
	byName := map[string]*ModulePlan{}
	for i := range v.Modules {
		byName[v.Modules[i].Module] = &v.Modules[i]
	}
	// The format is part of the identity, which only the ledger holds: read genesis first, then open with the decoder.
	probe, err := ledger.OpenReader(dir, ledger.Options{})
	if err != nil {
		return nil, err
	}
	e, ok, err := probe.Get(keyGenesis())
	if err == nil && ok {
		err = readRecord(e, &v.Genesis)
	}
	if cerr := probe.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	f, err := format.Lookup(v.Genesis.Identity.Settings.Format)
	if err != nil {
		return nil, err
	}
	dec := CodesDecoder(v.Output, f, func(m string) (*ModulePlan, bool) { p := byName[m]; return p, p != nil }, v.Genesis.Identity.Settings.ScaleDType)
	v.Reader, err = ledger.OpenReader(dir, ledger.Options{Decoders: map[string]ledger.Decoder{codesDecoder: dec}})
	return v, err
}

// VerifyRun compares a run's output with what the ledger recorded: every file, and every tensor of every shard.
func VerifyRun(ctx context.Context, v *RunView) ([]FileCheck, error) {
	e, ok, err := v.Get(keySealed())
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, &Error{Code: "E0812", Exit: ExitNoRun, What: "the run is not finished", Where: v.Dir, Try: "go on with `quire resume RUN`"}
	}
	var sealed SealedRecord
	if err := readRecord(e, &sealed); err != nil {
		return nil, err
	}
	want := map[string]string{}
	var names []string
	for _, f := range sealed.Files {
		want[f.Name] = f.SHA256
		names = append(names, f.Name)
	}
	out, err := checkFiles(ctx, v.Output, names, want)
	if err != nil {
		return out, err
	}
	for i := range out {
		if out[i].OK || !strings.HasSuffix(out[i].Name, ".safetensors") {
			continue
		}
		if where, err := v.damagedTensor(ctx, out[i].Name); err == nil && where != "" {
			out[i].What += "; tensor " + where
		}
	}
	return out, nil
}

// damagedTensor names the first tensor of a shard whose bytes differ from the record.
func (v *RunView) damagedTensor(ctx context.Context, file string) (string, error) {
	e, ok, err := v.Get(keyShard(file))
	if err != nil || !ok {
		return "", err
	}
	var rec ShardRecord
	if err := readRecord(e, &rec); err != nil {
		return "", err
	}
	sh, err := checkpoint.OpenShard(filepath.Join(v.Output, file))
	if err != nil {
		return "", err
	}
	defer sh.Close()
	for _, t := range sh.Tensors() {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		b := make([]byte, t.Bytes())
		if err := sh.ReadAt(t, b, 0); err != nil {
			return "", err
		}
		if digest(b) != rec.Tensors[t.Name] {
			return t.Name, nil
		}
	}
	return "", nil
}
