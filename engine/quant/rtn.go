package quant

import (
	"context"
	"fmt"
	"slices"

	"quire/kernels"
)

// RTN rounds w [out,in] to nearest on the grid of o: Options.FallbackGrid, which for "rtn" is the grid of the solver on
// the original weights, clip search included. h may be nil: then the Record has no error figures.
func RTN(ctx context.Context, pool *kernels.Pool, w []float32, out, in int, o Options, h *Hessian) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	site := ""
	if h != nil {
		if err := h.Check(); err != nil {
			return nil, err
		}
		if h.N != in {
			return nil, fmt.Errorf("%w: statistic %s has %d columns, weight %d", ErrShape, h.Site, h.N, in)
		}
		site = h.Site
	}
	if err := checkWeight(w, out, in, site); err != nil {
		return nil, err
	}
	r, err := roundToNearest(ctx, pool, w, out, in, o, site, o.FallbackGrid, nil, nil)
	if err != nil {
		return nil, err
	}
	if h != nil && h.Rows > 0 {
		r.Record.Site, r.Record.Rows, r.Record.NativeRows, r.Record.HessianSHA256 = h.Site, h.Rows, h.NativeRows, h.SHA256
		if err := newErrorForms(pool, h, r.GroupSize, nil).fill(ctx, pool, r, w); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// roundToNearest is RTN without checks and without error figures. gidx non-nil makes the groups those of perm's visited
// columns, so that a module that falls back keeps the g_idx of its siblings.
func roundToNearest(ctx context.Context, pool *kernels.Pool, w []float32, out, in int, o Options, site, kind string, perm, gidx []int32) (*Result, error) {
	r := newRounded(o, out, in, kind, perm, gidx)
	slabs := (out + lanes - 1) / lanes
	tallies := make([]tally, slabs)
	pool.Do(slabs, func(_, task int) {
		if ctx.Err() == nil {
			roundSlab(r, w, task*lanes, min((task+1)*lanes, out), newGrid(o), kind, r.Perm, &tallies[task])
		}
	})
	if ctx.Err() != nil {
		return nil, fmt.Errorf("rounding %s [%d,%d]: %w", site, out, in, context.Cause(ctx))
	}
	var sum tally
	for i := range tallies {
		sum.add(&tallies[i])
	}
	if sum.err != nil {
		sum.err.Site = site
		return nil, sum.err
	}
	sum.fill(&r.Record)
	return r, nil
}

// newRounded makes the tables of a rounded weight. perm counts only with gidx.
func newRounded(o Options, out, in int, kind string, perm, gidx []int32) *Result {
	r := newResult(o, out, in)
	r.Record = o.record(MethodRTN, out, in)
	r.Record.Order, r.Record.Static, r.Record.Block, r.Record.Grid = orderNatural, false, 0, kind
	if gidx != nil {
		r.GIdx, r.Perm = slices.Clone(gidx), slices.Clone(perm)
		r.Record.Order = orderDescAct
	}
	return r
}

// roundSlab rounds channels r0..r1.
func roundSlab(r *Result, w []float32, r0, r1 int, gr *grid, kind string, perm []int32, t *tally) {
	in, g, groups := r.In, r.GroupSize, r.Groups()
	scratch := make([]float32, g)
	var visited []float32
	var codes []uint8
	if perm != nil {
		visited, codes = make([]float32, in), make([]uint8, in)
	}
	maxq := uint8(gr.maxq)
	for row := r0; row < r1; row++ {
		x, q := w[row*in:(row+1)*in], r.Codes[row*in:(row+1)*in]
		if perm != nil {
			for at, c := range perm {
				visited[at] = x[c]
			}
			x, q = visited, codes
		}
		for k := range groups {
			lo, hi := k*g, min((k+1)*g, in)
			f := gr.round(kind, x[lo:hi], q[lo:hi], scratch)
			r.setTable(row*groups+k, &f)
			t.note(&f, row, k)
		}
		for at, v := range q {
			if v == 0 || v == maxq {
				t.saturated++
			}
			if perm != nil {
				r.Codes[row*in+int(perm[at])] = v
			}
		}
	}
}
