package checkpoint

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// TensorSpec is a tensor as a header will state it.
type TensorSpec struct {
	Name  string
	DType DType
	Shape []int
}

// Bytes gives the stored size.
func (t TensorSpec) Bytes() (int64, bool) {
	n, ok := elements(t.Shape)
	if !ok {
		return 0, false
	}
	return t.DType.Bytes(n)
}

// ShardWriter streams one file. Tensors are written in the order of the specs given to CreateShard.
type ShardWriter struct {
	dir, name string
	f         *os.File
	w         *bufio.Writer
	hash      hash.Hash
	specs     []TensorSpec
	next      int
	size      int64
}

// Written is a finished file.
type Written struct {
	Size   int64
	SHA256 string // hex
}

// CreateShard begins a file under a temporary name in dir. The header is written at once; it is padded with spaces so that
// the data begins at a multiple of 8.
func CreateShard(dir, name string, specs []TensorSpec) (*ShardWriter, error) {
	header, err := encodeHeader(specs)
	if err != nil {
		return nil, err
	}
	f, err := os.Create(filepath.Join(dir, name+".tmp"))
	if err != nil {
		return nil, ioError(codeIOWrite, name, err)
	}
	w := &ShardWriter{dir: dir, name: name, f: f, hash: sha256.New(), specs: specs}
	w.w = bufio.NewWriterSize(f, 1<<20)
	if err := w.put(header); err != nil {
		return nil, errors.Join(err, w.Abort())
	}
	return w, nil
}

func encodeHeader(specs []TensorSpec) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(`{"__metadata__":{"format":"pt"}`)
	at := int64(0)
	seen := map[string]bool{}
	for _, t := range specs {
		n, ok := t.Bytes()
		if !ok || seen[t.Name] {
			return nil, fail(codePlan, "", t.Name, -1, "", "shape %v of %s cannot be planned, or the name comes twice", t.Shape, t.DType)
		}
		seen[t.Name] = true
		shape := t.Shape
		if shape == nil {
			shape = []int{}
		}
		name, err := marshal(t.Name)
		if err != nil {
			return nil, err
		}
		entry, err := marshal(struct {
			DType   DType    `json:"dtype"`
			Shape   []int    `json:"shape"`
			Offsets [2]int64 `json:"data_offsets"`
		}{t.DType, shape, [2]int64{at, at + n}})
		if err != nil {
			return nil, err
		}
		b.WriteByte(',')
		b.Write(name)
		b.WriteByte(':')
		b.Write(entry)
		at += n
	}
	b.WriteByte('}')
	for (8+b.Len())%8 != 0 {
		b.WriteByte(' ')
	}
	if b.Len() > MaxHeader {
		return nil, fail(codePlan, "", "", -1, "", "a header of %d bytes", b.Len())
	}
	return append(binary.LittleEndian.AppendUint64(nil, uint64(b.Len())), b.Bytes()...), nil
}

func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimRight(b.Bytes(), "\n"), err
}

func (w *ShardWriter) put(b []byte) error {
	w.hash.Write(b)
	w.size += int64(len(b))
	if _, err := w.w.Write(b); err != nil {
		return ioError(codeIOWrite, w.name, err)
	}
	return nil
}

// Write appends the next planned tensor.
func (w *ShardWriter) Write(name string, data []byte) error {
	if w.next >= len(w.specs) || w.specs[w.next].Name != name {
		return fail(codePlan, w.name, name, -1, "", "written out of its place")
	}
	if n, _ := w.specs[w.next].Bytes(); n != int64(len(data)) {
		return fail(codePlan, w.name, name, -1, "", "%d bytes written, %d planned", len(data), n)
	}
	w.next++
	return w.put(data)
}

// Close makes the file durable and gives it its name.
func (w *ShardWriter) Close() (Written, error) {
	if w.next != len(w.specs) {
		return Written{}, errors.Join(fail(codePlan, w.name, w.specs[w.next].Name, -1, "", "never written"), w.Abort())
	}
	err := w.w.Flush()
	if err == nil {
		err = w.f.Sync()
	}
	if cerr := w.f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(filepath.Join(w.dir, w.name+".tmp"), filepath.Join(w.dir, w.name))
	}
	if err != nil {
		_ = os.Remove(filepath.Join(w.dir, w.name+".tmp")) // the error that matters is reported
		return Written{}, ioError(codeIOWrite, w.name, err)
	}
	return Written{w.size, hex.EncodeToString(w.hash.Sum(nil))}, SyncDir(w.dir)
}

// Abort drops what was written.
func (w *ShardWriter) Abort() error {
	_ = w.f.Close() // the file goes away
	return os.Remove(filepath.Join(w.dir, w.name+".tmp"))
}

// WriteFile replaces a file atomically and durably.
func WriteFile(path string, b []byte) error {
	tmp := path + ".tmp"
	f, err := os.Create(tmp)
	if err != nil {
		return ioError(codeIOWrite, path, err)
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp) // the error that matters is reported
		return ioError(codeIOWrite, path, err)
	}
	return SyncDir(filepath.Dir(path))
}

// IndexJSON spells model.safetensors.index.json; total is the bytes of all tensors.
func IndexJSON(byTensor map[string]string, total int64) ([]byte, error) {
	names := make([]string, 0, len(byTensor))
	for n := range byTensor {
		names = append(names, n)
	}
	sort.Strings(names)
	var b strings.Builder
	head, err := json.Marshal(map[string]int64{"total_size": total})
	if err != nil {
		return nil, err
	}
	b.WriteString("{\n  \"metadata\": " + string(head) + ",\n  \"weight_map\": {")
	for i, n := range names {
		k, err := marshal(n)
		if err != nil {
			return nil, err
		}
		v, err := marshal(byTensor[n])
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("\n    " + string(k) + ": " + string(v))
	}
	b.WriteString("\n  }\n}\n")
	return []byte(b.String()), nil
}
