package quant

import (
	"quire/kernels"
)

// quadForm is x ↦ x·A·xᵀ over the columns from.. of rows x, for a symmetric A.
type quadForm struct {
	from int // first column of x
	form *kernels.QuadForm
}

// newQuadForm packs the square [from,to) of a matrix with n columns, of which the upper triangle is read.
func newQuadForm(pool *kernels.Pool, h []float32, n, from, to int) *quadForm {
	return &quadForm{from: from, form: kernels.PackQuadForm(pool, nil, h, n, from, to)}
}

// sum is Σ over the channels of x [out,n] in channel order. It stops early, at the end of a task's channels, once the
// sum exceeds limit (when limit is not negative); complete tells whether all channels were looked at.
func (q *quadForm) sum(pool *kernels.Pool, x []float32, out, n int, limit float64) (total float64, complete bool) {
	step := out
	if limit >= 0 {
		step = pool.Threads() * kernels.QuadRows
	}
	sums := make([]float64, min(step, out))
	for r0 := 0; r0 < out; r0 += step {
		rows := min(step, out-r0)
		q.form.Sums(pool, sums, kernels.Rows{M: rows, K: q.form.N(), Stride: n, F32: x[r0*n+q.from:]})
		for r, s := range sums[:rows] {
			total += s
			if end := r0 + r + 1; limit >= 0 && total > limit && end%kernels.QuadRows == 0 && end < out {
				return total, false
			}
		}
	}
	return total, true
}
