package quant

import (
	"math"

	"quire/kernels"
)

// lanes is the number of output channels of a slab.
const lanes = kernels.SlabWidth

// pivot is where a factorization stopped, in visiting order.
type pivot struct {
	Index int
	Value float64
}

// inverseFactor gives U upper triangular with H⁻¹ = UᵀU for the symmetric h whose upper triangle is read. A factor that
// left the range of float32 counts as a failure at its first such element.
func inverseFactor(pool *kernels.Pool, u, h []float32, n int) *pivot {
	if f := kernels.InverseFactor(pool, u, h, n); f != nil {
		return &pivot{f.Index, f.Value}
	}
	for i := range n {
		if d := u[i*n+i]; !(d > 0) || d > math.MaxFloat32 {
			return &pivot{i, float64(d)}
		}
	}
	return nil
}

// inverseFactor64 is inverseFactor in float64.
func inverseFactor64(pool *kernels.Pool, u, h []float64, n int) *pivot {
	if f := kernels.InverseFactor64(pool, u, h, n); f != nil {
		return &pivot{f.Index, f.Value}
	}
	return nil
}
