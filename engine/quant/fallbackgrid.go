package quant

import (
	"math"
	"slices"
)

// round codes x on one of the grids of reference/gptqmodel.md 1.7. All but rtn place the zero point freely; midpoint,
// mean and median put codes on a centre that is not rounded, so a value may be off by up to half a step.
func (g *grid) round(kind string, x []float32, codes []uint8, scratch []float32) fitted {
	if kind == GridRTN {
		f := g.fit(x, scratch)
		for i, v := range x {
			codes[i] = uint8(g.quantize(v, f.scale, f.zero))
		}
		return f
	}
	f := fitted{}
	for _, v := range x {
		f.lo, f.hi = min(f.lo, v), max(f.hi, v)
	}
	half := g.maxq / 2
	if kind == GridStdClip {
		mean, std := moments(x)
		std = max(std, 1e-8)
		lo, hi := mean-float32(3*std), mean+float32(3*std)
		f.scale, f.floored = roundScale(max((hi-lo)/g.maxq, 1e-8), g.scale)
		f.zero = clamp32(round32(-lo/f.scale), g.zeroMin, g.maxq)
		for i, v := range x {
			codes[i] = uint8(clamp32(round32(v/f.scale+f.zero), 0, g.maxq))
		}
		return f
	}
	var centre, scale float32
	switch kind {
	case GridMidpoint:
		lo, hi := slices.Min(x), slices.Max(x)
		centre = (hi + lo) / 2
		scale = max((hi-lo)/g.maxq, 1e-8)
	case GridMean, GridMedian:
		if kind == GridMean {
			centre, _ = moments(x)
		} else {
			s := scratch[:len(x)]
			copy(s, x)
			slices.Sort(s)
			centre = s[(len(s)-1)/2]
		}
		var dev float32
		for _, v := range x {
			dev = max(dev, abs32(v-centre))
		}
		scale = float32(2*max(dev, 1e-8)) / g.maxq
	}
	f.scale, f.floored = roundScale(scale, g.scale)
	f.zero = clamp32(round32(half-centre/f.scale), g.zeroMin, g.maxq)
	for i, v := range x {
		codes[i] = uint8(clamp32(round32((v-centre)/f.scale+half), 0, g.maxq))
	}
	return f
}

func abs32(v float32) float32 { return math.Float32frombits(math.Float32bits(v) &^ (1 << 31)) }

// moments gives mean and population standard deviation, summed in float64.
func moments(x []float32) (mean, std float32) {
	var s float64
	for _, v := range x {
		s += float64(v)
	}
	m := s / float64(len(x))
	var q float64
	for _, v := range x {
		d := float64(v) - m
		q += float64(d * d)
	}
	return float32(m), float32(math.Sqrt(q / float64(len(x))))
}
