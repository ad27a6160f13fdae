package kernels_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"quire/kernels"
	"quire/kernels/dtype"
)

// matrixDigests are the results of contract cpu-1: a change here is a new contract id.
var matrixDigests = map[string]string{
	"Columns":           "9e3cce972ae55c3c",
	"Cross bf16 x bf16": "d2b6ec42bb05f416",
	"Cross f32 x f32":   "71ac37192310396a",
	"Cross bf16 x f32":  "77f44e845883d764",
	"Gram and Cross used again, other packers": "1005a71f96550e7d",
	"InverseFactor of a matrix without one":    "2182b2e374b7f941",
	"Cross f32 x bf16":                         "6ba35a1e00123219",
	"GEMM bf16 x bf16":                         "78d92cf91e5e0c7e",
	"GEMM bf16 x bf16, special values":         "46bb2e9231f371e9",
	"GEMM bf16 x f32":                          "05c49bed865ace4a",
	"GEMM f32 x bf16":                          "299cd97079fc2b88",
	"GEMM f32 x f32":                           "9ddaf645b9b80ce5",
	"GEMM f32 x f32, special values":           "74e3c031e1d5c919",
	"GPTQ":                                     "553ff18e579b6944",
	"Gram bf16":                                "7e92081cdd2d0942",
	"Gram f32":                                 "efdebd23824bf5b7",
	"InverseFactor":                            "f2308de430acc5cb",
	"InverseFactor64":                          "420332a3de6cd522",
	"Form":                                     "694dbc21b38b185a",
}

// goldenRows draws rows of either type with integer arithmetic and one scaling,
// so that every architecture draws the same.
func goldenRows(r *rand.Rand, m, k int, bf16, special bool) kernels.Rows {
	x := tame(r, m*k)
	if special {
		x = mixed(r, m*k)
	}
	if !bf16 {
		return kernels.RowsF32(x, m, k)
	}
	h := make([]uint16, len(x))
	dtype.EncodeBF16(h, x)
	return kernels.RowsBF16(h, m, k)
}

var goldenMatrixOps = []struct {
	name string
	run  func(p *kernels.Pool, r *rand.Rand) []float32
}{
	{"GEMM f32 x f32", goldenGEMM(false, false, false)},
	{"GEMM bf16 x f32", goldenGEMM(true, false, false)},
	{"GEMM f32 x bf16", goldenGEMM(false, true, false)},
	{"GEMM bf16 x bf16", goldenGEMM(true, true, false)},
	{"GEMM f32 x f32, special values", goldenGEMM(false, false, true)},
	{"GEMM bf16 x bf16, special values", goldenGEMM(true, true, true)},
	{"Gram f32", goldenGram(false)},
	{"Gram bf16", goldenGram(true)},
	{"Cross f32 x f32", goldenCross(false, false)},
	{"Cross bf16 x f32", goldenCross(true, false)},
	{"Cross f32 x bf16", goldenCross(false, true)},
	{"Cross bf16 x bf16", goldenCross(true, true)},
	{"Gram and Cross used again, other packers", goldenReuse},
	{"InverseFactor of a matrix without one", goldenFailure},
	{"Form", goldenForm},
	{"Columns", func(p *kernels.Pool, r *rand.Rand) []float32 {
		const n = 77
		c := kernels.NewColumns(n)
		for i := range 7 {
			c.Add(p, goldenRows(r, 60*i, n, i%2 == 1, false))
		}
		abs, least, most := make([]float64, n), make([]float32, n), make([]float32, n)
		c.Values(abs, least, most)
		out := append(least, most...)
		for _, v := range abs {
			out = append(out, split64(v)...)
		}
		return out
	}},
	{"InverseFactor", func(p *kernels.Pool, r *rand.Rand) []float32 {
		var out []float32
		for _, n := range []int{1, 33, 64, 150, 330} {
			h, u := goldenHessian(r, n), make([]float32, n*n)
			if f := kernels.InverseFactor(p, u, h, n); f != nil {
				out = append(out, float32(f.Index))
				continue
			}
			out = append(out, u...)
		}
		return out
	}},
	{"InverseFactor64", func(p *kernels.Pool, r *rand.Rand) []float32 {
		var out []float32
		for _, n := range []int{1, 17, 64, 150} {
			h, u := make([]float64, n*n), make([]float64, n*n)
			for i, v := range goldenHessian(r, n) {
				h[i] = float64(v)
			}
			if f := kernels.InverseFactor64(p, u, h, n); f != nil {
				out = append(out, float32(f.Index))
				continue
			}
			for _, v := range u {
				out = append(out, split64(v)...)
			}
		}
		return out
	}},
	{"GPTQ", func(p *kernels.Pool, r *rand.Rand) []float32 {
		var out []float32
		for _, c := range []struct{ n, block, rows int }{{1, 1, 1}, {100, 32, 7}, {150, 128, 32}, {290, 270, 19}} {
			u := make([]float32, c.n*c.n)
			if f := kernels.InverseFactor(p, u, goldenHessian(r, c.n), c.n); f != nil {
				panic(f)
			}
			f := kernels.PackFactorParallel(p, nil, u, c.n, c.block)
			slab := make([]float32, c.n*kernels.SlabWidth)
			kernels.PackSlab(slab, tame(r, c.rows*c.n), c.rows, c.n, 0)
			codes, deq := gptqSteps(f, slab, c.n, c.block)
			for _, q := range codes {
				out = append(out, float32(q))
			}
			out = append(append(out, deq...), slab...)
		}
		return out
	}},
}

// goldenFailure gives where and with what value the factorisation of a matrix stops whose column 40
// repeats column 41, less one on the diagonal.
func goldenFailure(p *kernels.Pool, r *rand.Rand) []float32 {
	const n = 130
	h := goldenHessian(r, n)
	for i := range n {
		v := h[min(i, 41)*n+max(i, 41)]
		h[min(i, 40)*n+max(i, 40)] = v
	}
	h[40*n+40], h[40*n+41] = h[41*n+41]-1, h[41*n+41]
	h64 := make([]float64, len(h))
	for i, v := range h {
		h64[i] = float64(v)
	}
	var out []float32
	for _, f := range []*kernels.Pivot{kernels.InverseFactor(p, make([]float32, n*n), h, n), kernels.InverseFactor64(p, make([]float64, n*n), h64, n)} {
		if f == nil {
			panic("the matrix has a factor")
		}
		out = append(append(out, float32(f.Index)), split64(f.Value)...)
	}
	return out
}

// goldenReuse runs statistics that held something wider before, a float32 Gram that is given
// bf16 rows, a sum of partials, and the packers that have no pool.
func goldenReuse(p *kernels.Pool, r *rand.Rand) []float32 {
	const n = 41
	g, c, cols := kernels.NewGram(90), kernels.NewCross(70, 90), kernels.NewColumns(90)
	g.Add(p, goldenRows(r, 300, 90, true, false))
	c.Add(p, goldenRows(r, 300, 70, true, false), goldenRows(r, 300, 90, true, false))
	cols.Add(p, goldenRows(r, 300, 90, true, false))
	g.Reset(n)
	c.Reset(n, n)
	cols.Reset(n)
	sum, part := make([]float64, n*n), make([]float32, n*n)
	for i, m := range []int{3, 200, 300, 77} {
		x := goldenRows(r, m, n, i%2 == 1, false)
		g.Add(p, x)
		c.Add(p, goldenRows(r, m, n, false, false), x)
		cols.Add(p, x)
		g.PartialParallel(p, part)
		kernels.AddPartial(sum, part)
		c.Partial(part)
		kernels.AddPartial(sum, part)
	}
	abs := make([]float64, n)
	cols.Values(abs, nil, nil)
	var out []float32
	for _, v := range append(sum, abs...) {
		out = append(out, split64(v)...)
	}
	x := goldenRows(r, 9, n, false, false)
	for _, w := range []*kernels.Weight{kernels.PackF32(nil, tame(r, 33*n), 33, n), kernels.PackBF16(nil, goldenRows(r, 33, n, true, false).BF16, 33, n)} {
		y := make([]float32, 9*33)
		kernels.GEMM(p, kernels.GEMMJob{X: x, W: w, Y: y})
		out = append(out, y...)
	}
	u := make([]float32, n*n)
	if f := kernels.InverseFactor(p, u, goldenHessian(r, n), n); f != nil {
		panic(f)
	}
	f := kernels.PackFactor(nil, u, n, 16)
	slab := make([]float32, n*kernels.SlabWidth)
	kernels.PackSlab(slab, tame(r, 32*n), 32, n, 0)
	_, deq := gptqSteps(f, slab, n, 16)
	return append(append(out, deq...), slab...)
}

func goldenForm(p *kernels.Pool, r *rand.Rand) []float32 {
	var out []float32
	for _, n := range []int{1, 33, 128, 290} {
		q := kernels.PackForm(p, tame(r, n*n), n, 0, n, nil)
		var sums [kernels.SlabWidth]float64
		q.Values(&sums, tame(r, n*kernels.SlabWidth), make([]float32, n*kernels.SlabWidth))
		for _, s := range sums {
			out = append(out, split64(s)...)
		}
	}
	return out
}

// split64 gives the bits of a float64 as exact float32 pieces.
func split64(v float64) []float32 {
	u := math.Float64bits(v)
	return []float32{float32(u >> 48), float32(u >> 24 & 0xffffff), float32(u & 0xffffff)}
}

// goldenHessian is XᵀX of few integers plus a diagonal, exact in float32.
func goldenHessian(r *rand.Rand, n int) []float32 {
	const rows = 40
	x := make([]float32, rows*n)
	for i := range x {
		x[i] = float32(r.IntN(17) - 8)
	}
	h := make([]float32, n*n)
	for k := range rows {
		for i := range n {
			for j := i; j < n; j++ {
				h[i*n+j] += float32(x[k*n+i] * x[k*n+j])
			}
		}
	}
	for i := range n {
		h[i*n+i] += 50
	}
	return h
}

func goldenGEMM(xb, wb, special bool) func(p *kernels.Pool, r *rand.Rand) []float32 {
	return func(p *kernels.Pool, r *rand.Rand) []float32 {
		var jobs []kernels.GEMMJob
		for i, s := range matrixShapes {
			j := kernels.GEMMJob{X: goldenRows(r, s.m, s.k, xb, special), Y: tame(r, s.m*(s.n+i%3)), LDY: s.n + i%3, Add: i%3 == 1}
			j.W = kernels.PackRows(p, nil, goldenRows(r, s.n, s.k, wb, special))
			if i%2 == 1 {
				j.Bias = tame(r, s.n)
			}
			jobs = append(jobs, j)
		}
		kernels.GEMM(p, jobs...)
		var out []float32
		for _, j := range jobs {
			out = append(out, j.Y...)
		}
		return out
	}
}

func goldenGram(bf16 bool) func(p *kernels.Pool, r *rand.Rand) []float32 {
	return func(p *kernels.Pool, r *rand.Rand) []float32 {
		var out []float32
		for _, c := range []struct{ n, rows int }{{1, 300}, {40, 530}, {97, 259}} {
			x := goldenRows(r, c.rows, c.n, bf16, false)
			g := kernels.NewGram(c.n)
			inCalls(c.rows, func(r0, r1 int) {
				part := x
				part.M = r1 - r0
				if bf16 {
					part.BF16 = part.BF16[r0*c.n:]
				} else {
					part.F32 = part.F32[r0*c.n:]
				}
				g.Add(p, part)
			})
			h := make([]float32, c.n*c.n)
			if c.n == 40 {
				tri, at := make([]float32, c.n*(c.n+1)/2), 0
				g.Triangle(p, tri)
				for i := range c.n {
					at += copy(h[i*c.n+i:(i+1)*c.n], tri[at:])
				}
			} else {
				g.Partial(h)
			}
			out = append(out, h...)
		}
		return out
	}
}

func goldenCross(ab, bb bool) func(p *kernels.Pool, r *rand.Rand) []float32 {
	return func(p *kernels.Pool, r *rand.Rand) []float32 {
		const na, nb = 35, 70
		c := kernels.NewCross(na, nb)
		for _, m := range []int{5, 251, 300} {
			c.Add(p, goldenRows(r, m, na, ab, false), goldenRows(r, m, nb, bb, false))
		}
		d := make([]float32, na*nb)
		c.Partial(d)
		return d
	}
}

func TestGoldenMatrix(t *testing.T) {
	forEveryLevel(t, func(t *testing.T, p *kernels.Pool) {
		for _, op := range goldenMatrixOps {
			got := digest(op.run(p, rand.New(rand.NewPCG(13, 14))))
			if got != matrixDigests[op.name] {
				t.Errorf("%q: %q, want %q", op.name, got, matrixDigests[op.name])
			}
		}
	})
}
