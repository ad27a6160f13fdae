package checkpoint

import (
	"context"
	"encoding/binary"
	"math"
	"sort"

	"quire/kernels/dtype"
)

// Logical is a tensor that a model reads: a plain stored tensor, or the value of a set of stored tensors.
type Logical struct {
	Name    string
	DType   DType // of the stored tensor, or of its codes
	Shape   []int
	Decoded bool
	Stored  []string // names of the stored tensors behind it
}

// decoder turns stored codes into numbers: len(dst) elements from element off.
type decoder func(ctx context.Context, s *Source, dst []float32, off int64) error

// logicalTensor is a logical tensor with the way to read it.
type logicalTensor struct {
	Logical
	decode decoder // nil: plain
}

// Logical lists the tensors that a model reads, sorted by name.
func (s *Source) Logical() []Logical { return s.logical }

// decodeChunk is how many bytes a decoding call holds beside the caller's buffer.
const decodeChunk = 1 << 20

// DecodeF32 reads len(dst) elements of a logical tensor from element off, row-major, as float32.
func (s *Source) DecodeF32(ctx context.Context, name string, dst []float32, off int64) error {
	l := s.decode[name]
	if l == nil {
		return fail(codeRange, "", name, -1, "", "there is no such tensor")
	}
	if n, _ := elements(l.Shape); off < 0 || off+int64(len(dst)) > n {
		return fail(codeRange, "", name, -1, "", "elements %d to %d of %d", off, off+int64(len(dst)), n)
	}
	if l.decode != nil {
		return l.decode(ctx, s, dst, off)
	}
	return s.plainF32(ctx, name, dst, off)
}

// plainF32 reads elements of a stored tensor of numbers.
func (s *Source) plainF32(ctx context.Context, name string, dst []float32, off int64) error {
	t, ok := s.Lookup(name)
	if !ok {
		return fail(codeRange, "", name, -1, "", "there is no such tensor")
	}
	size := int64(t.DType.Bits() / 8)
	step := decodeChunk / max(size, 1)
	buf := make([]byte, min(int64(len(dst)), step)*size)
	for at := int64(0); at < int64(len(dst)); at += step {
		n := min(step, int64(len(dst))-at)
		b := buf[:n*size]
		if err := s.ReadAt(ctx, name, b, (off+at)*size); err != nil {
			return err
		}
		if !toF32(t.DType, dst[at:at+n], b) {
			return fail(codeNotFloat, t.Shard, name, -1, "", "%s is not a number type", t.DType)
		}
	}
	return nil
}

// toF32 widens or rounds stored bytes.
func toF32(d DType, dst []float32, b []byte) bool {
	switch d {
	case BF16:
		dtype.DecodeBF16Bytes(dst, b)
	case F16:
		dtype.DecodeF16Bytes(dst, b)
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
	case F64:
		for i := range dst {
			dst[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:])))
		}
	case F8E4M3:
		dtype.DecodeE4M3(dst, b)
	case F8E5M2:
		dtype.DecodeE5M2(dst, b)
	case F8E8M0:
		dtype.DecodeE8M0(dst, b)
	default:
		return false
	}
	return true
}

// DecodeBF16 is DecodeF32 rounded to nearest bf16; stored bf16 is read as it is.
func (s *Source) DecodeBF16(ctx context.Context, name string, dst []uint16, off int64) error {
	if l := s.decode[name]; l != nil && l.decode == nil && l.DType == BF16 {
		buf := make([]byte, min(len(dst)*2, decodeChunk))
		for at := 0; at < len(dst); at += decodeChunk / 2 {
			n := min(decodeChunk/2, len(dst)-at)
			if err := s.ReadAt(ctx, name, buf[:2*n], 2*(off+int64(at))); err != nil {
				return err
			}
			for i := range n {
				dst[at+i] = binary.LittleEndian.Uint16(buf[2*i:])
			}
		}
		return nil
	}
	buf := make([]float32, min(len(dst), decodeChunk/4))
	for at := 0; at < len(dst); at += len(buf) {
		n := min(len(buf), len(dst)-at)
		if err := s.DecodeF32(ctx, name, buf[:n], off+int64(at)); err != nil {
			return err
		}
		dtype.EncodeBF16(dst[at:at+n], buf[:n])
	}
	return nil
}

// resolve makes the logical tensors: plain ones as they are. Codes without a decoder are refused by name.
func (s *Source) resolve() Errors {
	es := s.quantizedModules()
	for _, t := range s.stored {
		if s.companion[t.Name] != "" || s.decode[t.Name] != nil {
			continue
		}
		if !t.DType.PlainFloat() && t.DType.Bits() < 16 && t.DType != Bool && t.DType != U8 && t.DType != I8 {
			es = append(es, fail(codeNoScale, t.Shard, t.Name, -1, "fetch the shard that holds its scales, or start from the unquantized model", "%s codes without scales", t.DType))
			continue
		}
		s.decode[t.Name] = &logicalTensor{Logical: Logical{Name: t.Name, DType: t.DType, Shape: t.Shape, Stored: []string{t.Name}}}
	}
	for _, l := range s.decode {
		s.logical = append(s.logical, l.Logical)
	}
	sort.Slice(s.logical, func(i, j int) bool { return s.logical[i].Name < s.logical[j].Name })
	return es
}

// StoredOf names the stored tensors behind a logical one.
func (s *Source) StoredOf(name string) []string {
	if l := s.decode[name]; l != nil {
		return l.Stored
	}
	return nil
}
