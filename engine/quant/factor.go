package quant

import (
	"math"

	"quire/kernels"
)

// lanes is the number of output channels of a slab.
const lanes = 32

// factor is U in the form that the column loop reads.
type factor struct {
	n, block int
	u        []float32
}

func (f *factor) pack(u []float32, n, block int) { f.n, f.block, f.u = n, block, u }

// column adds to column i of block blk the feedback of the block's columns before it. e is [block][32].
func (f *factor) column(slab, e []float32, blk, i int) {
	b0 := blk * f.block
	c := b0 + i
	dst := slab[c*lanes : (c+1)*lanes]
	for j := range i {
		f.axpy(dst, e[j*lanes:(j+1)*lanes], -f.u[(b0+j)*f.n+c])
	}
}

// tail adds to every column behind block blk the feedback of the block.
func (f *factor) tail(slab, e []float32, blk int) {
	b0 := blk * f.block
	b1 := min(b0+f.block, f.n)
	for c := b1; c < f.n; c++ {
		dst := slab[c*lanes : (c+1)*lanes]
		for j := range b1 - b0 {
			f.axpy(dst, e[j*lanes:(j+1)*lanes], -f.u[(b0+j)*f.n+c])
		}
	}
}

func (f *factor) axpy(dst, e []float32, a float32) {
	if a == 0 {
		return
	}
	for l, v := range e[:lanes] {
		dst[l] += float32(a * v)
	}
}

type pivot struct {
	Index int
	Value float64
}

// inverseFactor gives U upper triangular with H⁻¹ = UᵀU for the symmetric h whose upper triangle is read.
func inverseFactor(_ *kernels.Pool, u, h []float32, n int) *pivot {
	h64 := make([]float64, n*n)
	for i, v := range h {
		h64[i] = float64(v)
	}
	u64 := make([]float64, n*n)
	if p := inverseFactor64(nil, u64, h64, n); p != nil {
		return p
	}
	for i, v := range u64 {
		u[i] = float32(v)
	}
	return nil
}

// inverseFactor64 is inverseFactor in float64.
func inverseFactor64(_ *kernels.Pool, u, h []float64, n int) *pivot {
	// R upper with H = R·Rᵀ, from the last column backwards (Cholesky of the index-reversed matrix); then U = R⁻¹.
	r := make([]float64, n*n)
	for j := n - 1; j >= 0; j-- {
		for i := j; i >= 0; i-- {
			s := h[i*n+j]
			for k := j + 1; k < n; k++ {
				s -= float64(r[i*n+k] * r[j*n+k])
			}
			if i == j {
				if !(s > 0) {
					return &pivot{Index: j, Value: s}
				}
				r[i*n+i] = math.Sqrt(s)
			} else {
				r[i*n+j] = s / r[j*n+j]
			}
		}
	}
	clear(u[:n*n])
	for j := range n {
		u[j*n+j] = 1 / r[j*n+j]
		for i := j - 1; i >= 0; i-- {
			var s float64
			for k := i + 1; k <= j; k++ {
				s += float64(r[i*n+k] * u[k*n+j])
			}
			u[i*n+j] = -s / r[i*n+i]
		}
	}
	return nil
}
