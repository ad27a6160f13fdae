package checkpoint

import (
	"context"
	"encoding/binary"
	"math"

	"quire/kernels/dtype"
)

// Logical is a tensor that a model reads: a plain stored tensor, or the value of a set of stored tensors.
type Logical struct {
	Name    string
	DType   DType // of the stored tensor, or of its codes
	Shape   []int
	Decoded bool
	Format  string   // of the codes: "fp8 128x128", "mxfp4", "gptq 4-bit" …; "" for plain tensors
	Stored  []string // names of the stored tensors behind it, sorted
}

// rectangle decodes rows r0..r1-1, columns c0..c1-1 of a logical tensor seen as a matrix [product of leading dimensions,
// last dimension] into dst, row by row. c0 and c1 cut only single rows.
type rectangle func(ctx context.Context, dst sink, r0, r1, c0, c1 int) error

// logicalTensor is a logical tensor with the way to read it.
type logicalTensor struct {
	Logical
	decode rectangle // nil: plain
}

// sink takes decoded numbers as float32 or rounds them to bf16; exactly one field is set.
type sink struct {
	f32  []float32
	bf16 []uint16
}

func (d sink) put(at int, v []float32) {
	if d.f32 != nil {
		copy(d.f32[at:], v)
		return
	}
	dtype.EncodeBF16(d.bf16[at:at+len(v)], v)
}

func (d sink) from(at int) sink {
	if d.f32 != nil {
		return sink{f32: d.f32[at:]}
	}
	return sink{bf16: d.bf16[at:]}
}

func (d sink) len() int { return max(len(d.f32), len(d.bf16)) }

// Logical lists the tensors that a model reads, sorted by name.
func (s *Source) Logical() []Logical { return s.logical }

// StoredOf names the stored tensors behind a logical one.
func (s *Source) StoredOf(name string) []string {
	if l := s.decode[name]; l != nil {
		return l.Stored
	}
	return nil
}

// BufferBytes is about what a read call holds beside the caller's buffer; scales of the rows at hand come on top.
const BufferBytes = 1 << 20

// DecodeF32 reads len(dst) elements of a logical tensor from element off, row-major, as float32 (package comment,
// "Decoding rules"). Codes packed along the outputs of a transposed format are read whole for any range of rows: ask for
// whole matrices.
func (s *Source) DecodeF32(ctx context.Context, name string, dst []float32, off int64) error {
	return s.decodeInto(ctx, name, sink{f32: dst}, off)
}

// DecodeBF16 is DecodeF32 rounded to nearest bf16; stored bf16 is read as it is.
func (s *Source) DecodeBF16(ctx context.Context, name string, dst []uint16, off int64) error {
	return s.decodeInto(ctx, name, sink{bf16: dst}, off)
}

func (s *Source) decodeInto(ctx context.Context, name string, dst sink, off int64) error {
	l := s.decode[name]
	if l == nil {
		return fail(codeRange, "", name, -1, "", "there is no such tensor")
	}
	n := dst.len()
	if all, _ := elements(l.Shape); off < 0 || off+int64(n) > all {
		return fail(codeRange, "", name, -1, "", "elements %d to %d of %d", off, off+int64(n), all)
	}
	if n == 0 {
		return nil
	}
	if l.decode == nil {
		return s.plain(ctx, s.stored[s.byName[l.Stored[0]]], dst, off)
	}
	cols := l.Shape[len(l.Shape)-1]
	row, col := int(off/int64(cols)), int(off%int64(cols))
	if col > 0 || n < cols { // the rest of the first row
		k := min(cols-col, n)
		if err := l.decode(ctx, dst, row, row+1, col, col+k); err != nil || k == n {
			return err
		}
		row, n, dst = row+1, n-k, dst.from(k)
	}
	if rows := n / cols; rows > 0 {
		if err := l.decode(ctx, dst, row, row+rows, 0, cols); err != nil || rows*cols == n {
			return err
		}
		row, n, dst = row+rows, n-rows*cols, dst.from(rows*cols)
	}
	return l.decode(ctx, dst, row, row+1, 0, n)
}

// plain reads elements of a stored tensor of numbers.
func (s *Source) plain(ctx context.Context, t Tensor, dst sink, off int64) error {
	size := int64(t.DType.Bits() / 8)
	if !t.DType.PlainFloat() {
		return fail(codeNotFloat, t.Shard, t.Name, -1, "", "%s is not a number type", t.DType)
	}
	n := int64(dst.len())
	step := min(n, BufferBytes/size)
	buf := make([]byte, step*size)
	var wide []float32
	for at := int64(0); at < n; at += step {
		k := min(step, n-at)
		b := buf[:k*size]
		if err := s.ReadAt(ctx, t.Name, b, (off+at)*size); err != nil {
			return err
		}
		switch {
		case dst.f32 != nil:
			toF32(t.DType, dst.f32[at:at+k], b)
		case t.DType == BF16:
			dtype.DecodeU16Bytes(dst.bf16[at:at+k], b)
		default:
			if wide == nil {
				wide = make([]float32, step)
			}
			toF32(t.DType, wide[:k], b)
			dtype.EncodeBF16(dst.bf16[at:at+k], wide[:k])
		}
	}
	return nil
}

// floats reads elements of a stored tensor as float32; 8-bit floats count as their own value.
func (s *Source) floats(ctx context.Context, t Tensor, dst []float32, off int64) error {
	size := int64(t.DType.Bits() / 8)
	if size == 0 {
		return fail(codeNotFloat, t.Shard, t.Name, -1, "", "%s is not a number type", t.DType)
	}
	buf := make([]byte, int64(len(dst))*size)
	if err := s.ReadAt(ctx, t.Name, buf, off*size); err != nil {
		return err
	}
	if !toF32(t.DType, dst, buf) {
		return fail(codeNotFloat, t.Shard, t.Name, -1, "", "%s is not a number type", t.DType)
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
		dtype.DecodeF32Bytes(dst, b)
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

// integers reads a small integer tensor.
func (s *Source) integers(ctx context.Context, t Tensor, n int) ([]int, error) {
	size := t.DType.Bits() / 8
	if t.Elements() != int64(n) || t.DType != I64 && t.DType != I32 {
		return nil, fail(codeCompanionValue, t.Shard, t.Name, -1, fetchAgain, "%v of %s, want %d integers", t.Shape, t.DType, n)
	}
	b := make([]byte, n*size)
	if err := s.ReadAt(ctx, t.Name, b, 0); err != nil {
		return nil, err
	}
	out := make([]int, n)
	for i := range out {
		v := int64(int32(binary.LittleEndian.Uint32(b[size*i:])))
		if size == 8 {
			v = int64(binary.LittleEndian.Uint64(b[8*i:]))
		}
		if v < math.MinInt32 || v > math.MaxInt32 {
			return nil, fail(codeCompanionValue, t.Shard, t.Name, -1, fetchAgain, "value %d", v)
		}
		out[i] = int(v)
	}
	return out, nil
}
