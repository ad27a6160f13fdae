package kernels

import "math"

// The functions in this file define the element-wise operations for one
// float32. Every assembly kernel does the same steps on a vector. Each
// operation is a fixed sequence of + − × ÷, fused multiply-add and integer
// steps, so its bits are the same everywhere (contract, "Element-wise").
//
// Every product is wrapped in float32(): Go may otherwise fuse it with an addition
// that uses it, across statements and inlined calls.
//
// Two idioms mirror the vector instructions: "if hi < x { x = hi }" keeps a NaN
// in x (VMINPS hi, x), and comparisons select between finished values.

// Constants of exp and log.
const (
	log2E      float32 = 1.44269502
	roundMagic float32 = 12582912 // 1.5·2²³: adding it rounds to an integer, ties to even
	ln2Hi      float32 = 0.693359375
	ln2Lo      float32 = -2.12194440e-4
	expHigh    float32 = 89   // e⁸⁹ overflows
	expLow     float32 = -104 // e⁻¹⁰⁴ rounds to zero
)

// expPoly: (eʳ−1−r)/r² on |r| ≤ ln2/2, Chebyshev interpolation, highest power first;
// error 2^-30.4 after rounding the coefficients.
var expPoly = [...]float32{0.000198909809, 0.00139336416, 0.00833331048, 0.0416664667, 0.166666672, 0.5}

// tanhPoly: (tanh(a)/a−1)/a² as a polynomial in a², |a| < 0.8.
var tanhPoly = [...]float32{-0.000634542259, 0.00298704533, -0.00862106401, 0.0218177605, -0.0539628826, 0.133333117, -0.333333343}

// tanhSplit is where tanh changes from the polynomial to 1−2/(e²ᵃ+1).
const tanhSplit float32 = 0.8

// logPoly: (log(1+f)−f+f²/2)/f³ on √½−1 ≤ f < √2−1.
var logPoly = [...]float32{0.0697161183, -0.114797339, 0.116854198, -0.124256872, 0.142490581, -0.166678026, 0.200007156, -0.24999997, 0.333333313}

// phiPoly: (Φ(x)−½)/x as a polynomial in x², |x| < 1 (Φ: standard normal distribution).
var phiPoly = [...]float32{5.37264327e-07, -9.27440124e-06, 0.000115320749, -0.00118728878, 0.00997355022, -0.066490382, 0.398942292}

// phiTail: Φ(−a)·e^(a²/2)/t as a polynomial in t = 1/(1+a/4), 1 ≤ a ≤ 14.5.
var phiTail = [...]float32{0.0259936638, -0.10857521, 0.14844124, -0.0881127641, 0.100661092, 0.043592006, 0.085663721, 0.092809543, 0.0997958854, 0.0997332484}

// Further constants.
const (
	sqrtHalfBits  int32   = 0x3f3504f3 // √½
	minNormal     float32 = 0x1p-126
	log1pSplit    float32 = 0.41421356
	phiLimit      float32 = 15
	geluTanhLin   float32 = 1.5957691   // 2·√(2/π)
	geluTanhCubic float32 = 0.071354814 // 0.044715·2·√(2/π)
)

// horner evaluates a polynomial, highest power first, one fma per step.
func horner(c []float32, x float32) float32 {
	p := c[0]
	for _, v := range c[1:] {
		p = fma32(p, x, v)
	}
	return p
}

func absLane(x float32) float32 { return math.Float32frombits(math.Float32bits(x) &^ (1 << 31)) }
func negLane(x float32) float32 { return math.Float32frombits(math.Float32bits(x) ^ (1 << 31)) }

// pow2Lane is 2ⁿ for −126 ≤ n ≤ 127.
func pow2Lane(n int32) float32 { return math.Float32frombits(uint32(n+127) << 23) }

func expLane(x float32) float32 {
	if expHigh < x {
		x = expHigh
	}
	if expLow > x {
		x = expLow
	}
	t := fma32(x, log2E, roundMagic)
	k := t - roundMagic
	r := fma32(k, -ln2Hi, x)
	r = fma32(k, -ln2Lo, r)
	p := horner(expPoly[:], r)
	y := fma32(p, float32(r*r), r) + 1
	n := int32(math.Float32bits(t)) - int32(math.Float32bits(roundMagic))
	// Two factors: the first product is exact, so a subnormal result is rounded once.
	a := n >> 1
	return float32(y * pow2Lane(a) * pow2Lane(n-a))
}

// logCore is k·ln2 + log(1+f).
func logCore(f, k float32) float32 {
	z := float32(f * f)
	y := horner(logPoly[:], f)
	y = float32(y * f)
	y = float32(y * z)
	y = fma32(k, ln2Lo, y)
	y = fma32(-0.5, z, y)
	return fma32(k, ln2Hi, f+y)
}

func logLane(x float32) float32 {
	u, k0 := x, float32(0)
	if x < minNormal {
		u, k0 = x*0x1p23, -23
	}
	i := int32(math.Float32bits(u)) - sqrtHalfBits
	m := math.Float32frombits(uint32(i&0x7fffff + sqrtHalfBits))
	r := logCore(m-1, float32(i>>23)+k0)
	if !(x < float32(math.Inf(1))) {
		r = x
	}
	if x < 0 {
		r = float32(math.NaN())
	}
	if x == 0 {
		r = float32(math.Inf(-1))
	}
	return r
}

func tanhLane(x float32) float32 {
	a := absLane(x)
	z := float32(a * a)
	small := fma32(float32(horner(tanhPoly[:], z)*z), a, a)
	r := 1 - 2/(expLane(a+a)+1)
	if a < tanhSplit {
		r = small
	}
	return math.Float32frombits(math.Float32bits(r) | math.Float32bits(x)&(1<<31))
}

func sigmoidLane(x float32) float32 {
	e := expLane(negLane(absLane(x)))
	n := float32(1)
	if x < 0 {
		n = e
	}
	return n / (e + 1)
}

func softplusLane(x float32) float32 {
	e := expLane(negLane(absLane(x)))
	f, k := e, float32(0)
	if e > log1pSplit {
		f, k = float32((e-1)*0.5), 1
	}
	m := x
	if 0 > m {
		m = 0
	}
	return logCore(f, k) + m
}

func siluLane(x float32) float32 { return float32(x * sigmoidLane(x)) }

func siluMulLane(gate, up float32) float32 { return float32(siluLane(gate) * up) }

func geluErfLane(x float32) float32 {
	a := absLane(x)
	if phiLimit < a {
		a = phiLimit
	}
	z := float32(a * a)
	inner := fma32(horner(phiPoly[:], z), x, 0.5)
	// e^(−a²/2) with the rounding error of a² put back.
	low := fma32(a, a, negLane(z))
	e := expLane(-0.5 * z)
	e = fma32(e, -0.5*low, e)
	t := 1 / fma32(a, 0.25, 1)
	tail := float32(e * float32(horner(phiTail[:], t)*t))
	phi := 1 - tail
	if x < 0 {
		phi = tail
	}
	if a < 1 {
		phi = inner
	}
	return float32(x * phi)
}

func geluTanhLane(x float32) float32 {
	v := float32(x * fma32(float32(x*x), geluTanhCubic, geluTanhLin))
	return float32(x * sigmoidLane(v))
}

func relu2Lane(x float32) float32 {
	if 0 > x {
		x = 0
	}
	return float32(x * x)
}
