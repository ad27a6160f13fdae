package format

import (
	"slices"
	"strings"
)

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
