package model

import "math"

// Own exp, log and power in float64 for the few constants of rope and score scales: package math promises no bits across
// platforms. Every product is rounded on its own, so no fusion can change a result.

// log64 is ln x for normal x > 0: x = 2^e·m with m in [√½,√2), ln m = 2·atanh((m−1)/(m+1)) as a series.
func log64(x float64) float64 {
	m, e := math.Frexp(x) // exact
	if m < math.Sqrt2/2 {
		m *= 2
		e--
	}
	t := (m - 1) / (m + 1)
	t2 := float64(t * t)
	sum := 0.0
	for k := 41; k >= 1; k -= 2 {
		sum = float64(sum*t2) + 1/float64(k)
	}
	return float64(float64(e)*math.Ln2) + float64(2*float64(t*sum))
}

// exp64 is e^x for moderate x: x = n·ln2 + r, Taylor series for e^r.
func exp64(x float64) float64 {
	const ln2Hi, ln2Lo = 6.93147180369123816490e-01, 1.90821492927058770002e-10
	n := math.Floor(float64(x/math.Ln2) + 0.5)
	r := float64(x-float64(n*ln2Hi)) - float64(n*ln2Lo)
	sum := 1.0
	for k := 20; k >= 1; k-- {
		sum = float64(float64(sum*r)/float64(k)) + 1
	}
	return math.Ldexp(sum, int(n)) // exact
}

// pow64 is b^e for b > 0.
func pow64(b, e float64) float64 {
	if e == 0 {
		return 1
	}
	return exp64(float64(e * log64(b)))
}
