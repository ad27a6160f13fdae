package checkpoint

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
)

// streamWords is the 32-bit words of n fields of b bits as one stream.
func streamWords(n, b int) int { return (n*b + 31) / 32 }

// unpackStream reads b-bit fields of a little-endian bit stream as unsigned numbers.
func unpackStream(dst []float32, row []byte, b int) {
	switch b {
	case 4:
		for i := range dst {
			dst[i] = float32(row[i/2] >> (i & 1 * 4) & 15)
		}
	case 8:
		for i := range dst {
			dst[i] = float32(row[i])
		}
	default:
		for i := range dst {
			dst[i] = float32(streamField(row, i, b))
		}
	}
}

// streamField reads the i-th b-bit field; b is at most 8.
func streamField(row []byte, i, b int) int {
	bit := i * b
	w := uint32(row[bit/8])
	if bit/8+1 < len(row) {
		w |= uint32(row[bit/8+1]) << 8
	}
	return int(w>>(bit%8)) & (1<<b - 1)
}

// packedModule reads weight_packed: b-bit integers (code + 2^(b-1)) of compressed-tensors' pack-quantized, or 4-bit floats.
func (s *Source) packedModule(module string, w Tensor) (*logicalTensor, *Error) {
	sc, err := s.need(w, module+".weight_scale")
	if err != nil {
		return nil, err
	}
	l := &logicalTensor{Logical: Logical{Name: module + ".weight", DType: w.DType, Decoded: true, Stored: names(w, sc)}}
	if w.DType == U8 && len(w.Shape) >= 2 {
		last := len(w.Shape) - 1
		shape := append(append([]int(nil), w.Shape[:last]...), 2*w.Shape[last])
		return s.fp4(l, w, sc, shape, w.Shape[last], module+".weight_global_scale", true)
	}
	if w.DType != I32 || len(w.Shape) != 2 || len(sc.Shape) != 2 || !sc.DType.PlainFloat() {
		return nil, fail(codeSourceFormat, w.Shard, w.Name, -1, "start from the unquantized model", "weight_packed %v of %s with scale %v of %s in format %q", w.Shape, w.DType, sc.Shape, sc.DType, s.quant.Format)
	}
	p := &packedInts{w: w, scale: sc, out: w.Shape[0], groups: sc.Shape[1]}
	p.shape, _ = s.Lookup(module + ".weight_shape")
	p.zero, _ = s.Lookup(module + ".weight_zero_point")
	p.gIdx, _ = s.Lookup(module + ".weight_g_idx")
	if err := p.fit(s); err != nil {
		return nil, err
	}
	if z := p.zero; z.Name != "" && (z.DType != I32 || !slices.Equal(z.Shape, []int{streamWords(p.out, p.bits), p.groups})) {
		return nil, fail(codeScaleShape, z.Shard, z.Name, -1, fetchAgain, "zero points %v of %s do not fit weight [%d, %d] in %d groups", z.Shape, z.DType, p.out, p.in, p.groups)
	}
	l.Shape, l.Format = []int{p.out, p.in}, fmt.Sprintf("pack-quantized %d-bit", p.bits)
	l.Stored = names(w, sc, p.shape, p.zero, p.gIdx)
	l.decode = func(ctx context.Context, dst sink, r0, r1, c0, c1 int) error {
		return p.decode(ctx, s, dst, r0, r1, c0, c1)
	}
	return l, nil
}

// packedInts is one pack-quantized matrix.
type packedInts struct {
	w, scale, shape, zero, gIdx   Tensor
	out, in, bits, groups, perGrp int
}

// fit finds bits and inputs: from group size × groups where the config and the packed width agree on it (weight_shape is
// then compared when the matrix is read), else from weight_shape itself.
func (p *packedInts) fit(s *Source) *Error {
	words := p.w.Shape[1]
	bad := fail(codeScaleShape, p.w.Shard, p.w.Name, -1, "check num_bits and group_size in config.json", "packed %v with scale %v fits no width that the config names", p.w.Shape, p.scale.Shape)
	if p.scale.Shape[0] != p.out || p.groups < 1 {
		return bad
	}
	widths := s.quant.widths()
	if len(widths) == 0 {
		widths = [][2]int{{4, 32}, {4, 64}, {4, 128}, {4, 0}, {8, 32}, {8, 64}, {8, 128}, {8, 0}}
	}
	for _, w := range widths {
		if in := w[1] * p.groups; w[1] > 0 && streamWords(in, w[0]) == words {
			p.bits, p.in, p.perGrp = w[0], in, w[1]
			return nil
		}
	}
	in := 0
	if p.shape.Name != "" && !s.headerOnly {
		v, err := s.integers(context.Background(), p.shape, 2)
		if err != nil {
			return asOne(err)
		}
		if in = v[1]; v[0] != p.out || in < 1 || in > 1<<31 {
			return fail(codeCompanionValue, p.shape.Shard, p.shape.Name, -1, fetchAgain, "weight_shape says %v, the codes have %d rows", v, p.out)
		}
	}
	for _, w := range widths {
		n := in
		if n == 0 && 32%w[0] == 0 { // without weight_shape a row fills its words
			n = words * 32 / w[0]
		}
		if n == 0 || streamWords(n, w[0]) != words {
			continue
		}
		size := w[1]
		if size == 0 {
			size = n
		}
		if (n+size-1)/size == p.groups {
			p.bits, p.in, p.perGrp = w[0], n, size
			return nil
		}
	}
	return bad
}

func asOne(err error) *Error {
	if e, ok := err.(*Error); ok {
		return e
	}
	return &Error{Code: codeIORead, What: "cannot read", Where: Where{Offset: -1}, Err: err}
}

func (p *packedInts) decode(ctx context.Context, s *Source, dst sink, r0, r1, c0, c1 int) error {
	if p.shape.Name != "" {
		v, err := s.integers(ctx, p.shape, 2)
		if err != nil {
			return err
		}
		if v[0] != p.out || v[1] != p.in {
			return fail(codeCompanionValue, p.shape.Shard, p.shape.Name, -1, fetchAgain, "weight_shape says %v, the packed codes hold [%d, %d]", v, p.out, p.in)
		}
	}
	var gIdx []int
	if p.gIdx.Name != "" {
		var err error
		if gIdx, err = s.groupIndex(ctx, p.gIdx, p.in, p.groups); err != nil {
			return err
		}
	}
	var zeros []byte
	if p.zero.Name != "" {
		zeros = make([]byte, p.zero.Bytes())
		if err := s.ReadAt(ctx, p.zero.Name, zeros, 0); err != nil {
			return err
		}
	}
	line := 4 * p.w.Shape[1]
	batch := min(max(1, BufferBytes/line), r1-r0)
	raw := make([]byte, batch*line)
	scales := make([]float32, batch*p.groups)
	v := make([]float32, p.in)
	z := make([]float32, p.groups)
	for r := r0; r < r1; r += batch {
		n := min(batch, r1-r)
		if err := s.ReadAt(ctx, p.w.Name, raw[:n*line], int64(r)*int64(line)); err != nil {
			return err
		}
		if err := s.floats(ctx, p.scale, scales[:n*p.groups], int64(r)*int64(p.groups)); err != nil {
			return err
		}
		for i := range n {
			unpackStream(v, raw[i*line:(i+1)*line], p.bits)
			for g := range z {
				z[g] = float32(int(1) << (p.bits - 1))
				if zeros != nil {
					z[g] = float32(downField(zeros, 4*p.groups, r+i, g, p.bits))
				}
			}
			shift(v, scales[i*p.groups:(i+1)*p.groups], z, p.perGrp, gIdx)
			dst.put((r+i-r0)*(c1-c0), v[c0:c1])
		}
	}
	return nil
}

// shift turns the codes of a row into scale · (code − zero).
func shift(v, scale, zero []float32, perGroup int, gIdx []int) {
	if gIdx != nil {
		for c, g := range gIdx {
			v[c] = scale[g] * (v[c] - zero[g])
		}
		return
	}
	for g := range scale {
		part := v[min(g*perGroup, len(v)):min((g+1)*perGroup, len(v))]
		f, z := scale[g], zero[g]
		for j := range part {
			part[j] = f * (part[j] - z)
		}
	}
}

// groupIndex reads a g_idx; negative groups count from the end, as tensors are indexed where these files are made.
func (s *Source) groupIndex(ctx context.Context, t Tensor, in, groups int) ([]int, error) {
	idx, err := s.integers(ctx, t, in)
	if err != nil {
		return nil, err
	}
	for c, g := range idx {
		if g < 0 {
			g += groups
		}
		if g < 0 || g >= groups {
			return nil, fail(codeCompanionValue, t.Shard, t.Name, -1, fetchAgain, "column %d has group %d of %d", c, idx[c], groups)
		}
		idx[c] = g
	}
	return idx, nil
}

// downField reads field row of a bit stream that runs down the words of column col; line is the bytes of a word row.
func downField(b []byte, line, row, col, bits int) int {
	bit := row * bits
	word := func(i int) uint64 {
		if o := i*line + 4*col; o+4 <= len(b) {
			return uint64(binary.LittleEndian.Uint32(b[o:]))
		}
		return 0
	}
	return int((word(bit/32)|word(bit/32+1)<<32)>>(bit%32)) & (1<<bits - 1)
}

// int8Module reads signed bytes with scales per tensor, channel, group or block and, when asymmetric, zero points of the
// scale's shape.
func (s *Source) int8Module(l *logicalTensor, base string, w, sc Tensor) (*logicalTensor, *Error) {
	var block [2]int
	for _, width := range s.quant.widths() {
		if width[0] == 8 {
			block[1] = width[1]
		}
	}
	g, err := newScaleGrid(sc, w.Shape, block)
	if err != nil {
		return nil, err
	}
	l.Format = "int8 " + g.String()
	z, asym := s.Lookup(base + ".weight_zero_point")
	if !asym {
		l.decode = s.gridDecoder(rowCodes{w, g.cols, unpackI8}, g)
		return l, nil
	}
	if z.DType != I8 || !slices.Equal(z.Shape, sc.Shape) {
		return nil, fail(codeScaleShape, z.Shard, z.Name, -1, fetchAgain, "zero points %v of %s beside scales %v", z.Shape, z.DType, sc.Shape)
	}
	l.Stored = names(w, sc, z)
	l.decode = func(ctx context.Context, dst sink, r0, r1, c0, c1 int) error {
		v := make([]float32, g.cols)
		raw := make([]byte, g.cols)
		var scales []float32
		for r := r0; r < r1; r++ {
			if err := s.ReadAt(ctx, w.Name, raw, int64(r)*int64(g.cols)); err != nil {
				return err
			}
			var lo int
			var err error
			if scales, lo, err = g.load(ctx, s, r, r+1, scales); err != nil {
				return err
			}
			at := g.line(r)
			zraw, zero := make([]byte, g.across), make([]float32, g.across)
			if err := s.ReadAt(ctx, z.Name, zraw, int64(at)*int64(g.across)); err != nil {
				return err
			}
			unpackI8(zero, zraw)
			unpackI8(v, raw)
			shift(v, scales[(at-lo)*g.across:(at-lo+1)*g.across], zero, g.colsPer, nil)
			dst.put((r-r0)*(c1-c0), v[c0:c1])
		}
		return nil
	}
	return l, nil
}
