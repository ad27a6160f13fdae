package quant_test

import (
	"context"
	"math"
	"math/rand/v2"
	"sort"
	"testing"

	"pgregory.net/rapid"

	"quire/engine/quant"
	"quire/kernels"
)

// problem is a random layer: weights and correlated rows.
type problem struct {
	out, in, rows int
	w, x, h       []float32
}

// kinds of statistics that drawn problems have.
const (
	fullRank = iota
	rankDeficient
	illConditioned
	deadColumns
	oneRow
	statisticKinds
)

func makeProblem(seed uint64, out, in, kind int) problem {
	r := rand.New(rand.NewPCG(seed, 7))
	p := problem{out: out, in: in, rows: 2*in + 8}
	switch kind {
	case rankDeficient:
		p.rows = max(1, in/3)
	case oneRow:
		p.rows = 1
	}
	p.w = make([]float32, out*in)
	for i := range p.w {
		p.w[i] = float32(r.NormFloat64() * 0.05)
	}
	p.x = make([]float32, p.rows*in)
	common := make([]float64, p.rows)
	for i := range common {
		common[i] = r.NormFloat64()
	}
	for c := range in {
		scale, mix := math.Exp(r.NormFloat64()), r.Float64()
		if kind == illConditioned {
			scale, mix = math.Exp(3*r.NormFloat64()), 1-1e-3*r.Float64()
		}
		if kind == deadColumns && c%7 == 3 {
			scale = 0
		}
		for k := range p.rows {
			p.x[k*in+c] = float32(scale * (mix*common[k] + (1-mix)*r.NormFloat64()))
		}
	}
	p.h = gram(p.x, p.rows, in)
	return p
}

func (p problem) hessian() quant.Hessian {
	return quant.Hessian{N: p.in, H: p.h, Rows: int64(p.rows), NativeRows: int64(p.rows), Site: "drawn"}
}

func (p problem) solve(t rapid.TB, pool *kernels.Pool, o quant.Options) *quant.Result {
	t.Helper()
	prep, err := quant.Prepare(pool, p.hessian(), o)
	if err != nil {
		t.Fatalf("prepare: %v", err)
	}
	r, err := prep.Solve(context.Background(), pool, p.w, p.out)
	if err != nil {
		t.Fatalf("solve: %v", err)
	}
	return r
}

// drawOptions draws settings that Validate accepts.
func drawOptions(t *rapid.T, in int) quant.Options {
	o := quant.DefaultOptions()
	o.Bits = rapid.IntRange(2, 8).Draw(t, "bits")
	o.Sym = rapid.Bool().Draw(t, "sym")
	o.GroupSize = rapid.SampledFrom([]int{-1, 1, 3, 8, 16, 32, 48, 128}).Draw(t, "group")
	o.ActGroupAware, o.DescAct = false, false
	switch rapid.IntRange(0, 2).Draw(t, "order") {
	case 1:
		o.DescAct = true
	case 2:
		o.ActGroupAware = o.GroupSize > 0
	}
	o.StaticGroups = o.GroupSize > 0 && rapid.Bool().Draw(t, "static")
	o.BlockSize = rapid.SampledFrom([]int{1, 7, 32, 128}).Draw(t, "block")
	o.DampPercent = rapid.SampledFrom([]float64{0.01, 0.05, 0.2}).Draw(t, "damp")
	o.ScaleDType = rapid.SampledFrom([]string{quant.ScaleF32, quant.ScaleBF16}).Draw(t, "scale")
	if rapid.IntRange(0, 5).Draw(t, "search") == 0 {
		o.MSE = 2.4
	}
	return o
}

// TestSolverAgainstColumnLoop: codes equal those of the float64 column loop except behind a rounding tie, and where no
// channel differs, the output error is equal to 0.1 %.
func TestSolverAgainstColumnLoop(t *testing.T) {
	pool := kernels.NewPool(2)
	defer pool.Close()
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.IntRange(1, 72).Draw(t, "in")
		out := rapid.IntRange(1, 40).Draw(t, "out")
		kind := rapid.IntRange(0, statisticKinds-1).Draw(t, "kind")
		p := makeProblem(rapid.Uint64().Draw(t, "seed"), out, in, kind)
		o := drawOptions(t, in)
		o.NoGuard = true
		r := p.solve(t, pool, o)
		if r.Record.Reason != "" {
			if kind != deadColumns {
				t.Fatalf("reason %q", r.Record.Reason)
			}
			return // every column is dead
		}
		or := oracle(p.w, p.h, out, in, o)
		if or == nil {
			t.Fatal("the oracle cannot factorize what the solver could")
		}
		same := true
		groups := r.Groups()
		for row := range out {
			for _, c := range or.order {
				if int(r.Codes[row*in+c]) == or.codes[row*in+c] {
					continue
				}
				same = false
				k := r.Group(c)
				// A group fitted after feedback has a scale with the feedback's rounding in it, which moves large codes
				// further than small ones.
				if d := tieDistance(or.value[row*in+c]); d > 2e-3*math.Max(1, math.Abs(or.value[row*in+c])/16) &&
					relative(float64(r.Scales[row*groups+k]), or.scales[row*groups+k]) < 1e-6 {
					t.Fatalf("row %d first differs at column %d, %.3g from a tie (value %v)", row, c, d, or.value[row*in+c])
				}
				break
			}
		}
		for i, v := range r.Scales { // a scale behind a tie of its own type
			same = same && relative(float64(v), or.scales[i]) < 1e-5
		}
		q := make([]float32, len(p.w))
		r.Dequantize(q)
		got := outputError(p.w, q, p.x, out, in, p.rows)
		if rec := *r.Record.OutputError; relative(rec, got) > 1e-3 && math.Abs(rec-got) > noise(p, q) {
			t.Fatalf("recorded output error %v, from the rows %v", rec, got)
		}
		if same {
			want := make([]float32, len(p.w))
			for i, v := range or.deq {
				want[i] = float32(v)
			}
			if e := outputError(p.w, want, p.x, out, in, p.rows); relative(e, got) > 1e-3 && math.Abs(e-got) > noise(p, q) {
				t.Fatalf("output error %v, column loop %v", got, e)
			}
			size := 0.0 // Σ(w/U_ii)², what rounding noise of a vanishing loss is measured by
			for i, v := range p.w {
				u := or.u[(i%in)*(in+1)]
				size += float64(v) * float64(v) / (u * u)
			}
			if relative(*r.Record.Loss, or.loss) > 1e-3 && math.Abs(*r.Record.Loss-or.loss) > 1e-9*size {
				t.Fatalf("loss %v, column loop %v", *r.Record.Loss, or.loss)
			}
		}
	})
}

// TestFactorIdentity: U is upper triangular with a positive diagonal, and H·UᵀU is the identity to what rounding and the
// condition of H allow, whatever the rank of the statistic before damping.
func TestFactorIdentity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 90).Draw(t, "n")
		p := makeProblem(rapid.Uint64().Draw(t, "seed"), 1, n, rapid.IntRange(0, statisticKinds-1).Draw(t, "kind"))
		share := rapid.SampledFrom([]float64{0.01, 0.05, 0.3}).Draw(t, "damp")
		mean := 0.0
		for i := range n {
			mean += float64(p.h[i*(n+1)]) / float64(n)
		}
		if mean == 0 {
			return
		}
		h, wide := append([]float32(nil), p.h...), make([]float64, n*n)
		for i := range n {
			h[i*(n+1)] += float32(share * mean)
		}
		for i, v := range h {
			wide[i] = float64(v)
		}
		u := make([]float32, n*n)
		if f := kernels.InverseFactor(nil, u, h, n); f != nil {
			t.Fatalf("not factorized: %v", f)
		}
		inverse := invertSPD(wide, n)
		norm := func(a []float64) float64 { // largest row sum, a bound of the spectral norm
			most := 0.0
			for i := range n {
				s := 0.0
				for _, v := range a[i*n : (i+1)*n] {
					s += math.Abs(v)
				}
				most = math.Max(most, s)
			}
			return most
		}
		condition := norm(wide) * norm(inverse)
		hu := make([]float64, n*n) // H·Uᵀ
		for i := range n {
			if !(u[i*(n+1)] > 0) {
				t.Fatalf("U[%d,%d] = %v", i, i, u[i*(n+1)])
			}
			for j := range n {
				if j < i && u[i*n+j] != 0 {
					t.Fatalf("U[%d,%d] = %v below the diagonal", i, j, u[i*n+j])
				}
				for k := j; k < n; k++ {
					hu[i*n+j] += wide[i*n+k] * float64(u[j*n+k])
				}
			}
		}
		rest := make([]float64, n*n)
		for i := range n {
			for j := range n {
				for k := range n {
					rest[i*n+j] -= hu[i*n+k] * float64(u[k*n+j])
				}
			}
			rest[i*(n+1)]++
		}
		if got, bound := norm(rest), 4*float64(n)*0x1p-24*condition; got > bound {
			t.Fatalf("‖I − H·UᵀU‖ = %.3g, bound %.3g at condition %.3g", got, bound, condition)
		}
	})
}

// noise is what rounding W, H and their products to float32 does to an output error, an upper bound from |e_i|·√H_ii. It
// exceeds a thousandth of the error only where feedback cancels the error almost completely.
func noise(p problem, q []float32) float64 {
	var sum float64
	for row := range p.out {
		var s float64
		for c := range p.in {
			w := float64(p.w[row*p.in+c])
			s += (0x1p-10*math.Abs(w-float64(q[row*p.in+c])) + 0x1p-20*math.Abs(w)) * math.Sqrt(float64(p.h[c*p.in+c]))
		}
		sum += s * s
	}
	return sum * float64(p.rows) / 2
}

// baseError is ‖WX‖², the size that rounding noise of a vanishing error is measured by.
func baseError(p problem) float64 {
	return outputError(p.w, make([]float32, len(p.w)), p.x, p.out, p.in, p.rows)
}

// TestGuardAndMedian: no module is worse than rounding to nearest, and the median is well below it.
func TestGuardAndMedian(t *testing.T) {
	var ratios []float64
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.IntRange(2, 64).Draw(t, "in")
		p := makeProblem(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, 24).Draw(t, "out"), in, rapid.IntRange(0, statisticKinds-1).Draw(t, "kind"))
		o := drawOptions(t, in)
		r := p.solve(t, nil, o)
		o.FallbackGrid = quant.GridRTN
		plain, err := quant.RTN(context.Background(), nil, p.w, p.out, in, o, nil)
		if err != nil {
			t.Fatal(err)
		}
		q := make([]float32, len(p.w))
		r.Dequantize(q)
		solved := outputError(p.w, q, p.x, p.out, in, p.rows)
		plain.Dequantize(q)
		rounded := outputError(p.w, q, p.x, p.out, in, p.rows)
		visited := o.DescAct && !o.StaticGroups && o.GroupSize > 0 // other groups than natural ones: compare only with its own
		if !visited && solved > rounded*(1+1e-3)+1e-9*baseError(p) {
			t.Fatalf("output error %v above rounding's %v (record %+v)", solved, rounded, r.Record.Guard)
		}
		if g := r.Record.Guard; g != nil && g.KeptRTN {
			if r.Record.Method != quant.MethodRTN || r.Record.Reason != quant.ReasonGuard || r.Record.Asked != quant.MethodGPTQ {
				t.Fatalf("the record hides the guard: %+v", r.Record)
			}
		}
		if rounded > 0 {
			ratios = append(ratios, solved/rounded)
		}
	})
	sort.Float64s(ratios)
	if m := ratios[len(ratios)/2]; m > 0.9 {
		t.Errorf("median error is %.3f of rounding's", m)
	}
}

// TestSameBitsForAnyThreads: pools of 1, 2 and 4 threads and every CPU level below this machine's give the same result.
func TestSameBitsForAnyThreads(t *testing.T) {
	p := makeProblem(3, 150, 96, fullRank)
	o := quant.DefaultOptions()
	o.GroupSize, o.MSE = 32, 2.4
	want := fingerprint(p.solve(t, nil, o))
	for _, threads := range []int{1, 2, 4} {
		pool := kernels.NewPool(threads)
		for l := kernels.LevelScalar; l <= kernels.CPULevel(); l++ {
			restore := kernels.ForceLevel(l)
			got := fingerprint(p.solve(t, pool, o))
			restore()
			if got != want {
				t.Errorf("%d threads, level %v: other bits", threads, l)
			}
		}
		pool.Close()
	}
}

func fingerprint(r *quant.Result) string {
	f := append([]float32(nil), r.Scales...)
	for _, c := range r.Codes {
		f = append(f, float32(c))
	}
	for i := range r.GroupLo {
		f = append(f, r.GroupLo[i], r.GroupHi[i], float32(r.Zeros[i]))
	}
	for _, e := range []float64{*r.Record.OutputError, *r.Record.OutputErrorRel, *r.Record.Loss} {
		u := math.Float64bits(e)
		f = append(f, math.Float32frombits(uint32(u)), math.Float32frombits(uint32(u>>32)))
	}
	return quant.Digest(f)
}

// TestRangesLeadToScales: from the recorded range and candidate the stored scale and zero point follow in float32.
func TestRangesLeadToScales(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.IntRange(2, 48).Draw(t, "in")
		p := makeProblem(rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, 12).Draw(t, "out"), in, fullRank)
		o := drawOptions(t, in)
		r := p.solve(t, nil, o)
		maxq := float32(int(1)<<o.Bits - 1)
		for i := range r.Scales {
			lo, hi := r.GroupLo[i], r.GroupHi[i]
			if o.Sym {
				hi = max(hi, -lo)
				lo = -hi
			}
			if hi == 0 && lo == 0 {
				lo, hi = -1, 1
			}
			alternate := false
			if r.Candidate != nil {
				c := r.Candidate[i]
				alternate = c&0x80 != 0
				f := float32(1 - float64(c&0x7f)/100)
				lo, hi = f*lo, f*hi
			}
			s := (hi - lo) / maxq
			if o.ScaleDType == quant.ScaleBF16 {
				b := math.Float32bits(s)
				b += 0x7fff + b>>16&1
				s = math.Float32frombits(b &^ 0xffff)
			}
			if s != r.Scales[i] {
				t.Fatalf("scale %d is %v, its range gives %v", i, r.Scales[i], s)
			}
			z := float32(int(1) << (o.Bits - 1))
			if !o.Sym {
				z = min(max(float32(math.RoundToEven(float64(-lo/s))), 0), maxq)
			}
			if !alternate && float32(r.Zeros[i]) != z {
				t.Fatalf("zero %d is %d, its range gives %v", i, r.Zeros[i], z)
			}
		}
	})
}
