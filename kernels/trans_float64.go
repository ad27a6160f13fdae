package kernels

import (
	"math"
	"math/bits"
)

// Float64 functions for places where float32 is too coarse: log-sum-exp of
// logits, rotary frequencies and angles. The reductions and coefficients are
// those of FreeBSD's msun (e_exp.c, e_log.c, k_sin.c, k_cos.c; Sun Microsystems,
// freely granted). Every product that is added is wrapped in float64() so that no
// compiler fuses it.

const (
	ln2Hi64  = 6.93147180369123816490e-01
	ln2Lo64  = 1.90821492927058770002e-10
	invLn2   = 1.44269504088896338700e+00
	magic64  = 0x1.8p52 // adding it rounds to an integer, ties to even
	exp64Max = 7.09782712893383973096e+02
	exp64Min = -7.45133219101941108420e+02
)

// Exp64 is eˣ in float64, below 1 ulp.
func Exp64(x float64) float64 {
	switch {
	case x != x || x > math.MaxFloat64:
		return x
	case x > exp64Max:
		return math.Inf(1)
	case x < exp64Min:
		return 0
	}
	k := (float64(x*invLn2) + magic64) - magic64
	hi := x - float64(k*ln2Hi64)
	lo := float64(k * ln2Lo64)
	r := hi - lo
	t := float64(r * r)
	p := 4.13813679705723846039e-08
	p = float64(p*t) + -1.65339022054652515390e-06
	p = float64(p*t) + 6.61375632143793436117e-05
	p = float64(p*t) + -2.77777777770155933842e-03
	p = float64(p*t) + 1.66666666666666019037e-01
	c := r - float64(p*t)
	y := 1 - ((lo - float64(r*c)/(2-c)) - hi)
	n := int(k)
	a := n >> 1
	return float64(y * pow2(a) * pow2(n-a))
}

// pow2 is 2ⁿ for −1022 ≤ n ≤ 1023.
func pow2(n int) float64 { return math.Float64frombits(uint64(n+1023) << 52) }

// Log64 is the natural logarithm in float64, below 1 ulp; NaN below zero, −Inf at zero.
func Log64(x float64) float64 {
	switch {
	case x != x || x > math.MaxFloat64:
		return x
	case x < 0:
		return math.NaN()
	case x == 0:
		return math.Inf(-1)
	}
	k0 := 0
	if x < 0x1p-1022 {
		x, k0 = x*0x1p54, -54
	}
	const sqrtHalf = 0x3fe6a09e667f3bcd
	i := int64(math.Float64bits(x)) - sqrtHalf
	f := math.Float64frombits(uint64(i&(1<<52-1)+sqrtHalf)) - 1
	k := float64(int(i>>52) + k0)
	s := f / (2 + f)
	z := float64(s * s)
	w := float64(z * z)
	t1 := 1.531383769920937332e-01
	t1 = float64(t1*w) + 2.222219843214978396e-01
	t1 = float64(t1*w) + 3.999999999940941908e-01
	t2 := 1.479819860511658591e-01
	t2 = float64(t2*w) + 1.818357216161805012e-01
	t2 = float64(t2*w) + 2.857142874366239149e-01
	t2 = float64(t2*w) + 6.666666666666735130e-01
	r := float64(t1*w) + float64(t2*z)
	half := float64(float64(0.5*f) * f)
	return float64(k*ln2Hi64) - ((half - (float64(s*(half+r)) + float64(k*ln2Lo64))) - f)
}

// Pow64 is bʸ = e^(y·log b) for b > 0; its relative error is about |y·log b|·2⁻⁵³.
func Pow64(b, y float64) float64 { return Exp64(y * Log64(b)) }

// LogSumExp64 is log Σeˣ in float64, elements in index order.
func LogSumExp64(x []float32) float64 {
	m := float64(Max(x))
	if math.IsInf(m, 0) {
		return m
	}
	s := 0.0
	for _, v := range x {
		s += Exp64(float64(v) - m)
	}
	return m + Log64(s)
}

// twoOverPi holds the first 256 bits of 2/π after the binary point.
var twoOverPi = [...]uint64{0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561}

const (
	pio2First = 1.57079632673412561417e+00 // 33 bits of π/2
	pio2Next  = 6.07710050650619224932e-11 // the rest
	pio2      = 1.57079632679489661923
)

// quadrant reduces x to r in ±π/4 and the quadrant number mod 4.
func quadrant(x float32) (r float64, q int) {
	a := math.Abs(float64(x))
	if a < 1e6 {
		// k < 2²⁰, so k·pio2First is exact.
		k := (float64(a*(2/math.Pi)) + magic64) - magic64
		r = (a - float64(k*pio2First)) - float64(k*pio2Next)
		q = int(k)
	} else {
		// x = m·2ᵉ: the bits of m·(2/π) from weight 2⁻ᵉ⁺¹ down; higher ones are
		// whole turns (Payne and Hanek).
		b := math.Float32bits(float32(a))
		m, e := uint64(b&0x7fffff|0x800000), int(b>>23)-150
		// Three words of 2/π that start at bit e−2, so the product modulo 4 is kept.
		skip := e - 2
		word := func(i int) uint64 {
			at := skip + 64*i
			if at < 0 { // only bits before the binary point: zeros
				w := twoOverPi[0] >> uint(-at)
				return w
			}
			w := twoOverPi[at/64] << uint(at%64)
			if at%64 != 0 && at/64+1 < len(twoOverPi) {
				w |= twoOverPi[at/64+1] >> uint(64-at%64)
			}
			return w
		}
		h1, l1 := bits.Mul64(m, word(1))
		l0 := m * word(0)
		top := l0 + h1 // modulo 4 is what is wanted
		// top: 2 integer bits, 62 fraction bits; l1 continues them.
		q = int(top >> 62)
		frac := top << 2
		frac |= l1 >> 62
		if frac >= 1<<63 { // nearest quadrant
			q++
			r = float64(-float64(-frac) * 0x1p-64 * pio2)
		} else {
			r = float64(float64(frac) * 0x1p-64 * pio2)
		}
	}
	if x < 0 {
		r, q = -r, -q
	}
	return r, q & 3
}

// SinCos32 gives sine and cosine of x radians, computed in float64 and rounded
// once: below 0.51 ulp for every finite x. NaN for Inf and NaN.
func SinCos32(x float32) (sin, cos float32) {
	if x-x != 0 {
		return float32(math.NaN()), float32(math.NaN())
	}
	r, q := quadrant(x)
	z := float64(r * r)
	s := 1.58969099521155010221e-10
	s = float64(s*z) + -2.50507602534068634195e-08
	s = float64(s*z) + 2.75573137070700676789e-06
	s = float64(s*z) + -1.98412698298579493134e-04
	s = float64(s*z) + 8.33333333332248946124e-03
	s = float64(s*z) + -1.66666666666666324348e-01
	s = r + float64(float64(r*z)*s)
	c := -1.13596475577881948265e-11
	c = float64(c*z) + 2.08757232129817482790e-09
	c = float64(c*z) + -2.75573143513906633035e-07
	c = float64(c*z) + 2.48015872894767294178e-05
	c = float64(c*z) + -1.38888888888741095749e-03
	c = float64(c*z) + 4.16666666666666019037e-02
	c = (1 - float64(0.5*z)) + float64(float64(z*z)*c)
	switch q {
	case 1:
		s, c = c, -s
	case 2:
		s, c = -s, -c
	case 3:
		s, c = -c, s
	}
	return float32(s), float32(c)
}

// SinCos fills sin and cos of the angles x in radians; see [SinCos32].
func SinCos(sin, cos, x []float32) {
	sameLength("SinCos", len(x), len(sin), len(cos))
	for i, v := range x {
		sin[i], cos[i] = SinCos32(v)
	}
}
