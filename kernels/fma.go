package kernels

import "math"

// fma32 is the correctly rounded float32 a·b+c with one rounding, the step of
// every chain in the contract. It needs no FMA instruction, so it is the same
// on every architecture.
//
// The product of two float32 is exact in float64. The float64 sum is rounded
// once; rounding it again to float32 is wrong only when it lies exactly half
// way between two float32 (low 29 bits 1 followed by zeros) although the true
// sum does not, or when the result is subnormal and the half-way bit is elsewhere.
// Those cases redo the sum with round-to-odd, after which the second rounding
// is harmless (53 ≥ 24 + 2 bits). The bits of a NaN are not part of the contract.
func fma32(a, b, c float32) float32 {
	p := float64(a) * float64(b)
	s := p + float64(c)
	u := math.Float64bits(s)
	if u&0x1fffffff != 0x10000000 && u>>52&0x7ff >= 1023-126 {
		return float32(s)
	}
	return fma32Odd(p, float64(c))
}

// fma32Odd rounds p+c to odd in float64, then to float32.
func fma32Odd(p, c float64) float32 {
	s := p + c
	if math.IsInf(s, 0) || s != s {
		return float32(s)
	}
	// TwoSum: s + e = p + c exactly. All intermediate values are sums, so an
	// architecture that fuses multiply-adds has nothing to fuse.
	bb := s - p
	e := (p - (s - bb)) + (c - bb)
	u := math.Float64bits(s)
	if e != 0 && u&1 == 0 {
		if (e > 0) == (s > 0) {
			u++
		} else {
			u--
		}
	}
	return float32(math.Float64frombits(u))
}
