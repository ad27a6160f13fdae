package main

import "golang.org/x/sys/unix"

// threadSeconds is the CPU time of the calling thread. Unlike the wall clock it
// stands still while another process has the core.
func threadSeconds() float64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return wallSeconds()
	}
	return float64(t.Sec) + float64(t.Nsec)/1e9
}

// preemptions counts how often a thread of this process lost its core to another.
func preemptions() int64 {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return r.Nivcsw
}
