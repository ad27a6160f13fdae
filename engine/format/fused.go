package format

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// fusedLeaves are the leaf names that loaders build as one linear, and the name they give it. reference: DESIGN 9.
var fusedLeaves = []struct {
	fused   string
	members []string
}{
	{"qkv_proj", []string{"q_proj", "k_proj", "v_proj"}},
	{"gate_up_proj", []string{"gate_proj", "up_proj"}},
	{"w13_proj", []string{"w1", "w3"}},
	{"fused_qkv_a_proj_with_mqa", []string{"q_a_proj", "kv_a_proj_with_mqa"}},
	{"in_proj_qkvz", []string{"in_proj_qkv", "in_proj_z"}},
	{"in_proj_ba", []string{"in_proj_b", "in_proj_a"}},
	{"in_proj", []string{"in_proj_qkvz", "in_proj_ba"}},
	{"wk_weights_proj", []string{"wk", "weights_proj"}},
}

// FusedSet is a set of modules that loaders build as one tensor.
type FusedSet struct {
	Name    string   // the loader's name: …self_attn.qkv_proj, …mlp.experts
	Members []string // present members, sorted
	Experts bool     // all routed experts of a layer
}

// SplitExpert takes the name of a routed expert's linear apart: parent "…mlp.experts", expert number, leaf.
func SplitExpert(module string) (parent string, expert int, leaf string, ok bool) {
	i := strings.LastIndexByte(module, '.')
	if i < 0 {
		return "", 0, "", false
	}
	j := strings.LastIndexByte(module[:i], '.')
	if j < 0 || !strings.HasSuffix(module[:j], ".experts") || i+1 == len(module) || !digits(module[j+1:i]) {
		return "", 0, "", false
	}
	expert, err := strconv.Atoi(module[j+1 : i])
	return module[:j], expert, module[i+1:], err == nil
}

// digits says whether s is a number written in digits only.
func digits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// FusedSets groups module names that loaders fuse: siblings by leaf name, and all linears of the routed experts of one
// layer. A set is listed when at least two of its members are present. Order and members are sorted naturally.
func FusedSets(modules []string) []FusedSet {
	names := slices.Clone(modules)
	slices.SortFunc(names, CompareNames)
	names = slices.Compact(names)
	byName := map[string]*FusedSet{}
	add := func(set, module string, experts bool) {
		if byName[set] == nil {
			byName[set] = &FusedSet{Name: set, Experts: experts}
		}
		byName[set].Members = append(byName[set].Members, module)
	}
	for _, n := range names {
		if set := FusedName(n); set != "" {
			_, _, _, expert := SplitExpert(n)
			add(set, n, expert)
		}
	}
	var sets []FusedSet
	for _, s := range byName {
		if len(s.Members) > 1 {
			sets = append(sets, *s)
		}
	}
	slices.SortFunc(sets, func(a, b FusedSet) int { return CompareNames(a.Name, b.Name) })
	return sets
}

// FusedName is the loader's name of what a module becomes part of (…self_attn.qkv_proj, …mlp.experts), "" if it stays alone.
func FusedName(module string) string {
	if parent, _, _, ok := SplitExpert(module); ok {
		return parent
	}
	parent, leaf := cutLeaf(module)
	for _, f := range fusedLeaves {
		if slices.Contains(f.members, leaf) {
			return parent + f.fused
		}
	}
	return ""
}

// cutLeaf splits after the last dot, which stays with the parent.
func cutLeaf(module string) (parent, leaf string) {
	i := strings.LastIndexByte(module, '.')
	return module[:i+1], module[i+1:]
}

// CheckFused reports sets of which only a part is quantized or whose members differ in scheme or act order.
func (s *Summary) CheckFused() error {
	written := map[string]Written{}
	all := make([]string, 0, len(s.Modules)+len(s.Left))
	for _, m := range s.Modules {
		written[m.Name] = m
		all = append(all, m.Name)
	}
	all = append(all, s.Left...)
	for _, set := range FusedSets(all) {
		first, quantized := written[set.Members[0]]
		for _, n := range set.Members[1:] {
			w, q := written[n]
			switch {
			case q != quantized:
				return moduleError(set.Name, "E1511", "quantize all of them or none",
					"loaders build it as one tensor, but of %s and %s only one is quantized", set.Members[0], n)
			case w.Scheme != first.Scheme:
				return moduleError(set.Name, "E1511", "give all of them one scheme",
					"loaders build it as one tensor, but %s has %s and %s has %s", set.Members[0], first.Scheme, n, w.Scheme)
			case w.GIdx != first.GIdx && !set.Experts:
				return moduleError(set.Name, "E1511", "use one column order for all of them",
					"loaders build it as one tensor, but only one of %s and %s has an act order", set.Members[0], n)
			}
		}
	}
	return nil
}

// CompareNames orders dotted names with numbers by value: layers.2 before layers.10.
func CompareNames(a, b string) int {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	if i == len(a) && i == len(b) {
		return 0
	}
	start := strings.LastIndexByte(a[:i], '.') + 1 // of the first component that may differ
	x, _, _ := strings.Cut(a[start:], ".")
	y, _, _ := strings.Cut(b[start:], ".")
	if x == y { // one name ends here
		return cmp.Compare(len(a), len(b))
	}
	if digits(x) && digits(y) {
		m, errX := strconv.Atoi(x)
		n, errY := strconv.Atoi(y)
		if errX == nil && errY == nil && m != n {
			return cmp.Compare(m, n)
		}
	}
	return cmp.Compare(x, y)
}
