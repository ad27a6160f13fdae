package quant

import (
	"context"

	"quire/kernels"
)

// account compares a solver's result with rounding to nearest (the guard) and fills in the error figures.
func (p *Prepared) account(ctx context.Context, pool *kernels.Pool, r *Result, w []float32) error {
	e := p.quadForms(pool)
	if err := e.fill(ctx, pool, r, w); err != nil {
		return err
	}
	if !p.o.guarded() || r.Record.OutputError == nil {
		return ctx.Err()
	}
	plain, err := roundToNearest(ctx, pool, w, r.Out, r.In, p.o, p.h.Site, GridRTN, p.perm, p.gidx)
	if err != nil {
		return err
	}
	scale := float64(p.h.Rows) / 2
	rtn, complete := e.whole.sum(pool, difference(w, plain), r.Out, r.In, *r.Record.OutputError/scale)
	g := &GuardRecord{SolverError: *r.Record.OutputError, RTNError: rtn * scale, RTNComplete: complete}
	r.Record.Guard = g
	if complete && g.RTNError < g.SolverError {
		g.KeptRTN = true
		if err := e.fill(ctx, pool, plain, w); err != nil {
			return err
		}
		loss := r.Record.Loss
		p.fillRecord(&plain.Record)
		plain.Record.Asked, plain.Record.Reason, plain.Record.Guard, plain.Record.Loss = r.Record.Method, ReasonGuard, g, loss
		*r = *plain
	}
	return ctx.Err()
}

// difference is w − dequantized.
func difference(w []float32, r *Result) []float32 {
	e := make([]float32, len(w))
	r.Dequantize(e)
	for i, v := range w {
		e[i] = v - e[i]
	}
	return e
}

// errorForms are the quadratic forms of one statistic: the whole, and its diagonal blocks by natural group.
type errorForms struct {
	h      *Hessian
	whole  *quadForm
	groups []*quadForm
	size   int // group size of groups
}

// quadForms packs the statistic's forms once for all its linears.
func (p *Prepared) quadForms(pool *kernels.Pool) *errorForms {
	p.formsOnce.Do(func() { p.forms = newErrorForms(pool, &p.h, p.o.groupSize(p.n)) })
	return p.forms
}

func newErrorForms(pool *kernels.Pool, h *Hessian, group int) *errorForms {
	e := &errorForms{h: h, whole: newQuadForm(pool, h.H, h.N, 0, h.N), size: group}
	e.groups = make([]*quadForm, (h.N+group-1)/group)
	for g := range e.groups {
		e.groups[g] = newQuadForm(pool, h.H, h.N, g*group, min((g+1)*group, h.N))
	}
	return e
}

// fill gives a result its output error, absolute and relative, and the groups' diagonal blocks. A statistic without rows
// gives no figures.
func (e *errorForms) fill(ctx context.Context, pool *kernels.Pool, r *Result, w []float32) error {
	if e.h.Rows == 0 {
		return ctx.Err()
	}
	scale := float64(e.h.Rows) / 2
	d := difference(w, r)
	abs, _ := e.whole.sum(pool, d, r.Out, r.In, -1)
	base, _ := e.whole.sum(pool, w, r.Out, r.In, -1)
	abs, base = abs*scale, base*scale
	r.Record.OutputError = &abs
	rel := 0.0
	if base > 0 {
		rel = abs / base
	}
	r.Record.OutputErrorRel = &rel
	if r.GIdx != nil || r.GroupSize != e.size {
		r.GroupShare = groupShares(pool, r, d, e.h)
		return ctx.Err()
	}
	r.GroupShare = make([]float64, len(e.groups))
	pool.Do(len(e.groups), func(_, g int) {
		s, _ := e.groups[g].sum(nil, d, r.Out, r.In, -1)
		r.GroupShare[g] = s * scale
	})
	return ctx.Err()
}

// groupShares is Σ over channels of e_g·H_gg·e_gᵀ·rows/2 per group, for groups of columns that do not lie together.
func groupShares(pool *kernels.Pool, r *Result, e []float32, h *Hessian) []float64 {
	groups, n := r.Groups(), r.In
	members := make([][]int32, groups)
	for c := range n {
		g := r.Group(c)
		members[g] = append(members[g], int32(c))
	}
	shares := make([]float64, groups)
	pool.Do(groups, func(_, g int) {
		m := members[g]
		var sum float64
		for row := range r.Out {
			v := e[row*n : (row+1)*n]
			for i, ci := range m {
				a := float64(v[ci])
				if a == 0 {
					continue
				}
				t := 0.5 * float64(h.H[int(ci)*n+int(ci)]) * a
				for _, cj := range m[i+1:] {
					x, y := min(ci, cj), max(ci, cj)
					t += float64(float64(h.H[int(x)*n+int(y)]) * float64(v[cj]))
				}
				sum += float64(2 * a * t)
			}
		}
		shares[g] = sum * float64(h.Rows) / 2
	})
	return shares
}
