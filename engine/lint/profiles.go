package lint

import (
	"slices"
	"strings"

	"quire/engine/format"
)

// use is one scheme in use, by dense linears or by routed experts.
type use struct {
	scheme  format.Scheme
	group   string // name of the config group
	experts bool
	example string
	first   *module
	act     bool // an act order is really stored
}

// uses lists the schemes in use in order of their first module.
func (m *subject) uses() []use {
	var out []use
	for _, mod := range m.modules {
		if !mod.quantized() || mod.kind == float8 {
			continue
		}
		_, _, _, experts := format.SplitExpert(mod.name)
		group := ""
		if mod.group != nil {
			group = mod.group.name
		}
		i := slices.IndexFunc(out, func(u use) bool {
			return u.scheme == mod.scheme && u.experts == experts && u.group == group && u.first.kind == mod.kind
		})
		if i < 0 {
			i = len(out)
			out = append(out, use{scheme: mod.scheme, experts: experts, group: group, example: mod.name, first: mod})
		}
		out[i].act = out[i].act || mod.gidx != nil
	}
	return out
}

var fastGroups = []int{-1, 32, 64, 128}

// checkProfiles holds the schemes in use against what each loader can run.
func (m *subject) checkProfiles(profiles []string) {
	if !m.quant.known {
		return
	}
	uses := m.uses()
	for _, p := range profiles {
		for _, u := range uses {
			m.checkUse(p, u)
		}
		m.checkWhole(p, uses)
	}
}

// experts names what a rule concerns.
func (u use) what() string {
	if u.experts {
		return "experts such as " + u.example
	}
	return "linears such as " + u.example
}

func (m *subject) checkUse(p string, u use) {
	q, s := &m.quant, u.scheme
	bad := func(code, msg string, args ...any) {
		m.c.addFor(p, code, strings.TrimSuffix(u.example, ".weight"), msg, args...)
	}
	four8 := s.Bits == 4 || s.Bits == 8
	switch q.method {
	case methodGPTQ:
		switch p {
		case VLLM:
			if !four8 {
				bad("E_BITS", "%d bits for %s; gptq has kernels for 4 and 8", s.Bits, u.what())
			}
			if !s.Sym {
				bad("E_SYM", "asymmetric %s; gptq kernels read no zero points", u.what())
			}
			if !slices.Contains(fastGroups, s.GroupSize) {
				bad("E_GROUP_SIZE", "group size %d for %s", s.GroupSize, u.what())
			}
		case SGLang:
			if u.experts && !four8 {
				bad("E_BITS", "%d bits for %s; gptq experts have kernels for 4 and 8", s.Bits, u.what())
			}
			if u.experts && !s.Sym {
				bad("E_SYM", "asymmetric %s", u.what())
			}
			if u.experts && !slices.Contains(fastGroups, s.GroupSize) {
				bad("E_GROUP_SIZE", "group size %d for %s", s.GroupSize, u.what())
			}
			if u.experts && m.dtype != "" && m.dtype != "float16" {
				bad("E_MODEL_DTYPE", "the model is %s; gptq experts run in float16 only", m.dtype)
			}
			if !u.experts && (!four8 || !s.Sym) && m.dtype != "" && m.dtype != "float16" {
				bad("E_MODEL_DTYPE", "the model is %s; %s run in float16 only", m.dtype, s)
			}
		case Transformers:
			// Old tools wrote v1 zero points that cannot be told from right ones, so GPTQModel, through which transformers
			// loads, trusts its own only.
			if !s.Sym && q.storage == "gptq" && !strings.HasPrefix(q.maker, "gptqmodel:") {
				bad("E_SYM", "asymmetric v1 gptq made by %q; GPTQModel loads that of its own making only, and gptq_v2 of any", q.maker)
			}
		}
	case methodAWQ:
		switch p {
		case VLLM:
			if u.experts && !slices.Contains(fastGroups, s.GroupSize) {
				bad("E_GROUP_SIZE", "group size %d for %s", s.GroupSize, u.what())
			}
		case SGLang:
			if u.experts && m.activation != "" && m.activation != "silu" {
				bad("E_ACTIVATION", "hidden_act is %s", m.activation)
			}
		}
	case methodCT:
		m.checkCTUse(p, u, bad)
	}
	if m.dtype == "float32" && p != Transformers {
		bad("E_MODEL_DTYPE", "the model is float32; kernels take float16 and bfloat16")
	}
}

func (m *subject) checkCTUse(p string, u use, bad func(code, msg string, args ...any)) {
	s := u.scheme
	g := u.first.group
	if g == nil {
		return // reported as E_TARGET
	}
	if u.first.kind == int8Plain {
		if p == Transformers {
			return
		}
		dynamic, _, _ := get[bool](g.activations, "dynamic")
		strategy, _, _ := get[string](g.activations, "strategy")
		bits, _, _ := get[int](g.activations, "num_bits")
		switch {
		case !s.Sym:
			bad("E_SYM", "asymmetric int8 weights of %s", u.what())
		case s.Bits != 8 || !g.hasActs || bits != 8 || !(dynamic && strategy == "token" || strategy == "tensor" && !dynamic):
			bad("E_SCHEME", "int-quantized runs as W8A8 with dynamic per-token activations (or static per-tensor ones) only")
		}
		return
	}
	if g.hasActs && p != Transformers {
		bad("E_SCHEME", "pack-quantized weights with quantized activations")
	}
	actGroup := u.act || g.actorder == "group" || g.actorder == "dynamic"
	four8 := s.Bits == 4 || s.Bits == 8
	switch p {
	case VLLM, SGLang:
		if !four8 {
			bad("E_BITS", "%d bits for %s; pack-quantized has kernels for 4 and 8", s.Bits, u.what())
		}
		if !s.Sym && u.experts {
			bad("E_SYM", "asymmetric %s", u.what())
		}
		if !slices.Contains(fastGroups, s.GroupSize) {
			bad("E_GROUP_SIZE", "group size %d for %s", s.GroupSize, u.what())
		}
		if u.experts && actGroup {
			bad("E_ACTORDER", "%s have a g_idx or actorder %q", u.what(), g.actorder)
		}
		if p == SGLang && u.experts {
			if !slices.Contains(g.targets, "Linear") {
				bad("E_TARGET_LINEAR", "the group of %s has targets %v", u.what(), shorten(g.targets))
			}
			if m.activation != "" && m.activation != "silu" {
				bad("E_ACTIVATION", "hidden_act is %s", m.activation)
			}
		}
	case Transformers:
		if u.experts && !s.Sym {
			bad("E_SYM", "asymmetric %s; transformers reads no zero points of experts", u.what())
		}
	}
}

// checkWhole holds rules that concern the checkpoint, not one scheme.
func (m *subject) checkWhole(p string, uses []use) {
	q := &m.quant
	if q.method == methodAWQ && p == VLLM && !q.zeroPt {
		m.c.addFor(p, "E_ZERO_POINT", quantBlock+".zero_point", "false")
	}
	if p == Transformers && q.method == methodCT {
		n := 0
		for _, u := range uses {
			if u.experts {
				n++
			}
		}
		if n > 1 {
			m.c.addFor(p, "E_EXPERT_SCHEME", quantBlock+".config_groups", "experts have %d schemes", n)
		}
	}
	for _, mod := range m.modules {
		if !mod.quantized() {
			continue
		}
		if g := mod.scheme.GroupSize; g > 0 && mod.in%g != 0 && mod.sound && p != Transformers {
			m.c.addFor(p, "E_GROUP", mod.name, "%d inputs are no multiple of group size %d", mod.in, g)
		}
		leaf := mod.name[strings.LastIndexByte(mod.name, '.')+1:]
		if leaf == "kv_b_proj" && p != Transformers || p == SGLang && (leaf == "q_a_proj" || leaf == "q_b_proj" || leaf == "kv_a_proj_with_mqa") {
			m.c.addFor(p, "E_MLA", mod.name, "it is quantized")
		}
	}
}
