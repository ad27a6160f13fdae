package kernels

import (
	"fmt"
	"math"
	"unsafe"
)

// Columns accumulates per column the sum of absolute values, the least and the
// greatest value. Absolute sums follow the block rule: float32 from zero within
// 256 rows in row order, float64 across blocks. A NaN makes the sum NaN and is
// ignored by least and greatest.
type Columns struct {
	n     int
	rows  int64
	open  []float32 // absolute sums of the open block
	sum   []float64
	least []float32
	most  []float32
}

// columnKernel accumulates rows of 32 float32 columns: abs += |x|, least, most.
type columnKernel func(rows int, x *float32, stride int, abs, least, most *float32)

// NewColumns makes empty statistics over n columns.
func NewColumns(n int) *Columns {
	c := &Columns{}
	c.Reset(n)
	return c
}

// Reset empties the statistics and sets the width.
func (c *Columns) Reset(n int) {
	*c = Columns{n: n, open: make([]float32, n), sum: make([]float64, n), least: make([]float32, n), most: make([]float32, n)}
	for i := range n {
		c.least[i], c.most[i] = float32(math.Inf(1)), float32(math.Inf(-1))
	}
}

// Rows is the number of rows added since the last Reset.
func (c *Columns) Rows() int64 { return c.rows }

// Add accumulates the rows of x, [M, n]. bf16 rows are widened, not flushed.
func (c *Columns) Add(p *Pool, x Rows) {
	x.check()
	if x.K != c.n {
		panic(fmt.Sprintf("kernels: rows of %d columns for statistics over %d", x.K, c.n))
	}
	t := micro()
	const group = 256 // columns a task
	start := int(c.rows % kBlock)
	c.rows += int64(x.M)
	p.Do(ceilDiv(c.n, group), func(_, task int) {
		c0, c1 := task*group, min(c.n, task*group+group)
		var tmp []float32
		if x.BF16 != nil {
			tmp = make([]float32, 32*(c1-c0))
		}
		for r, held := 0, start; r < x.M; {
			m := min(kBlock-held, x.M-r)
			if tmp != nil {
				m = min(m, 32)
				for i := range m {
					for j, h := range x.BF16[(r+i)*x.Stride+c0:][:c1-c0] {
						tmp[i*(c1-c0)+j] = f32bits(uint32(h) << 16)
					}
				}
				c.addRows(t, tmp, c1-c0, m, c0, c1)
			} else {
				c.addRows(t, x.F32[r*x.Stride+c0:], x.Stride, m, c0, c1)
			}
			r += m
			if held += m; held == kBlock {
				held = 0
				for i := c0; i < c1; i++ {
					c.sum[i] += float64(c.open[i])
					c.open[i] = 0
				}
			}
		}
	})
}

// addRows adds m rows of columns c0..c1; x begins at column c0.
func (c *Columns) addRows(t *microTable, x []float32, stride, m, c0, c1 int) {
	i := c0
	for ; i+panelWidth <= c1; i += panelWidth {
		t.columns(m, &x[i-c0], stride, &c.open[i], &c.least[i], &c.most[i])
	}
	for ; i < c1; i++ {
		columnStep(m, x[i-c0:], stride, &c.open[i], &c.least[i], &c.most[i])
	}
}

// columnStep is the definition for one column.
func columnStep(m int, x []float32, stride int, abs, least, most *float32) {
	s, lo, hi := *abs, *least, *most
	for r := range m {
		v := x[r*stride]
		s += math.Float32frombits(math.Float32bits(v) &^ (1 << 31))
		if v < lo {
			lo = v
		}
		if v > hi {
			hi = v
		}
	}
	*abs, *least, *most = s, lo, hi
}

// scalarColumns defines the column kernel.
func scalarColumns(rows int, x *float32, stride int, abs, least, most *float32) {
	if rows == 0 {
		return
	}
	xs := unsafe.Slice(x, (rows-1)*stride+panelWidth)
	as, ls, ms := unsafe.Slice(abs, panelWidth), unsafe.Slice(least, panelWidth), unsafe.Slice(most, panelWidth)
	for j := range panelWidth {
		columnStep(rows, xs[j:], stride, &as[j], &ls[j], &ms[j])
	}
}

// Values writes the absolute sums, least and greatest values; a nil slice is
// skipped. Without rows least is +Inf and most -Inf.
func (c *Columns) Values(abs []float64, least, most []float32) {
	for i := range c.n {
		if abs != nil {
			abs[i] = c.sum[i] + float64(c.open[i])
		}
	}
	if least != nil {
		copy(least, c.least)
	}
	if most != nil {
		copy(most, c.most)
	}
}
