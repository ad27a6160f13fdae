package engine

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"quire/capture/model"
	"quire/engine/quant"
	"quire/kernels"
)

// Operations counts what a run computes. A multiply-add is two operations.
type Operations struct {
	Forward    float64 `json:"forward_flop"`
	Statistics float64 `json:"statistics_flop"`
	Solving    float64 `json:"solving_flop"`
	HashBytes  int64   `json:"hash_bytes"`
}

// CoverageForecast says how many rows experts of one kind of layer would get if routing were even, and how far from even
// it may be before the few-row policy acts.
type CoverageForecast struct {
	Layers  int     `json:"layers"`
	Experts int     `json:"experts"`
	TopK    int     `json:"top_k"`
	Even    float64 `json:"even_rows"`
	MinRows int64   `json:"min_rows"` // the larger floor of an expert's two sites
	// Share of the even number of rows below which an expert falls back. Above 1, most experts will.
	Share float64 `json:"fallback_below_share"`
}

// forecast fills in work and coverage.
func (p *Plan) forecast() error {
	w := &p.Advice.Work
	for _, s := range p.checkpoint.Shards() {
		w.HashBytes += s.Size
	}
	if !p.calibrated() {
		return nil // reading and writing take the time
	}
	floor, err := quant.ParseRowFloor(p.Settings.Identity.MinRows)
	if err != nil {
		return err
	}
	var rows, squares float64
	for _, b := range p.Calibration.Batches {
		n := float64(len(b.IDs))
		rows, squares = rows+n, squares+n*n
	}
	for _, l := range p.model.Layers {
		w.Forward += 2 * squares * float64(p.model.Hidden) // causal attention: half of QKᵀ and of PV
		even := 1.0
		if b := l.Block; b != nil {
			even = float64(b.TopK) / float64(b.Experts)
			need := max(floor.Rows(p.model.Hidden, p.Advice.BatchRows), floor.Rows(b.Inter, p.Advice.BatchRows))
			c := CoverageForecast{Experts: b.Experts, TopK: b.TopK, Even: even * float64(p.Advice.BatchRows), MinRows: need}
			c.Share = float64(need) / c.Even
			i := slices.IndexFunc(p.Advice.Coverage, func(x CoverageForecast) bool { x.Layers = 0; return x == c })
			if i < 0 {
				i = len(p.Advice.Coverage)
				p.Advice.Coverage = append(p.Advice.Coverage, c)
			}
			p.Advice.Coverage[i].Layers++
		}
		share := func(expert int) float64 {
			if expert >= 0 {
				return even
			}
			return 1
		}
		for _, lin := range l.Linears() {
			w.Forward += 2 * float64(lin.Elements()) * rows * share(lin.Expert)
		}
		for _, site := range l.Sites() {
			n := float64(site.In)
			solved := p.solveFlop(site)
			if solved > 0 {
				w.Statistics += n * n * rows * share(site.Expert)
				w.Solving += solved
			}
		}
	}
	return nil
}

// solveFlop counts the factorization of a site's statistic and the column loops of the modules that share it.
func (p *Plan) solveFlop(site *model.Site) float64 {
	n := float64(site.In)
	sum := 0.0
	for _, l := range site.Linears {
		if m := p.module(l.Module); m != nil && m.Scheme != nil && m.Scheme.Method != "rtn" {
			sum += solveFlop(float64(l.Out), n)
		}
	}
	if sum > 0 {
		sum += n * n * n
	}
	return sum
}

// solveFlop is the column loop and the two error figures of one module.
func solveFlop(out, in float64) float64 { return 3 * out * in * in }

// TimeEstimate is how long a run takes if this machine works as fast as it did in a short measurement.
type TimeEstimate struct {
	Seconds    float64 `json:"seconds"`
	Forward    float64 `json:"forward_s"`
	Statistics float64 `json:"statistics_s"`
	Solving    float64 `json:"solving_s"`
	Hashing    float64 `json:"hashing_s"`
	Basis      string  `json:"basis"`
}

// EstimateTime measures the rates of products, statistics, solving and hashing for about a quarter of a second and
// divides the plan's work by them. Reading, writing and small matrices make a run slower than that.
func (p *Plan) EstimateTime(ctx context.Context) (TimeEstimate, error) {
	pool := kernels.NewPool(p.Settings.Threads)
	defer pool.Close()
	const n, rows = 1024, 512
	x := make([]uint16, rows*n)
	state := uint32(1)
	for i := range x {
		state = state*1664525 + 1013904223
		x[i] = 0x3c00 | uint16(state>>16)&0x80ff // ±0.008 to 0.03
	}
	a := kernels.RowsBF16(x, rows, n)
	weight := kernels.PackBF16(nil, x, rows, n)
	y := make([]float32, rows*rows)
	gemm := rate(2*rows*rows*n, func() { kernels.GEMM(pool, kernels.GEMMJob{X: a, W: weight, Y: y}) })
	gram := kernels.NewGram(n)
	statistic := rate(rows*n*n, func() { gram.Add(pool, a) })
	solve, err := p.solveRate(ctx, pool)
	if err != nil {
		return TimeEstimate{}, err
	}
	block := make([]byte, 4<<20)
	hash := rate(float64(len(block)), func() { sha256.Sum256(block) })
	w := p.Advice.Work
	t := TimeEstimate{Forward: w.Forward / gemm, Statistics: w.Statistics / statistic, Solving: w.Solving / solve, Hashing: float64(w.HashBytes) / hash}
	t.Seconds = t.Forward + t.Statistics + t.Solving + t.Hashing
	t.Basis = fmt.Sprintf("measured with %d threads: products %.0f, statistics %.0f, solving %.0f GFLOP/s, hashing %.1f GB/s", pool.Threads(), gemm/1e9, statistic/1e9, solve/1e9, hash/1e9)
	return t, nil
}

// solveRate times one small solve.
func (p *Plan) solveRate(ctx context.Context, pool *kernels.Pool) (float64, error) {
	const n, out = 768, 256
	h := make([]float32, n*n)
	for i := range n {
		h[i*n+i] = 1 + float32(i%7)/8
		if i > 0 {
			h[i*n+i-1], h[(i-1)*n+i] = 0.25, 0.25
		}
	}
	w := make([]float32, out*n)
	for i := range w {
		w[i] = float32(i*7919%1000)/500 - 1
	}
	o := quant.DefaultOptions()
	o.GroupSize = 128
	var failed error
	r := rate(n*n*n+solveFlop(out, n), func() {
		prepared, err := quant.Prepare(pool, quant.Hessian{N: n, H: h, Rows: 4 * n}, o)
		if err == nil {
			_, err = prepared.Solve(ctx, pool, w, out)
		}
		failed = err
	})
	return r, failed
}

// rate gives operations a second: the best of the runs in about 60 ms.
func rate(operations float64, run func()) float64 {
	best := 0.0
	for began := time.Now(); ; {
		t := time.Now()
		run()
		best = max(best, operations/max(time.Since(t).Seconds(), 1e-9))
		if time.Since(began) > 60*time.Millisecond {
			return best
		}
	}
}
