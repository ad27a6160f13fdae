package format

import (
	"encoding/binary"
	"math"

	"quire/kernels/dtype"
)

// castScale rounds s to d and gives the stored bits and the value they stand for.
func castScale(s float32, d DType) (bits uint32, value float32) {
	switch d {
	case F16:
		h := dtype.F32ToF16(s)
		return uint32(h), dtype.F16ToF32(h)
	case BF16:
		h := dtype.F32ToBF16(s)
		return uint32(h), dtype.BF16ToF32(h)
	}
	return math.Float32bits(s), s
}

// checkScale refuses a scale that a server could not use: not finite or not above zero as stored, or changed by the cast
// although the solver had rounded it.
func (m *Module) checkScale(i int, stored DType) (uint32, error) {
	s := m.Scales[i]
	bits, v := castScale(s, stored)
	if !(v > 0) || math.IsInf(float64(v), 0) {
		g := m.Groups()
		return 0, m.errorf("E1508", "use another scale dtype or leave the module out", "scale %g of output %d, group %d is %g as %s", s, i/g, i%g, v, stored)
	}
	if m.ScaleDType != "" && v != s {
		g := m.Groups()
		return 0, m.errorf("E1508", "let the solver round to a dtype that "+string(stored)+" holds, or leave the module out",
			"scale %g of output %d, group %d was rounded to %s and would become %g as %s", s, i/g, i%g, m.ScaleDType, v, stored)
	}
	return bits, nil
}

// encodeScales stores the scales as [out, G], or as [G, out] when transposed.
func (m *Module) encodeScales(stored DType, transposed bool) ([]byte, error) {
	g, size := m.Groups(), stored.Size()
	data := make([]byte, len(m.Scales)*size)
	for i := range m.Scales {
		bits, err := m.checkScale(i, stored)
		if err != nil {
			return nil, err
		}
		at := i
		if transposed {
			at = i%g*m.Out + i/g
		}
		if size == 2 {
			binary.LittleEndian.PutUint16(data[2*at:], uint16(bits))
		} else {
			binary.LittleEndian.PutUint32(data[4*at:], bits)
		}
	}
	return data, nil
}

// decodeScales reads [out, G] scales, or [G, out] when transposed. What is stored is given as it is: NaN and zero too.
func decodeScales(t TensorData, out, g int, transposed bool) []float32 {
	s := make([]float32, out*g)
	for i := range s {
		at := i
		if transposed {
			at = i%g*out + i/g
		}
		switch t.DType {
		case F16:
			s[i] = dtype.F16ToF32(binary.LittleEndian.Uint16(t.Data[2*at:]))
		case BF16:
			s[i] = dtype.BF16ToF32(binary.LittleEndian.Uint16(t.Data[2*at:]))
		default:
			s[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*at:]))
		}
	}
	return s
}
