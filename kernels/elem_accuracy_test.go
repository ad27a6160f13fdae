package kernels_test

import (
	"fmt"
	"math"
	"math/big"
	"os"
	"testing"

	"quire/kernels"
)

// ulpError is |got−want| in units of the last place of a float32 near want
// (subnormal spacing below the normal range).
func ulpError(got float32, want float64) float64 {
	w := float32(want)
	switch {
	case want != want:
		if got != got {
			return 0
		}
		return math.Inf(1)
	case math.IsInf(float64(w), 0):
		if got == w {
			return 0
		}
		if float64(math.Abs(float64(got))) == math.MaxFloat32 {
			return 1
		}
		return math.Inf(1)
	}
	_, e := math.Frexp(want)
	unit := math.Ldexp(1, max(e-24, -149))
	return math.Abs(float64(got)-want) / unit
}

// The bounds of docs/contract-cpu-1.md. limit is in ulp; floor is an absolute
// error that is allowed besides (where the result passes through zero or is far
// below the argument's own rounding).
var accuracyCases = []struct {
	name   string
	f      func(dst, x []float32)
	want   func(float64) float64
	lo, hi float32
	limit  float64
	floor  func(x float64) float64
}{
	{"exp", kernels.Exp, math.Exp, -110, 95, 1.1, nil},
	{"log", kernels.Log, math.Log, 0, math.MaxFloat32, 1.1, nil},
	{"tanh", kernels.Tanh, math.Tanh, -12, 12, 1.5, nil},
	{"sin", func(d, x []float32) { kernels.SinCos(d, make([]float32, len(d)), x) }, math.Sin, -math.MaxFloat32, math.MaxFloat32, 0.51, nil},
	{"cos", func(d, x []float32) { kernels.SinCos(make([]float32, len(d)), d, x) }, math.Cos, -math.MaxFloat32, math.MaxFloat32, 0.51, nil},
	{"sigmoid", kernels.Sigmoid, func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }, -110, 110, 2.5, nil},
	{"softplus", kernels.Softplus, func(x float64) float64 { return math.Max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }, -110, 1000, 2, nil},
	{"silu", kernels.SiLU, func(x float64) float64 { return x / (1 + math.Exp(-x)) }, -100, 1000, 3.5, func(x float64) float64 { return 0x1p-140 * math.Abs(x) }},
	{"gelu erf", kernels.GELUErf, func(x float64) float64 { return x * math.Erfc(-x/math.Sqrt2) / 2 }, -13, 1000, 8, nil},
	{"gelu tanh", kernels.GELUTanh, func(x float64) float64 {
		return x / (1 + math.Exp(-2*math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	}, -10, 1000, 4, func(x float64) float64 {
		// The logistic argument v is rounded to float32; its error is |v|·2⁻²³ relative.
		v := 2 * math.Sqrt(2/math.Pi) * (x + 0.044715*x*x*x)
		return 0x1p-22 * math.Abs(v) * math.Abs(x) / (1 + math.Exp(-v))
	}},
	{"relu2", kernels.ReLU2, func(x float64) float64 { return math.Max(x, 0) * math.Max(x, 0) }, -10, 1e19, 0.5, nil},
}

// Every 1009th float32 of the range at the highest level this CPU has. With
// QUIRE_LONG=1 all of them for exp, log and tanh, every 17th for the rest.
func TestAccuracy(t *testing.T) {
	for _, c := range accuracyCases {
		step := uint64(1009)
		if os.Getenv("QUIRE_LONG") != "" {
			step = 17
			if c.name == "exp" || c.name == "log" || c.name == "tanh" {
				step = 1
			}
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			const chunk = 1 << 12
			x, y := make([]float32, 0, chunk), make([]float32, chunk)
			worst, at := 0.0, float32(0)
			flush := func() {
				c.f(y[:len(x)], x)
				for i, v := range x {
					want := c.want(float64(v))
					e := ulpError(y[i], want)
					if c.floor != nil && math.Abs(float64(y[i])-want) <= c.floor(float64(v)) {
						continue
					}
					if !(e <= worst) {
						worst, at = e, v
					}
				}
				x = x[:0]
			}
			for b := uint64(0); b < 1<<32; b += step {
				v := math.Float32frombits(uint32(b))
				if !(v >= c.lo && v <= c.hi) {
					continue
				}
				if x = append(x, v); len(x) == chunk {
					flush()
				}
			}
			flush()
			t.Logf("largest error %.3f ulp at %g", worst, at)
			if !(worst <= c.limit) {
				t.Errorf("largest error %.3f ulp at %g (0x%08x), allowed %g", worst, at, math.Float32bits(at), c.limit)
			}
		})
	}
}

func TestSpecialValues(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		name    string
		f       func(dst, x []float32)
		x, want []float32
	}{
		{"exp", kernels.Exp, []float32{inf, -inf, nan, 0, 89, -104, 88.72283, -103}, []float32{inf, 0, nan, 1, inf, 0, 3.4027e38, 1e-45}},
		{"log", kernels.Log, []float32{inf, -inf, nan, 0, -1, 1}, []float32{inf, nan, nan, -inf, nan, 0}},
		{"tanh", kernels.Tanh, []float32{inf, -inf, nan, 0, 1e30}, []float32{1, -1, nan, 0, 1}},
		{"sigmoid", kernels.Sigmoid, []float32{inf, -inf, nan, 0}, []float32{1, 0, nan, 0.5}},
		{"softplus", kernels.Softplus, []float32{inf, -inf, nan}, []float32{inf, 0, nan}},
		{"silu", kernels.SiLU, []float32{inf, nan, 0}, []float32{inf, nan, 0}},
		{"gelu erf", kernels.GELUErf, []float32{inf, nan, 0, 1e20}, []float32{inf, nan, 0, 1e20}},
		{"gelu tanh", kernels.GELUTanh, []float32{inf, nan, 0, 1e20}, []float32{inf, nan, 0, 1e20}},
		{"relu2", kernels.ReLU2, []float32{inf, -inf, nan, -3, 3}, []float32{inf, 0, nan, 0, 9}},
	} {
		t.Run(c.name, func(t *testing.T) {
			y := make([]float32, len(c.x))
			c.f(y, c.x)
			for i, w := range c.want {
				if y[i] != w && !(w != w && y[i] != y[i]) && math.Abs(float64(y[i]-w)) > 1e-3*math.Abs(float64(w)) {
					t.Errorf("f(%g) = %g, want %g", c.x[i], y[i], w)
				}
			}
		})
	}
}

// Exp64 and Log64 against series in big.Float.
func TestFloat64Functions(t *testing.T) {
	bigExp := func(x float64) *big.Float {
		sum, term := big.NewFloat(1).SetPrec(2000), big.NewFloat(1).SetPrec(2000)
		bx := new(big.Float).SetPrec(2000).SetFloat64(x)
		for i := 1; i < 400; i++ {
			term.Mul(term, bx)
			term.Quo(term, new(big.Float).SetPrec(2000).SetInt64(int64(i)))
			sum.Add(sum, term)
		}
		return sum
	}
	relative := func(got float64, want *big.Float) float64 {
		d := new(big.Float).SetPrec(2000).SetFloat64(got)
		d.Sub(d, want)
		d.Quo(d, want)
		f, _ := d.Float64()
		return math.Abs(f)
	}
	for x := -60.0; x < 60; x += 0.3711 {
		e := bigExp(x)
		if r := relative(kernels.Exp64(x), e); r > 0x1.1p-52 {
			t.Errorf("Exp64(%g): relative error %g", x, r)
		}
		y, _ := e.Float64()
		l := kernels.Log64(y)
		// e^l / y − 1 is the absolute error of l.
		if d := relative(y, bigExp(l)); d > 0x1.2p-52*math.Max(1, math.Abs(l)) {
			t.Errorf("Log64(%g): error %g", y, d)
		}
	}
	for _, theta := range []float64{1e4, 1e6, 5e5} {
		f := kernels.RopeInvFreq(theta, 128)
		for i, v := range f {
			if w := math.Pow(theta, -2*float64(i)/128); math.Abs(v/w-1) > 0x1p-48 {
				t.Errorf("theta %g, pair %d: %g, want %g", theta, i, v, w)
			}
		}
	}
	x := []float32{1000, 1001, 999.5}
	if got, want := kernels.LogSumExp64(x), 1000+math.Log(1+math.E+math.Exp(-0.5)); math.Abs(got-want) > 1e-12*want {
		t.Errorf("LogSumExp64 = %v, want %v", got, want)
	}
}

func ExampleTopK() {
	idx, val := make([]int32, 3), make([]float32, 3)
	kernels.TopK(idx, val, []float32{1, 5, 3, 5, -2}, 3)
	fmt.Println(idx, val)
	// Output: [1 3 2] [5 5 3]
}
