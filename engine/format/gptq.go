package format

import (
	"encoding/binary"
	"slices"
	"strings"
)

// gptq is the layout of AutoGPTQ and GPTQModel: codes packed along the input axis, zeros along the output axis.
// v1 stores zero−1, v2 the zero itself. The conversion is done field by field: subtracting from whole words, as public
// tools do, borrows from the neighbour where a true zero is 0 (reference/gptqmodel.md 5.1), so v1 refuses that zero.
type gptq struct{ v2 bool }

func (f gptq) Name() string {
	if f.v2 {
		return "gptq_v2"
	}
	return "gptq"
}

func (gptq) Suffixes() []string { return []string{"qweight", "scales", "qzeros", "g_idx"} }

func (gptq) StoredScale(DType) DType { return F16 }

func (gptq) Check(m *Module, _ bool) error {
	if err := m.checkShape(); err != nil {
		return err
	}
	switch m.Bits {
	case 2, 3, 4, 8:
	default:
		return m.errorf("E1502", "use 2, 3, 4 or 8 bits, or compressed-tensors", "gptq has no %d-bit layout", m.Bits)
	}
	if m.In*m.Bits%32 != 0 || m.Out*m.Bits%32 != 0 {
		return m.errorf("E1509", "leave the module out or use compressed-tensors", "shape [%d, %d] at %d bits does not fill 32-bit words", m.Out, m.In, m.Bits)
	}
	return m.checkScaleDType(F16)
}

func (f gptq) Plan(m *Module) ([]TensorSpec, error) {
	if err := f.Check(m, true); err != nil {
		return nil, err
	}
	g := m.Groups()
	specs := m.planBias(nil)
	return append(specs,
		TensorSpec{m.Name + ".g_idx", I32, []int{m.In}},
		TensorSpec{m.Name + ".qweight", I32, []int{m.In * m.Bits / 32, m.Out}},
		TensorSpec{m.Name + ".qzeros", I32, []int{g, m.Out * m.Bits / 32}},
		TensorSpec{m.Name + ".scales", F16, []int{g, m.Out}}), nil
}

// offset is what is added to a true zero to give the stored field.
func (f gptq) offset() int {
	if f.v2 {
		return 0
	}
	return -1
}

func (f gptq) Encode(m *Module) ([]TensorData, error) {
	specs, err := f.Plan(m)
	if err != nil {
		return nil, err
	}
	if err := m.checkContent(); err != nil {
		return nil, err
	}
	g := m.Groups()
	if !f.v2 {
		for i, z := range m.Zeros {
			if z == 0 {
				return nil, m.errorf("E1507", "use gptq_v2, or let the solver search zeros in 1..maxq", "v1 gptq cannot store the zero point 0 of output %d, group %d", i/g, i%g)
			}
		}
	}
	scales, err := m.encodeScales(F16, true)
	if err != nil {
		return nil, err
	}
	qweight := make([]byte, m.Out*m.In*m.Bits/8)
	if int(packColumns(qweight, m.Codes, m.Out, m.In, uint(m.Bits))) > m.MaxQ() {
		return nil, m.badCode()
	}
	zeros, line := m.zerosByGroup(f.offset()), m.Out*m.Bits/8
	qzeros := make([]byte, g*line)
	for k := range g {
		packStream(qzeros[k*line:][:line], zeros[k*m.Out:][:m.Out], uint(m.Bits))
	}
	gIdx := m.GIdx
	if gIdx == nil {
		gIdx = make([]int32, m.In)
		if g > 1 {
			for i := range gIdx {
				gIdx[i] = int32(i / m.GroupSize)
			}
		}
	}
	return m.assemble(specs, map[string][]byte{"g_idx": putInt32s(gIdx), "qweight": qweight, "qzeros": qzeros, "scales": scales}), nil
}

func (f gptq) Decode(name string, s Scheme, tensors []TensorData) (*Module, error) {
	p := splitParts(name, tensors)
	m := &Module{Name: name, Bits: s.Bits, GroupSize: s.GroupSize, Sym: s.Sym, Bias: p.bias()}
	qweight, err := p.get("qweight", []int{-1, -1}, I32)
	if err != nil {
		return nil, err
	}
	if s.Bits < 2 || s.Bits > 8 || qweight.Shape[0]*32%s.Bits != 0 {
		return nil, m.errorf("E1512", "correct the config", "qweight %v does not hold %d-bit codes", qweight.Shape, s.Bits)
	}
	m.In, m.Out = qweight.Shape[0]*32/s.Bits, qweight.Shape[1]
	if err := f.Check(m, true); err != nil {
		return nil, err
	}
	g := m.Groups()
	qzeros, err := p.get("qzeros", []int{g, m.Out * m.Bits / 32}, I32)
	if err != nil {
		return nil, err
	}
	scales, err := p.get("scales", []int{g, m.Out}, F16, BF16, F32)
	if err != nil {
		return nil, err
	}
	m.ScaleDType, m.Scales = scales.DType, decodeScales(scales, m.Out, g, true)
	if _, ok := p.by["g_idx"]; ok {
		t, err := p.get("g_idx", []int{m.In}, I32)
		if err != nil {
			return nil, err
		}
		gIdx := getInt32s(t.Data)
		for i, k := range gIdx {
			if k < 0 { // torch indexing wraps, and so do the kernels
				gIdx[i] += int32(g)
			}
			if gIdx[i] < 0 || int(gIdx[i]) >= g {
				return nil, m.errorf("E1512", "fetch the file again", "g_idx of column %d is %d, there are %d groups", i, k, g)
			}
		}
		if !NaturalGIdx(gIdx, m.GroupSize) {
			m.GIdx = gIdx
		}
	}
	m.Codes = make([]uint8, m.Out*m.In)
	unpackColumns(m.Codes, qweight.Data, m.Out, m.In, uint(m.Bits))
	zeros, line := make([]uint8, g*m.Out), m.Out*m.Bits/8
	for k := range g {
		unpackStream(zeros[k*m.Out:][:m.Out], qzeros.Data[k*line:][:line], uint(m.Bits))
	}
	for i := range zeros {
		// v1 kernels add one after masking, so a stored maxq means maxq+1. It fits a byte except at 8 bits, where no
		// reader can tell it from 0.
		zeros[i] -= uint8(f.offset())
	}
	m.setZeros(zeros)
	return m, nil
}

// Config describes a gptq checkpoint. desc_act is true only where a g_idx other than the natural one was written.
//
// What was left alone is said three times, once for each way loaders find out: "dynamic" with skip patterns over module,
// fused and experts names (GPTQModel, vLLM, SGLang), "modules_in_block_to_quantize" with what was quantized
// (transformers, vLLM), and the tensors themselves.
func (f gptq) Config(s *Summary) (*Config, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	schemes, names := s.groupSchemes()
	base := schemes[0]
	descAct := slices.ContainsFunc(s.Modules, func(m Written) bool { return m.GIdx })
	quantized, allNames := s.quantizedNames()
	sp := spell(s.Left, quantized)
	skip := slices.DeleteFunc(append(slices.Clone(sp.modules), sp.fused...), sp.underParent)
	slices.SortFunc(skip, CompareNames)
	dynamic := object{}
	for _, p := range patterns(skip, allNames, "") {
		dynamic = append(dynamic, field{"-:" + p, object{}})
	}
	whole := append(slices.DeleteFunc(slices.Clone(sp.experts), sp.underParent), sp.parents...)
	slices.SortFunc(whole, CompareNames)
	for _, p := range patterns(whole, allPrefixes(allNames), `(?:\..*)?`) {
		dynamic = append(dynamic, field{"-:" + p, object{}})
	}
	for i, sc := range schemes[1:] {
		var others []string
		for j, n := range names {
			if j != i+1 {
				others = append(others, n...)
			}
		}
		over := object{{"bits", sc.Bits}, {"group_size", sc.GroupSize}, {"sym", sc.Sym}}
		others = append(others, s.Left...)
		for _, p := range ctPatterns(spell(names[i+1], others), others) {
			dynamic = append(dynamic, field{"+:" + strings.TrimPrefix(p, "re:"), over})
		}
	}
	meta := object{{"quantizer", []string{s.Producer + ":" + s.Version}}}
	keys := make([]string, 0, len(s.Meta))
	for k := range s.Meta {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		meta = append(meta, field{k, s.Meta[k]})
	}
	return object{
		{"quant_method", "gptq"},
		{"bits", base.Bits},
		{"group_size", base.GroupSize},
		{"desc_act", descAct},
		{"sym", base.Sym},
		{"lm_head", s.hasHead()},
		{"checkpoint_format", f.Name()},
		{"pack_dtype", "int32"},
		{"dynamic", dynamic},
		{"modules_in_block_to_quantize", modulesInBlock(quantized, append(slices.Clone(s.Left), append(sp.fused, sp.experts...)...))},
		{"meta", meta},
	}.config("quantize_config.json")
}

// modulesInBlock lists quantized modules in the nested spelling of transformers. Loaders compare with the end of a name
// or with any part of it, so names relative to the layer are used only where no module left alone contains one of them;
// otherwise the full names are.
func modulesInBlock(quantized, left []string) [][]string {
	var relative []string
	seen := map[string]bool{}
	for _, n := range quantized {
		_, _, after, ok := cutLayer(n)
		if !ok || after == "" {
			continue // the head has a switch of its own
		}
		if r := after[1:]; !seen[r] {
			seen[r] = true
			relative = append(relative, r)
		}
	}
	for _, l := range left {
		for _, r := range relative {
			if strings.Contains(l, r) {
				return groupFused(quantized)
			}
		}
	}
	return groupFused(relative)
}

// groupFused gives one list per fused set and one per single module, in order of their first member.
func groupFused(names []string) [][]string {
	var out [][]string
	at := map[string]int{}
	slices.SortFunc(names, CompareNames)
	for _, n := range names {
		set := FusedName(n)
		if set == "" {
			set = n
		}
		i, ok := at[set]
		if !ok {
			i = len(out)
			at[set] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], n)
	}
	return out
}

// slab is the number of outputs packed together, so that a line of the result is written in runs of 4·slab bytes.
const slab = 64

// packColumns packs codes [out, in] as words [in·b/32, out] and returns the OR of all codes. out is even.
func packColumns(dst []byte, codes []uint8, out, in int, b uint) (seen uint8) {
	line := in * int(b) / 8 // bytes of one output's stream
	stride := line + 64     // a line at a power of two from the next would fall into the same cache sets
	scratch := make([]byte, slab*stride)
	for o := 0; o < out; o += slab {
		n := min(slab, out-o)
		for k := range n {
			seen |= packStream(scratch[k*stride:][:line], codes[(o+k)*in:][:in], b)
		}
		w := 0
		for ; w+8 <= line; w += 8 { // two words of two outputs at a time
			even, odd := dst[w*out+4*o:][:4*n], dst[(w+4)*out+4*o:][:4*n]
			at := w
			for k := 0; k+8 <= len(even) && k+8 <= len(odd); k += 8 {
				x, y := binary.LittleEndian.Uint64(scratch[at:]), binary.LittleEndian.Uint64(scratch[at+stride:])
				binary.LittleEndian.PutUint64(even[k:], x&0xFFFFFFFF|y<<32)
				binary.LittleEndian.PutUint64(odd[k:], x>>32|y&^0xFFFFFFFF)
				at += 2 * stride
			}
		}
		if w < line {
			to := dst[w*out+4*o:][:4*n]
			for k := range n {
				binary.LittleEndian.PutUint32(to[4*k:], binary.LittleEndian.Uint32(scratch[k*stride+w:]))
			}
		}
	}
	return seen
}

// unpackColumns is the inverse of packColumns.
func unpackColumns(codes []uint8, src []byte, out, in int, b uint) {
	line := in * int(b) / 8
	stride := line + 64
	scratch := make([]byte, slab*stride)
	for o := 0; o < out; o += slab {
		n := min(slab, out-o)
		for w := 0; w < line; w += 4 {
			from := src[w*out+4*o:][:4*n]
			for k := range n {
				binary.LittleEndian.PutUint32(scratch[k*stride+w:], binary.LittleEndian.Uint32(from[4*k:]))
			}
		}
		for k := range n {
			unpackStream(codes[(o+k)*in:][:in], scratch[k*stride:][:line], b)
		}
	}
}
