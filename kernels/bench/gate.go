package main

import (
	"runtime"
	"time"

	"quire/kernels"
)

// bench holds the limits of the machine and what is measured against them.
type bench struct {
	scale   scale
	threads int
	pool    *kernels.Pool
	blas    *openBLAS
	peaks   []peakLoop
	report  func(Result)
	wanted  func(name string) bool
	best    float64 // fastest gate seen, flop/s
	limits  map[string]float64
}

// scale is how much is measured.
type scale int

const (
	full  scale = iota
	quick       // smaller sizes, under 40 s
	tiny        // the smallest of everything, for the test of the command itself
)

// of picks the value of the scale.
func of[T any](s scale, full, quick, tiny T) T { return [...]T{full, quick, tiny}[s] }

// peakLoop is a register-only loop of a known number of flops.
type peakLoop struct {
	name  string
	flops float64 // per round
	run   func(rounds int)
}

var began = time.Now()

// quickSeconds is when a quick run on a busy machine goes on with one sample of each.
const quickSeconds = 20

func wallSeconds() float64 { return time.Since(began).Seconds() }

func newBench(s scale) *bench {
	runtime.LockOSThread() // one-thread samples are timed by the CPU clock of this thread
	b := &bench{scale: s, threads: runtime.GOMAXPROCS(0), blas: loadOpenBLAS(), peaks: peakLoops(), limits: map[string]float64{}}
	b.pool = kernels.NewPool(b.threads)
	for range of(s, 200, 100, 2) {
		b.gate()
	}
	return b
}

func (b *bench) close() {
	b.pool.Close()
	runtime.UnlockOSThread()
}

// poolOf is the pool for one thread or for all.
func (b *bench) poolOf(threads int) *kernels.Pool {
	if threads == 1 {
		return nil
	}
	return b.pool
}

// threadCounts is 1 and, where there are more, all.
func (b *bench) threadCounts() []int {
	if b.threads == 1 {
		return []int{1}
	}
	return []int{1, b.threads}
}

// clock is the time that counts for work on that many threads: CPU time for one, wall time for more.
func clock(threads int) float64 {
	if threads == 1 {
		return threadSeconds()
	}
	return wallSeconds()
}

// gate runs the peak loop for about a millisecond and returns its rate.
func (b *bench) gate() float64 {
	p := b.peaks[0]
	rounds := max(1, int(of(b.scale, 1e8, 1e8, 1e6)/p.flops))
	start := threadSeconds()
	p.run(rounds)
	rate := float64(rounds) * p.flops / max(1e-9, threadSeconds()-start)
	b.best = max(b.best, rate)
	return rate
}

// peak is the limit on n threads, flop/s: the fastest of short runs.
func (b *bench) peak(p peakLoop, n int) float64 {
	if n == 1 && p.name == b.peaks[0].name {
		return b.best
	}
	key := p.name
	rounds := max(1, int(of(b.scale, 2e8, 1e8, 1e6)/p.flops))
	for range of(b.scale, 40, 20, 1) {
		start := clock(n)
		b.poolOf(n).Do(n, func(_, _ int) { p.run(rounds) })
		rate := float64(n*rounds) * p.flops / max(1e-9, clock(n)-start)
		if n > 1 {
			key = p.name + " on all threads"
		}
		b.limits[key] = max(b.limits[key], rate)
	}
	return b.limits[key]
}

// contender is one way to do the work.
type contender struct {
	run     func()
	threads int
	rest    time.Duration // pause after it: OpenBLAS workers spin for 26 ms
	best    float64       // seconds, of samples that passed the gate
	any     float64       // seconds, of all samples
	gated   int
}

// race samples the contenders in turn until the time is up, at least least times each.
// A sample counts if the gate before and after it shows 90 % of the peak and,
// on several threads, no thread lost its core meanwhile.
func (b *bench) race(budget time.Duration, cs ...*contender) {
	budget = of(b.scale, budget, budget/5, 0)
	least := of(b.scale, 7, 4, 1)
	if b.scale == quick && wallSeconds() > quickSeconds {
		budget, least = 0, 1
	}
	for _, c := range cs {
		if b.scale != tiny {
			c.run() // warm up: pages, caches, clocks
		}
		time.Sleep(c.rest)
	}
	deadline := time.Now().Add(budget)
	enough := func() bool {
		for _, c := range cs {
			if c.gated < 3 {
				return false
			}
		}
		return true
	}
	late := deadline.Add(of(b.scale, budget, 0, 0))
	for i := 0; i < least || i < 1000 && (time.Now().Before(deadline) || !enough() && time.Now().Before(late)); i++ {
		for _, c := range cs {
			before := b.gate()
			lost, start := preemptions(), clock(c.threads)
			c.run()
			took := max(1e-9, clock(c.threads)-start)
			lost = preemptions() - lost
			after := b.gate()
			time.Sleep(c.rest)
			if c.any == 0 || took < c.any {
				c.any = took
			}
			if min(before, after) >= 0.9*b.best && (c.threads == 1 || lost == 0) {
				if c.gated++; c.best == 0 || took < c.best {
					c.best = took
				}
			}
		}
	}
}

func (c *contender) seconds() float64 {
	if c.gated > 0 {
		return c.best
	}
	return c.any
}
