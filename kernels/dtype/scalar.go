package dtype

import (
	"math"

	"github.com/x448/float16"
)

// BF16ToF32 decodes one bfloat16. Exact.
func BF16ToF32(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// F32ToBF16 rounds to bfloat16, nearest-even; overflow gives Inf.
func F32ToBF16(f float32) uint16 {
	u := math.Float32bits(f)
	if u&0x7fffffff > 0x7f800000 {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

// F16ToF32 decodes one IEEE binary16. Exact.
func F16ToF32(h uint16) float32 { return float16.Frombits(h).Float32() }

// F32ToF16 rounds to IEEE binary16, nearest-even; overflow gives Inf.
func F32ToF16(f float32) uint16 { return float16.Fromfloat32(f).Bits() }

// roundMini rounds the magnitude bits u (a finite float32 without sign) to a
// format with man mantissa bits and smallest normal exponent emin, and returns
// the code as if the exponent field were unbounded. It adds the rounding
// constant to the float32 bits for normal results and shifts the significand
// for subnormal ones; both carry into the exponent correctly.
func roundMini(u uint32, man uint, emin int) uint32 {
	e := int(u>>23) - 127
	drop := 23 - man
	if e >= emin {
		u += 1<<(drop-1) - 1 + u>>drop&1
		return u>>drop - uint32(emin+126)<<man
	}
	sig := u&0x7fffff | 0x800000
	if u>>23 == 0 {
		return 0 // float32 subnormals are far below half of any step here
	}
	shift := drop + uint(emin-e)
	if shift > 25 {
		return 0
	}
	return (sig + 1<<(shift-1) - 1 + sig>>shift&1) >> shift
}

// F32ToE4M3 rounds to float8 e4m3fn, nearest-even, saturating at ±448.
func F32ToE4M3(f float32) byte {
	u := math.Float32bits(f)
	sign, u := byte(u>>24&0x80), u&0x7fffffff
	if u > 0x7f800000 {
		return sign | 0x7f
	}
	if u >= 0x43e00000 { // 448
		return sign | 0x7e
	}
	return sign | byte(roundMini(u, 3, -6))
}

// F32ToE5M2 rounds to float8 e5m2, nearest-even; overflow gives Inf.
func F32ToE5M2(f float32) byte {
	u := math.Float32bits(f)
	sign, u := byte(u>>24&0x80), u&0x7fffffff
	if u > 0x7f800000 {
		return sign | 0x7f
	}
	if u >= 0x47700000 { // 61440, half way from 57344 to 65536
		return sign | 0x7c
	}
	return sign | byte(roundMini(u, 2, -14))
}

// F32ToE2M1 rounds to a float4 e2m1 code 0..15, nearest-even, saturating at ±6.
func F32ToE2M1(f float32) byte {
	u := math.Float32bits(f)
	sign, u := byte(u>>28&8), u&0x7fffffff
	if u > 0x7f800000 {
		return 7
	}
	if u >= 0x40a00000 { // 5 is a tie to even, to 4; above it 6
		if u == 0x40a00000 {
			return sign | 6
		}
		return sign | 7
	}
	return sign | byte(roundMini(u, 1, 0))
}

// F32ToE8M0 rounds to the nearest power of two 2^-127..2^127, ties up.
// NaN, Inf and negative values give 255, the NaN code; zero gives 0.
func F32ToE8M0(f float32) byte {
	u := math.Float32bits(f)
	if u == 1<<31 {
		return 0
	}
	if u >= 0x7f800000 {
		return 255
	}
	if u < 0x00800000 { // below 2^-126: code 0 is 2^-127, the tie is 1.5·2^-127
		if u >= 0x00600000 {
			return 1
		}
		return 0
	}
	return byte(min((u+0x400000)>>23, 254))
}

// E4M3ToF32 decodes one float8 e4m3fn. Exact.
func E4M3ToF32(b byte) float32 { return e4m3[b] }

// E5M2ToF32 decodes one float8 e5m2. Exact.
func E5M2ToF32(b byte) float32 { return e5m2[b] }

// E2M1ToF32 decodes the low four bits. Exact.
func E2M1ToF32(nibble byte) float32 { return e2m1[nibble&15] }

// E8M0ToF32 decodes a power-of-two scale. Exact; 255 is NaN.
func E8M0ToF32(b byte) float32 {
	switch b {
	case 0:
		return math.Float32frombits(0x00400000)
	case 255:
		return float32(math.NaN())
	}
	return math.Float32frombits(uint32(b) << 23)
}

var (
	e4m3 = miniTable(3, 7, 0x7f, false)
	e5m2 = miniTable(2, 15, 0x7c, true)
	e2m1 = [16]float32{0, .5, 1, 1.5, 2, 3, 4, 6, float32(math.Copysign(0, -1)), -.5, -1, -1.5, -2, -3, -4, -6}
)

// miniTable lists the values of an 8-bit format. special is the first magnitude
// code that is not finite; hasInf says that it is Inf, the rest is NaN.
func miniTable(man uint, bias int, special int, hasInf bool) *[256]float32 {
	var t [256]float32
	for i := range 128 {
		e, m := i>>man, i&(1<<man-1)
		var v float64
		switch {
		case i == special && hasInf:
			v = math.Inf(1)
		case i >= special:
			v = math.NaN()
		case e == 0:
			v = math.Ldexp(float64(m), 1-bias-int(man))
		default:
			v = math.Ldexp(float64(m|1<<man), e-bias-int(man))
		}
		t[i] = float32(v)
		t[i+128] = float32(math.Copysign(v, -1))
	}
	return &t
}
