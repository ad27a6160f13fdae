package kernels

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// exactFMA is a·b+c rounded once, by arbitrary precision.
func exactFMA(a, b, c float32) float32 {
	const prec = 700 // every float32 product and sum fits
	p := new(big.Float).SetPrec(prec).Mul(big.NewFloat(float64(a)), big.NewFloat(float64(b)))
	f, _ := p.Add(p.SetPrec(prec), big.NewFloat(float64(c))).Float32()
	return f
}

func TestFMA32IsRoundedOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	finite := func() float32 {
		for {
			if f := math.Float32frombits(r.Uint32()); f-f == 0 {
				return f
			}
		}
	}
	near := func(scale int) float32 { // exponents that meet, few mantissa bits: many ties
		return float32(math.Ldexp(float64(r.IntN(1<<12)-1<<11), scale+r.IntN(6)))
	}
	var checked int
	for i := range 300_000 {
		var a, b, c float32
		switch i % 4 {
		case 0:
			a, b, c = finite(), finite(), finite()
		case 1:
			a, b, c = near(-6), near(-6), near(-12)
		case 2: // half-way cases: c has 24 bits, the product sits just below its last one
			a, b = float32(1<<12+r.IntN(1<<12)), float32(math.Ldexp(float64(1+r.IntN(1<<12)), -36-r.IntN(4)))
			c = float32(1<<23+r.IntN(1<<23)) / (1 << 23)
		case 3: // subnormal results
			a, b, c = near(-80), near(-60), near(-140)
		}
		want := exactFMA(a, b, c)
		if want == 0 {
			continue // big has its own rule for the sign of an exact zero
		}
		checked++
		if got := fma32(a, b, c); math.Float32bits(got) != math.Float32bits(want) {
			t.Fatalf("fma(%b, %b, %b) = %b, exactly %b", a, b, c, got, want)
		}
	}
	if checked < 200_000 {
		t.Fatalf("only %d cases were not zero", checked)
	}
	inf := float32(math.Inf(1))
	if got := fma32(inf, 1, 1); got != inf {
		t.Errorf("Inf·1+1 = %g", got)
	}
	if got := fma32(inf, 0, 1); got == got {
		t.Errorf("Inf·0+1 = %g", got)
	}
}
