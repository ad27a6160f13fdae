package kernels

import "fmt"

// Cross accumulates D = AᵀB over rows that two sides share, [NA, NB], with the
// block rule of Gram. If both sides are bf16 the chain takes rows 1,0,3,2… and tiny
// values are flushed; otherwise rows are in natural order and bf16 is widened.
// The types of a side are those of the first Add.
type Cross struct {
	na, nb int
	rows   int64
	sum    []float64 // [panel of B][row of A, padded to 32][32]
	a, b   blockStore
}

// NewCross makes an empty product statistic of na by nb columns.
func NewCross(na, nb int) *Cross {
	c := &Cross{}
	c.Reset(na, nb)
	return c
}

// CrossBytes is the memory of a Cross: float64 sums and two open blocks of float32 rows.
func CrossBytes(na, nb int) int64 {
	pa, pb := int64(ceilDiv(na, panelWidth)), int64(ceilDiv(nb, panelWidth))
	return 8*panelWidth*panelWidth*pa*pb + 4*kBlock*int64(na+nb)
}

// Reset empties the statistic and sets its shape, keeping memory where it fits.
func (c *Cross) Reset(na, nb int) {
	if na < 0 || nb < 0 {
		panic(fmt.Sprintf("kernels: Cross of %d by %d columns", na, nb))
	}
	need := ceilDiv(na, panelWidth) * ceilDiv(nb, panelWidth) * panelWidth * panelWidth
	if cap(c.sum) < need {
		c.sum = alignedDoubles(need)
	} else {
		c.sum = c.sum[:need]
		clear(c.sum)
	}
	c.na, c.nb, c.rows = na, nb, 0
	c.a.reset(na)
	c.b.reset(nb)
}

// Rows is the number of rows added since the last Reset.
func (c *Cross) Rows() int64 { return c.rows }

// Add accumulates a [M, NA] and b [M, NB]: row r of both is the same token row.
func (c *Cross) Add(p *Pool, a, b Rows) {
	a.check()
	b.check()
	if a.M != b.M || a.K != c.na || b.K != c.nb {
		panic(fmt.Sprintf("kernels: rows [%d,%d] and [%d,%d] for a Cross of %d by %d", a.M, a.K, b.M, b.K, c.na, c.nb))
	}
	c.rows += int64(a.M)
	if a.M == 0 || c.na == 0 || c.nb == 0 {
		return
	}
	t := micro()
	// Both stores cut at the same rows. Side A's blocks are copied out, since they live
	// only during the call; then they meet side B's.
	for r := 0; r < a.M; {
		m := min(kBlock-c.a.held, a.M-r)
		var fa []Rows
		c.a.add(a.slice(r, m), func(bs []Rows) { fa = append(fa, bs...) })
		c.b.add(b.slice(r, m), func(bs []Rows) { c.addBlock(p, t, fa[0], bs[0], c.sum) })
		r += m
	}
}

// addBlock adds one block of rows into sum.
func (c *Cross) addBlock(p *Pool, t *microTable, a, b Rows, sum []float64) {
	// A mixed pair meets as float32 in natural order.
	var wide [2][]float32
	if (a.BF16 == nil) != (b.BF16 == nil) {
		if a.BF16 != nil {
			a, wide[0] = widened(a)
		} else {
			b, wide[1] = widened(b)
		}
	}
	pa, pb := ceilDiv(c.na, panelWidth), ceilDiv(c.nb, panelWidth)
	f, steps := panelKernels(t, &a)
	na, nb := t.sliceRows(c.na)*steps, pb*panelWidth*steps
	buf := borrowLanes(na + nb)
	defer buf.giveBack()
	la, lb := buf.lanes[:na], buf.lanes[na:na+nb]
	packBlocks(p, t, nil, la, []Rows{a}, 0, na)
	packBlocks(p, t, lb, nil, []Rows{b}, nb, 0)
	rb, cb := tileSteps(pa*pb, p.Threads())
	ni, nj := ceilDiv(pa, rb), ceilDiv(pb, cb)
	p.Do(ni*nj, func(_, task int) {
		i0, j0 := task%ni*rb, task/ni*cb
		for jp := j0; jp < min(pb, j0+cb); jp++ {
			r0, r1 := i0*panelWidth, min(pa, i0+rb)*panelWidth
			blockProduct(t, f, steps, la, r0, r1, lb[jp*panelWidth*steps:], &sum[(jp*pa+i0)*panelWidth*panelWidth])
		}
	})
}

// widened is a float32 copy of a bf16 block.
func widened(x Rows) (Rows, []float32) {
	f := make([]float32, x.M*x.K)
	for r := range x.M {
		for i, h := range x.BF16[r*x.Stride:][:x.K] {
			f[r*x.K+i] = f32bits(uint32(h) << 16)
		}
	}
	return RowsF32(f, x.M, x.K), f
}

// Partial writes D [NA, NB] row-major to dst, rounded to float32 once. The open
// block is included and stays open.
func (c *Cross) Partial(dst []float32) {
	if len(dst) < c.na*c.nb {
		panic(fmt.Sprintf("kernels: partial of %d elements for [%d,%d]", len(dst), c.na, c.nb))
	}
	if c.na == 0 || c.nb == 0 {
		return
	}
	sum := c.sum
	if c.a.held > 0 {
		sum = append([]float64(nil), sum...)
		c.addBlock(nil, micro(), c.a.open(), c.b.open(), sum)
	}
	pa := ceilDiv(c.na, panelWidth)
	for i := range c.na {
		for j := range c.nb {
			dst[i*c.nb+j] = float32(sum[(j/panelWidth*pa*panelWidth+i)*panelWidth+j%panelWidth])
		}
	}
}
