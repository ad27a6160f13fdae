package lint

import (
	"slices"
	"strings"

	"quire/engine/format"
)

// Profiles that can be asked for.
const (
	VLLM         = "vllm"
	SGLang       = "sglang"
	Transformers = "transformers"
)

// Profiles gives all of them.
func Profiles() []string { return []string{VLLM, SGLang, Transformers} }

// answer is what a loader makes of a linear.
type answer int

const (
	quantizes answer = iota
	skips
	refuses // parts of a fused linear disagree
)

// unit is a linear as a loader builds it: a module, a fused set, or the routed experts of a layer.
type unit struct {
	name    string // the loader's name
	shards  []string
	experts bool
	truth   bool // quantized
	mixed   bool // only parts are: reported by siblings.go
}

// units groups modules as loaders build them. Transformers builds every module by itself.
func (m *subject) units(profile string) []unit {
	at := map[string]int{}
	var out []unit
	for _, mod := range m.modules {
		name, experts := mod.name, false
		if f := format.FusedName(mod.name); f != "" {
			_, _, _, experts = format.SplitExpert(mod.name)
			if profile != Transformers {
				name = f
			}
		}
		i, ok := at[name]
		if !ok {
			i = len(out)
			at[name] = i
			out = append(out, unit{name: name, experts: experts, truth: mod.quantized()})
		}
		out[i].shards = append(out[i].shards, mod.name)
		out[i].mixed = out[i].mixed || out[i].truth != mod.quantized()
	}
	return out
}

// ask evaluates the config for a unit as the loader does.
func (m *subject) ask(profile string, u unit) answer {
	q := &m.quant
	switch q.method {
	case methodCT:
		return q.askCT(profile, u)
	case methodGPTQ:
		return q.askGPTQ(profile, u)
	case methodAWQ:
		return q.askAWQ(profile, u)
	}
	return quantizes
}

// same folds the answers of the parts of a fused linear.
func same(shards []string, skip func(string) bool) answer {
	n := 0
	for _, s := range shards {
		if skip(s) {
			n++
		}
	}
	switch n {
	case 0:
		return quantizes
	case len(shards):
		return skips
	}
	return refuses
}

// expertLookups are the names under which vLLM looks the scheme of routed experts up, whatever their tensors are called.
func expertLookups(parent string) []string {
	return []string{parent + ".0.gate_proj", parent + ".0.up_proj", parent + ".0.down_proj"}
}

func (q *quantConfig) askCT(profile string, u unit) answer {
	hit := q.ignores.hits
	switch {
	case u.experts && profile == VLLM:
		return same(expertLookups(u.name), hit)
	case u.experts && profile == SGLang:
		return same([]string{u.name}, hit)
	case q.ignores.exact[u.name]:
		return skips
	}
	return same(u.shards, hit)
}

func (q *quantConfig) askGPTQ(profile string, u unit) answer {
	skipped := func(n string) bool {
		for _, r := range q.rules {
			if r.match.match(n) {
				return r.skip
			}
		}
		return false
	}
	if u.experts && profile == SGLang {
		return quantizes // its fused experts read no rule
	}
	if skipped(u.name) {
		return skips
	}
	switch profile {
	case VLLM:
		if u.experts {
			return quantizes
		}
		if len(q.modules) == 0 {
			break // vLLM takes what is quantized from the headers
		}
		return same(u.shards, func(n string) bool {
			return !slices.ContainsFunc(q.modules, func(l string) bool { return strings.Contains(n, l) })
		})
	case SGLang:
		return quantizes
	case Transformers:
		if len(q.modules) > 0 {
			return same(u.shards, func(n string) bool {
				return !slices.ContainsFunc(q.modules, func(l string) bool { return strings.HasSuffix(n, l) })
			})
		}
		return quantizes
	}
	if u.truth {
		return quantizes
	}
	return skips
}

func (q *quantConfig) askAWQ(profile string, u unit) answer {
	inside := func(n string) bool {
		return slices.ContainsFunc(q.skip, func(l string) bool { return strings.Contains(n, l) })
	}
	switch profile {
	case VLLM:
		if len(q.skip) == 0 { // taken from the headers
			if u.truth {
				return quantizes
			}
			return skips
		}
		if u.experts {
			return same([]string{u.name}, inside)
		}
		return same(u.shards, inside)
	case SGLang:
		return same([]string{u.name}, inside)
	}
	return same(u.shards, func(n string) bool {
		return slices.ContainsFunc(q.skip, func(l string) bool { return strings.HasPrefix(n, l) || strings.HasSuffix(n, l) }) ||
			slices.ContainsFunc(q.skipPatterns, func(p pattern) bool { return p.match(n) })
	})
}

// plainByDesign says whether a loader builds the module as a plain linear whatever the config says.
func (m *subject) plainByDesign(profile, name string) bool {
	switch {
	case head(name):
		// vLLM and SGLang ask the head's own switch (gptq, awq) or never quantize it; transformers converts every Linear.
		return m.quant.method != methodCT || profile != Transformers
	case router(name), tower(name):
		return m.quant.method != methodCT
	}
	return false
}

// tower says whether the module belongs to a vision or audio tower or to what connects it, which loaders of gptq and awq
// build without quantization.
func tower(name string) bool {
	for _, part := range []string{"visual", "vision", "audio", "projector", "merger"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}

// checkLoaders compares what each loader makes of the config with the truth.
func (m *subject) checkLoaders(profiles []string) {
	if !m.quant.known {
		return
	}
	for _, p := range profiles {
		for _, u := range m.units(p) {
			if u.mixed || !u.truth && m.plainByDesign(p, u.shards[0]) || u.truth && router(u.name) {
				continue
			}
			switch m.ask(p, u) {
			case refuses:
				m.c.addFor(p, "E_IGNORE_SPLIT", u.name, "parts: %s", strings.Join(shorten(u.shards), ", "))
			case skips:
				if u.truth {
					m.c.addFor(p, "E_IGNORE_EXTRA", u.name, "its tensors are packed")
				}
			case quantizes:
				if !u.truth {
					m.c.addFor(p, "E_IGNORE_MISSING", u.name, "its weight is plain")
				}
			}
		}
	}
	m.checkUnused()
	if slices.Contains(profiles, VLLM) {
		m.checkExpertLookup()
	}
}

func shorten(names []string) []string {
	if len(names) > 4 {
		return append(slices.Clone(names[:3]), "…")
	}
	return names
}

// checkUnused names exclusions of compressed-tensors and awq that hit nothing.
func (m *subject) checkUnused() {
	entries := m.quant.ignore
	if m.quant.method == methodAWQ {
		entries = m.quant.skip
	}
	if len(entries) == 0 {
		return
	}
	names := map[string]bool{}
	add := func(n string) {
		for n != "" && !names[n] {
			names[n] = true
			i := strings.LastIndexByte(n, '.')
			n = n[:max(i, 0)]
		}
	}
	for n := range m.files.tensors {
		add(n)
		if f := format.FusedName(strings.TrimSuffix(n, ".weight")); f != "" {
			add(f)
		}
	}
	list := make([]string, 0, len(names))
	for n := range names {
		list = append(list, n)
	}
	for _, e := range entries {
		if names[e] {
			continue
		}
		one, _ := compileList([]string{e})
		hit := slices.ContainsFunc(list, one.hits)
		if m.quant.method == methodAWQ {
			hit = hit || slices.ContainsFunc(list, func(n string) bool { return strings.Contains(n, e) })
		}
		if !hit {
			m.c.add("E_IGNORE_UNUSED", quantBlock, "%q", e)
		}
	}
}

// checkExpertLookup compares the scheme vLLM finds for the experts of a layer under its fixed names with theirs.
func (m *subject) checkExpertLookup() {
	if m.quant.method != methodCT {
		return
	}
	for _, s := range m.expertSets() {
		for _, by := range s.leaves {
			mod := by[0]
			if mod == nil || !mod.quantized() || mod.group == nil {
				continue
			}
			for _, n := range expertLookups(s.parent) {
				if g := m.quant.ctMatch(n); g == nil || g.name != mod.group.name {
					m.c.addFor(VLLM, "E_EXPERT_LOOKUP", s.parent, "%s is in %s, %s is not", mod.name, mod.group.name, n)
					break
				}
			}
		}
	}
}
