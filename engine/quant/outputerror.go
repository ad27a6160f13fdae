package quant

import (
	"context"

	"quire/kernels"
)

// account compares a solver's result with rounding to nearest (the guard) and fills in the error figures.
func (p *Prepared) account(ctx context.Context, pool *kernels.Pool, r *Result, w []float32) error {
	if err := accountError(ctx, pool, r, w, &p.h); err != nil {
		return err
	}
	if !p.o.guarded() || r.Record.OutputError == nil {
		return ctx.Err()
	}
	plain, err := roundToNearest(ctx, pool, w, r.Out, r.In, p.o, p.h.Site, GridRTN, p.perm, p.gidx)
	if err != nil {
		return err
	}
	if err := accountError(ctx, pool, plain, w, &p.h); err != nil {
		return err
	}
	g := &GuardRecord{SolverError: *r.Record.OutputError, RTNError: *plain.Record.OutputError, RTNComplete: true}
	r.Record.Guard = g
	if g.RTNError < g.SolverError {
		g.KeptRTN = true
		loss := r.Record.Loss
		p.fillRecord(&plain.Record)
		plain.Record.Asked, plain.Record.Reason, plain.Record.Guard, plain.Record.Loss = r.Record.Method, ReasonGuard, g, loss
		*r = *plain
	}
	return ctx.Err()
}

// accountError fills in the output error, absolute and relative, and the groups' diagonal blocks. A statistic without
// rows gives no figures.
func accountError(ctx context.Context, pool *kernels.Pool, r *Result, w []float32, h *Hessian) error {
	if h.Rows == 0 {
		return ctx.Err()
	}
	e := make([]float32, len(w))
	r.Dequantize(e)
	for i, v := range w {
		e[i] = v - e[i]
	}
	abs := quadratic(pool, e, r.Out, h) * float64(h.Rows) / 2
	base := quadratic(pool, w, r.Out, h) * float64(h.Rows) / 2
	r.Record.OutputError = &abs
	rel := 0.0
	if base > 0 {
		rel = abs / base
	}
	r.Record.OutputErrorRel = &rel
	r.GroupShare = groupShares(pool, r, e, h)
	return ctx.Err()
}

// quadratic is Σ over channels of x·H·xᵀ for x [out,n].
func quadratic(pool *kernels.Pool, x []float32, out int, h *Hessian) float64 {
	n := h.N
	sums := make([]float64, out)
	pool.Do((out+lanes-1)/lanes, func(_, task int) {
		for row := task * lanes; row < min((task+1)*lanes, out); row++ {
			v := x[row*n : (row+1)*n]
			var sum float64
			for i, a := range v {
				if a == 0 {
					continue
				}
				hr := h.H[i*n+i : (i+1)*n]
				t := 0.5 * float64(hr[0]) * float64(a)
				for k, b := range v[i+1:] {
					t += float64(float64(hr[k+1]) * float64(b))
				}
				sum += float64(2 * float64(a) * t)
			}
			sums[row] = sum
		}
	})
	var s float64
	for _, v := range sums {
		s += v
	}
	return s
}

// groupShares is Σ over channels of e_g·H_gg·e_gᵀ·rows/2 per group.
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
