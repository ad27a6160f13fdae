package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"quire/capture/checkpoint"
	"quire/engine/format"
	"quire/kernels/dtype"
	"quire/ledger"
)

// outputDir is the result while it is made: everything lies in OUT.partial until publication renames it.
type outputDir struct {
	final   string
	partial string
	plan    *Plan
}

// foreignOutput refuses a directory that a new run would overwrite.
func foreignOutput(dir string) error {
	for _, d := range []string{dir, dir + ".partial"} {
		entries, err := os.ReadDir(d)
		if err == nil && len(entries) > 0 {
			return usage("E0128", d, "choose another -o, or remove the directory", "the output directory exists and no run directory knows it")
		}
	}
	return nil
}

func openOutput(dir string, p *Plan) (*outputDir, error) {
	o := &outputDir{final: dir, partial: dir + ".partial", plan: p}
	if _, err := os.Stat(dir); err == nil { // published already, or about to be found so
		if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
			o.partial = dir
			return o, nil
		}
		if err := os.Remove(dir); err != nil { // an empty directory someone made for us
			return nil, err
		}
	}
	return o, os.MkdirAll(o.partial, 0o755)
}

// shardsOf lists the planned files of a layer; -1 for what lies outside the layers.
func (p *Plan) shardsOf(layer int) []ShardPlan {
	var out []ShardPlan
	for _, s := range p.Advice.Shards {
		if s.Layer == layer {
			out = append(out, s)
		}
	}
	return out
}

// closeLayer appends the events of a layer's files and of the layer in one transaction.
func (rs *runState) closeLayer(ctx context.Context, l int, files []ledger.Event, account *LayerRecord, copied bool) error {
	account.Layer, account.Copied = l, copied
	events := append(files, ledger.Event{Type: TypeLayer, Schema: 1, Key: keyLayer(l), Record: record(account)})
	if _, err := rs.store.AppendAll(ctx, events).All(ctx); err != nil {
		return err
	}
	return rs.store.Sync(ctx)
}

// outside writes the files of everything outside the layers.
func (rs *runState) outside(ctx context.Context) error {
	for _, s := range rs.plan.shardsOf(-1) {
		if _, done, err := rs.store.Get(keyShard(s.File)); err != nil {
			return err
		} else if !done {
			events, err := rs.writeShards(ctx, -1, false)
			if err != nil {
				return err
			}
			if _, err := rs.store.AppendAll(ctx, events).All(ctx); err != nil {
				return err
			}
			break
		}
	}
	return rs.moveCodes(ctx, -1, false)
}

// moveCodes records that the codes of a layer live in the output now, and lets their payload go.
func (rs *runState) moveCodes(ctx context.Context, l int, copied bool) error {
	var moves []ledger.Relocation
	for _, plan := range rs.plan.shardsOf(l) {
		seen := map[string]bool{}
		for _, t := range plan.Tensors {
			if t.Module == "" || seen[t.Module] || copied && rs.plan.module(t.Module).Expert >= 0 {
				continue
			}
			seen[t.Module] = true
			moves = append(moves, ledger.Relocation{Key: keyDecision(l, t.Module), Role: "codes",
				Location: ledger.Location{Kind: ledger.KindTensor, File: plan.File, Tensor: t.Module, Decoder: codesDecoder}})
		}
	}
	if err := rs.store.Relocate(ctx, moves...); err != nil {
		return err
	}
	_, err := rs.store.Retire(ctx, ledger.ClassCodes, segmentOf(l), "the codes live in the output")
	return err
}

// writeShards writes and verifies the files of a layer and gives their events.
func (rs *runState) writeShards(ctx context.Context, l int, copied bool) ([]ledger.Event, error) {
	var events []ledger.Event
	for _, plan := range rs.plan.shardsOf(l) {
		tensors := plan.Tensors
		if copied {
			tensors = rs.withoutExperts(l, tensors)
		}
		rec, err := rs.out.write(ctx, rs, plan.File, l, tensors)
		if err != nil {
			return nil, fmt.Errorf("shard %s: %w", plan.File, err)
		}
		events = append(events, ledger.Event{Type: TypeShard, Schema: 1, Key: keyShard(plan.File), Record: record(rec)})
	}
	return events, nil
}

// withoutExperts replaces the coded tensors of a layer's routed experts by copies of their sources: the few-row policy
// copy. They all go into the files that would have held the codes.
func (rs *runState) withoutExperts(l int, tensors []OutTensor) []OutTensor {
	var out []OutTensor
	for _, t := range tensors {
		m := rs.plan.module(t.Module)
		if t.Module == "" || m == nil || m.Expert < 0 {
			if t.bias == nil {
				out = append(out, t)
			}
			continue
		}
	}
	first := rs.plan.shardsOf(l)[0]
	if len(tensors) > 0 && tensors[0].Name == first.Tensors[0].Name {
		for _, cl := range rs.model.Claims() {
			if cl.Layer != l || len(cl.Linears) == 0 || cl.Linears[0].Expert < 0 {
				continue
			}
			dt := cl.Tensor.DType
			if cl.Tensor.Decoded {
				dt = "BF16"
			}
			out = append(out, OutTensor{Name: cl.Tensor.Name, DType: dt, Shape: cl.Tensor.Shape, Bytes: cl.Tensor.Elements() * dtypeBytes(dt), Source: cl.Tensor.Name, Layer: l})
		}
		sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	}
	return out
}

// write streams one file under a temporary name, makes it durable, reads it back and compares.
func (o *outputDir) write(ctx context.Context, rs *runState, file string, layer int, tensors []OutTensor) (*ShardRecord, error) {
	specs := make([]checkpoint.TensorSpec, len(tensors))
	for i, t := range tensors {
		dt, err := checkpoint.ParseDType(t.DType)
		if err != nil {
			return nil, err
		}
		specs[i] = checkpoint.TensorSpec{Name: t.Name, DType: dt, Shape: t.Shape}
	}
	w, err := checkpoint.CreateShard(o.partial, file, specs)
	if err != nil {
		return nil, err
	}
	rec := &ShardRecord{File: file, Layer: layer, Tensors: map[string]string{}}
	src := &tensorSource{rs: rs, encoded: map[string]map[string][]byte{}}
	for _, t := range tensors {
		b, err := src.bytes(ctx, layer, t)
		if err == nil {
			err = w.Write(t.Name, b)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("tensor %s: %w", t.Name, err), w.Abort())
		}
		rec.Tensors[t.Name] = digest(b)
	}
	done, err := w.Close()
	if err != nil {
		return nil, err
	}
	rec.Size, rec.SHA256 = done.Size, done.SHA256
	for _, t := range tensors {
		rec.Bytes += t.Bytes
	}
	return rec, verifyFile(filepath.Join(o.partial, file), rec.SHA256)
}

// verifyFile reads a written file back.
func verifyFile(path, want string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		return &Error{Code: "E0801", Exit: ExitMismatch, What: "a written file reads back differently", Where: path,
			Why: fmt.Sprintf("SHA-256 %s, written %s", got, want), Try: "check the disk, then resume"}
	}
	return nil
}

// tensorSource gives the bytes of output tensors. Tensors of one module are encoded together and follow each other in
// the file, so one module is held at a time.
type tensorSource struct {
	rs      *runState
	encoded map[string]map[string][]byte
}

func (s *tensorSource) bytes(ctx context.Context, layer int, t OutTensor) ([]byte, error) {
	switch {
	case t.Module != "":
		return s.coded(ctx, layer, t)
	case t.bias != nil:
		v := make([]float32, t.bias.Out)
		if err := s.rs.model.ReadBias(ctx, t.bias, v); err != nil {
			return nil, err
		}
		return encodeFloats(v, t.DType)
	}
	var n int64 = 1
	for _, d := range t.Shape {
		n *= int64(d)
	}
	if s.rs.plan.decoded[t.Source] {
		v := make([]uint16, n)
		if err := s.rs.plan.checkpoint.ReadBF16(ctx, t.Source, v, 0); err != nil {
			return nil, err
		}
		return bytesOf(v), nil
	}
	b := make([]byte, t.Bytes)
	return b, s.rs.plan.checkpoint.ReadRaw(ctx, t.Source, b, 0)
}

func (s *tensorSource) coded(ctx context.Context, layer int, t OutTensor) ([]byte, error) {
	if s.encoded[t.Module] == nil {
		m := s.rs.plan.module(t.Module)
		d, ok, err := ReadDecision(ctx, s.rs.store, layer, t.Module, m.Out, m.In, true)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fmt.Errorf("module %s has no decision", t.Module)
		}
		if got := digest(d.Codes); got != d.Record.CodesSHA {
			return nil, &Error{Code: "E0904", Exit: ExitLedgerDamaged, What: "codes differ from what was decided", Where: t.Module, Try: "run `quire ledger fsck RUN --level deep`"}
		}
		tensors, err := s.rs.plan.format.Encode(d.module(m, s.rs.settings.Identity.ScaleDType))
		if err != nil {
			return nil, err
		}
		s.encoded[t.Module] = map[string][]byte{}
		for _, e := range tensors {
			s.encoded[t.Module][e.Name] = e.Data
		}
	}
	b, ok := s.encoded[t.Module][t.Name]
	if !ok {
		return nil, fmt.Errorf("format %s did not give tensor %s", s.rs.plan.format.Name(), t.Name)
	}
	delete(s.encoded[t.Module], t.Name)
	if len(s.encoded[t.Module]) == 0 {
		delete(s.encoded, t.Module)
	}
	return b, nil
}

func encodeFloats(v []float32, dt string) ([]byte, error) {
	switch dt {
	case "F32":
		return bytesOf(v), nil
	case "BF16":
		u := make([]uint16, len(v))
		dtype.EncodeBF16(u, v)
		return bytesOf(u), nil
	case "F16":
		u := make([]uint16, len(v))
		dtype.EncodeF16(u, v)
		return bytesOf(u), nil
	}
	return nil, fmt.Errorf("cannot write floats as %s", dt)
}

// codesDecoder names the decoder that takes a module's codes out of the output.
const codesDecoder = "quire-codes-1"

// codesDecoder reads codes back from the output, packed as their payload was.
func (rs *runState) codesDecoder() ledger.Decoder {
	return CodesDecoder(rs.settings.Output, rs.plan.format, func(module string) (*ModulePlan, bool) { m := rs.plan.module(module); return m, m != nil }, rs.settings.Identity.ScaleDType)
}

// CodesDecoder reads the codes of a module out of the tensors of a published, or not yet published, output directory.
func CodesDecoder(output string, f format.Format, modules func(string) (*ModulePlan, bool), scaleDType string) ledger.Decoder {
	return ledger.BytesDecoder(func(loc ledger.Location) ([]byte, error) {
		m, ok := modules(loc.Tensor)
		if !ok {
			return nil, fmt.Errorf("module %s is not in the plan", loc.Tensor)
		}
		path := filepath.Join(output, loc.File)
		if _, err := os.Stat(path); err != nil {
			path = filepath.Join(output+".partial", loc.File)
		}
		shard, err := checkpoint.OpenShard(path)
		if err != nil {
			return nil, err
		}
		defer shard.Close()
		var tensors []format.TensorData
		for _, t := range shard.Tensors() {
			suffix, ok := strings.CutPrefix(t.Name, m.Module+".")
			if !ok || strings.Contains(suffix, ".") || suffix == "bias" {
				continue
			}
			d := format.TensorData{TensorSpec: format.TensorSpec{Name: t.Name, DType: format.DType(t.DType.String()), Shape: t.Shape}, Data: make([]byte, t.Bytes())}
			if err := shard.ReadAt(t, d.Data, 0); err != nil {
				return nil, err
			}
			tensors = append(tensors, d)
		}
		got, err := f.Decode(m.Module, format.Scheme{Bits: m.Scheme.Bits, GroupSize: m.Scheme.GroupSize, Sym: m.Scheme.Sym}, tensors)
		if err != nil {
			return nil, err
		}
		return packCodes(got.Codes, m.Scheme.Bits), nil
	})
}

// afterLayer lets go what the policy lets go once layer l is done. It is idempotent: a resume repeats it.
func (rs *runState) afterLayer(ctx context.Context, l int, copied bool) error {
	retain := rs.settings.Retain
	keepAll := retain == "all"
	every := 0
	if _, err := fmt.Sscanf(retain, "every=%d", &every); err != nil {
		every = 0
	}
	reason := fmt.Sprintf("layer %d is done", l)
	let := func(class ledger.Class, layer int) error {
		_, err := rs.store.Retire(ctx, class, segmentOf(layer), reason)
		return err
	}
	if !keepAll && retain != "statistics" {
		if err := let(ledger.ClassOpen, l); err != nil {
			return err
		}
	}
	if err := rs.moveCodes(ctx, l, copied); err != nil {
		return err
	}
	// Layer inputs: the current (l+1) and the previous (l) are kept.
	if old := l - 1; old >= 1 && !keepAll && retain != "sites" && (every == 0 || old%every != 0) {
		return let(ledger.ClassLayer, old)
	}
	return nil
}
