package dtype_test

import (
	"math"
	"sort"

	"quire/kernels/dtype"
)

// format is the definition of a number format, written from its bit fields, and the
// functions under test.
type format struct {
	name           string
	expBits, man   int
	inf            bool // the top exponent holds Inf and NaN
	nanOnly        bool // only the code of all ones is NaN
	encode         func(float32) uint32
	decode         func(uint32) float32
	nan            func(bits uint32) uint32 // code of a NaN input
	positive       []float64                // value of code 0, 1, 2 … up to the largest finite one
	middle         []float64                // between code c and c+1; behind the last where rounding to Inf begins
	above          uint32                   // magnitude code of what lies above all
	signBit, codes uint32
}

func makeFormat(f format) *format {
	f.signBit = 1 << (f.expBits + f.man)
	f.codes = 2 * f.signBit
	last := f.signBit - 1
	switch {
	case f.inf:
		last = (1<<f.expBits-1)<<f.man - 1
	case f.nanOnly:
		last--
	}
	for c := uint32(0); c <= last; c++ {
		f.positive = append(f.positive, f.magnitude(c))
	}
	for c := range last {
		f.middle = append(f.middle, (f.positive[c]+f.positive[c+1])/2)
	}
	f.above = last
	if f.inf {
		f.middle = append(f.middle, f.positive[last]+(f.positive[last]-f.positive[last-1])/2)
		f.above = last + 1
	}
	return &f
}

// magnitude is the value of a finite code without sign: m·2^(1-bias-man) or (1.m)·2^(e-bias).
func (f *format) magnitude(c uint32) float64 {
	bias := 1<<(f.expBits-1) - 1
	e, m := int(c>>f.man), int(c&(1<<f.man-1))
	if e == 0 {
		return math.Ldexp(float64(m), 1-bias-f.man)
	}
	return math.Ldexp(float64(m+1<<f.man), e-bias-f.man)
}

// value is the exact value of any code.
func (f *format) value(code uint32) float64 {
	c := code &^ f.signBit
	v := math.NaN()
	switch {
	case int(c) < len(f.positive):
		v = f.positive[c]
	case f.inf && c == f.above:
		v = math.Inf(1)
	}
	if code&f.signBit != 0 {
		v = math.Copysign(v, -1)
	}
	return v
}

// nearest is the code of a float32 that is not NaN. All middles are exact in float64.
func (f *format) nearest(x float32) uint32 {
	a := math.Abs(float64(x))
	c := uint32(sort.Search(len(f.middle), func(i int) bool { return a < f.middle[i] || a == f.middle[i] && i%2 == 0 }))
	if int(c) == len(f.middle) {
		c = f.above
	}
	if math.Signbit(float64(x)) {
		c |= f.signBit
	}
	return c
}

// want is the code of any float32.
func (f *format) want(x float32) uint32 {
	if x != x {
		return f.nan(math.Float32bits(x))
	}
	return f.nearest(x)
}

var formats = []*format{
	makeFormat(format{name: "bf16", expBits: 8, man: 7, inf: true,
		encode: func(x float32) uint32 { return uint32(dtype.F32ToBF16(x)) },
		decode: func(c uint32) float32 { return dtype.BF16ToF32(uint16(c)) },
		nan:    func(u uint32) uint32 { return u>>16 | 0x40 }}),
	makeFormat(format{name: "f16", expBits: 5, man: 10, inf: true,
		encode: func(x float32) uint32 { return uint32(dtype.F32ToF16(x)) },
		decode: func(c uint32) float32 { return dtype.F16ToF32(uint16(c)) },
		nan:    func(u uint32) uint32 { return u>>31<<15 | 0x7e00 | u>>13&0x3ff }}),
	makeFormat(format{name: "e4m3", expBits: 4, man: 3, nanOnly: true,
		encode: func(x float32) uint32 { return uint32(dtype.F32ToE4M3(x)) },
		decode: func(c uint32) float32 { return dtype.E4M3ToF32(byte(c)) },
		nan:    func(u uint32) uint32 { return u>>31<<7 | 0x7f }}),
	makeFormat(format{name: "e5m2", expBits: 5, man: 2, inf: true,
		encode: func(x float32) uint32 { return uint32(dtype.F32ToE5M2(x)) },
		decode: func(c uint32) float32 { return dtype.E5M2ToF32(byte(c)) },
		nan:    func(u uint32) uint32 { return u>>31<<7 | 0x7f }}),
	makeFormat(format{name: "e2m1", expBits: 2, man: 1,
		encode: func(x float32) uint32 { return uint32(dtype.F32ToE2M1(x)) },
		decode: func(c uint32) float32 { return dtype.E2M1ToF32(byte(c)) },
		nan:    func(uint32) uint32 { return 7 }}),
}

// nearestPower is the e8m0 code of a float32: the nearest of 2^-127 … 2^127, a tie to the greater.
func nearestPower(x float32) uint32 {
	switch v := float64(x); {
	case x != x || v < 0 || math.IsInf(v, 0):
		return 255
	default:
		return uint32(sort.Search(254, func(c int) bool { return v < math.Ldexp(1.5, c-127) }))
	}
}
