package checkpoint

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"sort"
	"strconv"
)

// MaxHeader is the longest JSON header that readers accept, in bytes.
const MaxHeader = 100_000_000

// shardFile is one open shard and what its header says.
type shardFile struct {
	name     string // inside the checkpoint
	path     string
	f        *os.File
	size     int64
	dataAt   int64 // 8 + header length
	metadata map[string]string
	tensors  []Tensor // by offset
}

// openShard opens a file and checks its header strictly.
func openShard(name, path string) (*shardFile, Errors) {
	f, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist): // a link of a cache entry whose blob is gone, or a file that vanished
		return nil, Errors{fail(codeMissingShard, name, "", -1, "fetch the file", "the file is named but not there")}
	case err != nil:
		return nil, Errors{ioError(codeIORead, name, err)}
	}
	s := &shardFile{name: name, path: path, f: f}
	es := s.readHeader()
	if len(es) > 0 {
		f.Close()
		return nil, es
	}
	return s, nil
}

const fetchAgain = "fetch the file again and compare its SHA-256 with the model page"

func (s *shardFile) readHeader() Errors {
	st, err := s.f.Stat()
	if err != nil {
		return Errors{ioError(codeIORead, s.name, err)}
	}
	s.size = st.Size()
	var n [8]byte
	if _, err := s.f.ReadAt(n[:], 0); err != nil {
		if errors.Is(err, io.EOF) {
			return Errors{fail(codeTruncated, s.name, "", s.size, fetchAgain, "the file has %d bytes, not even a header length", s.size)}
		}
		return Errors{ioError(codeIORead, s.name, err)}
	}
	h := binary.LittleEndian.Uint64(n[:])
	if h > MaxHeader || h < 2 {
		return Errors{fail(codeHeaderSize, s.name, "", 0, fetchAgain, "the header length is %d bytes, it must be 2 to %d", h, MaxHeader)}
	}
	if int64(h) > s.size-8 {
		return Errors{fail(codeTruncated, s.name, "", s.size, fetchAgain, "the header needs %d bytes, the file ends after %d", h, s.size-8)}
	}
	raw := make([]byte, h)
	if _, err := s.f.ReadAt(raw, 8); err != nil {
		return Errors{ioError(codeIORead, s.name, err)}
	}
	s.dataAt = 8 + int64(h)
	es := s.parseHeader(raw)
	if len(es) > 0 {
		return es
	}
	return s.checkLayout()
}

// parseHeader reads the JSON object of a header.
func (s *shardFile) parseHeader(raw []byte) Errors {
	var es Errors
	sc := &scanner{b: raw}
	err := sc.object(func(key string, pos int) error {
		if key == "__metadata__" {
			s.metadata = map[string]string{}
			if sc.peek() == 'n' { // null is written by some tools
				return sc.word("null")
			}
			return sc.object(func(k string, _ int) error {
				v, err := sc.str()
				s.metadata[k] = v
				return err
			})
		}
		t := Tensor{Name: key, Shard: s.name}
		var begin, end int64 = -1, -1
		shape := false
		err := sc.object(func(k string, _ int) error {
			switch k {
			case "dtype":
				v, err := sc.str()
				t.DType = DType(v)
				return err
			case "shape":
				shape = true
				return sc.array(func() error {
					v, err := sc.natural()
					t.Shape = append(t.Shape, int(v))
					return err
				})
			case "data_offsets":
				i := 0
				return sc.array(func() error {
					v, err := sc.natural()
					switch i {
					case 0:
						begin = v
					case 1:
						end = v
					default: // a third number: which two count is not guessed
						begin, end = -1, -1
					}
					i++
					return err
				})
			}
			_, err := sc.value()
			return err
		})
		if err != nil {
			return err
		}
		t.Begin, t.End = begin, end
		switch n, ok := elements(t.Shape); {
		case t.DType.Bits() == 0:
			es = append(es, fail(codeDType, s.name, key, int64(8+pos), "ask the publisher, or convert the tensor", "dtype %q is not defined", t.DType))
		case !shape || begin < 0 || end < begin:
			es = append(es, fail(codeOffsets, s.name, key, int64(8+pos), fetchAgain, "the entry lacks a shape or has the data offsets [%d, %d]", begin, end))
		case !ok:
			es = append(es, fail(codeSize, s.name, key, int64(8+pos), fetchAgain, "shape %v is impossible", t.Shape))
		default:
			if want, ok := t.DType.Bytes(n); !ok || want != end-begin {
				es = append(es, fail(codeSize, s.name, key, int64(8+pos), fetchAgain, "shape %v of %s needs %d bytes, the offsets give %d", t.Shape, t.DType, want, end-begin))
			}
		}
		s.tensors = append(s.tensors, t)
		return nil
	})
	if err == nil {
		err = sc.end()
	}
	if err != nil {
		var se *scanError
		code, at := codeHeaderJSON, int64(-1)
		if errors.As(err, &se) {
			at = int64(8 + se.Pos)
			if se.Twice {
				code = codeTwice
			}
		}
		return append(es, fail(code, s.name, "", at, fetchAgain, "the header is not valid: %v", err))
	}
	return es
}

// checkLayout checks that tensors cover the data part once, without hole or overlap.
func (s *shardFile) checkLayout() Errors {
	sort.SliceStable(s.tensors, func(i, j int) bool {
		a, b := s.tensors[i], s.tensors[j]
		return a.Begin < b.Begin || a.Begin == b.Begin && a.End < b.End
	})
	var es Errors
	at := int64(0)
	for _, t := range s.tensors {
		switch {
		case t.Begin < at:
			es = append(es, fail(codeOffsets, s.name, t.Name, s.dataAt+t.Begin, fetchAgain, "its data overlaps the tensor before it by %d bytes", at-t.Begin))
		case t.Begin > at:
			es = append(es, fail(codeOffsets, s.name, t.Name, s.dataAt+at, fetchAgain, "there is a hole of %d bytes before its data", t.Begin-at))
		}
		at = max(at, t.End)
	}
	switch data := s.size - s.dataAt; {
	case data < at:
		where := ""
		for _, t := range s.tensors {
			if t.End > data {
				where = t.Name
				break
			}
		}
		es = append(es, fail(codeTruncated, s.name, where, s.size, fetchAgain, "the data needs %d bytes, the file holds %d", at, data))
	case data > at:
		es = append(es, fail(codeTrailing, s.name, "", s.dataAt+at, fetchAgain, "%d bytes follow the last tensor", data-at))
	}
	return es
}

// readAt reads bytes of a tensor.
func (s *shardFile) readAt(t Tensor, dst []byte, off int64) error {
	if off < 0 || off+int64(len(dst)) > t.Bytes() {
		return fail(codeRange, s.name, t.Name, -1, "", "bytes %d to %d of %d", off, off+int64(len(dst)), t.Bytes())
	}
	if len(dst) == 0 {
		return nil
	}
	if _, err := s.f.ReadAt(dst, s.dataAt+t.Begin+off); err != nil {
		if errors.Is(err, io.EOF) {
			return fail(codeChanged, s.name, t.Name, -1, "stop whatever writes there and start again", "the file became shorter while it was read")
		}
		return ioError(codeIORead, s.name, err)
	}
	return nil
}

// Shard is one safetensors file opened by itself.
type Shard struct{ s *shardFile }

// OpenShard opens one file with the strict checks of Open.
func OpenShard(path string) (*Shard, error) {
	s, es := openShard(path, path)
	if len(es) > 0 {
		return nil, es.asError()
	}
	return &Shard{s}, nil
}

// Tensors lists the entries in order of their data.
func (s *Shard) Tensors() []Tensor { return s.s.tensors }

// Metadata gives the header's __metadata__.
func (s *Shard) Metadata() map[string]string { return s.s.metadata }

// ReadAt reads bytes of a tensor from byte off of its data.
func (s *Shard) ReadAt(t Tensor, dst []byte, off int64) error { return s.s.readAt(t, dst, off) }

// Close closes the file.
func (s *Shard) Close() error { return s.s.f.Close() }

// String gives the header name.
func (d DType) String() string { return string(d) }

// ParseDType reads a header name.
func ParseDType(s string) (DType, error) {
	if d := DType(s); d.Bits() > 0 {
		return d, nil
	}
	return "", fail(codeDType, "", "", -1, "", "dtype %s is not defined", strconv.Quote(s))
}
