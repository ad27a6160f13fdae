package capture

import (
	"fmt"

	"quire/kernels"
)

// Fold adds the lanes' partials of one statistic in lane order, in float64.
type Fold struct {
	n    int
	sum  []float64
	rows int64
	next int
}

// NewFold starts the sum of partials [n,n] (or any other n² or shorter vector of n elements: see Add).
func NewFold(n int) *Fold { return &Fold{n: n} }

// Add adds a lane's partial with its row count. Lanes must come in ascending order; a lane without rows may come with a nil
// partial or be left out.
func (f *Fold) Add(lane int, partial []float32, rows int64) error {
	if lane < f.next {
		return &Error{Kind: ErrBatch, What: fmt.Sprintf("lane %d after lane %d", lane, f.next-1)}
	}
	f.next = lane + 1
	f.rows += rows
	if partial == nil {
		return nil
	}
	if f.sum == nil {
		f.sum = make([]float64, len(partial))
	}
	if len(partial) != len(f.sum) {
		return &Error{Kind: ErrBatch, What: fmt.Sprintf("partial of %d elements into a sum of %d", len(partial), len(f.sum))}
	}
	kernels.AddPartial(f.sum, partial)
	return nil
}

// Rows is the number of rows of all lanes.
func (f *Fold) Rows() int64 { return f.rows }

// Hessian writes float32(Σ lanes · 2/rows); zeros without rows. The scaling happens in float64, so there is one rounding.
func (f *Fold) Hessian(dst []float32) {
	clear(dst)
	if f.rows == 0 || f.sum == nil {
		return
	}
	s := 2 / float64(f.rows)
	for i, v := range f.sum {
		dst[i] = float32(float64(v * s))
	}
}

// Coverage counts native rows by expert over a layer.
type Coverage struct {
	Rows    int64   // token rows of the layer
	Experts []int64 // native rows by expert
}

// Add counts the native rows of one span.
func (c *Coverage) Add(rows int, counts []int) {
	if c.Experts == nil {
		c.Experts = make([]int64, len(counts))
	}
	c.Rows += int64(rows)
	for e, n := range counts {
		c.Experts[e] += int64(n)
	}
}

// Min is the smallest count and its lowest expert.
func (c *Coverage) Min() (expert int, rows int64) {
	for e, n := range c.Experts {
		if e == 0 || n < rows {
			expert, rows = e, n
		}
	}
	return expert, rows
}
