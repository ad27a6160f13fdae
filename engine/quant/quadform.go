package quant

import (
	"quire/kernels"
)

// quadForm is x ↦ x·A·xᵀ for a symmetric A of which the upper triangle is known, packed for many x at once: column blocks
// of A with doubled off-diagonal elements, so only the upper half is multiplied. Products are float32 (GEMM of the numeric
// contract), their sum with x is float64 in column order.
type quadForm struct {
	from   int // first column of x
	blocks []*kernels.Weight
	at     []int // first column of each block, relative to from; one past the last at the end
}

const quadBlock = 256

// newQuadForm packs the square [from,to) of a matrix with n columns.
func newQuadForm(pool *kernels.Pool, h []float32, n, from, to int) *quadForm {
	q := &quadForm{from: from}
	size := to - from
	for c := 0; c < size; c += quadBlock {
		q.at = append(q.at, c)
	}
	q.at = append(q.at, size)
	q.blocks = make([]*kernels.Weight, len(q.at)-1)
	pool.Do(len(q.blocks), func(_, b int) {
		c0, c1 := q.at[b], q.at[b+1]
		w := make([]float32, (c1-c0)*c1) // w[c][k] = A[k][c], k <= c
		for c := c0; c < c1; c++ {
			row := w[(c-c0)*c1 : (c-c0+1)*c1]
			for k := range c {
				row[k] = 2 * h[(from+k)*n+from+c]
			}
			row[c] = h[(from+c)*n+from+c]
		}
		q.blocks[b] = kernels.PackF32(nil, w, c1-c0, c1)
	})
	return q
}

// rows writes x·A·xᵀ of rows [r0,r1) of x [·,n] into sums. y is scratch of (r1-r0)·quadBlock elements.
func (q *quadForm) rows(sums []float64, x []float32, n, r0, r1 int, y []float32) {
	for i := range sums {
		sums[i] = 0
	}
	for b, w := range q.blocks {
		c0, c1 := q.at[b], q.at[b+1]
		kernels.GEMM(nil, kernels.GEMMJob{X: kernels.Rows{M: r1 - r0, K: c1, Stride: n, F32: x[r0*n+q.from:]}, W: w, Y: y, LDY: c1 - c0})
		for r := r0; r < r1; r++ {
			s := sums[r-r0]
			out := y[(r-r0)*(c1-c0):][:c1-c0]
			for i, v := range x[r*n+q.from+c0:][:c1-c0] {
				s += float64(v) * float64(out[i]) // exact product: fusing changes nothing
			}
			sums[r-r0] = s
		}
	}
}

// quadRows is how many channels one task takes.
const quadRows = 64

// sum is Σ over the channels of x [out,n] in channel order. It stops early, at the end of a task's channels, once the
// sum exceeds limit (when limit is not negative); complete tells whether all channels were looked at.
func (q *quadForm) sum(pool *kernels.Pool, x []float32, out, n int, limit float64) (total float64, complete bool) {
	tasks := (out + quadRows - 1) / quadRows
	step := tasks
	if limit >= 0 {
		step = pool.Threads()
	}
	sums := make([]float64, out)
	work := make([][]float32, pool.Threads())
	for t0 := 0; t0 < tasks; t0 += step {
		t1 := min(t0+step, tasks)
		pool.Do(t1-t0, func(worker, i int) {
			if work[worker] == nil {
				work[worker] = make([]float32, quadRows*quadBlock)
			}
			r0 := (t0 + i) * quadRows
			r1 := min(r0+quadRows, out)
			q.rows(sums[r0:r1], x, n, r0, r1, work[worker])
		})
		for t := t0; t < t1; t++ {
			for r := t * quadRows; r < min((t+1)*quadRows, out); r++ {
				total += sums[r]
			}
			if limit >= 0 && total > limit && t+1 < tasks {
				return total, false
			}
		}
	}
	return total, true
}
