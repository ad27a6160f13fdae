package quant

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"quire/kernels"
)

// errorForms are the quadratic forms of one statistic: the whole, and its diagonal blocks by group. Slabs that they take
// have the columns in the order of the groups: natural, or visited where groups are runs of visited columns.
type errorForms struct {
	h      *Hessian
	whole  *kernels.Form
	groups []*kernels.Form
	size   int     // columns of a group
	perm   []int32 // nil = natural
}

// quadForms packs the statistic's forms once for all its linears.
func (p *Prepared) quadForms(pool *kernels.Pool) *errorForms {
	p.formsOnce.Do(func() { p.forms = newErrorForms(pool, &p.h, p.o.groupSize(p.n), p.frame()) })
	return p.forms
}

// frame is the order of columns in which groups are runs.
func (p *Prepared) frame() []int32 {
	if p.gidx != nil {
		return p.perm
	}
	return nil
}

func newErrorForms(pool *kernels.Pool, h *Hessian, group int, perm []int32) *errorForms {
	e := &errorForms{h: h, size: group, perm: perm, whole: kernels.PackForm(pool, h.H, h.N, 0, h.N, perm)}
	e.groups = make([]*kernels.Form, (h.N+group-1)/group)
	if len(e.groups) == 1 {
		e.groups[0] = e.whole
		return e
	}
	pool.Do(len(e.groups), func(_, g int) {
		e.groups[g] = kernels.PackForm(nil, h.H, h.N, g*group, min((g+1)*group, h.N), perm)
	})
	return e
}

// scale turns a form of H into a sum over the statistic's rows.
func (e *errorForms) scale() float64 { return float64(e.h.Rows) / 2 }

// figures are the sums of one weight before they are scaled.
type figures struct {
	err   []float64 // [out] (w−q)·H·(w−q)ᵀ
	base  []float64 // [out] w·H·wᵀ
	share []float64 // [slab][G]
	exact bool      // err is from H, not from the loss
}

func (e *errorForms) newFigures(out int, exact bool) *figures {
	slabs := (out + lanes - 1) / lanes
	return &figures{err: make([]float64, out), base: make([]float64, out), share: make([]float64, slabs*len(e.groups)), exact: exact}
}

// note takes the figures of one slab of channels r0..: their original weights and w−q, both [n][32] in the forms' order.
// y is scratch of that size. err is left alone where it is not wanted from H.
func (e *errorForms) note(f *figures, r0 int, w, d, y []float32) {
	r1 := min(r0+lanes, len(f.err))
	var v [lanes]float64
	e.whole.Values(&v, w, y)
	copy(f.base[r0:r1], v[:])
	if f.exact {
		v = [lanes]float64{}
		e.whole.Values(&v, d, y)
		copy(f.err[r0:r1], v[:])
	}
	share := f.share[r0/lanes*len(e.groups):][:len(e.groups)]
	for g, form := range e.groups {
		v = [lanes]float64{}
		form.Values(&v, d[g*e.size*lanes:], y)
		for _, x := range v[:r1-r0] {
			share[g] += x
		}
	}
}

// record writes the figures into a result.
func (e *errorForms) record(r *Result, f *figures) {
	abs, base := sum(f.err)*e.scale(), sum(f.base)*e.scale()
	rel := 0.0
	if base > 0 {
		rel = abs / base
	}
	r.Record.OutputError, r.Record.OutputErrorRel = &abs, &rel
	r.Record.ErrorFrom = ErrorFromStatistic
	if !f.exact {
		r.Record.ErrorFrom = ErrorFromLoss
	}
	groups := len(e.groups)
	r.GroupShare = make([]float64, groups)
	for s := 0; s < len(f.share); s += groups {
		for g, v := range f.share[s : s+groups] {
			r.GroupShare[g] += v
		}
	}
	for g := range r.GroupShare {
		r.GroupShare[g] *= e.scale()
	}
}

func sum(x []float64) (s float64) {
	for _, v := range x {
		s += v
	}
	return s
}

// formWork is the scratch of one worker, [n][32] each.
type formWork struct{ w, d, y, turned []float32 }

func newFormWork(n int) *formWork {
	s := make([]float32, 4*n*lanes)
	part := func(i int) []float32 { return s[i*n*lanes : (i+1)*n*lanes : (i+1)*n*lanes] }
	return &formWork{part(0), part(1), part(2), part(3)}
}

// turn packs channels r0..r1 of x [·,n] as a slab in the order of perm; natural gets the slab in natural order and may
// be dst if perm is nil.
func turn(dst, natural, x []float32, n, r0, r1 int, perm []int32) {
	if perm == nil {
		natural = dst
	}
	kernels.PackSlab(natural, x, r1, n, r0)
	for at, c := range perm {
		copy(dst[at*lanes:(at+1)*lanes], natural[int(c)*lanes:])
	}
}

// fill gives a result its error figures from H. A statistic without rows gives none.
func (e *errorForms) fill(ctx context.Context, pool *kernels.Pool, r *Result, w []float32) error {
	if e.h.Rows == 0 {
		return ctx.Err()
	}
	f := e.newFigures(r.Out, true)
	e.slabs(ctx, pool, r.Out, func(s *formWork, r0, r1 int) {
		turn(s.w, s.turned, w, r.In, r0, r1, e.perm)
		e.difference(s, r, r0, r1)
		e.note(f, r0, s.w, s.d, s.y)
	})
	e.record(r, f)
	return ctx.Err()
}

// slabs runs do over all slabs of out channels.
func (e *errorForms) slabs(ctx context.Context, pool *kernels.Pool, out int, do func(s *formWork, r0, r1 int)) {
	work := make([]*formWork, pool.Threads())
	pool.Do((out+lanes-1)/lanes, func(worker, task int) {
		if ctx.Err() != nil {
			return
		}
		if work[worker] == nil {
			work[worker] = newFormWork(e.h.N)
		}
		do(work[worker], task*lanes, min((task+1)*lanes, out))
	})
}

// difference makes s.d = s.w − dequantized for channels r0..r1.
func (e *errorForms) difference(s *formWork, r *Result, r0, r1 int) {
	rows := s.y[:(r1-r0)*r.In]
	r.dequantize(rows, r0, r1)
	turn(s.d, s.turned, rows, r.In, 0, r1-r0, e.perm)
	subtract(s.d, s.w)
}

// subtract is d = w − d.
func subtract(d, w []float32) {
	w = w[:len(d)]
	for i, v := range w {
		d[i] = v - d[i]
	}
}

// The column loop knows the output error. With U·Hd·Uᵀ = I for the damped statistic Hd, and W−Q = E·U for the errors E
// that it fed back, (W−Q)·Hd·(W−Q)ᵀ is Σe², so (W−Q)·H·(W−Q)ᵀ is that less what damping added to the diagonal. Rounding of
// U spoils this where H is ill-conditioned, and damping drowns the error where the statistic has few rows. So a sample of
// the channels is computed from H too, and where the sums differ by more than identityTolerance, all channels are.
const (
	identityLeast     = 256 // channels from which on the identity saves time
	identityStride    = 32  // one channel of so many is in the sample
	identityLargest   = 32  // and so many of the largest loss
	identityTolerance = 2e-4
)

// identityHolds compares f.err, from the loss, with H on a sample of the channels: every identityStride-th, and those of
// the largest loss.
func (e *errorForms) identityHolds(ctx context.Context, pool *kernels.Pool, r *Result, w []float32, f *figures, loss []float64) bool {
	order := make([]int, r.Out)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(loss[b], loss[a]) })
	sample := order[:min(identityLargest, r.Out):min(identityLargest, r.Out)]
	largest := len(sample)
	for c := 0; c < r.Out; c += identityStride {
		sample = append(sample, c)
	}
	exact := make([]float64, len(sample))
	n := r.In
	e.slabs(ctx, pool, len(sample), func(s *formWork, i0, i1 int) {
		rows := make([]float32, (i1-i0)*n)
		for i, c := range sample[i0:i1] {
			r.dequantize(rows[i*n:], c, c+1)
			subtract(rows[i*n:(i+1)*n], w[c*n:])
		}
		turn(s.d, s.turned, rows, n, 0, i1-i0, e.perm)
		var v [lanes]float64
		e.whole.Values(&v, s.d, s.y)
		copy(exact[i0:i1], v[:])
	})
	for _, part := range [2][2]int{{0, largest}, {largest, len(sample)}} {
		var want, got float64
		for i := part[0]; i < part[1]; i++ {
			want += exact[i]
			got += f.err[sample[i]]
		}
		if !(math.Abs(got-want) <= identityTolerance*want) {
			return false
		}
	}
	return true
}

// account fills in the error figures of the column loop's result and compares it with rounding to nearest (the guard).
func (p *Prepared) account(ctx context.Context, pool *kernels.Pool, r *Result, w []float32, f *figures, loss []float64) error {
	e := p.quadForms(pool)
	if f == nil {
		return ctx.Err()
	}
	if !f.exact && !e.identityHolds(ctx, pool, r, w, f, loss) {
		f.exact = true
		e.slabs(ctx, pool, r.Out, func(s *formWork, r0, r1 int) {
			turn(s.w, s.turned, w, r.In, r0, r1, e.perm)
			e.difference(s, r, r0, r1)
			var v [lanes]float64
			e.whole.Values(&v, s.d, s.y)
			copy(f.err[r0:r1], v[:])
		})
	}
	e.record(r, f)
	if err := ctx.Err(); err != nil || !p.o.guarded() {
		return err
	}
	g := &GuardRecord{SolverError: *r.Record.OutputError}
	if err := p.roundedError(ctx, pool, w, r.Out, f.err, g); err != nil {
		return err
	}
	r.Record.Guard = g
	if !g.RTNComplete || g.RTNError >= g.SolverError {
		return nil
	}
	g.KeptRTN = true
	plain, err := roundToNearest(ctx, pool, w, r.Out, r.In, p.o, p.h.Site, GridRTN, p.perm, p.gidx)
	if err != nil {
		return err
	}
	if err := e.fill(ctx, pool, plain, w); err != nil {
		return err
	}
	p.fillRecord(&plain.Record)
	plain.Record.Asked, plain.Record.Reason, plain.Record.Guard, plain.Record.Loss = r.Record.Method, ReasonGuard, g, r.Record.Loss
	*r = *plain
	return nil
}

// roundedError completes g with the error of rounding to nearest. It goes slab after slab, those of the solver's largest
// errors first, and stops when the sum exceeds the solver's: no channel adds a negative error, so the rest cannot matter.
func (p *Prepared) roundedError(ctx context.Context, pool *kernels.Pool, w []float32, out int, solver []float64, g *GuardRecord) error {
	e := p.quadForms(pool)
	limit := g.SolverError / e.scale()
	slabs := (out + lanes - 1) / lanes
	order, weight := make([]int, slabs), make([]float64, slabs)
	for t := range order {
		order[t], weight[t] = t, sum(solver[t*lanes:min((t+1)*lanes, out)])
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(weight[b], weight[a]) })
	tallies := make([]tally, slabs)
	sums := make([]float64, slabs)
	work := make([]*slabWork, pool.Threads())
	step := 2 * pool.Threads()
	var total float64
	for t0 := 0; t0 < slabs; t0 += step {
		now := order[t0:min(t0+step, slabs)]
		pool.Do(len(now), func(worker, i int) {
			if ctx.Err() != nil {
				return
			}
			if work[worker] == nil {
				work[worker] = newSlabWork(p)
			}
			s := work[worker]
			r0, r1 := now[i]*lanes, min((now[i]+1)*lanes, out)
			s.round(w, r0, r1, &tallies[now[i]])
			var v [lanes]float64
			e.whole.Values(&v, s.delta, s.y)
			sums[now[i]] = sum(v[:r1-r0])
		})
		if ctx.Err() != nil {
			return fmt.Errorf("rounding %s [%d,%d]: %w", p.h.Site, out, p.n, context.Cause(ctx))
		}
		for i, t := range now {
			if err := tallies[t].err; err != nil {
				err.Site = p.h.Site
				return err
			}
			total += sums[t]
			if total > limit && t0+i+1 < slabs {
				g.RTNError = total * e.scale()
				return nil
			}
		}
	}
	g.RTNError, g.RTNComplete = total*e.scale(), true
	return nil
}
