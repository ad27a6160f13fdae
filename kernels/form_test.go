package kernels_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"quire/kernels"
)

// TestForm compares x·A·xᵀ with float64 over the whole symmetric matrix, at every CPU level with the same bits.
func TestForm(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 9))
	for _, n := range []int{1, 2, 5, 31, 32, 127, 128, 129, 300} {
		for _, gathered := range []bool{false, true} {
			from, to := n/5, n
			h := make([]float32, n*n)
			for i := range h {
				h[i] = float32(r.NormFloat64()) // the lower triangle must not be read
			}
			var cols []int32
			if gathered {
				for _, c := range r.Perm(n) {
					cols = append(cols, int32(c))
				}
			}
			size := to - from
			x, y := make([]float32, size*kernels.SlabWidth), make([]float32, size*kernels.SlabWidth)
			for i := range x {
				x[i] = float32(r.NormFloat64())
			}
			var want, most [kernels.SlabWidth]float64
			for i := range size {
				for j := range size {
					a, b := from+i, from+j
					if gathered {
						a, b = int(cols[a]), int(cols[b])
					}
					v := float64(h[min(a, b)*n+max(a, b)])
					for l := range want {
						p := float64(x[i*kernels.SlabWidth+l]) * v * float64(x[j*kernels.SlabWidth+l])
						want[l] += p
						most[l] += math.Abs(p)
					}
				}
			}
			var first *[kernels.SlabWidth]float64
			for _, level := range kernels.Levels() {
				restore := kernels.ForceLevel(level)
				var got [kernels.SlabWidth]float64
				f := kernels.PackForm(nil, h, n, from, to, cols)
				f.Values(&got, x, y)
				restore()
				for l := range got {
					if d := math.Abs(got[l] - want[l]); !(d <= 1e-6*most[l]) {
						t.Errorf("n %d gathered %v %v lane %d: %v, want %v", n, gathered, level, l, got[l], want[l])
					}
				}
				if first == nil {
					first = &got
				} else if *first != got {
					t.Errorf("n %d gathered %v: %v has other bits", n, gathered, level)
				}
			}
		}
	}
}
