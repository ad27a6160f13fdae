package kernels

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// Pool is a set of long-lived workers that take coarse tasks from one atomic
// counter. The goroutine that calls Do works too, as worker 0. Which worker
// runs which task is not defined, so no result may depend on it.
//
// A nil *Pool runs everything inline. So does a Do that starts while another Do
// of the same pool is running (nested, or from another goroutine).
type Pool struct {
	threads int
	busy    atomic.Bool
	closed  atomic.Bool
	wake    []chan *poolJob
	exited  sync.WaitGroup
}

// poolJob is one Do.
type poolJob struct {
	n    int64
	next atomic.Int64
	f    func(worker, task int)
	left sync.WaitGroup // helpers still inside

	panicOnce sync.Once
	panicked  any
}

// NewPool starts threads-1 workers; threads <= 0 means GOMAXPROCS.
func NewPool(threads int) *Pool {
	if threads <= 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	p := &Pool{threads: threads, wake: make([]chan *poolJob, threads-1)}
	for i := range p.wake {
		ch := make(chan *poolJob, 1)
		p.wake[i] = ch
		p.exited.Add(1)
		go func() {
			defer p.exited.Done()
			for j := range ch {
				j.work(i + 1)
				j.left.Done()
			}
		}()
	}
	return p
}

// Threads is the largest number of tasks that run at once; 1 for a nil pool.
func (p *Pool) Threads() int {
	if p == nil {
		return 1
	}
	return p.threads
}

// Do runs f(worker, task) for every task in 0..n-1, in increasing order of
// start, and returns when all have ended. 0 <= worker < Threads(); two tasks
// that run at the same time have different workers. A panic in f stops the
// handing out of tasks and is raised again in the caller.
func (p *Pool) Do(n int, f func(worker, task int)) {
	if n <= 0 {
		return
	}
	if p == nil || n == 1 || len(p.wake) == 0 || p.closed.Load() || !p.busy.CompareAndSwap(false, true) {
		for i := range n {
			f(0, i)
		}
		return
	}
	defer p.busy.Store(false)
	j := &poolJob{n: int64(n), f: f}
	helpers := min(len(p.wake), n-1)
	j.left.Add(helpers)
	for _, ch := range p.wake[:helpers] {
		ch <- j
	}
	j.work(0)
	j.left.Wait()
	if j.panicked != nil {
		panic(j.panicked)
	}
}

// work takes tasks until none is left.
func (j *poolJob) work(worker int) {
	defer func() {
		if r := recover(); r != nil {
			j.panicOnce.Do(func() { j.panicked = r })
			j.next.Store(j.n)
		}
	}()
	for {
		t := j.next.Add(1) - 1
		if t >= j.n {
			return
		}
		j.f(worker, int(t))
	}
}

// Close ends the workers and waits for them. The pool may still be used; it
// then runs inline. Close must not overlap a Do.
func (p *Pool) Close() {
	if p == nil || p.closed.Swap(true) {
		return
	}
	for _, ch := range p.wake {
		close(ch)
	}
	p.exited.Wait()
}
