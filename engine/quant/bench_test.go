package quant_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"quire/engine/quant"
	"quire/kernels"
)

// benchLayer is a weight [out,in] and a statistic of correlated rows.
func benchLayer(pool *kernels.Pool, seed uint64, out, in, rows int) ([]float32, quant.Hessian) {
	r := rand.New(rand.NewPCG(seed, 1))
	w, x := make([]float32, out*in), make([]float32, rows*in)
	for i := range w {
		w[i] = float32(r.NormFloat64()) * 0.03
	}
	for k := range rows {
		common := float32(r.NormFloat64())
		for c := range in {
			x[k*in+c] = common*0.3 + float32(r.NormFloat64())*(0.2+float32(c%17)/8)
		}
	}
	g := kernels.NewGram(in)
	g.Add(pool, kernels.RowsF32(x, rows, in))
	h := make([]float32, in*in)
	g.PartialParallel(pool, h)
	for i := range h {
		h[i] *= 2 / float32(rows)
	}
	return w, quant.Hessian{N: in, H: h, Rows: int64(rows), NativeRows: int64(rows)}
}

// BenchmarkGPTQ is GPTQ with default options, statistic given: Prepare, column loop, error figures and guard.
func BenchmarkGPTQ(b *testing.B) {
	for _, s := range []struct {
		name    string
		out, in int
	}{{"2048x2048", 2048, 2048}, {"768x2048", 768, 2048}, {"2048x768", 2048, 768}} {
		b.Run(s.name, func(b *testing.B) {
			pool := kernels.NewPool(0)
			defer pool.Close()
			w, h := benchLayer(pool, 5, s.out, s.in, 2*s.in)
			o := quant.DefaultOptions()
			var prepare, solve time.Duration
			b.SetBytes(int64(4 * len(w)))
			for b.Loop() {
				t0 := time.Now()
				p, err := quant.Prepare(pool, h, o)
				if err != nil {
					b.Fatal(err)
				}
				t1 := time.Now()
				if _, err := p.Solve(context.Background(), pool, w, s.out); err != nil {
					b.Fatal(err)
				}
				prepare += t1.Sub(t0)
				solve += time.Since(t1)
			}
			b.ReportMetric(float64(prepare.Milliseconds())/float64(b.N), "prepare-ms")
			b.ReportMetric(float64(solve.Milliseconds())/float64(b.N), "solve-ms")
		})
	}
}
