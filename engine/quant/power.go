package quant

import "math"

// powerSum is Σ|d|^p in float64, in index order. The powers are exp(p·ln|d|) from the polynomials below, because the
// results of package math's transcendental functions differ between architectures.
func powerSum(d []float32, p float64) float64 {
	var s float64
	if p == 2 {
		for _, v := range d {
			f := float64(v)
			s += float64(f * f)
		}
		return s
	}
	for _, v := range d {
		if v < 0 {
			v = -v
		}
		if v != 0 {
			s += exp64(float64(p * log64(float64(v))))
		}
	}
	return s
}

const (
	ln2Hi = 6.93147180369123816490e-01
	ln2Lo = 1.90821492927058770002e-10
)

// log64 is ln x for finite x > 0, relative error below 1e-12.
func log64(x float64) float64 {
	m, e := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m *= 2
		e--
	}
	f := (m - 1) / (m + 1)
	f2 := float64(f * f)
	// 2·atanh f = 2f(1 + f²/3 + f⁴/5 + …), |f| ≤ 0.1716.
	s := 1.0 / 17
	for _, c := range [...]float64{1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1} {
		s = float64(s*f2) + c
	}
	k := float64(e)
	return float64(k*ln2Hi) + (float64(2*f*s) + float64(k*ln2Lo))
}

// exp64 is eˣ, relative error below 1e-12; it overflows to +Inf and underflows to 0.
func exp64(x float64) float64 {
	if x > 709 {
		return math.Inf(1)
	}
	if x < -740 {
		return 0
	}
	k := math.RoundToEven(float64(x * (1 / math.Ln2)))
	r := (x - float64(k*ln2Hi)) - float64(k*ln2Lo)
	s := 1.0 / 6227020800
	for _, c := range [...]float64{1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1, 1} {
		s = float64(s*r) + c
	}
	return math.Ldexp(s, int(k))
}
