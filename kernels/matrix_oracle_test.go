package kernels_test

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"quire/kernels"
	"quire/kernels/dtype"
)

// The contract of docs/contract-cpu-1.md, written again as loops over single
// elements with arbitrary-precision arithmetic.

// fmaExact is a·b+c with one rounding.
func fmaExact(a, b, c float32) float32 {
	if a == 0 || b == 0 {
		return c
	}
	p := new(big.Float).SetPrec(700).Mul(big.NewFloat(float64(a)), big.NewFloat(float64(b)))
	f, _ := p.Add(p, big.NewFloat(float64(c))).Float32()
	return f
}

// slowChain is one block: a chain from zero over a[i]·b[i], pairs swapped or not.
func slowChain(a, b []float32, swapped bool) float32 {
	var s float32
	for i := range a {
		j := i
		if swapped {
			if j = i ^ 1; j >= len(a) {
				j = i // the missing odd element is zero
			}
		}
		s = fmaExact(a[j], b[j], s)
	}
	return s
}

// slowDot is a whole row times a whole column: blocks of 256.
func slowDot(a, b []float32, swapped bool, start *float32) float32 {
	var c float32
	have := start != nil
	if have {
		c = *start
	}
	for k := 0; k < len(a); k += 256 {
		e := min(len(a), k+256)
		if s := slowChain(a[k:e], b[k:e], swapped); have {
			c += s
		} else {
			c, have = s, true
		}
	}
	return c
}

// matrix is test data in both types; f32 holds exactly what is multiplied.
type matrix struct {
	rows, cols, stride int
	f32                []float32
	b16                []uint16
}

func (m *matrix) row(r int) []float32 { return m.f32[r*m.stride:][:m.cols] }

func (m *matrix) col(c int) []float32 {
	x := make([]float32, m.rows)
	for r := range x {
		x[r] = m.f32[r*m.stride+c]
	}
	return x
}

func (m *matrix) Rows() kernels.Rows {
	x := kernels.Rows{M: m.rows, K: m.cols, Stride: m.stride}
	if m.b16 != nil {
		x.BF16 = m.b16
	} else {
		x.F32 = m.f32
	}
	return x
}

// slice is rows r0..r1.
func (m *matrix) slice(r0, r1 int) kernels.Rows {
	x := m.Rows()
	x.M = r1 - r0
	if x.BF16 != nil {
		x.BF16 = x.BF16[r0*m.stride:]
	} else {
		x.F32 = x.F32[r0*m.stride:]
	}
	return x
}

// randomMatrix draws values of mixed size, some tiny, some zero.
func randomMatrix(r *rand.Rand, rows, cols, pad int, bf16 bool) *matrix {
	m := &matrix{rows: rows, cols: cols, stride: cols + pad}
	m.f32 = make([]float32, rows*m.stride)
	for i := range m.f32 {
		v := float32(r.NormFloat64())
		switch r.IntN(16) {
		case 0:
			v *= 1e-18
		case 1:
			v *= 300
		case 2:
			v = 0
		}
		m.f32[i] = v
	}
	if bf16 {
		m.b16 = make([]uint16, len(m.f32))
		dtype.EncodeBF16(m.b16, m.f32)
		dtype.DecodeBF16(m.f32, m.b16)
	}
	return m
}

// flushed is a copy in which bf16 magnitudes below 2^-55 are zero.
func (m *matrix) flushed() *matrix {
	c := *m
	c.f32 = append([]float32(nil), m.f32...)
	for i, v := range c.f32 {
		if math.Abs(float64(v)) < math.Ldexp(1, -55) {
			c.f32[i] = 0
		}
	}
	return &c
}

var matrixShapes = []struct{ m, n, k int }{
	{1, 1, 1}, {1, 33, 7}, {2, 31, 8}, {3, 64, 257}, {5, 32, 31}, {6, 70, 16}, {7, 1, 300}, {13, 40, 513}, {14, 33, 64}, {15, 32, 256}, {29, 65, 19},
}

func forEveryLevel(t *testing.T, f func(t *testing.T, p *kernels.Pool)) {
	for _, level := range kernels.Levels() {
		for _, threads := range []int{1, 2, 5} {
			t.Run(fmt.Sprintf("%v threads=%d", level, threads), func(t *testing.T) {
				defer kernels.ForceLevel(level)()
				p := kernels.NewPool(threads)
				defer p.Close()
				f(t, p)
			})
		}
	}
}

// differing counts elements whose bits differ, NaN being one value.
func differing(got, want []float32) int {
	n := 0
	for i := range got {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) && !(got[i] != got[i] && want[i] != want[i]) {
			n++
		}
	}
	return n
}

func TestGEMMFollowsTheContract(t *testing.T) {
	type expected struct {
		job  kernels.GEMMJob
		want []float32
		name string
	}
	r := rand.New(rand.NewPCG(3, 4))
	var all []expected
	for i, s := range matrixShapes {
		for pair := range 4 {
			x := randomMatrix(r, s.m, s.k, i%3, pair&1 == 1)
			w := randomMatrix(r, s.n, s.k, 0, pair&2 == 2)
			e := expected{name: fmt.Sprintf("%v bf16 x %v w %v", s, pair&1 == 1, pair&2 == 2)}
			e.job = kernels.GEMMJob{X: x.Rows(), LDY: s.n + i%2, Add: i%4 == 1}
			if w.b16 != nil {
				e.job.W = kernels.PackBF16(nil, w.b16, s.n, s.k)
			} else {
				e.job.W = kernels.PackF32(nil, w.f32, s.n, s.k)
			}
			if i%3 == 1 {
				e.job.Bias = randomMatrix(r, 1, s.n, 0, false).f32
			}
			e.job.Y = randomMatrix(r, s.m, e.job.LDY, 0, false).f32
			e.want = append([]float32(nil), e.job.Y...)
			if w.b16 != nil {
				w = w.flushed()
				if x.b16 != nil {
					x = x.flushed()
				}
			}
			for a := range s.m {
				for b := range s.n {
					at := a*e.job.LDY + b
					var start *float32
					switch c := e.want[at]; {
					case e.job.Add && e.job.Bias != nil:
						c += e.job.Bias[b]
						start = &c
					case e.job.Add:
						start = &c
					case e.job.Bias != nil:
						start = &e.job.Bias[b]
					}
					e.want[at] = slowDot(x.row(a), w.row(b), w.b16 != nil, start)
				}
			}
			all = append(all, e)
		}
	}
	forEveryLevel(t, func(t *testing.T, p *kernels.Pool) {
		jobs := make([]kernels.GEMMJob, len(all))
		for i, e := range all {
			jobs[i] = e.job
			jobs[i].Y = append([]float32(nil), e.job.Y...)
		}
		kernels.GEMM(p, jobs...)
		for i, e := range all {
			if n := differing(jobs[i].Y, e.want); n > 0 {
				t.Errorf("%s: %d of %d elements differ", e.name, n, len(e.want))
			}
		}
	})
}

// slowStatistic is Σ over blocks of 256 rows of a chain, in float64.
func slowStatistic(a, b []float32, swapped bool) float32 {
	var sum float64
	for k := 0; k < len(a); k += 256 {
		e := min(len(a), k+256)
		sum += float64(slowChain(a[k:e], b[k:e], swapped))
	}
	return float32(sum)
}

// splits cuts rows as calls of uneven size.
var splits = []int{1, 2, 255, 3, 300, 17, 600}

func inCalls(rows int, f func(r0, r1 int)) {
	for r, i := 0, 0; r < rows; i++ {
		e := min(rows, r+splits[i%len(splits)])
		f(r, e)
		r = e
	}
}

func TestGramFollowsTheContract(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, c := range []struct {
		n, rows int
		bf16    bool
	}{{1, 3, false}, {33, 259, false}, {40, 561, true}, {31, 256, true}, {65, 97, true}, {8, 1300, false}} {
		x := randomMatrix(r, c.rows, c.n, c.n%2, c.bf16)
		v := x
		if c.bf16 {
			v = x.flushed()
		}
		want := make([]float32, c.n*c.n)
		for i := range c.n {
			for j := i; j < c.n; j++ {
				want[i*c.n+j] = slowStatistic(v.col(i), v.col(j), c.bf16)
			}
		}
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			forEveryLevel(t, func(t *testing.T, p *kernels.Pool) {
				g := kernels.NewGram(c.n)
				got := make([]float32, c.n*c.n)
				check := func(how string) {
					t.Helper()
					if n := differing(got, want); n > 0 {
						t.Errorf("%s: %d of %d elements differ", how, n, len(want))
					}
				}
				inCalls(c.rows, func(r0, r1 int) {
					g.Add(p, x.slice(r0, r1))
					g.Partial(got) // looking does not change it
				})
				check("uneven calls")
				if g.Rows() != int64(c.rows) {
					t.Errorf("%d rows counted", g.Rows())
				}
				g.Reset(c.n)
				g.Add(p, x.Rows())
				g.PartialParallel(p, got)
				check("one call")
				tri, at := make([]float32, c.n*(c.n+1)/2), 0
				g.Triangle(p, tri)
				clear(got)
				for i := range c.n {
					at += copy(got[i*c.n+i:(i+1)*c.n], tri[at:])
				}
				check("triangle")
			})
		})
	}
}

func TestCrossFollowsTheContract(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for i, c := range []struct{ na, nb, rows int }{{1, 1, 2}, {33, 17, 300}, {40, 64, 513}} {
		for pair := range 4 {
			a := randomMatrix(r, c.rows, c.na, i, pair&1 == 1)
			b := randomMatrix(r, c.rows, c.nb, 0, pair&2 == 2)
			va, vb, both := a, b, pair == 3
			if both {
				va, vb = a.flushed(), b.flushed()
			}
			want := make([]float32, c.na*c.nb)
			for i := range c.na {
				for j := range c.nb {
					want[i*c.nb+j] = slowStatistic(va.col(i), vb.col(j), both)
				}
			}
			t.Run(fmt.Sprintf("%+v types %d", c, pair), func(t *testing.T) {
				forEveryLevel(t, func(t *testing.T, p *kernels.Pool) {
					x := kernels.NewCross(c.na, c.nb)
					got := make([]float32, len(want))
					inCalls(c.rows, func(r0, r1 int) {
						x.Add(p, a.slice(r0, r1), b.slice(r0, r1))
						x.Partial(got)
					})
					if n := differing(got, want); n > 0 {
						t.Errorf("%d of %d elements differ", n, len(want))
					}
				})
			})
		}
	}
}

func TestColumnsFollowTheContract(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for _, bf16 := range []bool{false, true} {
		const n, rows = 301, 700
		x := randomMatrix(r, rows, n, 3, bf16)
		x.f32[5*x.stride+7] = float32(math.NaN())
		if bf16 {
			dtype.EncodeBF16(x.b16, x.f32)
		}
		abs := make([]float64, n)
		least, most := make([]float32, n), make([]float32, n)
		for j := range n {
			least[j], most[j] = float32(math.Inf(1)), float32(math.Inf(-1))
			for k := 0; k < rows; k += 256 {
				var s float32
				for i := k; i < min(rows, k+256); i++ {
					v := x.f32[i*x.stride+j]
					s += float32(math.Abs(float64(v)))
					if v < least[j] {
						least[j] = v
					}
					if v > most[j] {
						most[j] = v
					}
				}
				abs[j] += float64(s)
			}
		}
		forEveryLevel(t, func(t *testing.T, p *kernels.Pool) {
			c := kernels.NewColumns(n)
			inCalls(rows, func(r0, r1 int) { c.Add(p, x.slice(r0, r1)) })
			gotAbs := make([]float64, n)
			gotLeast, gotMost := make([]float32, n), make([]float32, n)
			c.Values(gotAbs, gotLeast, gotMost)
			for j := range n {
				if math.Float64bits(gotAbs[j]) != math.Float64bits(abs[j]) && abs[j] == abs[j] {
					t.Errorf("column %d: absolute sum %g, want %g", j, gotAbs[j], abs[j])
				}
			}
			if differing(gotLeast, least)+differing(gotMost, most) > 0 {
				t.Error("extremes differ")
			}
		})
	}
}
