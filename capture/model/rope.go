package model

import (
	"math"

	"quire/kernels"
)

// rope is a rotary position rule resolved for one attention. Formulas: Su et al. 2021 and the variants as the reference
// implementation computes them (linear, dynamic NTK, YaRN, LongRoPE, Llama 3).
type rope struct {
	kind        string // default, linear, dynamic, yarn, longrope, llama3
	dim         int    // rotated features of a head, the first ones
	base        float64
	interleaved bool // pairs (2i,2i+1) instead of (i,i+dim/2)

	factor            float64
	original          int // positions the model was pretrained for
	betaFast, betaSlo float64
	noTruncate        bool
	lowFreq, highFreq float64
	long, short       []float64
	attention         float64 // scale of cos and sin; 0: the rule's own
	longMul, shortMul float64 // phimoe's own scales; 0: none
}

// ropeOf reads rope_parameters or rope_scaling with their spellings. nil scaling is the default rule. key selects a
// nested set (gemma3 style per layer type) when it is there.
func ropeOf(c *conf, dim int, interleaved bool, key string) *rope {
	r := &rope{kind: "default", dim: dim, base: c.floatOr("rope_theta", 10000), interleaved: interleaved}
	maxPos := c.dimOr("max_position_embeddings", 2048)
	s := c.sub("rope_parameters")
	if s != nil && key != "" && s.has(key) {
		s = s.sub(key)
	}
	if s == nil {
		s = c.sub("rope_scaling")
	}
	if s != nil {
		r.base = s.floatOr("rope_theta", r.base)
		r.kind = s.strOr(s.first("rope_type", "type"), "default")
		r.factor = s.floatOr("factor", 0)
		r.original = s.dimOr("original_max_position_embeddings", c.dimOr("original_max_position_embeddings", maxPos))
		r.attention = s.floatOr("attention_factor", 0)
	}
	r.dim = int(float64(r.dim) * c.floatOr("partial_rotary_factor", 1))
	switch r.kind {
	case "default", "mrope": // text tokens have equal positions on all mrope sections
		r.kind = "default"
	case "linear":
	case "dynamic":
		r.original = maxPos
		if alpha := s.floatOr("alpha", 0); alpha > 0 { // hunyuan: a fixed base, whatever the length
			r.base *= kernels.Pow64(alpha, float64(r.dim)/float64(r.dim-2))
			r.kind = "default"
		}
	case "yarn":
		r.betaFast, r.betaSlo = s.floatOr("beta_fast", 32), s.floatOr("beta_slow", 1)
		r.noTruncate = !s.boolOr("truncate", true)
		if r.factor == 0 {
			r.factor = float64(maxPos) / float64(r.original)
		}
		if r.attention == 0 {
			m, all := s.floatOr("mscale", 0), s.floatOr("mscale_all_dim", 0)
			if m != 0 && all != 0 {
				r.attention = yarnMscale(r.factor, m) / yarnMscale(r.factor, all)
			} else {
				r.attention = yarnMscale(r.factor, 1)
			}
		}
	case "longrope", "su":
		r.kind = "longrope"
		r.long, r.short = s.floats("long_factor"), s.floats("short_factor")
		if len(r.long) != r.dim/2 || len(r.short) != r.dim/2 {
			c.fault("rope_scaling: long_factor and short_factor must have %d entries, they have %d and %d", r.dim/2, len(r.long), len(r.short))
		}
		r.longMul, r.shortMul = s.floatOr("long_mscale", 0), s.floatOr("short_mscale", 0)
		f := float64(maxPos) / float64(r.original)
		if c.dimOr("original_max_position_embeddings", 0) == 0 && !s.has("original_max_position_embeddings") {
			f = r.factor
		}
		if r.attention == 0 {
			r.attention = 1
			if f > 1 {
				r.attention = math.Sqrt(1 + kernels.Log64(f)/kernels.Log64(float64(r.original)))
			}
		}
	case "llama3":
		r.lowFreq, r.highFreq = s.float("low_freq_factor"), s.float("high_freq_factor")
	default:
		c.fault("rope type %q is a variant that is not implemented", r.kind)
	}
	if r.dim < 2 || r.dim%2 != 0 {
		c.fault("rope over %d features", r.dim)
		r.dim = 2
	}
	if (r.kind == "linear" || r.kind == "dynamic" || r.kind == "llama3") && r.factor <= 0 {
		c.fault("rope_scaling.factor is missing")
		r.factor = 1
	}
	return r
}

// yarnMscale is YaRN's attention temperature 0.1·m·ln(factor)+1.
func yarnMscale(factor, m float64) float64 {
	if factor <= 1 {
		return 1
	}
	return 0.1*m*kernels.Log64(factor) + 1
}

// variant names the frequencies that a sequence of n tokens uses; equal variants share tables.
func (r *rope) variant(n int) int {
	switch r.kind {
	case "dynamic":
		return max(n, r.original)
	case "longrope":
		if n > r.original {
			return 1
		}
	}
	return 0
}

// frequencies gives the dim/2 inverse frequencies and the scale of cos and sin for a variant.
func (r *rope) frequencies(variant int) (inv []float32, scale float32) {
	half := r.dim / 2
	inv = make([]float32, half)
	base, scale64 := r.base, 1.0
	if r.kind == "dynamic" {
		grow := r.factor*float64(variant)/float64(r.original) - (r.factor - 1)
		base *= kernels.Pow64(grow, float64(r.dim)/float64(r.dim-2))
	}
	f := make([]float64, half) // base^(2i/dim)
	for i := range f {
		f[i] = kernels.Pow64(base, float64(2*i)/float64(r.dim))
	}
	switch r.kind {
	case "linear":
		for i := range f {
			inv[i] = float32(1 / (f[i] * r.factor))
		}
	case "yarn":
		scale64 = r.attention
		low, high := r.correction(r.betaFast), r.correction(r.betaSlo)
		if !r.noTruncate {
			low, high = math.Floor(low), math.Ceil(high)
		}
		low, high = max(low, 0), min(high, float64(r.dim-1))
		if low == high {
			high += 0.001
		}
		for i := range f {
			ramp := min(max((float64(i)-low)/(high-low), 0), 1)
			inv[i] = float32(1/(r.factor*f[i])*ramp + 1/f[i]*(1-ramp))
		}
	case "longrope":
		ext := r.short
		scale64 = r.attention
		switch {
		case r.longMul != 0 && variant == 1: // phimoe: the reference changes the scale, not the frequencies
			scale64 = r.longMul
		case r.longMul != 0:
			scale64 = r.shortMul
		case variant == 1:
			ext = r.long
		}
		for i := range f {
			inv[i] = float32(1 / (ext[i] * f[i]))
		}
	case "llama3":
		for i := range f {
			v := 1 / f[i]
			wave := 2 * math.Pi / v
			switch o := float64(r.original); {
			case wave > o/r.lowFreq:
				v /= r.factor
			case wave >= o/r.highFreq:
				smooth := (o/wave - r.lowFreq) / (r.highFreq - r.lowFreq)
				v = (1-smooth)*v/r.factor + smooth*v
			}
			inv[i] = float32(v)
		}
	default:
		for i := range f {
			inv[i] = float32(1 / f[i])
		}
	}
	return inv, float32(scale64)
}

// correction is YaRN's dimension at which a number of rotations fits into the original length.
func (r *rope) correction(rotations float64) float64 {
	return float64(r.dim) * kernels.Log64(float64(r.original)/(rotations*2*math.Pi)) / (2 * kernels.Log64(r.base))
}

// ropeTable holds cos and sin [positions][dim/2] of one variant.
type ropeTable struct {
	half     int
	cos, sin []float32
}

// table makes the table of n positions.
func (r *rope) table(variant, n int) *ropeTable {
	inv, scale := r.frequencies(variant)
	t := &ropeTable{half: len(inv), cos: make([]float32, n*len(inv)), sin: make([]float32, n*len(inv))}
	kernels.RopeTables(t.sin, t.cos, inv, 0, n, scale)
	return t
}

// rotate turns the rotated features of one row's heads for a position. offset is where they begin in a head.
func (t *ropeTable) rotate(x []float32, heads, dim, offset int, pos []int32, interleaved bool) {
	l := kernels.RopeLayout{Heads: heads, HeadDim: dim, Offset: offset, RotDim: 2 * t.half}
	if interleaved {
		l.Pairs = kernels.RopeInterleaved
	}
	kernels.ApplyRope(x, len(x), pos, t.sin, t.cos, l)
}

func rsqrt(n int) float32 { return float32(1 / math.Sqrt(float64(n))) }
