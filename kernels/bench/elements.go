package main

import (
	"time"

	"quire/kernels"
)

// element is an element-wise kernel and what it costs: vector instructions for
// each vector of elements, counted in the generated assembly.
type element struct {
	name     string
	run      func(dst, x []float32)
	products int // multiplications and multiply-adds
	all      int // all vector arithmetic, without loads and stores
	divides  int
	reads    int // passes over memory: reads and writes of the array
}

const elementRow = 2048

var elements = []element{
	{"Add", func(d, x []float32) { kernels.Add(d, d, x) }, 0, 1, 0, 3},
	{"Exp", kernels.Exp, 12, 23, 0, 2},
	{"SiLU", kernels.SiLU, 13, 30, 1, 2},
	{"GELUErf", kernels.GELUErf, 38, 58, 1, 2},
	{"GELUTanh", kernels.GELUTanh, 17, 33, 1, 2},
	{"RMSNorm", func(d, x []float32) { kernels.RMSNorm(d, x, nil, len(x)/elementRow, elementRow, 1e-6, 0) }, 3, 4, 0, 2},
	{"Softmax", func(d, x []float32) { kernels.Softmax(d, x, len(x)/elementRow, elementRow) }, 13, 27, 0, 2},
}

func (b *bench) anyElement() bool {
	for _, e := range elements {
		if b.wanted("element-wise " + e.name) {
			return true
		}
	}
	return false
}

// elements measures element-wise work over arrays that do not fit a cache. The limit is the
// slower of copying memory and of the execution ports: products at the multiply-add
// rate, all vector instructions at twice that rate, divisions at the rate of the Div kernel.
func (b *bench) elements(t *traffic) {
	n := of(b.scale, 4<<20, 4<<20, 4096) // elements of a sample: 16 MB each way
	t = &traffic{dst: t.dst[:n], src: t.src[:n], read: t.read, move: t.move}
	hot := t.src[:min(n, 2048)]
	div := &contender{threads: 1, run: func() {
		for range of(b.scale, 100, 100, 1) {
			kernels.Div(t.dst[:len(hot)], hot, 3)
		}
	}}
	b.race(200*time.Millisecond, div)
	perDivide := div.seconds() / float64(of(b.scale, 100, 100, 1)*len(hot)) // seconds an element
	for _, threads := range b.threadCounts() {
		for _, e := range elements {
			name := "element-wise " + e.name
			if !b.wanted(name) {
				continue
			}
			bytes := 4 * float64(e.reads)
			flops := b.peak(b.peaks[0], threads)
			// A product counts two flops an element.
			ports := max(2*float64(e.products)/flops, float64(e.all)/flops, float64(e.divides)*perDivide/float64(threads))
			l := line{name: name, threads: threads, work: bytes * float64(n), unit: "GB/s", limit: "copy"}
			if ports > bytes/(t.move[threads]*1e9) {
				l.limit = "ports"
			}
			l.peak = func() float64 { return 1 / max(1/t.move[threads], ports*1e9/bytes) }
			l.ours = func(p *kernels.Pool) {
				const piece = 32 * elementRow
				p.Do((n+piece-1)/piece, func(_, i int) {
					lo, hi := i*piece, min(n, (i+1)*piece)
					e.run(t.dst[lo:hi], t.src[lo:hi])
				})
			}
			if vectors() {
				l.share = 0.6
			}
			b.measure(l)
		}
	}
}
