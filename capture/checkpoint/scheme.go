package checkpoint

import (
	"encoding/json"
	"slices"
	"strings"
)

// quantConfig is what a source's quantization_config says that decoding needs.
type quantConfig struct {
	Method           string `json:"quant_method"`
	Format           string `json:"format"`
	CheckpointFormat string `json:"checkpoint_format"`
	Version          string `json:"version"` // AWQ: gemm, gemv, …
	PackingFormat    string `json:"packing_format"`
	Bits             int    `json:"bits"`
	GroupSize        int    `json:"group_size"`
	ConfigGroups     map[string]struct {
		Weights *struct {
			NumBits   int  `json:"num_bits"`
			GroupSize *int `json:"group_size"`
		} `json:"weights"`
	} `json:"config_groups"`
	WeightBlockSize []int `json:"weight_block_size"`
}

// QuantMethod names the source's quantization as its config does, "" for none.
func (s *Source) QuantMethod() string { return s.quant.Method }

// readQuantConfig finds the quantization_config at the top, in text_config, or under its older name. A member of the wrong
// kind leaves its field empty: what decoding then lacks is found by shape or refused.
func readQuantConfig(config []byte) quantConfig {
	var top, inner map[string]json.RawMessage
	var q quantConfig
	if json.Unmarshal(pythonNumbers(config), &top) != nil {
		return q
	}
	if t, ok := top["text_config"]; ok && json.Unmarshal(t, &inner) != nil {
		inner = nil
	}
	for _, raw := range []json.RawMessage{top["quantization_config"], top["compression_config"], inner["quantization_config"]} {
		if len(raw) == 0 || string(raw) == "null" {
			continue
		}
		var parts map[string]json.RawMessage
		if json.Unmarshal(raw, &parts) != nil {
			continue
		}
		for key, into := range map[string]any{"quant_method": &q.Method, "format": &q.Format, "checkpoint_format": &q.CheckpointFormat, "version": &q.Version,
			"packing_format": &q.PackingFormat, "bits": &q.Bits, "group_size": &q.GroupSize, "config_groups": &q.ConfigGroups, "weight_block_size": &q.WeightBlockSize,
			"w_bit": &q.Bits, "q_group_size": &q.GroupSize} {
			if v, ok := parts[key]; ok {
				_ = json.Unmarshal(v, into) // see above
			}
		}
		return q
	}
	return q
}

// undecoded are the quantization methods whose tensors have no decoder here.
var undecoded = []string{"bitsandbytes", "hqq", "aqlm", "quanto", "eetq", "higgs", "vptq", "exl2", "exl3", "torchao", "spqr", "bitnet", "fp_quant", "sinq", "gguf"}

// widths lists the (bits, group size) pairs that the config names, in a fixed order; group size 0 is "whole row".
func (q *quantConfig) widths() [][2]int {
	var out [][2]int
	add := func(bits, group int) {
		if w := [2]int{bits, max(group, 0)}; bits >= 1 && bits <= 8 && !slices.Contains(out, w) {
			out = append(out, w)
		}
	}
	for _, g := range q.ConfigGroups {
		if g.Weights == nil {
			continue
		}
		size := 0
		if g.Weights.GroupSize != nil {
			size = *g.Weights.GroupSize
		}
		add(g.Weights.NumBits, size)
	}
	slices.SortFunc(out, func(a, b [2]int) int { return 1000000*(a[0]-b[0]) + a[1] - b[1] })
	add(q.Bits, q.GroupSize)
	return out
}

// evidence are suffixes that only refused packings have, with what to call them.
var evidence = []struct{ suffix, what string }{
	{".SCB", "bitsandbytes int8"}, {".weight_format", "bitsandbytes int8"}, {".weight.absmax", "bitsandbytes 4-bit"}, {".weight.quant_map", "bitsandbytes 4-bit"},
	{".weight.nested_absmax", "bitsandbytes 4-bit"}, {".weight.quant_state.bitsandbytes__nf4", "bitsandbytes nf4"}, {".weight.quant_state.bitsandbytes__fp4", "bitsandbytes fp4"},
	{".pre_quant_scale", "ModelOpt AWQ (scaled inputs)"}, {".svdquant_lora_a", "ModelOpt SVDQuant"}, {".svdquant_lora_b", "ModelOpt SVDQuant"},
	{".weight._data", "quanto"}, {".weight._scale", "quanto"}, {".codebooks", "AQLM or VPTQ"}, {".q_scale_max", "EXL2"}, {".trellis", "EXL3"}, {".W_q", "HQQ"},
}

// refused finds tensors that only refused packings have: the first of each kind, with the number of its like.
func (s *Source) refused() Errors {
	var es Errors
	count := map[string]int{}
	first := map[string]Tensor{}
	for _, t := range s.stored {
		for _, e := range evidence {
			if strings.HasSuffix(t.Name, e.suffix) {
				if count[e.what]++; count[e.what] == 1 {
					first[e.what] = t
				}
				break
			}
		}
	}
	seen := map[string]bool{}
	for _, e := range evidence {
		if t, ok := first[e.what]; ok && !seen[e.what] {
			seen[e.what] = true
			es = append(es, fail(codeSourceFormat, t.Shard, t.Name, -1, "start from the unquantized model",
				"the source is already quantized: %s (%d tensors like this)", e.what, count[e.what]))
		}
	}
	if len(es) > 0 {
		return es
	}
	if slices.Contains(undecoded, strings.ToLower(s.quant.Method)) {
		for _, t := range s.stored {
			if t.DType == U8 || t.DType == I8 || t.DType == I32 {
				return Errors{fail(codeSourceFormat, t.Shard, t.Name, -1, "start from the unquantized model",
					"the source is already quantized: quant_method %q with %s tensors", s.quant.Method, t.DType)}
			}
		}
	}
	return nil
}
