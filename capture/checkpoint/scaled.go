package checkpoint

import (
	"strings"

	"quire/kernels/dtype"
)

func unpackI8(dst []float32, row []byte) {
	for i := range dst {
		dst[i] = float32(int8(row[i]))
	}
}

// scaled reads codes of one byte or of packed 4-bit floats, with a scale per tensor, channel, group or block. What a code
// is follows from its dtype and from the scale's, as the dtype alone is not the truth: packed 4-bit floats come as U8, I8
// or F4.
func (s *Source) scaled(w, sc Tensor) (*logicalTensor, *Error) {
	base := strings.TrimSuffix(w.Name, ".weight")
	l := &logicalTensor{Logical: Logical{Name: w.Name, DType: w.DType, Shape: w.Shape, Decoded: true, Stored: names(w, sc)}}
	var block [2]int
	if b := s.quant.WeightBlockSize; len(b) == 2 && b[0] > 0 && b[1] > 0 {
		block = [2]int{b[0], b[1]}
	}
	refuse := func(what string) *Error {
		return fail(codeSourceFormat, w.Shard, w.Name, -1, "start from the unquantized model", "%s: weight %v of %s with scale %v of %s", what, w.Shape, w.DType, sc.Shape, sc.DType)
	}
	if sc.DType != U8 && sc.DType != F8E8M0 && sc.DType != F8E4M3 && !sc.DType.PlainFloat() {
		return nil, refuse("unknown kind of scale")
	}
	if len(w.Shape) == 0 {
		return nil, refuse("codes without dimensions")
	}
	last := len(w.Shape) - 1
	switch {
	case w.DType == F8E4M3 || w.DType == F8E5M2:
		if sc.DType == F8E4M3 {
			return nil, refuse("8-bit floats under 8-bit float scales")
		}
		g, err := newScaleGrid(sc, w.Shape, block)
		if err != nil {
			return nil, err
		}
		unpack := dtype.DecodeE4M3
		if w.DType == F8E5M2 {
			unpack = dtype.DecodeE5M2
		}
		l.Format = "fp8 " + g.String()
		if sc.DType == U8 && g.colsPer == 32 {
			l.Format = "mxfp8"
		}
		l.decode = s.gridDecoder(rowCodes{w, w.Shape[last], unpack}, g)
		return l, nil
	case w.DType == I8 && sc.DType.PlainFloat():
		return s.int8Module(l, base, w, sc)
	case w.DType == I8 || w.DType == U8 || w.DType == F4:
		cols, row := w.Shape[last]*2, w.Shape[last]
		if w.DType == F4 {
			cols, row = w.Shape[last], w.Shape[last]/2
		}
		if cols%2 != 0 || sc.DType == F32 && w.DType != F4 {
			return nil, refuse("packed codes of an unknown layout")
		}
		shape := append(append([]int(nil), w.Shape[:last]...), cols)
		return s.fp4(l, w, sc, shape, row, w.Name+"_scale_2", false)
	}
	return nil, refuse("codes of an unknown kind")
}

// fp4 reads packed e2m1 codes, the even column in the low nibble: nvfp4 with e4m3 scales and a second level, mxfp4 with
// exponents.
func (s *Source) fp4(l *logicalTensor, w, sc Tensor, shape []int, rowBytes int, second string, divide bool) (*logicalTensor, *Error) {
	g, err := newScaleGrid(sc, shape, [2]int{1, 0})
	if err != nil {
		return nil, err
	}
	l.Shape, l.Format = shape, "mxfp4"
	if sc.DType == F8E4M3 {
		l.Format = "nvfp4"
		if g.global, err = s.need(w, second); err != nil {
			return nil, err
		}
		if n := g.global.Elements(); n != 1 && n != int64(g.experts) || !g.global.DType.PlainFloat() {
			return nil, fail(codeScaleShape, g.global.Shard, g.global.Name, -1, "check the files", "%v of %s does not fit weight %v", g.global.Shape, g.global.DType, shape)
		}
		g.divide = divide
		l.Stored = names(w, sc, g.global)
	} else {
		g.exponent = sc.DType == U8
		if sc.DType != U8 && sc.DType != F8E8M0 || g.colsPer != 32 && g.across > 1 {
			return nil, fail(codeSourceFormat, w.Shard, w.Name, -1, "start from the unquantized model", "packed 4-bit codes with scale %v of %s", sc.Shape, sc.DType)
		}
	}
	l.decode = s.gridDecoder(rowCodes{w, rowBytes, dtype.DecodeE2M1}, g)
	return l, nil
}
