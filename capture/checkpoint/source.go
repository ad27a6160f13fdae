package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// Source is an open checkpoint. Its methods may be used from several goroutines.
type Source struct {
	path    string // directory, or that of the single file
	config  []byte
	shards  []*shardFile
	stored  []Tensor // sorted by name
	byName  map[string]int
	byShard map[string]*shardFile
	side    []File
	logical []Logical
	decode  map[string]*logicalTensor
	// companion says to which logical tensor a stored one belongs that is none by itself.
	companion  map[string]string
	quant      quantConfig
	quantized  bool // at least one tensor is decoded
	headerOnly bool // names, dtypes and shapes without bytes
	inferred   bool // the config is made of shapes
	activation []string
	unused     []File
}

// File is a file of the checkpoint.
type File struct {
	Name string // relative to the checkpoint, with slashes
	Path string
	Size int64
}

const (
	singleName = "model.safetensors"
	indexName  = "model.safetensors.index.json"
	configName = "config.json"
)

// Open finds the files of a checkpoint, checks every header and the index, and reads config.json. path is a directory, a
// single .safetensors file, an entry of a Hugging Face cache (its directory, or owner/name[@revision] when the cache holds
// it), or a parameter map (.json, .json.gz: headers only). The error is an *Error or Errors with all findings.
func Open(ctx context.Context, path string) (*Source, error) {
	dir, single, err := locate(path)
	if err != nil {
		return nil, err
	}
	if single != "" && !strings.HasSuffix(single, ".safetensors") && !strings.HasSuffix(single, ".json") && !strings.HasSuffix(single, ".json.gz") {
		return nil, fail(codePickle, path, "", -1, "give a .safetensors file or its directory", "the file is not safetensors")
	}
	if strings.HasSuffix(single, ".json") || strings.HasSuffix(single, ".json.gz") {
		return openMap(ctx, filepath.Join(dir, single))
	}
	s := &Source{path: dir, byName: map[string]int{}, byShard: map[string]*shardFile{}, decode: map[string]*logicalTensor{}, companion: map[string]string{}}
	es := s.open(ctx, single)
	if len(es) == 0 {
		es = s.resolve()
	}
	if len(es) > 0 {
		s.Close()
		return nil, es.asError()
	}
	return s, nil
}

// locate turns what the user typed into a directory, and the name of the one file if it was a file.
func locate(path string) (dir, single string, err error) {
	st, err := os.Stat(path)
	switch {
	case err != nil && errors.Is(err, fs.ErrNotExist):
		return cached(path)
	case err != nil:
		return "", "", ioError(codeIORead, path, err)
	case !st.IsDir():
		return filepath.Dir(path), filepath.Base(path), nil
	}
	snapshots := filepath.Join(path, "snapshots")
	if st, err := os.Stat(snapshots); err == nil && st.IsDir() {
		return cacheRevision(path, "")
	}
	return path, "", nil
}

var setName = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.safetensors$`)

func (s *Source) open(ctx context.Context, single string) Errors {
	entries, err := os.ReadDir(s.path)
	if err != nil {
		return Errors{ioError(codeIORead, s.path, err)}
	}
	var weights, pickles []string
	present := map[string]bool{}
	for _, e := range entries {
		n := e.Name()
		present[n] = true
		switch {
		case strings.HasSuffix(n, ".safetensors"):
			weights = append(weights, n)
		case strings.HasSuffix(n, ".bin") || strings.HasSuffix(n, ".pt") || strings.HasSuffix(n, ".pth") || strings.HasSuffix(n, ".ckpt") || strings.HasSuffix(n, ".gguf"):
			pickles = append(pickles, n)
		}
	}
	var es Errors
	var index map[string]string
	files := weights
	switch {
	case single != "":
		files = []string{single}
	case present[indexName]:
		b, bad := readSmall(s.path, indexName, maxIndex, codeIndexJSON)
		if bad != nil {
			return Errors{bad}
		}
		if index, es = parseIndex(b); len(es) > 0 {
			return es
		}
		files, es = indexed(index, present, weights)
	case present[singleName]:
		files = []string{singleName}
		for _, w := range weights {
			if setName.MatchString(w) {
				es = append(es, fail(codeStrayShard, w, "", -1, "remove it, or fetch "+indexName, "the file looks like a shard beside "+singleName))
			}
		}
	case len(weights) == 0:
		if len(pickles) > 0 {
			return Errors{fail(codePickle, pickles[0], "", -1, "convert to safetensors with the tool that made them", "the weights are only there in a form that is never opened")}
		}
		return Errors{fail(codeNoWeights, s.path, "", -1, "point at the directory that holds model.safetensors", "there is no safetensors file")}
	case len(weights) > 1:
		if es = completeSet(weights); len(es) > 0 {
			return es
		}
	}
	if len(es) > 0 {
		return es
	}
	sort.Strings(files)
	for _, f := range files {
		if ctx.Err() != nil {
			return Errors{ioError(codeIORead, f, context.Cause(ctx))}
		}
		sh, bad := openShard(f, filepath.Join(s.path, f))
		if len(bad) > 0 {
			es = append(es, bad...)
			continue
		}
		s.shards = append(s.shards, sh)
		s.byShard[f] = sh
	}
	if len(es) > 0 {
		return es
	}
	if es = s.join(index); len(es) > 0 {
		return es
	}
	for _, w := range weights {
		if s.byShard[w] == nil && single == "" {
			s.noteUnused(w)
		}
	}
	s.sideFiles(files)
	var bad *Error
	if s.config, bad = readSmall(s.path, configName, maxConfig, codeConfigJSON); bad != nil {
		if errors.Is(bad, fs.ErrNotExist) {
			bad = fail(codeNoConfig, s.path, "", -1, "fetch config.json of the same revision", "there is no config.json")
		}
		return Errors{bad}
	}
	return checkConfig(s.config)
}

// Largest files that are read whole: the index of a trillion parameters in single experts has 15 MB, configs some kilobytes.
const (
	maxIndex  = 256 << 20
	maxConfig = 16 << 20
)

// readSmall reads a file whole that must not be larger than most.
func readSmall(dir, name string, most int64, code string) ([]byte, *Error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return nil, ioError(codeIORead, name, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, ioError(codeIORead, name, err)
	}
	if st.Size() > most {
		return nil, fail(code, name, "", -1, "fetch the file again", "the file has %d bytes, more than the %d that it may have", st.Size(), most)
	}
	b, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return nil, ioError(codeIORead, name, err)
	}
	return b, nil
}

func parseIndex(b []byte) (map[string]string, Errors) {
	out := map[string]string{}
	var es Errors
	sc := &scanner{b: b}
	found := false
	err := sc.object(func(key string, _ int) error {
		if key != "weight_map" {
			_, err := sc.value()
			return err
		}
		found = true
		return sc.object(func(tensor string, pos int) error {
			file, err := sc.str()
			if err != nil {
				return err
			}
			if file != filepath.Base(file) || file == "" || file == "." || file == ".." {
				es = append(es, fail(codeIndexJSON, indexName, tensor, int64(pos), "fetch the index again", "%q is not a plain file name", file))
			}
			out[tensor] = file
			return nil
		})
	})
	if err == nil {
		err = sc.end()
	}
	if err == nil && !found {
		err = errors.New("there is no weight_map")
	}
	if err != nil {
		code := codeIndexJSON
		at := int64(-1)
		var se *scanError
		if errors.As(err, &se) {
			at = int64(se.Pos)
			if se.Twice {
				code = codeTwice
			}
		}
		es = append(es, fail(code, indexName, "", at, "fetch the index again", "the index is not valid: %v", err))
	}
	return out, es
}

// indexed compares the files that the index names with those that are there.
func indexed(index map[string]string, present map[string]bool, weights []string) ([]string, Errors) {
	need := map[string]string{} // file → a tensor in it
	for t, f := range index {
		if was, ok := need[f]; !ok || t < was {
			need[f] = t
		}
	}
	var es Errors
	var files, sets []string
	for f := range need {
		files = append(files, f)
	}
	sort.Strings(files)
	for _, w := range weights {
		if setName.MatchString(w) {
			sets = append(sets, w)
		}
	}
	if len(sets) > 0 && !slices.ContainsFunc(files, func(f string) bool { return present[f] }) && len(completeSet(sets)) == 0 {
		return nil, Errors{fail(codeOtherSplit, indexName, "", -1, "remove "+indexName+", or fetch the one of these files",
			"the index names %d files (%s …), none is here; the %d files that are here (%s …) are a complete set", len(files), files[0], len(sets), sets[0])}
	}
	for _, f := range files {
		if !present[f] {
			es = append(es, fail(codeMissingShard, f, need[f], -1, "fetch the file", "the index names a shard that is not there"))
		}
	}
	for _, w := range weights {
		if need[w] == "" && (setName.MatchString(w) || w == singleName) {
			es = append(es, fail(codeStrayShard, w, "", -1, "remove it, or rebuild the index if it belongs", "the file looks like a shard, but the index does not name it"))
		}
	}
	return files, es
}

// completeSet accepts files without an index only when their names say N of N.
func completeSet(weights []string) Errors {
	have := map[string]map[int]bool{}
	want := map[string]int{}
	for _, w := range weights {
		m := setName.FindStringSubmatch(w)
		if m == nil {
			return Errors{fail(codeNoIndex, w, "", -1, "fetch "+indexName+", or remove files that do not belong", "several weight files and no index")}
		}
		i, err1 := strconv.Atoi(m[2])
		n, err2 := strconv.Atoi(m[3])
		if err1 != nil || err2 != nil {
			return Errors{fail(codeNoIndex, w, "", -1, "fetch "+indexName, "the file name has no number")}
		}
		key := m[1] + "/" + m[3]
		if have[key] == nil {
			have[key] = map[int]bool{}
		}
		have[key][i], want[key] = true, n
	}
	if len(want) != 1 {
		return Errors{fail(codeNoIndex, weights[0], "", -1, "remove the files of other sets", "the files belong to %d sets", len(want))}
	}
	var es Errors
	for key, n := range want {
		for i := 1; i <= n; i++ {
			if !have[key][i] {
				name := fmt.Sprintf("%s-%05d-of-%05d.safetensors", strings.Split(key, "/")[0], i, n)
				es = append(es, fail(codeMissingShard, name, "", -1, "fetch the file", "the names of the others call for it"))
			}
		}
	}
	return es
}

// join makes one list of all shards' tensors and compares it with the index.
func (s *Source) join(index map[string]string) Errors {
	var es Errors
	at := map[string]string{}
	for _, sh := range s.shards {
		for _, t := range sh.tensors {
			if was, ok := at[t.Name]; ok {
				es = append(es, fail(codeTwice, sh.name, t.Name, -1, "remove the wrong one", "the tensor is in %s too", was))
				continue
			}
			at[t.Name] = sh.name
			s.stored = append(s.stored, t)
			if index != nil && index[t.Name] == "" {
				es = append(es, fail(codeUnindexed, sh.name, t.Name, -1, "fetch index and shards of one revision, or rebuild the index", "the index does not mention the tensor"))
			}
		}
	}
	var names []string
	for n := range index {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		if at[n] != index[n] {
			es = append(es, fail(codeGhost, index[n], n, -1, "fetch index and shards of one revision, or rebuild the index", "the index places the tensor here, the header does not hold it"))
		}
	}
	sort.Slice(s.stored, func(i, j int) bool { return s.stored[i].Name < s.stored[j].Name })
	for i, t := range s.stored {
		s.byName[t.Name] = i
	}
	return es
}

// noteUnused keeps a weight file that neither index nor name makes a part of the checkpoint.
func (s *Source) noteUnused(name string) {
	path := filepath.Join(s.path, name)
	if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() {
		s.unused = append(s.unused, File{name, path, st.Size()})
	}
}

// Unused lists the safetensors files of the directory that are no part of the checkpoint: another copy of the weights, an
// adapter, or a part that the index forgot. Nothing of them is read.
func (s *Source) Unused() []File { return s.unused }

// sideFiles lists what else lies in the directory, two levels deep.
func (s *Source) sideFiles(shards []string) {
	skip := map[string]bool{configName: true, indexName: true}
	for _, f := range shards {
		skip[f] = true
	}
	add := func(rel string) {
		base := filepath.Base(rel)
		if skip[rel] || strings.HasPrefix(base, ".") || strings.HasSuffix(base, ".safetensors") || strings.HasSuffix(base, ".bin") || strings.HasSuffix(base, ".gguf") ||
			strings.HasSuffix(base, ".pth") || strings.HasSuffix(base, ".pt") || base == "SHA256SUMS" || base == "quant_log.csv" || base == "provenance.intoto.json" {
			return
		}
		p := filepath.Join(s.path, rel)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() {
			s.side = append(s.side, File{filepath.ToSlash(rel), p, st.Size()})
		}
	}
	entries, err := os.ReadDir(s.path)
	if err != nil {
		return // it was read a moment ago; a file that vanished is missed when it is copied
	}
	for _, e := range entries {
		if st, err := os.Stat(filepath.Join(s.path, e.Name())); err == nil && st.IsDir() {
			if strings.HasPrefix(e.Name(), ".") {
				continue
			}
			inner, err := os.ReadDir(filepath.Join(s.path, e.Name()))
			if err != nil {
				continue
			}
			for _, f := range inner {
				add(filepath.Join(e.Name(), f.Name()))
			}
			continue
		}
		add(e.Name())
	}
	sort.Slice(s.side, func(i, j int) bool { return s.side[i].Name < s.side[j].Name })
}

// Path is the checkpoint's directory.
func (s *Source) Path() string { return s.path }

// ConfigJSON is config.json as it lies on disk.
func (s *Source) ConfigJSON() []byte { return s.config }

// Tensors lists the stored tensors, sorted by name.
func (s *Source) Tensors() []Tensor { return s.stored }

// Lookup finds a stored tensor.
func (s *Source) Lookup(name string) (Tensor, bool) {
	i, ok := s.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return s.stored[i], true
}

// SideFiles lists every file that is no shard, no index and not config.json, sorted by name. Of a quantized source, files
// that describe its quantization are not among them.
func (s *Source) SideFiles() []File { return s.side }

// Shards lists the files that hold tensors, sorted by name.
func (s *Source) Shards() []File {
	out := make([]File, len(s.shards))
	for i, sh := range s.shards {
		out[i] = File{sh.name, sh.path, sh.size}
	}
	return out
}

// ReadAt reads stored bytes of a stored tensor from byte off of its data.
func (s *Source) ReadAt(ctx context.Context, name string, dst []byte, off int64) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	t, ok := s.Lookup(name)
	switch {
	case !ok:
		return fail(codeRange, "", name, -1, "", "there is no such tensor")
	case s.headerOnly:
		return fail(codeHeaderOnly, s.path, name, -1, "give the directory with the safetensors files", "the source has no bytes")
	}
	return s.byShard[t.Shard].readAt(t, dst, off)
}

// HeadersDigest is the SHA-256 (hex) over name, dtype, shape, shard and place of every stored tensor.
func (s *Source) HeadersDigest() string {
	h := sha256.New()
	for _, t := range s.stored {
		fmt.Fprintf(h, "%q %s %v %q %d %d\n", t.Name, t.DType, t.Shape, t.Shard, t.Begin, t.End)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Close closes the files.
func (s *Source) Close() error {
	var errs []error
	for _, sh := range s.shards {
		errs = append(errs, sh.f.Close())
	}
	return errors.Join(errs...)
}
