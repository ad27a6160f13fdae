package kernels_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"quire/kernels"
)

// TestQuadFormAgainstFloat64 holds every sum against the definition in float64, for squares inside a larger matrix whose
// lower triangle must not matter.
func TestQuadFormAgainstFloat64(t *testing.T) {
	p := kernels.NewPool(2)
	defer p.Close()
	r := rand.New(rand.NewPCG(7, 7))
	for _, c := range []struct{ ld, from, to, rows int }{{1, 0, 1, 1}, {5, 2, 2, 3}, {40, 3, 34, 5}, {64, 0, 64, 95}, {97, 0, 97, 97}, {330, 20, 320, 193}} {
		a := tame(r, c.ld*c.ld)
		for i := range c.ld {
			for j := range i {
				a[i*c.ld+j] = float32(math.NaN())
			}
		}
		n := c.to - c.from
		stride := n + 3
		x := tame(r, c.rows*stride+n)
		q := kernels.PackQuadForm(p, nil, a, c.ld, c.from, c.to)
		sums := make([]float64, c.rows)
		q.Sums(p, sums, kernels.Rows{M: c.rows, K: n, Stride: stride, F32: x})
		for row, got := range sums {
			var want, size float64
			v := x[row*stride:][:n]
			for i := range n {
				for j := range n {
					term := float64(v[i]) * float64(a[(c.from+min(i, j))*c.ld+c.from+max(i, j)]) * float64(v[j])
					want += term
					size += math.Abs(term)
				}
			}
			if bound := size * float64(min(n, 256)+8) * 0x1p-24; math.Abs(got-want) > bound {
				t.Fatalf("%+v row %d: %g, want %g ± %g", c, row, got, want, bound)
			}
		}
	}
}
