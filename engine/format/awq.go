package format

import (
	"encoding/binary"
	"slices"
	"strings"
)

// awqGEMM is AutoAWQ's "gemm" version: eight outputs a word, nibbles in the order its kernels want, no zero offset.
type awqGEMM struct{}

// awqOrder[i] is the output that nibble i of a word holds.
var awqOrder = [8]int{0, 2, 4, 6, 1, 3, 5, 7}

func (awqGEMM) Name() string { return "awq" }

func (awqGEMM) Suffixes() []string { return []string{"qweight", "scales", "qzeros"} }

func (awqGEMM) StoredScale(d DType) DType {
	if d == BF16 {
		return BF16
	}
	return F16
}

func (awqGEMM) Check(m *Module, natural bool) error {
	if err := m.checkShape(); err != nil {
		return err
	}
	switch {
	case m.Bits != 4:
		return m.errorf("E1502", "use 4 bits or another format", "awq gemm holds 4 bits, not %d", m.Bits)
	case m.GroupSize > 0 && m.In%m.GroupSize != 0:
		return m.errorf("E1503", "choose a group size that divides the width, or leave the module out", "group size %d does not divide %d inputs", m.GroupSize, m.In)
	case m.Out%8 != 0:
		return m.errorf("E1509", "leave the module out or use compressed-tensors", "%d outputs do not fill words of eight", m.Out)
	case !natural:
		return m.errorf("E1510", "use gptq_v2 for desc_act", "awq has no g_idx")
	}
	return m.checkScaleDType(awqGEMM{}.StoredScale(m.ScaleDType))
}

func (f awqGEMM) Plan(m *Module) ([]TensorSpec, error) {
	if err := f.Check(m, m.NaturalGIdx()); err != nil {
		return nil, err
	}
	g := m.Groups()
	specs := m.planBias(nil)
	return append(specs,
		TensorSpec{m.Name + ".qweight", I32, []int{m.In, m.Out / 8}},
		TensorSpec{m.Name + ".qzeros", I32, []int{g, m.Out / 8}},
		TensorSpec{m.Name + ".scales", f.StoredScale(m.ScaleDType), []int{g, m.Out}}), nil
}

func (f awqGEMM) Encode(m *Module) ([]TensorData, error) {
	specs, err := f.Plan(m)
	if err != nil {
		return nil, err
	}
	if err := m.checkContent(); err != nil {
		return nil, err
	}
	scales, err := m.encodeScales(f.StoredScale(m.ScaleDType), true)
	if err != nil {
		return nil, err
	}
	qweight := make([]byte, m.In*m.Out/2)
	if packAWQ(qweight, m.Codes, m.Out, m.In)>>4 != 0 {
		return nil, m.badCode()
	}
	g := m.Groups()
	zeros := make([]uint8, m.Out*g)
	for o := range m.Out {
		for k := range g {
			zeros[o*g+k] = uint8(m.Zero(o, k))
		}
	}
	qzeros := make([]byte, g*m.Out/2)
	packAWQ(qzeros, zeros, m.Out, g)
	return m.assemble(specs, map[string][]byte{"qweight": qweight, "qzeros": qzeros, "scales": scales}), nil
}

func (f awqGEMM) Decode(name string, s Scheme, tensors []TensorData) (*Module, error) {
	p := splitParts(name, tensors)
	m := &Module{Name: name, Bits: s.Bits, GroupSize: s.GroupSize, Sym: s.Sym, Bias: p.bias()}
	qweight, err := p.get("qweight", []int{-1, -1}, I32)
	if err != nil {
		return nil, err
	}
	m.In, m.Out = qweight.Shape[0], qweight.Shape[1]*8
	if err := f.Check(m, true); err != nil {
		return nil, err
	}
	g := m.Groups()
	qzeros, err := p.get("qzeros", []int{g, m.Out / 8}, I32)
	if err != nil {
		return nil, err
	}
	scales, err := p.get("scales", []int{g, m.Out}, F16, BF16, F32)
	if err != nil {
		return nil, err
	}
	m.ScaleDType, m.Scales = scales.DType, decodeScales(scales, m.Out, g, true)
	m.Codes = make([]uint8, m.Out*m.In)
	unpackAWQ(m.Codes, qweight.Data, m.Out, m.In)
	zeros := make([]uint8, m.Out*g)
	unpackAWQ(zeros, qzeros.Data, m.Out, g)
	half, all := uint8(8), true
	for _, z := range zeros {
		all = all && z == half
	}
	if !m.Sym || !all {
		m.Zeros = zeros
	}
	return m, nil
}

// packAWQ packs codes [out, in] as words [in, out/8] and returns the OR of all codes. It works on tiles of 64 inputs by
// 128 outputs in a buffer of its own: lines of the output lie powers of two apart and would fight for the same cache sets.
func packAWQ(dst []byte, codes []uint8, out, in int) (seen uint8) {
	const (
		tileIn, tileOut = 64, 128
		stride          = tileOut/2 + 8
	)
	var or uint64
	var tile [tileIn * stride]byte
	for i0 := 0; i0 < in; i0 += tileIn {
		i1 := min(i0+tileIn, in)
		for o0 := 0; o0 < out; o0 += tileOut {
			o1 := min(o0+tileOut, out)
			for o := o0; o < o1; o += 8 {
				for i := i0; i < i1; i += 8 {
					// Byte k of pair p holds nibbles 2p and 2p+1 of input i+k.
					var pair [4]uint64
					if i+8 <= in {
						for p := range pair {
							lo := binary.LittleEndian.Uint64(codes[(o+awqOrder[2*p])*in+i:])
							hi := binary.LittleEndian.Uint64(codes[(o+awqOrder[2*p+1])*in+i:])
							or |= lo | hi
							pair[p] = lo | hi<<4
						}
					} else {
						for p := range pair {
							lo, hi := lastCodes(codes, (o+awqOrder[2*p])*in, i, in), lastCodes(codes, (o+awqOrder[2*p+1])*in, i, in)
							or |= lo | hi
							pair[p] = lo | hi<<4
						}
					}
					// Transpose 4×8 bytes: bytes of two pairs into 16-bit lanes, those of four into 32-bit lanes.
					e01, o01 := pair[0]&bytes16|pair[1]&bytes16<<8, pair[0]>>8&bytes16|pair[1]&^bytes16
					e23, o23 := pair[2]&bytes16|pair[3]&bytes16<<8, pair[2]>>8&bytes16|pair[3]&^bytes16
					at := tile[(i-i0)*stride+(o-o0)/2:][:7*stride+4]
					putTwo(at[0*stride:], at[4*stride:], e01&words32|e23&words32<<16)
					putTwo(at[1*stride:], at[5*stride:], o01&words32|o23&words32<<16)
					putTwo(at[2*stride:], at[6*stride:], e01>>16&words32|e23&^words32)
					putTwo(at[3*stride:], at[7*stride:], o01>>16&words32|o23&^words32)
				}
			}
			for i := i0; i < i1; i++ {
				copy(dst[(i*out+o0)/2:][:(o1-o0)/2], tile[(i-i0)*stride:])
			}
		}
	}
	or |= or >> 32
	or |= or >> 16
	return uint8(or | or>>8)
}

// putTwo stores the low and the high half of x.
func putTwo(low, high []byte, x uint64) {
	binary.LittleEndian.PutUint32(low, uint32(x))
	binary.LittleEndian.PutUint32(high, uint32(x>>32))
}

// lastCodes reads the codes of a row from column i, fewer than eight.
func lastCodes(codes []uint8, row, i, in int) uint64 {
	var last [8]byte
	copy(last[:], codes[row+i:row+in])
	return binary.LittleEndian.Uint64(last[:])
}

// unpackAWQ is the inverse of packAWQ.
func unpackAWQ(codes []uint8, src []byte, out, in int) {
	const tile = 64
	for i0 := 0; i0 < in; i0 += tile {
		for o := 0; o < out; o += 8 {
			for i := i0; i < min(i0+tile, in); i++ {
				w := binary.LittleEndian.Uint32(src[i*out/2+o/2:])
				for n, k := range awqOrder {
					codes[(o+k)*in+i] = uint8(w >> (4 * n) & 15)
				}
			}
		}
	}
}

// Config describes an awq checkpoint. zero_point is always true: zero points are really stored, symmetric ones as 8, and
// loaders such as vLLM take nothing else.
func (f awqGEMM) Config(s *Summary) (*Config, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	schemes, names := s.groupSchemes()
	for i := range schemes[1:] {
		if sc := schemes[i+1]; sc.Bits != schemes[0].Bits || sc.GroupSize != schemes[0].GroupSize {
			return nil, moduleError(names[i+1][0], "E1516", "use one scheme for all, or another format",
				"awq has one scheme for a checkpoint, but %s is not %s", sc, schemes[0])
		}
	}
	quantized, allNames := s.quantizedNames()
	skip, err := awqSkip(s.Left, quantized, allNames)
	if err != nil {
		return nil, err
	}
	return object{
		{"quant_method", "awq"},
		{"bits", schemes[0].Bits},
		{"group_size", schemes[0].GroupSize},
		{"zero_point", true},
		{"version", "gemm"},
		{"lm_head", s.hasHead()},
		{"modules_to_not_convert", skip},
	}.config("quantize_config.json")
}

// awqSkip lists what was left alone for loaders that look for any entry inside a name.
func awqSkip(left, quantized, allNames []string) ([]string, error) {
	hits := func(entry string) string {
		for _, n := range allNames {
			if strings.Contains(n, entry) {
				return n
			}
		}
		return ""
	}
	sp := spell(left, quantized)
	out := append(slices.Clone(sp.modules), sp.fused...)
	out = append(out, sp.experts...)
	for _, n := range out {
		if hit := hits(n); hit != "" {
			return nil, moduleError(n, "E1513", "use compressed-tensors or gptq", "left alone, but its name is part of the quantized %s", hit)
		}
	}
	for _, p := range sp.parents {
		if hits(p) == "" && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, CompareNames)
	if out == nil {
		out = []string{}
	}
	return out, nil
}
