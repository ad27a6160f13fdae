package checkpoint

import (
	"slices"
	"sort"
	"strings"
)

// scaleSuffixes are the spellings of a scale beside its codes T: T + suffix.
var scaleSuffixes = []string{"_scale_inv", "_scale", "_weight_scale", "_weight_scale_inv"}

// activationSuffixes name companions that serve activations or the key-value cache; no weight is made of them.
var activationSuffixes = []string{".input_scale", ".input_global_scale", ".input_zero_point", ".input_scale_inv", ".activation_scale", ".act_scale", ".output_scale",
	".k_scale", ".v_scale", ".q_scale", ".kv_scale", ".prob_scale", ".prob_output_scale", ".qkv_output_scale"}

// weightSuffixes name companions that mean nothing without the codes they belong to.
var weightSuffixes = []string{".weight_scale_inv", ".weight_scale", ".weight_scale_2", ".weight_global_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx", ".qzeros", ".g_idx"}

// resolve makes the logical tensors: what stands for itself, and what sets of stored tensors stand for. Codes without a
// decoder, without their scales, and scales without codes are findings.
func (s *Source) resolve() Errors {
	s.quant = readQuantConfig(s.config)
	if es := s.refused(); len(es) > 0 {
		return es
	}
	var es Errors
	for _, t := range s.stored {
		if s.companion[t.Name] != "" {
			continue
		}
		l, err := s.coded(t)
		switch {
		case err != nil:
			es = append(es, err)
			s.companion[t.Name] = t.Name // named once is enough: its companions are no orphans
			for _, n := range s.companionsOf(t.Name) {
				s.companion[n] = t.Name
			}
		case l != nil:
			if _, ok := s.byName[l.Name]; ok && !slices.Contains(l.Stored, l.Name) {
				es = append(es, fail(codeTwoWeightLayout, t.Shard, l.Name, -1, "remove one of them", "the weight is stored plain and as %s", t.Name))
			}
			for _, n := range l.Stored {
				s.companion[n] = l.Name
			}
			s.decode[l.Name] = l
			s.quantized = true
		}
	}
	for _, t := range s.stored {
		if s.companion[t.Name] != "" {
			continue
		}
		if owner, ok := s.servesActivations(t.Name); ok {
			s.companion[t.Name] = owner
			s.activation = append(s.activation, t.Name)
			continue
		}
		if i := slices.IndexFunc(weightSuffixes, func(x string) bool { return strings.HasSuffix(t.Name, x) }); i >= 0 {
			es = append(es, fail(codeOrphan, t.Shard, t.Name, -1, "fetch the shard that holds the weights of "+strings.TrimSuffix(t.Name, weightSuffixes[i]),
				"the weights it belongs to are in no shard"))
			continue
		}
		s.decode[t.Name] = &logicalTensor{Logical: Logical{Name: t.Name, DType: t.DType, Shape: t.Shape, Stored: []string{t.Name}}}
	}
	if s.quantized { // they describe codes that are decoded: beside new ones they would mislead loaders
		s.side = slices.DeleteFunc(s.side, func(f File) bool {
			return f.Name == "quantize_config.json" || f.Name == "quant_config.json" || f.Name == "hf_quant_config.json" || f.Name == "recipe.yaml"
		})
	}
	s.logical = make([]Logical, 0, len(s.decode))
	for _, l := range s.decode {
		s.logical = append(s.logical, l.Logical)
	}
	sort.Slice(s.logical, func(i, j int) bool { return s.logical[i].Name < s.logical[j].Name })
	return es
}

// coded finds the set that t is the codes of; nil without error when t stands for itself or belongs to other codes.
func (s *Source) coded(t Tensor) (*logicalTensor, *Error) {
	switch {
	case strings.HasSuffix(t.Name, ".weight_packed"):
		return s.packedModule(strings.TrimSuffix(t.Name, ".weight_packed"), t)
	case strings.HasSuffix(t.Name, ".qweight"):
		return s.columnPacked(strings.TrimSuffix(t.Name, ".qweight"), t)
	case strings.HasSuffix(t.Name, "_blocks") && t.DType == U8:
		return s.blocks(strings.TrimSuffix(t.Name, "_blocks"), t)
	case s.isScale(t.Name), slices.ContainsFunc(weightSuffixes, func(x string) bool { return strings.HasSuffix(t.Name, x) }):
		return nil, nil // claimed by its codes, or an orphan
	}
	sc, found := s.scaleOf(t.Name)
	lowFloat := !t.DType.PlainFloat() && strings.HasPrefix(string(t.DType), "F")
	isWeight := strings.HasSuffix(t.Name, ".weight") && len(t.Shape) > 1
	switch {
	case lowFloat && found, (t.DType == I8 || t.DType == U8) && found && len(t.Shape) > 1:
		return s.scaled(t, sc)
	case lowFloat, (t.DType == I8 || t.DType == U8) && isWeight:
		return nil, fail(codeNoScale, t.Shard, t.Name, -1, "fetch the shard that holds its scales, or start from the unquantized model",
			"%s codes, but neither %s_scale_inv nor %s_scale is in any shard", t.DType, t.Name, t.Name)
	case found && strings.HasSuffix(t.Name, ".weight") && t.DType.PlainFloat():
		return nil, fail(codeSourceFormat, t.Shard, t.Name, -1, "start from the unquantized model", "a weight of %s beside the scale %s", t.DType, sc.Name)
	}
	return nil, nil
}

// scaleOf finds the scale beside codes.
func (s *Source) scaleOf(name string) (Tensor, bool) {
	for _, x := range scaleSuffixes {
		if t, ok := s.Lookup(name + x); ok {
			return t, true
		}
	}
	if base, ok := strings.CutSuffix(name, ".weight"); ok { // the spelling of some FP8 and FP4 exports
		w, _ := s.Lookup(name)
		if t, ok := s.Lookup(base + ".scale"); ok && !w.DType.PlainFloat() {
			return t, true
		}
	}
	return Tensor{}, false
}

// isScale says whether a tensor is the scale of another one.
func (s *Source) isScale(name string) bool {
	for _, x := range scaleSuffixes {
		if base, ok := strings.CutSuffix(name, x); ok {
			if _, ok := s.byName[base]; ok {
				return true
			}
		}
	}
	if base, ok := strings.CutSuffix(name, ".scale"); ok {
		if w, ok := s.Lookup(base + ".weight"); ok && !w.DType.PlainFloat() {
			return true
		}
	}
	return false
}

// companionsOf lists the stored tensors that are named after codes.
func (s *Source) companionsOf(name string) []string {
	base := name
	for _, x := range []string{".weight_packed", ".qweight", ".weight", "_blocks"} {
		base = strings.TrimSuffix(base, x)
	}
	var out []string
	for _, x := range []string{".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".weight_global_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx",
		".qzeros", ".scales", ".g_idx", ".scale", "_scale", "_scale_inv", "_scales", "_scale_2", "_weight_scale", "_weight_scale_2", "_weight_scale_inv"} {
		if n := base + x; n != name {
			if _, ok := s.byName[n]; ok {
				out = append(out, n)
			}
		}
	}
	return out
}

// servesActivations says whether a name is a companion for activations, and of which tensor. Only quantized sources have
// such; elsewhere the name is the model's own.
func (s *Source) servesActivations(name string) (string, bool) {
	if !s.quantized && s.quant.Method == "" {
		return "", false
	}
	for _, x := range activationSuffixes {
		if base, ok := strings.CutSuffix(name, x); ok {
			return base + ".weight", true
		}
	}
	for _, x := range []string{"_input_scale", "_bias_scale"} {
		if base, ok := strings.CutSuffix(name, x); ok {
			return base, true
		}
	}
	return "", false
}

// ActivationCompanions lists stored tensors of a quantized source that scale activations or the key-value cache. They are
// part of no logical tensor.
func (s *Source) ActivationCompanions() []string { return s.activation }

// need finds a companion that must be there.
func (s *Source) need(codes Tensor, name string) (Tensor, *Error) {
	if t, ok := s.Lookup(name); ok {
		return t, nil
	}
	return Tensor{}, fail(codeNoScale, codes.Shard, codes.Name, -1, "fetch the shard that holds "+name+", or start from the unquantized model", "the codes have no %s in any shard", name)
}

// names lists the names of tensors, sorted.
func names(ts ...Tensor) []string {
	var out []string
	for _, t := range ts {
		if t.Name != "" {
			out = append(out, t.Name)
		}
	}
	slices.Sort(out)
	return out
}
