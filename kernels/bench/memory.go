package main

import (
	"fmt"
	"time"

	"quire/kernels"
)

// memory measures what memory limits: few rows against cold weights, and
// element-wise work over large arrays.
func (b *bench) memory(threads []int) {
	const bytes = 256 << 20
	big := make([]float32, bytes/4)
	for i := range big {
		big[i] = 1
	}
	for _, n := range threads {
		if !b.wanted("memory") {
			break
		}
		p := b.poolOf(n)
		const pieces = 64
		read := b.rate(p, bytes, func(i int) {
			sums[i%len(sums)] = kernels.Sum(big[i*len(big)/pieces : (i+1)*len(big)/pieces])
		}, pieces)
		b.report(Result{Name: "memory read", Threads: n, Unit: "GB/s", Ours: read, Gated: 1})
		half := len(big) / 2
		dst, src := big[:half], big[half:]
		move := b.rate(p, bytes, func(i int) {
			lo, hi := i*half/pieces, (i+1)*half/pieces
			kernels.Scale(dst[lo:hi], src[lo:hi], 1)
		}, pieces)
		b.report(Result{Name: "memory read + write", Threads: n, Unit: "GB/s", Ours: move, Gated: 1})
		for _, op := range []struct {
			name string
			f    func(d, x []float32)
		}{
			{"SiLU", kernels.SiLU}, {"GELUErf", kernels.GELUErf}, {"Exp", kernels.Exp},
			{"RMSNorm", func(d, x []float32) { kernels.RMSNorm(d, x, nil, len(x)/2048, 2048, 1e-6, 0) }},
			{"Softmax", func(d, x []float32) { kernels.Softmax(d, x, len(x)/2048, 2048) }},
		} {
			got := b.rate(p, bytes, func(i int) {
				lo, hi := i*half/pieces, (i+1)*half/pieces
				op.f(dst[lo:hi], src[lo:hi])
			}, pieces)
			b.report(Result{Name: "memory " + op.name, Threads: n, Unit: "GB/s", Ours: got, Peak: move, Limit: "copy", Share: got / move, Gated: 1})
		}
		b.coldWeights(p, n, read)
	}
}

// sums keeps results alive.
var sums [64]float32

func (b *bench) poolOf(threads int) *kernels.Pool {
	if threads == 1 {
		return nil
	}
	return b.pool
}

// rate is the best GB/s of running f over all pieces.
func (b *bench) rate(p *kernels.Pool, bytes float64, f func(i int), pieces int) float64 {
	best := 0.0
	rounds := 12
	if b.quick {
		rounds = 4
	}
	for range rounds {
		start := time.Now()
		p.Do(pieces, func(_, i int) { f(i) })
		best = max(best, bytes/1e9/time.Since(start).Seconds())
	}
	return best
}

// coldWeights multiplies few rows by experts that are never in a cache: 40
// matrices of 768x2048 in turn, one expert a task.
func (b *bench) coldWeights(p *kernels.Pool, threads int, read float64) {
	const experts, n, k = 40, 768, 2048
	for _, bf16 := range []bool{false, true} {
		ws := make([]*kernels.Weight, experts)
		for e := range ws {
			if bf16 {
				ws[e] = kernels.PackBF16(nil, randomBF16(n*k), n, k)
			} else {
				ws[e] = kernels.PackF32(nil, random(n*k), n, k)
			}
		}
		for _, m := range []int{1, 4, 16} {
			jobs := make([]kernels.GEMMJob, experts)
			for e := range jobs {
				jobs[e] = kernels.GEMMJob{X: kernels.RowsF32(random(m*k), m, k), W: ws[e], Y: make([]float32, m*n)}
				if bf16 {
					jobs[e].X = kernels.RowsBF16(randomBF16(m*k), m, k)
				}
			}
			name := fmt.Sprintf("memory cold weights f32 m=%d", m)
			if bf16 {
				name = fmt.Sprintf("memory cold weights bf16 m=%d", m)
			}
			bytes := float64(experts) * float64(ws[0].Bytes())
			got := b.rate(nil, bytes, func(int) { kernels.GEMM(p, jobs...) }, 1)
			b.report(Result{Name: name, Threads: threads, Unit: "GB/s", Ours: got, Peak: read, Limit: "read", Share: got / read, Gated: 1})
		}
	}
}
