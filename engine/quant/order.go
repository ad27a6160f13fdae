package quant

import (
	"cmp"
	"slices"
)

// Orders of visiting the columns, as they stand in a Record.
const (
	orderNatural       = "natural"
	orderDescAct       = "desc_act"
	orderActGroupAware = "act_group_aware"
)

// order gives perm[new position] = column for the diagonal of H, nil for the natural order. Ties keep the lower column
// first.
func (o Options) order(diag []float32) ([]int32, string) {
	switch {
	case o.DescAct:
		return descending(diag, 0, len(diag)), orderDescAct
	case o.ActGroupAware:
		return groupAware(diag, o.groupSize(len(diag))), orderActGroupAware
	}
	return nil, orderNatural
}

// descending sorts the columns lo..hi by descending diagonal, stable.
func descending(diag []float32, lo, hi int) []int32 {
	p := make([]int32, hi-lo)
	for i := range p {
		p[i] = int32(lo + i)
	}
	slices.SortStableFunc(p, func(a, b int32) int { return cmp.Compare(diag[b], diag[a]) })
	return p
}

// groupAware is the order of reference/gptqmodel.md 1.5: full groups by descending largest diagonal, columns inside a
// group by descending diagonal, the columns of a short last group stay where they are.
func groupAware(diag []float32, g int) []int32 {
	n := len(diag)
	full := n / g
	local := make([][]int32, full)
	for k := range local {
		local[k] = descending(diag, k*g, (k+1)*g)
	}
	slices.SortStableFunc(local, func(a, b []int32) int { return cmp.Compare(diag[b[0]], diag[a[0]]) })
	perm := make([]int32, 0, n)
	for _, l := range local {
		perm = append(perm, l...)
	}
	for c := full * g; c < n; c++ {
		perm = append(perm, int32(c))
	}
	return perm
}

// groupOfPosition tells for every visited position which group (column of the scale table) it belongs to, and for every
// column too; gidx is nil where the latter is column/groupSize.
func (o Options) groupOfPosition(perm []int32, n int) (position []int32, gidx []int32) {
	g := o.groupSize(n)
	position = make([]int32, n)
	for p := range position {
		c := p
		if perm != nil && !o.visitedGroups() {
			c = int(perm[p])
		}
		position[p] = int32(c / g)
	}
	if perm != nil && o.visitedGroups() {
		gidx = make([]int32, n)
		for p, c := range perm {
			gidx[c] = position[p]
		}
	}
	return position, gidx
}

// visitedGroups tells whether groups are runs of visited columns rather than of natural ones. The group-aware order
// keeps natural groups together, so there the two are the same sets.
func (o Options) visitedGroups() bool { return o.DescAct && !o.staticGroups() }

// block is the number of columns between two updates of the columns behind them: as many whole groups as fit into
// BlockSize columns, or the largest divisor of a longer group. With static ranges, and under parity, it is BlockSize.
func (o Options) block(n int) int {
	b := min(o.BlockSize, n)
	if o.staticGroups() || o.Parity != "" {
		return b
	}
	g := o.groupSize(n)
	if g <= b {
		return b - b%g
	}
	for d := b; d > 1; d-- {
		if g%d == 0 {
			return d
		}
	}
	return 1
}
