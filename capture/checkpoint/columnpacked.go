package checkpoint

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// columnPacked reads GPTQ (codes packed along the inputs) and AWQ gemm (along the outputs). Both lie transposed: a word row
// holds all outputs.
func (s *Source) columnPacked(module string, w Tensor) (*logicalTensor, *Error) {
	sc, err := s.need(w, module+".scales")
	if err != nil {
		return nil, err
	}
	zp, err := s.need(w, module+".qzeros")
	if err != nil {
		return nil, err
	}
	refuse := func(what string) *Error {
		return fail(codeSourceFormat, w.Shard, w.Name, -1, "start from the unquantized model", "%s: qweight %v of %s, qzeros %v of %s, scales %v of %s", what, w.Shape, w.DType, zp.Shape, zp.DType, sc.Shape, sc.DType)
	}
	if w.DType != I32 || zp.DType != I32 || !sc.DType.PlainFloat() || len(w.Shape) != 2 || len(sc.Shape) != 2 || len(zp.Shape) != 2 {
		return nil, refuse("a layout other than gptq, gptq_v2 and AWQ gemm")
	}
	p := &packedColumns{w: w, scale: sc, zero: zp, groups: sc.Shape[0], out: sc.Shape[1]}
	if zp.Shape[0] != p.groups || p.groups < 1 {
		return nil, fail(codeScaleShape, zp.Shard, zp.Name, -1, fetchAgain, "%d groups of zeros, %d of scales", zp.Shape[0], p.groups)
	}
	method := strings.ToLower(s.quant.Method)
	format := strings.ToLower(s.quant.CheckpointFormat)
	if format == "" {
		format = strings.ToLower(s.quant.Format)
	}
	if method == "awq" || method == "" && w.Shape[1]*8 == p.out && zp.Shape[1] == w.Shape[1] || strings.Contains(s.quant.PackingFormat, "awq") {
		if v := strings.ToLower(s.quant.Version); v != "" && v != "gemm" || format != "" && format != "gemm" && format != "awq" {
			return nil, refuse(fmt.Sprintf("AWQ in the form %q", v+format))
		}
		p.awq, p.bits, p.in = true, 4, w.Shape[0]
		if w.Shape[1]*8 != p.out || zp.Shape[1]*8 != p.out || s.quant.Bits != 0 && s.quant.Bits != 4 {
			return nil, refuse("not 4-bit AWQ gemm")
		}
	} else {
		if format == "gptq_p" || format == "marlin" || format == "bitblas" {
			return nil, refuse(fmt.Sprintf("GPTQ in the form %q", format))
		}
		for _, b := range append([]int{s.quant.Bits}, 2, 3, 4, 8) { // a module may have its own width
			if (b == 2 || b == 3 || b == 4 || b == 8) && w.Shape[1] == p.out && zp.Shape[1] == streamWords(p.out, b) && w.Shape[0]*32%b == 0 {
				p.bits = b
				break
			}
		}
		if p.bits == 0 {
			return nil, fail(codeScaleShape, w.Shard, w.Name, -1, "check bits in config.json", "qweight %v, scales %v, qzeros %v fit no width of 2, 3, 4 or 8 bits", w.Shape, sc.Shape, zp.Shape)
		}
		p.in = w.Shape[0] * 32 / p.bits
		p.v1 = format != "gptq_v2"
		p.gIdx, _ = s.Lookup(module + ".g_idx")
		if g := p.gIdx; g.Name != "" {
			if g.Elements() > int64(p.in) || g.Elements() <= int64(p.in)-32 {
				return nil, fail(codeScaleShape, g.Shard, g.Name, -1, fetchAgain, "%d group numbers for %d inputs", g.Elements(), p.in)
			}
			p.in = int(g.Elements())
		}
	}
	p.perGrp = s.quant.GroupSize
	if p.perGrp <= 0 || (p.in+p.perGrp-1)/p.perGrp != p.groups {
		p.perGrp = (p.in + p.groups - 1) / p.groups
	}
	name := "gptq"
	if p.awq {
		name = "awq"
	}
	l := &logicalTensor{Logical: Logical{Name: module + ".weight", DType: w.DType, Shape: []int{p.out, p.in}, Decoded: true,
		Format: fmt.Sprintf("%s %d-bit", name, p.bits), Stored: names(w, sc, zp, p.gIdx)}}
	l.decode = func(ctx context.Context, dst sink, r0, r1, c0, c1 int) error {
		return p.decode(ctx, s, dst, r0, r1, c0, c1)
	}
	return l, nil
}

// packedColumns is one GPTQ or AWQ matrix.
type packedColumns struct {
	w, scale, zero, gIdx          Tensor
	out, in, bits, groups, perGrp int
	awq, v1                       bool
}

// awqNibble is the nibble of an AWQ word that holds output o mod 8.
var awqNibble = func() (at [8]uint) {
	for nibble, o := range [8]int{0, 2, 4, 6, 1, 3, 5, 7} {
		at[o] = uint(nibble)
	}
	return at
}()

// zeros reads the zero points as [groups, out]. v1 stores zero − 1. Its makers subtract a word of ones from the packed word,
// which borrows from the neighbour where a zero point is 0; adding the word of ones back undoes exactly that, and equals
// adding field by field wherever nothing was borrowed. 3-bit fields cross words and are treated singly, modulo 8.
func (p *packedColumns) zeros(raw []byte) []float32 {
	z := make([]float32, p.groups*p.out)
	line := 4 * p.zero.Shape[1]
	ones := map[int]uint32{2: 0x55555555, 4: 0x11111111, 8: 0x01010101}[p.bits]
	for g := range p.groups {
		row := slices.Clone(raw[g*line : (g+1)*line])
		if p.v1 && ones != 0 {
			for i := 0; i < line; i += 4 {
				binary.LittleEndian.PutUint32(row[i:], binary.LittleEndian.Uint32(row[i:])+ones)
			}
		}
		for o := range p.out {
			var v int
			switch {
			case p.awq:
				v = int(binary.LittleEndian.Uint32(row[o/8*4:])>>(4*awqNibble[o%8])) & 15
			default:
				v = streamField(row, o, p.bits)
				if p.v1 && ones == 0 {
					v = (v + 1) & (1<<p.bits - 1)
				}
			}
			z[g*p.out+o] = float32(v)
		}
	}
	return z
}

// decode reads every word row that holds inputs c0..c1-1 once and keeps what belongs to outputs r0..r1-1.
func (p *packedColumns) decode(ctx context.Context, s *Source, dst sink, r0, r1, c0, c1 int) error {
	rawZero := make([]byte, p.zero.Bytes())
	if err := s.ReadAt(ctx, p.zero.Name, rawZero, 0); err != nil {
		return err
	}
	zero := p.zeros(rawZero)
	scale := make([]float32, p.groups*p.out)
	if err := s.floats(ctx, p.scale, scale, 0); err != nil {
		return err
	}
	group := make([]int, p.in)
	for c := range group {
		group[c] = c / p.perGrp
	}
	if p.gIdx.Name != "" {
		var err error
		if group, err = s.groupIndex(ctx, p.gIdx, p.in, p.groups); err != nil {
			return err
		}
	}
	// A step is the fewest inputs that fill whole word rows.
	stepIn, stepWords := 32, p.bits
	if p.awq {
		stepIn, stepWords = 1, 1
	} else if 32%p.bits == 0 {
		stepIn, stepWords = 32/p.bits, 1
	}
	line := 4 * p.w.Shape[1]
	batch := max(1, min(64, BufferBytes/(line*stepWords))) // steps
	raw := make([]byte, batch*stepWords*line)
	const outputs = 16
	width := batch * stepIn
	v := make([]float32, outputs*width)
	for c := c0 / stepIn * stepIn; c < c1; c += batch * stepIn {
		hi := min(c+batch*stepIn, p.in) // of this batch
		lines := min((hi-c+stepIn-1)/stepIn*stepWords, p.w.Shape[0]-c/stepIn*stepWords)
		part := raw[:lines*line]
		if err := s.ReadAt(ctx, p.w.Name, part, int64(c/stepIn*stepWords)*int64(line)); err != nil {
			return err
		}
		from, to := max(c, c0), min(hi, c1)
		for o := r0; o < r1; o += outputs {
			n := min(outputs, r1-o)
			i := from
			for ; p.bits == 4 && !p.awq && i%8 == 0 && i+8 <= to; i += 8 { // the usual case: eight inputs a word
				words := part[(i-c)/8*line+4*o:]
				for k := range n {
					w := binary.LittleEndian.Uint32(words[4*k:])
					for j, g := range group[i : i+8] {
						at := g*p.out + o + k
						v[k*width+i-from+j] = scale[at] * (float32(w>>(4*j)&15) - zero[at])
					}
				}
			}
			for ; i < to; i++ { // the words of neighbouring outputs lie side by side
				at := group[i]*p.out + o
				for k := range n {
					v[k*width+i-from] = scale[at+k] * (float32(p.code(part, line, o+k, i-c)) - zero[at+k])
				}
			}
			for k := range n {
				dst.put((o+k-r0)*(c1-c0)+from-c0, v[k*width:k*width+to-from])
			}
		}
	}
	return nil
}

// code is input i (counted from the start of part) of output o.
func (p *packedColumns) code(part []byte, line, o, i int) int {
	switch {
	case p.awq:
		return int(binary.LittleEndian.Uint32(part[i*line+o/8*4:])>>(4*awqNibble[o%8])) & 15
	case p.bits == 4:
		return int(binary.LittleEndian.Uint32(part[i/8*line+4*o:])>>(i%8*4)) & 15
	}
	return downField(part, line, i, o, p.bits)
}
