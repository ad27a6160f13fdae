//go:build !amd64 || noasm || purego || !gc

package main

func peakLoops() []peakLoop { return []peakLoop{scalarPeak} }

var readLoop func(p *float32, n int)
