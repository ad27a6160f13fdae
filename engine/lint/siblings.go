package lint

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"quire/engine/format"
)

// checkSiblings holds modules against each other that loaders build as one tensor.
func (m *subject) checkSiblings() {
	names := make([]string, len(m.modules))
	for i, mod := range m.modules {
		names[i] = mod.name
	}
	for _, set := range format.FusedSets(names) {
		m.checkSet(set)
	}
	m.checkExperts()
	m.checkLayers()
	m.checkHead()
}

func (m *subject) checkSet(set format.FusedSet) {
	var quantized, left []*module
	for _, n := range set.Members {
		if mod := m.byName[n]; mod.quantized() {
			quantized = append(quantized, mod)
		} else {
			left = append(left, mod)
		}
	}
	// Qwen3-Next's in_proj_qkvz and in_proj_ba are one linear in some loaders and two in others; public checkpoints
	// quantize the first only, and load.
	if len(quantized) > 0 && len(left) > 0 && !strings.HasSuffix(set.Name, ".in_proj") {
		m.c.add("E_FUSED_PARTIAL", set.Name, "%s is quantized, %s is not", quantized[0].name, left[0].name)
	}
	if len(quantized) == 0 {
		return
	}
	// Experts of a layer share everything; column orders only within one expert, so they are compared leaf by leaf below.
	lead := quantized[0]
	byExpert := map[string]*module{}
	for _, mod := range quantized[1:] {
		switch {
		case mod.kind != lead.kind:
			m.c.add("E_FUSED_SCHEME", mod.name, "stored in another way than %s", lead.name)
			continue
		case mod.scheme != lead.scheme:
			m.c.add("E_FUSED_SCHEME", mod.name, "%s, but %s has %s", mod.scheme, lead.name, lead.scheme)
			continue
		}
		for _, s := range []string{"scales", "weight_scale"} {
			a, b := lead.parts[s], mod.parts[s]
			if a != nil && b != nil && a.DType != b.DType {
				m.c.add("E_FUSED_SCHEME", mod.name, "scales are %s, those of %s are %s", b.DType, lead.name, a.DType)
			}
		}
	}
	for _, mod := range quantized {
		key := set.Name
		if _, e, leaf, ok := format.SplitExpert(mod.name); ok {
			key = fmt.Sprintf("%s.%d.%s", set.Name, e, format.FusedName(leaf))
		}
		first := byExpert[key]
		if first == nil {
			byExpert[key] = mod
			continue
		}
		if set.Experts && format.FusedName(mod.name[strings.LastIndexByte(mod.name, '.')+1:]) == "" {
			continue
		}
		if mod.sound && first.sound && mod.in == first.in && !slices.Equal(mod.gidx, first.gidx) {
			m.c.add("E_FUSED_GIDX", mod.name, "another column order than %s", first.name)
		}
		for _, s := range []string{"weight_global_scale", "weight_scale_2", "weight_scale"} {
			m.compareWhole(s, first, mod)
		}
	}
}

// compareWhole compares scales that stand for a whole tensor: loaders keep one of a fused set.
func (m *subject) compareWhole(suffix string, a, b *module) {
	x, y := a.parts[suffix], b.parts[suffix]
	if x == nil || y == nil || x.DType != "F32" && x.DType != "BF16" || x.DType != y.DType || x.size != x.elementBytes() || y.size != x.size {
		return
	}
	dx, errX := x.read()
	dy, errY := y.read()
	if errX == nil && errY == nil && string(dx) != string(dy) {
		m.c.add("E_SIBLING_SCALE", b.name, "%s differs from that of %s", suffix, a.name)
	}
}

// expertSet is the routed experts of one layer.
type expertSet struct {
	parent string
	leaves map[string]map[int]*module // leaf → expert → module
	count  int
}

// expertSets gives the layers' experts in order.
func (m *subject) expertSets() []*expertSet {
	var sets []*expertSet
	at := map[string]*expertSet{}
	for _, mod := range m.modules {
		parent, e, leaf, ok := format.SplitExpert(mod.name)
		if !ok || e > 1<<14 { // no model has so many; a damaged name must not make us count to it
			continue
		}
		s := at[parent]
		if s == nil {
			s = &expertSet{parent: parent, leaves: map[string]map[int]*module{}}
			at[parent] = s
			sets = append(sets, s)
		}
		if s.leaves[leaf] == nil {
			s.leaves[leaf] = map[int]*module{}
		}
		s.leaves[leaf][e] = mod
		s.count = max(s.count, e+1)
	}
	return sets
}

var fusedExperts = regexp.MustCompile(`\.experts\.(?:gate_up_proj|down_proj|gate_proj|up_proj|w[123]|w13_weight|w2_weight)(?:[._].*)?$`)

// checkExperts: every layer has all experts, alike.
func (m *subject) checkExperts() {
	anyQuantized := slices.ContainsFunc(m.modules, (*module).quantized)
	for name, t := range m.files.tensors {
		if len(t.Shape) == 3 && fusedExperts.MatchString(name) && anyQuantized && m.quant.known {
			m.c.add("E_EXPERT_FUSED", name, "shape %v", t.Shape)
		}
	}
	for _, s := range m.expertSets() {
		want := s.count
		if m.experts > 0 && m.experts <= 1<<14 {
			want = m.experts
		}
		leaves := make([]string, 0, len(s.leaves))
		for l := range s.leaves {
			leaves = append(leaves, l)
		}
		slices.Sort(leaves)
		for _, leaf := range leaves {
			by := s.leaves[leaf]
			var missing []int
			for e := range want {
				if by[e] == nil {
					missing = append(missing, e)
				}
			}
			switch {
			case len(missing) > 0:
				m.c.add("E_EXPERT_COUNT", s.parent, "%s of expert %d is missing (%d of %d)", leaf, missing[0], len(missing), want)
			case s.count > want:
				m.c.add("E_EXPERT_COUNT", s.parent, "%s of expert %d is here, config.json says %d experts", leaf, s.count-1, want)
			}
			var lead *module
			for e := range s.count {
				mod := by[e]
				switch {
				case mod == nil || mod.out == 0:
				case lead == nil:
					lead = mod
				case mod.out != lead.out || mod.in != lead.in:
					m.c.add("E_EXPERT_SHAPE", mod.name, "[%d, %d], %s has [%d, %d]", mod.out, mod.in, lead.name, lead.out, lead.in)
				case len(mod.parts) != len(lead.parts):
					m.c.add("E_EXPERT_SHAPE", mod.name, "%d tensors, %s has %d", len(mod.parts), lead.name, len(lead.parts))
				}
			}
		}
	}
}

var layerNumber = regexp.MustCompile(`(?:^|\.)(?:layers|h|blocks)\.(\d+)\.`)

// checkLayers: as many layers as config.json says. A layer more may be an MTP block.
func (m *subject) checkLayers() {
	if m.layers == 0 || m.layers > 1<<12 {
		return
	}
	seen := map[int]bool{}
	for name := range m.files.tensors {
		if !strings.HasPrefix(name, "model.") && !strings.HasPrefix(name, "language_model.") && !strings.HasPrefix(name, "layers.") && !strings.HasPrefix(name, "transformer.") {
			continue
		}
		if tower(name) || strings.Contains(name, "mtp") {
			continue
		}
		if x := layerNumber.FindStringSubmatch(name); x != nil {
			if n, err := strconv.Atoi(x[1]); err == nil {
				seen[n] = true
			}
		}
	}
	if len(seen) == 0 {
		return
	}
	var missing []int
	for l := range m.layers {
		if !seen[l] {
			missing = append(missing, l)
		}
	}
	if len(missing) > 0 {
		m.c.add("E_LAYER_COUNT", "config.json", "num_hidden_layers is %d, layer %d has no tensor (%d missing)", m.layers, missing[0], len(missing))
	}
}

// checkHead compares the output head with what the config says of it.
func (m *subject) checkHead() {
	q := &m.quant
	for _, mod := range m.modules {
		if !head(mod.name) {
			continue
		}
		if mod.quantized() && m.tied {
			m.c.add("E_TIED", mod.name, "tie_word_embeddings is true")
		}
		if q.known && (q.method == methodGPTQ || q.method == methodAWQ) && mod.quantized() != q.lmHead {
			m.c.add("E_LM_HEAD", mod.name, "lm_head is %v, the head is quantized: %v", q.lmHead, mod.quantized())
		}
	}
	// desc_act without any act order.
	if q.known && q.method == methodGPTQ && q.descAct {
		any, read := false, false
		for _, mod := range m.modules {
			any = any || mod.gidx != nil
			read = read || mod.anyGIdx
		}
		if read && !any {
			m.c.add("E_GIDX_NATURAL", quantBlock+".desc_act", "true")
		}
	}
}

// finiteOr gives v, or other where v is no number.
func finiteOr(v, other float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return other
	}
	return v
}
