package main

import "runtime"

// scalarPeak is plain float32 multiply and add on eight chains, the yardstick
// where the generic twin runs.
var scalarPeak = peakLoop{"scalar", 16, func(rounds int) {
	var s [8]float32
	x, y := float32(0.999), float32(1e-3)
	for range rounds {
		s[0] = s[0]*x + y
		s[1] = s[1]*x + y
		s[2] = s[2]*x + y
		s[3] = s[3]*x + y
		s[4] = s[4]*x + y
		s[5] = s[5]*x + y
		s[6] = s[6]*x + y
		s[7] = s[7]*x + y
	}
	runtime.KeepAlive(s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7])
}}
