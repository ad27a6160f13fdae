package quant

import (
	"math"

	"quire/kernels/dtype"
)

// grid turns ranges into scales and zero points, in float32 and in the public libraries' order of operations: the
// extremes of a group sit exactly on rounding ties, so another order or another precision gives other codes.
type grid struct {
	sym     bool
	maxq    float32
	mid     float32 // zero point of a symmetric grid
	zeroMin float32
	scale   string // scale dtype
	parity  string
	mse     float64
	twoBit  bool // the search also tries the neighbouring zero point
}

func newGrid(o Options) *grid {
	maxq := o.MaxQ()
	return &grid{
		sym: o.Sym, maxq: float32(maxq), mid: float32((maxq + 1) / 2), zeroMin: float32(o.ZeroMin),
		scale: o.ScaleDType, parity: o.Parity, mse: o.MSE, twoBit: o.Bits == 2 && !o.Sym,
	}
}

// Smallest scales that a type stores: subnormal for f16, because weights below 0.008 at 8 bits need them; the smallest
// normal elsewhere, because arithmetic with float32 subnormals is flushed in places.
const (
	floorF16 = 0x1p-24
	floorF32 = 0x1p-126
)

// roundScale rounds s to the stored type. floored tells that s was raised to the smallest value that the type holds.
func roundScale(s float32, dt string) (r float32, floored bool) {
	switch dt {
	case ScaleF16:
		r = dtype.F16ToF32(dtype.F32ToF16(s))
		if r < floorF16 {
			return floorF16, true
		}
	case ScaleBF16:
		r = dtype.BF16ToF32(dtype.F32ToBF16(s))
		if r < floorF32 {
			return floorF32, true
		}
	default:
		r = s
		if r < floorF32 {
			return floorF32, true
		}
	}
	return r, false
}

func round32(x float32) float32 { return float32(math.RoundToEven(float64(x))) }

func clamp32(x, lo, hi float32) float32 {
	if x < lo {
		return lo
	}
	if x > hi {
		return hi
	}
	return x
}

// span prepares a raw range (lo ≤ 0 ≤ hi) for derive: the symmetric rule and the rule of empty groups.
func (g *grid) span(lo, hi float32) (float32, float32) {
	if g.sym {
		hi = max(-lo, hi)
		// GPTQ-for-LLaMa and its heirs mirror only where something is negative, so that an all-positive group gets
		// half the step and saturates at 7/15 of its maximum.
		if lo < 0 || g.parity != ParityGPTQModel {
			lo = -hi
		}
	}
	if lo == 0 && hi == 0 {
		lo, hi = -1, 1
	}
	return lo, hi
}

// derive gives scale and zero of a prepared range.
func (g *grid) derive(lo, hi float32) (scale, zero float32, floored bool) {
	switch {
	case g.parity == ParityCompressedTensors && g.sym:
		scale = hi / (g.maxq / 2)
	default:
		scale = (hi - lo) / g.maxq
	}
	scale, floored = roundScale(scale, g.scale)
	if g.sym {
		return scale, g.mid, floored
	}
	if g.parity == ParityCompressedTensors {
		// The library works on signed codes: zp = clamp(qmin − min/scale), rounded.
		z := round32(clamp32(-g.mid-lo/scale, -g.mid, g.mid-1))
		return scale, z + g.mid, floored
	}
	zero = round32(-lo / scale)
	if g.parity == "" {
		zero = clamp32(zero, 0, g.maxq)
		if zero < g.zeroMin {
			// The range has no negative part: give up the lowest code and stretch the step so that hi stays inside.
			zero = g.zeroMin
			var f bool
			if scale, f = roundScale(max(scale, hi/(g.maxq-zero)), g.scale); f {
				floored = true
			}
		}
	}
	return scale, zero, floored
}

// quantize gives the code of w as a float32.
func (g *grid) quantize(w, scale, zero float32) float32 {
	if g.parity == ParityCompressedTensors {
		return clamp32(round32(w/scale+(zero-g.mid))+g.mid, 0, g.maxq)
	}
	return clamp32(round32(w/scale)+zero, 0, g.maxq)
}

// fitted is the grid of one group of one channel.
type fitted struct {
	lo, hi      float32 // raw range, lo ≤ 0 ≤ hi
	scale, zero float32
	candidate   uint8
	floored     bool
}

// fit finds the grid of the values x; scratch has room for len(x) values.
func (g *grid) fit(x []float32, scratch []float32) fitted {
	var f fitted
	for _, v := range x {
		if v < f.lo {
			f.lo = v
		}
		if v > f.hi {
			f.hi = v
		}
	}
	g.fitRange(&f, x, scratch)
	return f
}

// fitRange completes f from its raw range; x is looked at only by the search.
func (g *grid) fitRange(f *fitted, x, scratch []float32) {
	lo, hi := g.span(f.lo, f.hi)
	f.scale, f.zero, f.floored = g.derive(lo, hi)
	if g.mse > 0 {
		g.search(f, lo, hi, x, scratch)
	}
}

// Steps of the clip search: range·(1 − i/searchGrid) for i in 0..searchSteps−1.
const (
	searchGrid  = 100
	searchSteps = 80
)

// Marks of Result.Candidate.
const (
	candidateNone      = 0x7f // no candidate had a finite error
	candidateAlternate = 0x80 // the neighbouring zero point won
)

// search tries shrunken ranges and keeps the first with the smallest Σ|deq−x|^mse.
func (g *grid) search(f *fitted, lo, hi float32, x, scratch []float32) {
	best := math.Inf(1)
	f.candidate = candidateNone
	for i := range searchSteps {
		p := float32(1 - float64(i)/searchGrid)
		lo1, hi1 := float32(p*lo), float32(p*hi)
		scale, zero, floored := g.derive(lo1, hi1)
		try := func(z float32, mark uint8) {
			if err := g.norm(x, scratch, scale, z); err < best {
				best = err
				f.scale, f.zero, f.floored, f.candidate = scale, z, floored, uint8(i)|mark
			}
		}
		try(zero, 0)
		if g.twoBit {
			ideal := -lo1 / scale
			lower := clamp32(float32(math.Floor(float64(ideal))), 0, g.maxq)
			upper := clamp32(float32(math.Ceil(float64(ideal))), 0, g.maxq)
			alt := lower
			if zero == lower {
				alt = upper
			}
			if alt >= g.zeroMin {
				try(alt, candidateAlternate)
			}
		}
	}
}

// norm is Σ|deq−x|^mse, powers in float32, sum in float64 in column order.
func (g *grid) norm(x, scratch []float32, scale, zero float32) float64 {
	for i, v := range x {
		scratch[i] = float32(scale*(g.quantize(v, scale, zero)-zero)) - v
	}
	return powerSum(scratch[:len(x)], g.mse)
}
