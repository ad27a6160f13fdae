package checkpoint

import "math"

// DType is the name of an element type as safetensors headers spell it.
type DType string

// Element types. F4, F6_E2M3 and F6_E3M2 pack several elements into a byte; shapes count elements.
const (
	F64    DType = "F64"
	F32    DType = "F32"
	F16    DType = "F16"
	BF16   DType = "BF16"
	F8E4M3 DType = "F8_E4M3"
	F8E5M2 DType = "F8_E5M2"
	F8E8M0 DType = "F8_E8M0"
	F6E2M3 DType = "F6_E2M3"
	F6E3M2 DType = "F6_E3M2"
	F4     DType = "F4"
	I64    DType = "I64"
	I32    DType = "I32"
	I16    DType = "I16"
	I8     DType = "I8"
	U64    DType = "U64"
	U32    DType = "U32"
	U16    DType = "U16"
	U8     DType = "U8"
	Bool   DType = "BOOL"
	C64    DType = "C64"
)

var dtypeBits = map[DType]int{
	F64: 64, F32: 32, F16: 16, BF16: 16, F8E4M3: 8, F8E5M2: 8, F8E8M0: 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	F6E2M3: 6, F6E3M2: 6, F4: 4, I64: 64, I32: 32, I16: 16, I8: 8, U64: 64, U32: 32, U16: 16, U8: 8, Bool: 8, C64: 64,
}

// Bits gives the width of one element, 0 for an unknown name.
func (d DType) Bits() int { return dtypeBits[d] }

// PlainFloat says whether elements are numbers by themselves, without a scale.
func (d DType) PlainFloat() bool { return d == F64 || d == F32 || d == F16 || d == BF16 }

// Bytes gives the bytes of n elements; ok is false when n elements do not fill whole bytes or the product overflows.
func (d DType) Bytes(n int64) (bytes int64, ok bool) {
	b := int64(d.Bits())
	if b == 0 || n < 0 || n > math.MaxInt64/b || n*b%8 != 0 {
		return 0, false
	}
	return n * b / 8, true
}

// elements gives the product of a shape; ok is false on overflow or a negative dimension.
func elements(shape []int) (n int64, ok bool) {
	n = 1
	for _, d := range shape {
		if d < 0 {
			return 0, false
		}
		if d != 0 && n > math.MaxInt64/int64(d) {
			return 0, false
		}
		n *= int64(d)
	}
	return n, true
}

// Tensor is one entry of a shard header, or of a parameter map (then Begin is 0).
type Tensor struct {
	Name  string
	DType DType
	Shape []int
	Shard string // file name inside the checkpoint
	Begin int64  // byte range in the data part of the shard
	End   int64
}

// Bytes gives the stored size.
func (t Tensor) Bytes() int64 { return t.End - t.Begin }

// Elements gives the number of elements.
func (t Tensor) Elements() int64 { n, _ := elements(t.Shape); return n }
