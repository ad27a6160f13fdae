package main

import (
	"runtime"
	"time"

	"quire/kernels"
)

// bench holds the limits of the machine and what is measured against them.
type bench struct {
	quick   bool
	threads int
	pool    *kernels.Pool
	blas    *openBLAS
	peaks   []peakLoop
	report  func(Result)
	wanted  func(name string) bool
	best    float64 // fastest peak loop seen on one thread, flop/s
}

// peakLoop is a register-only loop of a known number of flops.
type peakLoop struct {
	name  string
	flops float64 // per round
	run   func(rounds int)
}

func newBench(quick bool) *bench {
	b := &bench{quick: quick, threads: runtime.GOMAXPROCS(0), blas: loadOpenBLAS(), peaks: peakLoops()}
	b.pool = kernels.NewPool(b.threads)
	for range 200 {
		b.gate()
	}
	return b
}

func (b *bench) close() { b.pool.Close() }

// gate runs the peak loop for about a millisecond and returns its rate.
func (b *bench) gate() float64 {
	p := b.peaks[0]
	const want = 1e8 // flops
	rounds := int(want / p.flops)
	start := time.Now()
	p.run(rounds)
	rate := float64(rounds) * p.flops / time.Since(start).Seconds()
	b.best = max(b.best, rate)
	return rate
}

// peak is the limit on n threads.
func (b *bench) peak(p peakLoop, n int) float64 {
	if n == 1 && p.name == b.peaks[0].name {
		return b.best
	}
	const each = 2e8
	rounds := int(each / p.flops)
	var best float64
	for range 40 {
		start := time.Now()
		if n == 1 {
			p.run(rounds)
		} else {
			b.pool.Do(n, func(_, _ int) { p.run(rounds) })
		}
		best = max(best, float64(n*rounds)*p.flops/time.Since(start).Seconds())
	}
	return best
}

// contender is one way to do the work.
type contender struct {
	run   func()
	rest  time.Duration // pause after it: OpenBLAS workers spin for 26 ms
	best  float64       // seconds, of samples that passed the gate
	any   float64       // seconds, of all samples
	gated int
}

// race samples the contenders in turn for the given time, at least five times each.
func (b *bench) race(budget time.Duration, cs ...*contender) {
	if b.quick {
		budget /= 4
	}
	for _, c := range cs {
		c.run() // warm up: pages, caches, clocks
		time.Sleep(c.rest)
	}
	deadline := time.Now().Add(budget)
	for i := 0; i < 5 || time.Now().Before(deadline) && i < 400; i++ {
		for _, c := range cs {
			before := b.gate()
			start := time.Now()
			c.run()
			took := time.Since(start).Seconds()
			after := b.gate()
			time.Sleep(c.rest)
			if c.any == 0 || took < c.any {
				c.any = took
			}
			if min(before, after) >= 0.9*b.best {
				if c.gated++; c.best == 0 || took < c.best {
					c.best = took
				}
			}
		}
		if i >= 12 && time.Now().After(deadline) {
			break
		}
	}
}

func (c *contender) seconds() float64 {
	if c.gated > 0 {
		return c.best
	}
	return c.any
}
