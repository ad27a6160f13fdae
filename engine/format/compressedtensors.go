package format

import (
	"fmt"
	"slices"
)

// ctVersion is the compressed-tensors release whose config layout is followed.
const ctVersion = "0.12.0"

// ctConfig writes the quantization_config of compressed-tensors for one storage format. Only keys that old loaders know
// are written: QuantizationArgs refuses unknown ones. The group of the routed experts comes first with the class target
// "Linear", which SGLang looks for; every other scheme lists its modules by pattern, in fused spelling too, because vLLM
// tries the class target before it takes a fused name apart.
func ctConfig(s *Summary, storage string, activations any) (*Config, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	for _, m := range s.Modules {
		if m.GIdx {
			return nil, moduleError(m.Name, "E1510", "use gptq or gptq_v2", "compressed-tensors is written without g_idx")
		}
	}
	schemes, names := s.groupSchemes()
	groups := object{}
	for i, sc := range schemes {
		targets := []string{"Linear"}
		if i > 0 {
			var others []string
			for j, n := range names {
				if j != i {
					others = append(others, n...)
				}
			}
			others = append(others, s.Left...)
			targets = ctPatterns(spell(names[i], others), others)
		}
		groups = append(groups, field{fmt.Sprintf("group_%d", i), object{
			{"targets", targets},
			{"weights", ctArgs(sc.Bits, sc.Sym, ctStrategy(sc.GroupSize), sc.GroupSize, false)},
			{"input_activations", activations},
			{"output_activations", nil},
			{"format", storage},
		}})
	}
	quantized, _ := s.quantizedNames()
	return object{
		{"quant_method", "compressed-tensors"},
		{"format", storage},
		{"quantization_status", "compressed"},
		{"config_groups", groups},
		{"ignore", ctIgnore(s.Left, quantized)},
		{"kv_cache_scheme", nil},
		{"version", ctVersion},
	}.config("")
}

func ctStrategy(groupSize int) string {
	if groupSize < 0 {
		return "channel"
	}
	return "group"
}

// ctArgs is a QuantizationArgs of integers.
func ctArgs(bits int, sym bool, strategy string, groupSize int, dynamic bool) object {
	var group, observer any
	if groupSize > 0 {
		group = groupSize
	}
	if !dynamic {
		observer = "minmax"
	}
	return object{
		{"num_bits", bits}, {"type", "int"}, {"symmetric", sym}, {"strategy", strategy}, {"group_size", group},
		{"block_structure", nil}, {"dynamic", dynamic}, {"actorder", nil}, {"observer", observer}, {"observer_kwargs", object{}},
	}
}

// ctIgnore lists what was left alone: each module, fused and parent names as they are, experts by pattern.
func ctIgnore(left, quantized []string) []string {
	sp := spell(left, quantized)
	out := append(slices.Clone(sp.modules), sp.fused...)
	out = append(out, sp.experts...)
	for _, p := range sp.parents {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	slices.SortStableFunc(out, CompareNames)
	for _, p := range patterns(sp.experts, expertBlocks(quantized), `\..*`) {
		out = append(out, "re:"+p)
	}
	if out == nil {
		out = []string{}
	}
	return out
}

// ctPatterns lists modules of a scheme as target patterns.
func ctPatterns(sp spellings, others []string) []string {
	single := append(slices.Clone(sp.modules), sp.fused...)
	slices.SortFunc(single, CompareNames)
	var out []string
	for _, p := range patterns(single, others, "") {
		out = append(out, "re:"+p)
	}
	for _, p := range patterns(sp.experts, expertBlocks(others), `(?:\..*)?`) {
		out = append(out, "re:"+p)
	}
	return out
}

// expertBlocks gives the "…mlp.experts" of the layers whose routed experts are among the modules.
func expertBlocks(modules []string) []string {
	var blocks []string
	for _, f := range FusedSets(modules) {
		if f.Experts {
			blocks = append(blocks, f.Name)
		}
	}
	return blocks
}

// Config describes a pack-quantized checkpoint: weights only.
func (packQuantized) Config(s *Summary) (*Config, error) { return ctConfig(s, "pack-quantized", nil) }

// Config describes a W8A8 checkpoint: activations are quantized per token when it runs.
func (intQuantized) Config(s *Summary) (*Config, error) {
	return ctConfig(s, "int-quantized", ctArgs(8, true, "token", -1, true))
}
