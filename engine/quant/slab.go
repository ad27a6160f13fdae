package quant

import (
	"context"
	"fmt"
	"slices"

	"quire/kernels"
)

// Solve quantizes w [out,in] row-major with the options of Prepare. It returns a *ValueError for a weight that is not
// finite or a scale that its type cannot hold, and ctx's error if ctx ends first.
func (p *Prepared) Solve(ctx context.Context, pool *kernels.Pool, w []float32, out int) (*Result, error) {
	if err := checkWeight(w, out, p.n, p.h.Site); err != nil {
		return nil, err
	}
	if !p.Factored() {
		reason := ReasonNoFactor
		if len(p.dead) == p.n {
			reason = ReasonNoActivity
		}
		return p.plain(ctx, pool, w, out, p.o.FallbackGrid, reason)
	}
	r := newResult(p.o, out, p.n)
	r.Perm, r.GIdx = slices.Clone(p.perm), slices.Clone(p.gidx)
	r.Record = p.o.record(MethodGPTQ, out, p.n)
	p.fillRecord(&r.Record)

	slabs := (out + lanes - 1) / lanes
	work := make([]*slabWork, pool.Threads())
	tallies := make([]tally, slabs)
	loss := make([]float64, out)
	forms := p.quadForms(pool)
	var f *figures
	if p.h.Rows > 0 {
		// A library's loss counts dead columns, whose weights it has set to zero, so under parity it says less.
		f = forms.newFigures(out, p.o.Parity != "" || out < identityLeast)
	}
	pool.Do(slabs, func(worker, task int) {
		if ctx.Err() != nil {
			return
		}
		if work[worker] == nil {
			work[worker] = newSlabWork(p)
		}
		s := work[worker]
		r0 := task * lanes
		r1 := min(r0+lanes, out)
		s.solve(r, w, r0, r1, &tallies[task])
		copy(loss[r0:r1], s.lossLane[:])
		if f != nil {
			s.figures(forms, f, r0, r1)
		}
	})
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("solving %s [%d,%d]: %w", p.h.Site, out, p.n, context.Cause(ctx))
	}
	var sum tally
	for i := range tallies {
		sum.add(&tallies[i])
	}
	if sum.err != nil || !finite(sum.loss) {
		// Feedback left the range of float32: the original weights may still be roundable, and if they are not, that
		// error names the place in W.
		return p.plain(ctx, pool, w, out, GridRTN, ReasonFeedback)
	}
	sum.fill(&r.Record)
	half := sum.loss / 2
	r.Record.Loss = &half
	if err := p.account(ctx, pool, r, w, f, loss); err != nil {
		return nil, err
	}
	return r, nil
}

// plain rounds w to nearest, for a reason, with the groups that the statistic's other linears have.
func (p *Prepared) plain(ctx context.Context, pool *kernels.Pool, w []float32, out int, kind, reason string) (*Result, error) {
	r, err := roundToNearest(ctx, pool, w, out, p.n, p.o, p.h.Site, kind, p.perm, p.gidx)
	if err != nil {
		return nil, err
	}
	r.Record.Asked, r.Record.Reason = MethodGPTQ, reason
	p.fillRecord(&r.Record)
	if err := p.quadForms(pool).fill(ctx, pool, r, w); err != nil {
		return nil, err
	}
	return r, nil
}

// tally is what a slab adds to the Record.
type tally struct {
	loss       float64 // Σ((w−q)/U_ii)² over live columns
	saturated  int64
	floored    int64
	zeroGroups int64
	err        *ValueError
}

func (t *tally) add(o *tally) {
	t.loss += o.loss
	t.saturated += o.saturated
	t.floored += o.floored
	t.zeroGroups += o.zeroGroups
	if t.err == nil {
		t.err = o.err
	}
}

func finite(x float64) bool { return x-x == 0 }

func (t *tally) fill(r *Record) {
	r.Saturated, r.ScaleFloor, r.ZeroGroups = t.saturated, t.floored, t.zeroGroups
}

// slabWork is the scratch of one worker: 32 output channels, columns in visiting order.
type slabWork struct {
	p     *Prepared
	grid  *grid
	slab  []float32 // [n][32] weights after feedback
	e     []float32 // [block][32] (w−q)/U_ii
	codes []uint8   // [n][32]
	dead  []bool    // by position

	// In the order of the error forms: original weights, dequantized ones and then their difference, and scratch.
	loads, delta, y []float32 // [n][32]
	at              []int32   // position → column in that order, nil where the two are one

	kernel bool // the column quantizer of package kernels computes this grid
	ranges *kernels.Columns
	added  []float64 // by position: diagonal of the damped statistic less that of H, 0 for a dead column

	groups        int
	tables        []fitted // [group][32]
	scale, zero   [lanes]float32
	values, extra []float32 // one group of one channel
	lossLane      [lanes]float64
}

func newSlabWork(p *Prepared) *slabWork {
	g := p.o.groupSize(p.n)
	s := &slabWork{
		p: p, grid: newGrid(p.o), groups: p.o.Groups(p.n),
		slab: make([]float32, p.n*lanes), e: make([]float32, p.block*lanes), codes: make([]uint8, p.n*lanes),
		dead: make([]bool, p.n), values: make([]float32, g), extra: make([]float32, g),
	}
	s.tables = make([]fitted, s.groups*lanes)
	s.kernel = p.o.Parity != ParityCompressedTensors
	s.ranges = kernels.NewColumns(lanes)
	s.loads, s.delta, s.y = make([]float32, p.n*lanes), make([]float32, p.n*lanes), make([]float32, p.n*lanes)
	if p.frame() == nil {
		s.at = p.perm
	}
	if p.added != nil {
		s.added = make([]float64, p.n)
		for c, v := range p.added {
			at := c
			if p.inv != nil {
				at = int(p.inv[c])
			}
			s.added[at] = v
		}
	}
	for _, c := range p.dead {
		at := c
		if p.inv != nil {
			at = p.inv[c]
		}
		s.dead[at] = true
	}
	return s
}

// solve runs the column loop for channels r0..r1 of w.
func (s *slabWork) solve(r *Result, w []float32, r0, r1 int, t *tally) {
	p := s.p
	s.load(w, r0, r1)
	s.lossLane = [lanes]float64{}
	static := p.o.staticGroups()
	if static {
		s.fitStatic(w, r0, r1, t)
	}
	n := p.n
	group := -1
	for blk := 0; blk*p.block < n; blk++ {
		b0 := blk * p.block
		b1 := min(b0+p.block, n)
		for i := range b1 - b0 {
			at := b0 + i
			newGroup := int(p.position[at]) != group
			if newGroup && !static { // before the feedback of this block's columns
				s.fitDynamic(at, r0, r1, t)
			}
			if i > 0 {
				p.factor.Column(s.slab, s.e, blk, i)
			}
			if newGroup {
				group = int(p.position[at])
				for l := range lanes {
					f := &s.tables[group*lanes+l]
					s.scale[l], s.zero[l] = f.scale, f.zero
				}
			}
			s.quantize(at, i)
		}
		if b1 < n {
			p.factor.Tail(s.slab, s.e, blk)
		}
	}
	s.store(r, r0, r1, t)
}

// load gathers w's columns in visiting order. Lanes beyond the last channel are zero.
func (s *slabWork) load(w []float32, r0, r1 int) {
	p := s.p
	zeroDead := p.o.Parity != ""
	turn(s.loads, s.y, w, p.n, r0, r1, p.frame())
	if s.at == nil {
		copy(s.slab, s.loads)
	} else {
		for at, c := range s.at {
			copy(s.slab[at*lanes:(at+1)*lanes], s.loads[int(c)*lanes:])
		}
	}
	if zeroDead {
		for at, d := range s.dead {
			if d {
				clear(s.slab[at*lanes : (at+1)*lanes])
			}
		}
	}
}

// fitStatic takes every group's range from the original weights, by the columns' own numbers.
func (s *slabWork) fitStatic(w []float32, r0, r1 int, t *tally) {
	p := s.p
	g := p.o.groupSize(p.n)
	row := make([]float32, p.n)
	for l := range r1 - r0 {
		copy(row, w[(r0+l)*p.n:(r0+l+1)*p.n])
		if p.o.Parity != "" && p.o.GroupSize != -1 {
			for _, c := range p.dead {
				row[c] = 0
			}
		}
		for k := range s.groups {
			x := row[k*g : min((k+1)*g, p.n)]
			s.tables[k*lanes+l] = s.grid.fit(x, s.extra)
			t.note(&s.tables[k*lanes+l], r0+l, k)
		}
	}
}

// fitDynamic takes the range of the group that starts at a position from the slab as it stands.
func (s *slabWork) fitDynamic(at, r0, r1 int, t *tally) {
	end := min(at+s.p.o.groupSize(s.p.n), s.p.n)
	s.fitRun(s.slab[at*lanes:end*lanes], int(s.p.position[at]), r0, r1, t)
}

// fitRun fits group k to the values x [columns][32].
func (s *slabWork) fitRun(x []float32, k, r0, r1 int, t *tally) {
	columns := len(x) / lanes
	s.ranges.Reset(lanes)
	s.ranges.Add(nil, kernels.RowsF32(x, columns, lanes))
	var least, most [lanes]float32
	s.ranges.Values(nil, least[:], most[:])
	for l := range r1 - r0 {
		f := &s.tables[k*lanes+l]
		*f = fitted{}
		if least[l] < 0 {
			f.lo = least[l]
		}
		if most[l] > 0 {
			f.hi = most[l]
		}
		values := s.values[:columns]
		if s.grid.mse > 0 {
			for c := range values {
				values[c] = x[c*lanes+l]
			}
		}
		s.grid.fitRange(f, values, s.extra)
		t.note(f, r0+l, k)
	}
}

// round rounds channels r0..r1 to nearest, without feedback, and leaves w−q in s.delta.
func (s *slabWork) round(w []float32, r0, r1 int, t *tally) {
	p := s.p
	turn(s.loads, s.y, w, p.n, r0, r1, p.frame())
	g := p.o.groupSize(p.n)
	var scale, zero, e [lanes]float32
	var codes [lanes]uint8
	for k := range s.groups {
		c0, c1 := k*g, min((k+1)*g, p.n)
		s.fitRun(s.loads[c0*lanes:c1*lanes], k, r0, r1, t)
		for l := range lanes {
			f := &s.tables[k*lanes+l]
			scale[l], zero[l] = f.scale, f.zero
		}
		for c := c0; c < c1; c++ {
			kernels.QuantizeColumn(codes[:], s.delta[c*lanes:], e[:], s.loads[c*lanes:], scale[:], zero[:], s.grid.maxq, 1)
		}
	}
	s.subtract(r1 - r0)
}

// subtract makes s.delta = s.loads − s.delta; lanes beyond the last channel, which have no scale, become zero.
func (s *slabWork) subtract(channels int) {
	subtract(s.delta, s.loads)
	if channels < lanes {
		for c := 0; c < len(s.delta); c += lanes {
			clear(s.delta[c+channels : c+lanes])
		}
	}
}

// figures takes the error figures of the slab that was just solved.
func (s *slabWork) figures(e *errorForms, f *figures, r0, r1 int) {
	s.subtract(r1 - r0)
	if !f.exact {
		v := s.lossLane
		for at := range s.p.n {
			c := at
			if s.at != nil {
				c = int(s.at[at])
			}
			if a := s.added[at]; a != 0 {
				for l, x := range s.delta[c*lanes : (c+1)*lanes] {
					v[l] -= float64(float64(x) * float64(x) * a)
				}
			}
		}
		copy(f.err[r0:r1], v[:])
	}
	e.note(f, r0, s.loads, s.delta, s.y)
}

// note counts what is worth counting and finds scales that do not fit their type.
func (t *tally) note(f *fitted, row, group int) {
	if f.floored {
		t.floored++
	}
	if f.lo == 0 && f.hi == 0 {
		t.zeroGroups++
	}
	if f.scale-f.scale != 0 && t.err == nil {
		t.err = &ValueError{What: "scale", Row: row, Col: group, Value: float64(f.hi - f.lo), Err: ErrScaleRange,
			Try: "the group's range does not fit the scale type: use scale_dtype bf16 or f32, or leave the module out"}
	}
}

// quantize codes the column at a position; i is its number in the block.
func (s *slabWork) quantize(at, i int) {
	p := s.p
	inv := 1 / p.diagU[at]
	col := s.slab[at*lanes : (at+1)*lanes]
	codes := s.codes[at*lanes : (at+1)*lanes]
	e := s.e[i*lanes : (i+1)*lanes]
	c := at
	if s.at != nil {
		c = int(s.at[at])
	}
	deq := s.delta[c*lanes : (c+1)*lanes]
	if s.kernel {
		kernels.QuantizeColumn(codes, deq, e, col, s.scale[:], s.zero[:], s.grid.maxq, 1)
		for l := range e {
			e[l] *= inv
		}
	} else {
		for l, v := range col {
			q := s.grid.quantize(v, s.scale[l], s.zero[l])
			codes[l] = uint8(q)
			deq[l] = float32(s.scale[l] * (q - s.zero[l]))
			e[l] = (v - deq[l]) * inv
		}
	}
	if s.dead[at] && p.o.Parity == "" {
		return
	}
	for l, v := range e {
		s.lossLane[l] += float64(v) * float64(v)
	}
}

// store writes codes and tables of channels r0..r1 in natural order.
func (s *slabWork) store(r *Result, r0, r1 int, t *tally) {
	p := s.p
	maxq := uint8(p.o.MaxQ())
	for l := range r1 - r0 {
		t.loss += s.lossLane[l]
		row := r.Codes[(r0+l)*p.n : (r0+l+1)*p.n]
		for at := range p.n {
			c := at
			if p.perm != nil {
				c = int(p.perm[at])
			}
			q := s.codes[at*lanes+l]
			row[c] = q
			if q == 0 || q == maxq {
				t.saturated++
			}
		}
		for k := range s.groups {
			r.setTable((r0+l)*s.groups+k, &s.tables[k*lanes+l])
		}
	}
}
