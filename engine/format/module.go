package format

import (
	"fmt"
	"slices"
)

// DType is a safetensors dtype name.
type DType string

// The dtypes that the formats here use.
const (
	F32  DType = "F32"
	F16  DType = "F16"
	BF16 DType = "BF16"
	I8   DType = "I8"
	I32  DType = "I32"
	I64  DType = "I64"
)

// Size is the bytes of one element, 0 for a dtype that no format here stores.
func (d DType) Size() int {
	switch d {
	case F32, I32:
		return 4
	case F16, BF16:
		return 2
	case I64:
		return 8
	case I8:
		return 1
	}
	return 0
}

// TensorSpec is a tensor as its header states it.
type TensorSpec struct {
	Name  string
	DType DType
	Shape []int
}

// Bytes is the size of the tensor's data.
func (t TensorSpec) Bytes() int64 {
	n := int64(t.DType.Size())
	for _, d := range t.Shape {
		n *= int64(d)
	}
	return n
}

// TensorData is a tensor with its little-endian data.
type TensorData struct {
	TensorSpec
	Data []byte
}

// Scheme is what loaders must agree on for everything they fuse.
type Scheme struct {
	Bits      int  `json:"bits"`
	GroupSize int  `json:"group_size"` // columns that share a scale; −1 for a whole row
	Sym       bool `json:"sym"`
}

func (s Scheme) String() string {
	sym := "sym"
	if !s.Sym {
		sym = "asym"
	}
	if s.GroupSize < 0 {
		return fmt.Sprintf("%d bits %s, one scale a row", s.Bits, sym)
	}
	return fmt.Sprintf("%d bits %s, group %d", s.Bits, sym, s.GroupSize)
}

// Module is one quantized linear: w[o,i] = Scales[o,g]·(Codes[o,i] − Zeros[o,g]) with g = GIdx[i].
//
// Plan needs the dimensions, the scheme, ScaleDType and Bias only; Encode needs everything.
type Module struct {
	Name      string // output name without ".weight"
	Out, In   int
	Bits      int
	GroupSize int // −1: one group a row
	Sym       bool

	Codes  []uint8   // [out, in], 0..2^bits−1
	Scales []float32 // [out, G]
	Zeros  []uint8   // [out, G] true zero points; nil with Sym: 2^(bits−1) everywhere
	GIdx   []int32   // [in]; nil: natural, column/GroupSize

	// ScaleDType is the dtype that Scales were rounded to inside the solver. Encode refuses to store them in a dtype
	// that would change them. Empty: Encode rounds to the format's own dtype (BF16 where it has a choice).
	ScaleDType DType

	// Bias is written beside the weight with its own dtype and bytes; its Name is ignored. Usually nil: a source bias is
	// an ordinary copied tensor.
	Bias *TensorData
}

// Scheme is the module's scheme.
func (m *Module) Scheme() Scheme { return Scheme{m.Bits, m.GroupSize, m.Sym} }

// Groups is the number of groups of one row: ⌈in/GroupSize⌉, or 1.
func (m *Module) Groups() int { return groups(m.In, m.GroupSize) }

func groups(in, groupSize int) int {
	if groupSize <= 0 || groupSize >= in {
		return 1
	}
	return (in + groupSize - 1) / groupSize
}

// MaxQ is the largest code.
func (m *Module) MaxQ() int { return 1<<m.Bits - 1 }

// Zero is the true zero point of an output channel and group.
func (m *Module) Zero(out, group int) int {
	if m.Zeros == nil {
		return 1 << (m.Bits - 1)
	}
	return int(m.Zeros[out*m.Groups()+group])
}

// NaturalGIdx says whether the group of each column is the natural one, whatever GIdx holds.
func (m *Module) NaturalGIdx() bool {
	return m.GIdx == nil || NaturalGIdx(m.GIdx, m.GroupSize)
}

// NaturalGIdx says whether gIdx[i] = i/groupSize for all i (0 for a whole-row group).
func NaturalGIdx(gIdx []int32, groupSize int) bool {
	for i, g := range gIdx {
		want := 0
		if groupSize > 0 {
			want = i / groupSize
		}
		if int(g) != want {
			return false
		}
	}
	return true
}

// Dequantize writes the weights, [out, in], as the float32 product of scale and integer difference.
func (m *Module) Dequantize(dst []float32) {
	g := m.Groups()
	group := make([]int32, m.In)
	for i := range group {
		switch {
		case m.GIdx != nil:
			group[i] = m.GIdx[i]
		case g > 1:
			group[i] = int32(i / m.GroupSize)
		}
	}
	zeros := make([]float32, g)
	for o := range m.Out {
		for k := range zeros {
			zeros[k] = float32(m.Zero(o, k))
		}
		codes, row, scales := m.Codes[o*m.In:][:m.In], dst[o*m.In:][:m.In], m.Scales[o*g:][:g]
		for i, c := range codes {
			k := group[i]
			row[i] = scales[k] * (float32(c) - zeros[k])
		}
	}
}

// checkShape reports what no format could write.
func (m *Module) checkShape() error {
	switch {
	case m.Out <= 0 || m.In <= 0:
		return m.errorf("E1501", "a linear has at least one input and one output", "shape [%d, %d] is empty", m.Out, m.In)
	case m.Bits < 2 || m.Bits > 8:
		return m.errorf("E1502", "use 2 to 8 bits", "%d bits is not a grid of any format", m.Bits)
	case m.GroupSize == 0 || m.GroupSize < -1:
		return m.errorf("E1503", "use -1 for one scale a row", "group size %d has no meaning", m.GroupSize)
	}
	switch m.ScaleDType {
	case "", F32, F16, BF16:
	default:
		return m.errorf("E1504", "use F32, F16 or BF16", "scales cannot be stored as %s", m.ScaleDType)
	}
	return nil
}

// checkScaleDType refuses scales that were rounded to more bits than the format stores: the cast would change them, module
// by module, when the work is done.
func (m *Module) checkScaleDType(stored DType) error {
	if m.ScaleDType == F32 && stored != F32 {
		return m.errorf("E1504", "set scale_dtype to bf16 or f16, or use compressed-tensors", "scales rounded to F32 are stored as %s", stored)
	}
	return nil
}

// checkContent reports arrays of the wrong length, codes off the grid, zeros off the grid, groups out of range.
func (m *Module) checkContent() error {
	g := m.Groups()
	for _, a := range []struct {
		what      string
		have, min int
		optional  bool
	}{
		{"codes", len(m.Codes), m.Out * m.In, false},
		{"scales", len(m.Scales), m.Out * g, false},
		{"zeros", len(m.Zeros), m.Out * g, m.Sym},
		{"g_idx", len(m.GIdx), m.In, true},
	} {
		if a.have != a.min && (!a.optional || a.have != 0) {
			return m.errorf("E1505", "this is a bug in the caller", "%s hold %d values, the shape needs %d", a.what, a.have, a.min)
		}
	}
	half := uint8(1) << (m.Bits - 1)
	for i, z := range m.Zeros {
		if int(z) > m.MaxQ() {
			return m.errorf("E1507", "zero points lie on the code grid", "zero point %d of output %d, group %d is above %d", z, i/g, i%g, m.MaxQ())
		}
		if m.Sym && z != half {
			return m.errorf("E1507", "write the module as asymmetric", "zero point %d of output %d, group %d is not the symmetric %d", z, i/g, i%g, half)
		}
	}
	for i, k := range m.GIdx {
		if k < 0 || int(k) >= g {
			return m.errorf("E1505", "this is a bug in the caller", "column %d has group %d of %d", i, k, g)
		}
	}
	return nil
}

// planBias adds the bias to a plan.
func (m *Module) planBias(specs []TensorSpec) []TensorSpec {
	if m.Bias == nil {
		return specs
	}
	return append(specs, TensorSpec{m.Name + ".bias", m.Bias.DType, slices.Clone(m.Bias.Shape)})
}
