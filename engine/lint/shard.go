package lint

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
)

// tensor is a stored tensor and where its data lie.
type tensor struct {
	Name  string
	DType string
	Shape []int
	shard *shard
	begin int64 // in the file
	size  int64
}

// shard is one open file. It is read on its own: unlike checkpoint.Open, which refuses a checkpoint whose parts do not
// agree, lint wants to see what every part says.
type shard struct {
	name     string
	file     *os.File
	metadata map[string]string
	tensors  []*tensor
}

const maxHeader = 100_000_000 // as in the reference reader

// openShard reads the header of a file and checks it against the file's length.
func openShard(path, name string) (*shard, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	s := &shard{name: name, file: f}
	if err := s.readHeader(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return s, nil
}

func (s *shard) readHeader() error {
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	var head [8]byte
	if _, err := s.file.ReadAt(head[:], 0); err != nil {
		return fmt.Errorf("the file has %d bytes, a header length takes 8", info.Size())
	}
	n := binary.LittleEndian.Uint64(head[:])
	if n > maxHeader || int64(n) > info.Size()-8 {
		return fmt.Errorf("the header length says %d bytes, the file has %d", n, info.Size())
	}
	raw := make([]byte, n)
	if _, err := s.file.ReadAt(raw, 8); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	var entries map[string]json.RawMessage
	if err := json.Unmarshal(raw, &entries); err != nil {
		return fmt.Errorf("the header is not a JSON object: %w", err)
	}
	if m, ok := entries["__metadata__"]; ok {
		if err := json.Unmarshal(m, &s.metadata); err != nil {
			return fmt.Errorf("__metadata__ is not an object of strings: %w", err)
		}
		delete(entries, "__metadata__")
	}
	dataAt := 8 + int64(n)
	dataLen := info.Size() - dataAt
	for name, e := range entries {
		var h struct {
			DType   string  `json:"dtype"`
			Shape   []int64 `json:"shape"`
			Offsets []int64 `json:"data_offsets"`
		}
		if err := json.Unmarshal(e, &h); err != nil {
			return fmt.Errorf("tensor %s: %w", name, err)
		}
		if len(h.Offsets) != 2 || h.Offsets[0] < 0 || h.Offsets[1] < h.Offsets[0] || h.Offsets[1] > dataLen {
			return fmt.Errorf("tensor %s has offsets %v, the file holds %d bytes of data", name, h.Offsets, dataLen)
		}
		bits, ok := dtypeBits[h.DType]
		if !ok {
			return fmt.Errorf("tensor %s has the unknown dtype %q", name, h.DType)
		}
		t := &tensor{Name: name, DType: h.DType, shard: s, begin: dataAt + h.Offsets[0], size: h.Offsets[1] - h.Offsets[0]}
		total := int64(1)
		for _, d := range h.Shape {
			if d < 0 || d > 1<<40 || d > 0 && total > (1<<50)/d {
				return fmt.Errorf("tensor %s has the impossible shape %v", name, h.Shape)
			}
			total *= d
			t.Shape = append(t.Shape, int(d))
		}
		if total*int64(bits)%8 != 0 || total*int64(bits)/8 != t.size {
			return fmt.Errorf("tensor %s of %s %v has %d bytes", name, h.DType, h.Shape, t.size)
		}
		s.tensors = append(s.tensors, t)
	}
	slices.SortFunc(s.tensors, func(a, b *tensor) int {
		if a.begin != b.begin {
			return int(min(max(a.begin-b.begin, -1), 1))
		}
		return int(min(max(a.size-b.size, -1), 1))
	})
	at := dataAt
	for _, t := range s.tensors {
		if t.begin != at {
			return fmt.Errorf("tensor %s begins at byte %d of the file, the one before ends at %d", t.Name, t.begin, at)
		}
		at = t.begin + t.size
	}
	if at != info.Size() {
		return fmt.Errorf("the last tensor ends at byte %d, the file at %d", at, info.Size())
	}
	return nil
}

// dtypeBits are the dtypes of safetensors with their size.
var dtypeBits = map[string]int{
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
	"I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}

// read gives the whole data of a tensor.
func (t *tensor) read() ([]byte, error) {
	data := make([]byte, t.size)
	if t.size == 0 {
		return data, nil
	}
	if _, err := t.shard.file.ReadAt(data, t.begin); err != nil {
		return nil, fmt.Errorf("%s: tensor %s: %w", t.shard.name, t.Name, err)
	}
	return data, nil
}

// plainFloat says whether the dtype is one of an unquantized weight.
func plainFloat(dtype string) bool {
	return dtype == "F16" || dtype == "BF16" || dtype == "F32" || dtype == "F64"
}
