package lint

import (
	"fmt"
	"slices"
	"strings"

	"quire/engine/format"
)

// TPRow says at which tensor-parallel sizes a width can be cut without cutting a group.
type TPRow struct {
	Width string `json:"width"` // experts, shared experts, attention, dense mlp
	Size  int    `json:"size"`  // inputs of the row-parallel linear
	Group int    `json:"group_size"`
	OK    []int  `json:"ok"`
	Bad   []int  `json:"bad"`
	name  string
}

// tpSizes are the sizes of the table.
var tpSizes = []int{1, 2, 3, 4, 6, 8, 12, 16, 32}

// TPTable says for each size whether a row-parallel input width of size columns in groups of group can be cut: parts of
// equal width that end where groups end. Vendors' kernels may ask for more (multiples of 64 or 128).
func TPTable(size, group int, sizes []int) (ok, bad []int) {
	for _, t := range sizes {
		if size%t == 0 && (group <= 0 || size/t%group == 0) {
			ok = append(ok, t)
		} else {
			bad = append(bad, t)
		}
	}
	return ok, bad
}

// rowParallel names the linears whose inputs are cut.
var rowParallel = map[string]bool{"o_proj": true, "down_proj": true, "w2": true, "out_proj": true, "dense": true}

// tpRows makes the table: one row for each kind of width, size and group in use.
func (m *subject) tpRows() []TPRow {
	var rows []TPRow
	for _, mod := range m.modules {
		leaf := mod.name[strings.LastIndexByte(mod.name, '.')+1:]
		if !mod.quantized() || mod.in == 0 || !rowParallel[leaf] || mod.kind == float8 {
			continue
		}
		kind := "dense mlp"
		switch _, _, _, expert := format.SplitExpert(mod.name); {
		case expert:
			kind = "experts"
		case strings.Contains(mod.name, "shared"):
			kind = "shared experts"
		case leaf == "o_proj" || leaf == "out_proj" || leaf == "dense":
			kind = "attention"
		}
		r := TPRow{Width: kind, Size: mod.in, Group: mod.scheme.GroupSize, name: mod.name}
		if slices.ContainsFunc(rows, func(x TPRow) bool { return x.Width == r.Width && x.Size == r.Size && x.Group == r.Group }) {
			continue
		}
		r.OK, r.Bad = TPTable(r.Size, r.Group, tpSizes)
		rows = append(rows, r)
	}
	return rows
}

// checkTP reports groups that a tensor-parallel size cuts: as errors for sizes asked for and for 1, as a note otherwise.
func (m *subject) checkTP(rows []TPRow, profiles []string, asked []int) {
	if !m.quant.known {
		return
	}
	for _, p := range profiles {
		if p == Transformers {
			continue
		}
		for _, r := range rows {
			var cut []int
			for _, t := range append([]int{1}, asked...) {
				fits := slices.Contains(r.OK, t) || len(r.OK)+len(r.Bad) > 0 && !slices.Contains(r.Bad, t) && fitsTP(r, t)
				// vLLM's awq experts may share a group between two ranks as long as a rank has a whole one.
				if m.quant.method == methodAWQ && p == VLLM && r.Width == "experts" && r.Size%t == 0 && r.Size/t >= r.Group {
					fits = true
				}
				if !fits && !slices.Contains(cut, t) {
					cut = append(cut, t)
				}
			}
			for _, t := range cut {
				m.c.addFor(p, "E_GROUP_TP", r.name, "%s: %d inputs / %d is no multiple of group size %d", r.Width, r.Size, t, r.Group)
			}
		}
	}
	for _, r := range rows {
		var cut []string
		for _, t := range []int{2, 4, 8} {
			if slices.Contains(r.Bad, t) && r.Size%t == 0 {
				cut = append(cut, fmt.Sprint(t))
			}
		}
		if len(cut) > 0 {
			m.c.add("E_TP_LIMIT", r.name, "%s of %d inputs in groups of %d cannot run at %s", r.Width, r.Size, r.Group, strings.Join(cut, ", "))
		}
	}
}

func fitsTP(r TPRow, t int) bool {
	ok, _ := TPTable(r.Size, r.Group, []int{t})
	return len(ok) == 1
}
