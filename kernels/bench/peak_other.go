//go:build !amd64 || noasm || purego || !gc

package main

func peakLoops() []peakLoop { return []peakLoop{scalarPeak} }
