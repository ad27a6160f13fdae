package main

import (
	"fmt"

	"quire/kernels"
)

// traffic is two arrays that do not fit a cache.
type traffic struct{ dst, src []float32 }

// bytes is the size of one of them.
func (t *traffic) bytes() float64 { return 4 * float64(len(t.src)) }

const trafficPieces = 64

func (t *traffic) piece(x []float32, i int) []float32 {
	return x[i*len(x)/trafficPieces : (i+1)*len(x)/trafficPieces]
}

// reader reads one array, mover copies it.
func (b *bench) reader(t *traffic, threads int) *contender {
	return &contender{threads: threads, run: func() {
		b.poolOf(threads).Do(trafficPieces, func(_, i int) { readAll(t.piece(t.src, i)) })
	}}
}

func (b *bench) mover(t *traffic, threads int) *contender {
	return &contender{threads: threads, run: func() {
		b.poolOf(threads).Do(trafficPieces, func(_, i int) { kernels.Scale(t.piece(t.dst, i), t.piece(t.src, i), 1) })
	}}
}

// memory measures what memory limits: few rows against cold weights, and
// element-wise work over large arrays.
func (b *bench) memory() {
	if !b.wanted("memory read") && !b.wanted("memory copy") && !b.anyCold() && !b.anyElement() {
		return
	}
	n := of(b.scale, 16<<20, 16<<20, 64<<10)
	t := &traffic{dst: make([]float32, n), src: make([]float32, n)}
	for i := range n {
		t.dst[i], t.src[i] = 1, float32(i%17)-8
	}
	for _, threads := range b.threadCounts() {
		b.measure(line{name: "memory read", threads: threads, work: t.bytes(), unit: "GB/s", ours: func(*kernels.Pool) { b.reader(t, threads).run() }})
		b.measure(line{name: "memory copy", threads: threads, work: 2 * t.bytes(), unit: "GB/s", ours: func(*kernels.Pool) { b.mover(t, threads).run() }})
	}
	for _, threads := range b.threadCounts() {
		b.coldWeights(t, threads)
	}
	b.elements(t)
}

// sums keeps results alive.
var sums [64]float32

// readAll reads x once, the fastest way there is.
func readAll(x []float32) {
	if readLoop != nil && len(x) >= 64 {
		readLoop(&x[0], len(x)/64)
		return
	}
	sums[0] = kernels.Sum(x)
}

func coldName(bf16 bool, m int) string { return fmt.Sprintf("cold weights %s m=%d", typeName(bf16), m) }

func (b *bench) coldRows() []int {
	return of(b.scale, []int{1, 2, 4, 8, 16}, []int{1, 4, 16}, []int{1})
}

func (b *bench) anyCold() bool {
	for _, m := range b.coldRows() {
		if b.wanted(coldName(false, m)) || b.wanted(coldName(true, m)) {
			return true
		}
	}
	return false
}

// coldWeights multiplies few rows by experts that are never in a cache, one
// matrix after the other as one job list. The limit is the slower of reading the
// weights and of the multiply-adds.
func (b *bench) coldWeights(t *traffic, threads int) {
	experts, n, k := of(b.scale, 40, 20, 2), of(b.scale, 768, 768, 64), of(b.scale, 2048, 2048, 64)
	for _, bf16 := range []bool{false, true} {
		var ws []*kernels.Weight
		for _, m := range b.coldRows() {
			name := coldName(bf16, m)
			if !b.wanted(name) {
				continue
			}
			for len(ws) < experts {
				if bf16 {
					ws = append(ws, kernels.PackBF16(nil, randomBF16(n*k), n, k))
				} else {
					ws = append(ws, kernels.PackF32(nil, random(n*k), n, k))
				}
			}
			jobs := make([]kernels.GEMMJob, experts)
			for e := range jobs {
				jobs[e] = kernels.GEMMJob{X: kernels.RowsF32(random(m*k), m, k), W: ws[e], Y: make([]float32, m*n)}
				if bf16 {
					jobs[e].X = kernels.RowsBF16(randomBF16(m*k), m, k)
				}
			}
			bytes := float64(experts) * float64(ws[0].Bytes())
			l := line{name: name, threads: threads, work: bytes, unit: "GB/s", ours: func(p *kernels.Pool) { kernels.GEMM(p, jobs...) }}
			_, flops := b.flopPeak(bf16, threads)
			perByte := 2 * float64(m) * float64(n) * float64(k) * float64(experts) / bytes
			l.limiter = b.reader(t, threads)
			l.limit = "memory or FMA"
			l.peak = func() float64 { return min(t.bytes()/l.limiter.seconds()/1e9, flops()/perByte) }
			if vectors() {
				l.share = 1 / 1.3
			}
			b.measure(l)
		}
	}
}
