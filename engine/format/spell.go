package format

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// spellings are the names under which loaders may look a set of modules up: each module, the fused linear it becomes part
// of when all its siblings are in the set too, the experts block of routed experts, and the topmost parent of which
// nothing else is quantized. (reference/reports.md R7.06, R7.07, R7.32.)
type spellings struct {
	modules []string // single modules except routed experts
	fused   []string
	experts []string // "…mlp.experts" of layers whose routed experts are all in the set
	parents []string
}

// spell gives the spellings of the set, all of which were left alone (or all share a scheme), against the other modules.
func spell(set, others []string) spellings {
	var sp spellings
	for _, n := range set {
		if _, _, _, expert := SplitExpert(n); !expert {
			sp.modules = append(sp.modules, n)
		}
	}
	// A fused name stands for its members even if only one is present: loaders look it up all the same.
	mixed := map[string]bool{}
	for _, n := range others {
		mixed[FusedName(n)] = true
	}
	for _, n := range set {
		f := FusedName(n)
		switch _, _, _, expert := SplitExpert(n); {
		case f == "" || mixed[f]:
		case expert:
			sp.experts = append(sp.experts, f)
		default:
			sp.fused = append(sp.fused, f)
		}
	}
	// Parents: every prefix that some other module has is taken; of the rest the shortest one of each module.
	taken := map[string]bool{}
	for _, n := range others {
		for i, c := range n {
			if c == '.' {
				taken[n[:i]] = true
			}
		}
	}
	seen := map[string]bool{}
	for _, n := range set {
		upTo := len(n)
		if parent, _, _, ok := SplitExpert(n); ok {
			upTo = len(parent) + 1 // one expert of a layer is no parent a loader knows
		}
		for i, c := range n[:upTo] {
			if c != '.' || taken[n[:i]] {
				continue
			}
			if p := n[:i]; !seen[p] {
				seen[p] = true
				sp.parents = append(sp.parents, p)
			}
			break
		}
	}
	for _, l := range []*[]string{&sp.modules, &sp.fused, &sp.experts, &sp.parents} {
		slices.SortFunc(*l, CompareNames)
		*l = slices.Compact(*l)
	}
	sp.parents = slices.DeleteFunc(sp.parents, func(p string) bool { return slices.Contains(sp.experts, p) })
	return sp
}

// cutLayer splits at the first component that is a number: "model.layers." "3" ".mlp.gate".
func cutLayer(name string) (before, number, after string, ok bool) {
	for at := 0; at < len(name); {
		end := len(name)
		if i := strings.IndexByte(name[at:], '.'); i >= 0 {
			end = at + i
		}
		if digits(name[at:end]) {
			return name[:at], name[at:end], name[end:], true
		}
		at = end + 1
	}
	return "", "", "", false
}

// patterns joins names that differ in their layer number only into one anchored regular expression each. A pattern uses
// \d+ only where none of others has the same name with another number, so it never matches more than names.
// Every pattern ends in tail, which stands for what may follow a name ("" for nothing).
func patterns(names, others []string, tail string) []string {
	type stem struct{ before, after string }
	ids := map[stem][]int{}
	var order []stem
	var plain []string
	for _, n := range names {
		before, number, after, ok := cutLayer(n)
		id, err := strconv.Atoi(number)
		if !ok || err != nil || strconv.Itoa(id) != number {
			plain = append(plain, n)
			continue
		}
		s := stem{before, after}
		if ids[s] == nil {
			order = append(order, s)
		}
		ids[s] = append(ids[s], id)
	}
	clash := map[stem]bool{}
	for _, n := range others {
		if before, _, after, ok := cutLayer(n); ok {
			clash[stem{before, after}] = true
		}
	}
	var out []string
	for _, s := range order {
		num := `\d+`
		if clash[s] || len(ids[s]) == 1 {
			list := ids[s]
			slices.Sort(list)
			parts := make([]string, 0, len(list))
			for _, id := range slices.Compact(list) {
				parts = append(parts, strconv.Itoa(id))
			}
			if num = strings.Join(parts, "|"); len(parts) > 1 {
				num = "(?:" + num + ")"
			}
		}
		out = append(out, "^"+regexp.QuoteMeta(s.before)+num+regexp.QuoteMeta(s.after)+tail+"$")
	}
	for _, n := range plain {
		out = append(out, "^"+regexp.QuoteMeta(n)+tail+"$")
	}
	return out
}

// groupSchemes sorts the written modules by scheme. The first group is the one that routed experts have, because some
// loaders look experts up under the default only, else the largest; ties go to the scheme met first in name order.
func (s *Summary) groupSchemes() (schemes []Scheme, names [][]string) {
	mods := slices.Clone(s.Modules)
	slices.SortFunc(mods, func(a, b Written) int { return CompareNames(a.Name, b.Name) })
	at := map[Scheme]int{}
	var weight []int
	for _, m := range mods {
		i, ok := at[m.Scheme]
		if !ok {
			i = len(schemes)
			at[m.Scheme] = i
			schemes, names, weight = append(schemes, m.Scheme), append(names, nil), append(weight, 0)
		}
		names[i] = append(names[i], m.Name)
		if weight[i]++; isExpert(m.Name) {
			weight[i] += 1 << 20
		}
	}
	best := 0
	for i, w := range weight {
		if w > weight[best] {
			best = i
		}
	}
	if len(schemes) > 0 {
		schemes[0], schemes[best] = schemes[best], schemes[0]
		names[0], names[best] = names[best], names[0]
	}
	return schemes, names
}

func isExpert(module string) bool {
	_, _, _, ok := SplitExpert(module)
	return ok
}

// check is what every Config does first.
func (s *Summary) check() error {
	if len(s.Modules) == 0 {
		return &Error{Code: "E1515", What: "no module was quantized", Try: "quantize at least one module"}
	}
	return s.CheckFused()
}

// names of the written modules and all names loaders may know them by.
func (s *Summary) quantizedNames() (modules, all []string) {
	for _, m := range s.Modules {
		modules = append(modules, m.Name)
	}
	slices.SortFunc(modules, CompareNames)
	all = slices.Clone(modules)
	for _, f := range FusedSets(modules) {
		all = append(all, f.Name)
	}
	return modules, all
}

// hasHead says whether the output head was quantized.
func (s *Summary) hasHead() bool {
	return slices.ContainsFunc(s.Modules, func(m Written) bool {
		_, leaf := cutLeaf(m.Name)
		return leaf == "lm_head"
	})
}

// underParent says whether a name lies below a parent that the spellings name anyway.
func (sp *spellings) underParent(name string) bool {
	return slices.ContainsFunc(sp.parents, func(p string) bool { return strings.HasPrefix(name, p+".") })
}

// allPrefixes gives the names and every dotted prefix of them.
func allPrefixes(names []string) []string {
	seen := map[string]bool{}
	var out []string
	add := func(n string) {
		if !seen[n] {
			seen[n] = true
			out = append(out, n)
		}
	}
	for _, n := range names {
		for i, c := range n {
			if c == '.' {
				add(n[:i])
			}
		}
		add(n)
	}
	return out
}
