package format

import (
	"encoding/binary"
	"slices"
	"strings"
)

// parts are the tensors of one module by suffix.
type parts struct {
	module string
	by     map[string]TensorData
}

func splitParts(module string, tensors []TensorData) parts {
	p := parts{module, map[string]TensorData{}}
	for _, t := range tensors {
		if suffix, ok := strings.CutPrefix(t.Name, module+"."); ok {
			p.by[suffix] = t
		}
	}
	return p
}

// get finds a tensor of a dtype among dts and of the shape; −1 in shape matches any size.
func (p parts) get(suffix string, shape []int, dts ...DType) (TensorData, error) {
	t, ok := p.by[suffix]
	if !ok {
		return t, moduleError(p.module, "E1512", "fetch the file again or correct the config", "tensor %s is missing", suffix)
	}
	if !slices.Contains(dts, t.DType) {
		return t, moduleError(p.module, "E1512", "correct the config", "tensor %s is %s, not %v", suffix, t.DType, dts)
	}
	fits := len(t.Shape) == len(shape)
	for i := range shape {
		fits = fits && (shape[i] < 0 && t.Shape[i] >= 0 || shape[i] == t.Shape[i])
	}
	if !fits {
		return t, moduleError(p.module, "E1512", "correct the config", "tensor %s has shape %v, the scheme needs %v", suffix, t.Shape, shape)
	}
	if int64(len(t.Data)) != t.Bytes() {
		return t, moduleError(p.module, "E1512", "fetch the file again", "tensor %s has %d bytes, its header says %d", suffix, len(t.Data), t.Bytes())
	}
	return t, nil
}

// bias gives the module's bias, nil if there is none.
func (p parts) bias() *TensorData {
	if t, ok := p.by["bias"]; ok {
		return &t
	}
	return nil
}

// assemble joins a plan with the data of its tensors, which are in the plan's order without the bias.
func (m *Module) assemble(specs []TensorSpec, data map[string][]byte) []TensorData {
	out := make([]TensorData, len(specs))
	for i, s := range specs {
		d := data[strings.TrimPrefix(s.Name, m.Name+".")]
		if d == nil && m.Bias != nil && s.Name == m.Name+".bias" {
			d = m.Bias.Data
		}
		out[i] = TensorData{s, d}
	}
	return out
}

func putInt32s(src []int32) []byte {
	data := make([]byte, 4*len(src))
	for i, v := range src {
		binary.LittleEndian.PutUint32(data[4*i:], uint32(v))
	}
	return data
}

func getInt32s(data []byte) []int32 {
	out := make([]int32, len(data)/4)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return out
}

// zerosByGroup gives the zero points transposed, [G, out], plus add in each field.
func (m *Module) zerosByGroup(add int) []uint8 {
	g := m.Groups()
	z := make([]uint8, g*m.Out)
	for o := range m.Out {
		for k := range g {
			z[k*m.Out+o] = uint8(m.Zero(o, k) + add)
		}
	}
	return z
}

// setZeros takes zero points as [G, out]. Symmetric modules keep nil where every zero is the canonical one.
func (m *Module) setZeros(byGroup []uint8) {
	g := m.Groups()
	half, all := uint8(1)<<(m.Bits-1), true
	z := make([]uint8, m.Out*g)
	for o := range m.Out {
		for k := range g {
			z[o*g+k] = byGroup[k*m.Out+o]
			all = all && z[o*g+k] == half
		}
	}
	if !m.Sym || !all {
		m.Zeros = z
	}
}

// badCode finds the first code off the grid, to name it.
func (m *Module) badCode() error {
	for i, c := range m.Codes {
		if int(c) > m.MaxQ() {
			return m.errorf("E1506", "this is a bug in the solver", "code %d of output %d, input %d is above %d", c, i/m.In, i%m.In, m.MaxQ())
		}
	}
	return m.errorf("E1506", "this is a bug in the solver", "a code is off the grid")
}
