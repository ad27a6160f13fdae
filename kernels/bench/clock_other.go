//go:build !linux

package main

// threadSeconds is wall time where threads have no CPU clock that we bind.
func threadSeconds() float64 { return wallSeconds() }

func preemptions() int64 { return 0 }
