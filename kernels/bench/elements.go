package main

import (
	"time"

	"quire/kernels"
)

// element is an element-wise kernel and what it costs.
type element struct {
	name   string
	run    func(dst, x []float32)
	passes []pass
	moves  int // reads and writes of an array, as a copy counts 2 (its third, the fetch of what it overwrites, is not counted)
}

// pass is one walk over the elements: vector instructions for each vector, counted in
// the generated assembly.
type pass struct {
	products int // multiplications and multiply-adds
	all      int // all vector arithmetic, without loads and stores
	divides  int
}

const elementRow = 2048

var elements = []element{
	{"Add", func(d, x []float32) { kernels.Add(d, d, x) }, []pass{{0, 1, 0}}, 2},
	{"Exp", kernels.Exp, []pass{{12, 23, 0}}, 2},
	{"SiLU", kernels.SiLU, []pass{{13, 30, 1}}, 2},
	{"GELUErf", kernels.GELUErf, []pass{{38, 58, 1}}, 2},
	{"GELUTanh", kernels.GELUTanh, []pass{{17, 33, 1}}, 2},
	{"RMSNorm", func(d, x []float32) { kernels.RMSNorm(d, x, nil, len(x)/elementRow, elementRow, 1e-6, 0) }, []pass{{1, 2, 0}, {2, 3, 0}}, 2},
	// The greatest of the row, the exponentials and their sum, the division.
	{"Softmax", func(d, x []float32) { kernels.Softmax(d, x, len(x)/elementRow, elementRow) }, []pass{{0, 1, 0}, {12, 25, 0}, {0, 1, 1}}, 2},
}

func (b *bench) anyElement() bool {
	for _, e := range elements {
		if b.wanted("element-wise " + e.name) {
			return true
		}
	}
	return false
}

// elements measures element-wise work over arrays that do not fit a cache. The limit
// is the slower of copying memory, run in turn, and of the execution ports: for each pass,
// products at the multiply-add rate, all vector instructions at twice that rate,
// divisions at the rate of the Div kernel, whichever is slowest.
func (b *bench) elements(t *traffic) {
	if !b.anyElement() {
		return
	}
	n := len(t.src)
	hot := t.src[:min(n, 2048)]
	rounds := of(b.scale, 100, 100, 1)
	div := &contender{threads: 1, run: func() {
		for range rounds {
			kernels.Div(t.dst[:len(hot)], hot, 3)
		}
	}}
	b.race(200*time.Millisecond, div)
	perDivide := div.seconds() / float64(rounds*len(hot)) // seconds an element
	for _, threads := range b.threadCounts() {
		for _, e := range elements {
			if threads > 1 && b.scale == quick && e.name != "SiLU" {
				continue
			}
			name := "element-wise " + e.name
			if !b.wanted(name) {
				continue
			}
			ports := 0.0 // seconds an element
			for _, p := range e.passes {
				flops := b.peak(b.peaks[0], threads)
				// A product counts two flops an element.
				ports += max(2*float64(p.products)/flops, float64(p.all)/flops, float64(p.divides)*perDivide/float64(threads))
			}
			bytes := 4 * float64(e.moves)
			l := line{name: name, threads: threads, work: bytes * float64(n), unit: "GB/s", limit: "memory or ports", limiter: b.mover(t, threads)}
			l.peak = func() float64 {
				return min(2*t.bytes()/l.limiter.seconds()/1e9, bytes/ports/1e9)
			}
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
