package kernels_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"quire/kernels"
)

var factorSizes = []int{1, 2, 15, 17, 31, 32, 33, 64, 65, 100, 130, 257}

// definite is a symmetric positive definite matrix like a damped Hessian: (2/rows)·XᵀX + damp·mean·I.
func definite(r *rand.Rand, n int) []float64 {
	rows := 2*n + 8
	x := make([]float64, rows*n)
	for i := range rows {
		common := r.NormFloat64()
		for j := range n {
			x[i*n+j] = r.NormFloat64() + 0.6*common
		}
	}
	h := make([]float64, n*n)
	var mean float64
	for i := range n {
		for j := range n {
			var s float64
			for k := range rows {
				s += x[k*n+i] * x[k*n+j]
			}
			h[i*n+j] = s * 2 / float64(rows)
		}
		mean += h[i*n+i] / float64(n)
	}
	for i := range n {
		h[i*n+i] += 0.05 * mean
	}
	return h
}

// identityError is the largest element of UᵀU·H − I.
func identityError(u, h []float64, n int) float64 {
	uh := make([]float64, n*n)
	for i := range n {
		for k := i; k < n; k++ {
			for j := range n {
				uh[i*n+j] += u[i*n+k] * h[k*n+j]
			}
		}
	}
	worst := 0.0
	for i := range n {
		for j := range n {
			var s float64
			for k := 0; k <= i; k++ {
				s += u[k*n+i] * uh[k*n+j]
			}
			if i == j {
				s--
			}
			worst = max(worst, math.Abs(s))
		}
	}
	return worst
}

// The bounds: 2^-15 in float32 and 2^-43 in float64 on matrices of condition
// number up to about 10³ (4e-6 and 4e-14 were seen).
func TestInverseFactorIsTheFactorOfTheInverse(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 22))
	for _, n := range factorSizes {
		h64 := definite(r, n)
		h := make([]float32, n*n)
		for i := range n {
			for j := range n {
				h[i*n+j] = float32(h64[i*n+j])
				if j < i {
					h[i*n+j] = float32(math.NaN()) // never read
				}
			}
		}
		exact := make([]float64, n*n)
		for i := range n {
			for j := range n {
				exact[i*n+j] = float64(h[min(i, j)*n+max(i, j)])
			}
		}
		u64, first := make([]float64, n*n), []float32(nil)
		if p := kernels.InverseFactor64(nil, u64, exact, n); p != nil {
			t.Fatal(p)
		}
		if e := identityError(u64, exact, n); e > 0x1p-43 {
			t.Errorf("n=%d: float64 error %g", n, e)
		}
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			forEveryLevel(t, func(t *testing.T, p *kernels.Pool) {
				u, again := make([]float32, n*n), make([]float64, n*n)
				if f := kernels.InverseFactor(p, u, h, n); f != nil {
					t.Fatal(f)
				}
				wide := make([]float64, n*n)
				for i, v := range u {
					wide[i] = float64(v)
					if i/n > i%n && v != 0 {
						t.Fatalf("U[%d,%d] = %g below the diagonal", i/n, i%n, v)
					}
				}
				if e := identityError(wide, exact, n); e > 0x1p-15 {
					t.Errorf("float32 error %g", e)
				}
				if first == nil {
					first = u
				}
				if d := differing(u, first); d > 0 {
					t.Errorf("%d of %d elements differ from the first level", d, n*n)
				}
				if f := kernels.InverseFactor64(p, again, exact, n); f != nil {
					t.Fatal(f)
				}
				for i := range again {
					if math.Float64bits(again[i]) != math.Float64bits(u64[i]) {
						t.Fatalf("float64 element %d differs", i)
					}
				}
			})
		})
	}
}

func TestPivotIsTheFirstFromTheEndThatFails(t *testing.T) {
	// With H = R·Rᵀ, R upper, columns are eliminated from the last to the first.
	const n = 70
	for _, c := range []struct {
		at    int
		value float32
	}{{69, -1}, {69, 0}, {40, -2}, {0, 0}, {37, float32(math.NaN())}, {5, float32(math.Inf(1))}} {
		h := make([]float32, n*n)
		for i := range n {
			h[i*n+i] = float32(i + 1)
		}
		h[c.at*n+c.at] = c.value
		forEveryLevel(t, func(t *testing.T, p *kernels.Pool) {
			f := kernels.InverseFactor(p, make([]float32, n*n), h, n)
			if f == nil || f.Index != c.at || (f.Value != float64(c.value) && c.value == c.value) {
				t.Errorf("pivot %v, want %d, %g", f, c.at, c.value)
			}
			h64 := make([]float64, n*n)
			for i, v := range h {
				h64[i] = float64(v)
			}
			if f := kernels.InverseFactor64(p, make([]float64, n*n), h64, n); f == nil || f.Index != c.at {
				t.Errorf("float64 pivot %v, want %d", f, c.at)
			}
		})
	}
}

// gptqSteps runs the loop of GPTQ on one slab with the primitives.
func gptqSteps(f *kernels.Factor, slab []float32, n, block int) (codes []uint8, deq []float32) {
	e := make([]float32, block*kernels.SlabWidth)
	scale, zero := make([]float32, kernels.SlabWidth), make([]float32, kernels.SlabWidth)
	for i := range scale {
		scale[i], zero[i] = float32(i+10)/100, float32(i%5+6)
	}
	codes, deq = make([]uint8, n*kernels.SlabWidth), make([]float32, n*kernels.SlabWidth)
	for b := range f.Blocks() {
		c0 := b * block
		for i := 0; c0+i < min(n, c0+block); i++ {
			f.Column(slab, e, b, i)
			at := (c0 + i) * kernels.SlabWidth
			kernels.QuantizeColumn(codes[at:], deq[at:], e[i*kernels.SlabWidth:], slab[at:], scale, zero, 15, f.Diag(c0+i))
		}
		f.Tail(slab, e, b)
	}
	return codes, deq
}

// The same loop, written again over single elements with exact arithmetic.
func slowGPTQ(w, u []float32, n, block, lane int) (codes []uint8, deq []float32) {
	w = append([]float32(nil), w...)
	e := make([]float32, n)
	s, z := float32(lane+10)/100, float32(lane%5+6)
	for i := range n {
		c0 := i / block * block
		for j := c0; j < i; j++ {
			w[i] = fmaExact(-u[j*n+i], e[j], w[i])
		}
		q := float32(math.RoundToEven(float64(w[i]/s))) + z
		q = max(0, min(15, q))
		d := s * (q - z)
		codes, deq = append(codes, uint8(q)), append(deq, d)
		e[i] = (w[i] - d) / u[i*n+i]
		if i+1 == min(n, c0+block) {
			for c := i + 1; c < n; c++ {
				for k := c0; k <= i; k += 256 {
					var sum float32
					for j := k; j < min(i+1, k+256); j++ {
						sum = fmaExact(-u[j*n+c], e[j], sum)
					}
					w[c] += sum
				}
			}
		}
	}
	return codes, deq
}

func TestGPTQStepsFollowTheContract(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 24))
	for _, c := range []struct{ n, block, rows int }{{1, 1, 1}, {33, 32, 5}, {70, 32, 32}, {70, 128, 31}, {97, 1, 2}, {300, 264, 1}, {130, 96, 3}} {
		u := make([]float32, c.n*c.n)
		for i := range c.n {
			for j := i; j < c.n; j++ {
				u[i*c.n+j] = float32(r.NormFloat64() / float64(1+j-i))
			}
			u[i*c.n+i] = 0.5 + r.Float32()
		}
		w := make([]float32, c.rows*c.n)
		for i := range w {
			w[i] = float32(r.NormFloat64())
		}
		var wantCodes [][]uint8
		var wantDeq [][]float32
		for l := range c.rows {
			codes, deq := slowGPTQ(w[l*c.n:][:c.n], u, c.n, c.block, l)
			wantCodes, wantDeq = append(wantCodes, codes), append(wantDeq, deq)
		}
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			forEveryLevel(t, func(t *testing.T, p *kernels.Pool) {
				f := kernels.PackFactorParallel(p, nil, u, c.n, c.block)
				slab := make([]float32, c.n*kernels.SlabWidth)
				for i := range slab {
					slab[i] = float32(math.Inf(1))
				}
				kernels.PackSlab(slab, w, c.rows, c.n, 0)
				for i, v := range slab {
					if l := i % kernels.SlabWidth; l >= c.rows && v != 0 || l < c.rows && v != w[l*c.n+i/kernels.SlabWidth] {
						t.Fatalf("slab column %d, channel %d: %g", i/kernels.SlabWidth, l, v)
					}
				}
				codes, deq := gptqSteps(f, slab, c.n, c.block)
				for l := range c.rows {
					for i := range c.n {
						at := i*kernels.SlabWidth + l
						if codes[at] != wantCodes[l][i] || math.Float32bits(deq[at]) != math.Float32bits(wantDeq[l][i]) {
							t.Fatalf("channel %d, column %d: code %d value %g, want %d, %g", l, i, codes[at], deq[at], wantCodes[l][i], wantDeq[l][i])
						}
					}
				}
			})
		})
	}
}

func TestQuantizeColumnOfSpecialValues(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	w := make([]float32, kernels.SlabWidth)
	copy(w, []float32{nan, inf, -inf, 0, 0.5, 1.5, 2.5, -0.5, 1e30, -1e30, 7.5, -8.5, 7.49})
	scale, zero := make([]float32, len(w)), make([]float32, len(w))
	for i := range scale {
		scale[i], zero[i] = 1, 8
	}
	want := []uint8{0, 15, 0, 8, 8, 10, 10, 8, 15, 0, 15, 0, 15}
	for _, l := range kernels.Levels() {
		restore := kernels.ForceLevel(l)
		codes, deq, err := make([]uint8, len(w)), make([]float32, len(w)), make([]float32, len(w))
		kernels.QuantizeColumn(codes, deq, err, w, scale, zero, 15, 0.5)
		for i, c := range want {
			if codes[i] != c || deq[i] != float32(c)-8 {
				t.Errorf("%v: w = %g: code %d, value %g, want code %d", l, w[i], codes[i], deq[i], c)
			}
		}
		if err[0] == err[0] || err[1] != inf || err[4] != 1 {
			t.Errorf("%v: errors %g", l, err[:5])
		}
		restore()
	}
}
