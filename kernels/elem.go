package kernels

import (
	"fmt"
	"sync"
)

// elem returns the element-wise kernels of the level in use.
func elem() *elemTable { return elemOf(CPULevel()) }

// tail is padded room for the last, incomplete group of 16 elements.
type tail struct{ a, b, c [laneWidth]float32 }

var tails = sync.Pool{New: func() any { return new(tail) }}

// pad copies src to the front of dst and fills the rest.
func pad(dst *[laneWidth]float32, src []float32, fill float32) *float32 {
	for i := copy(dst[:], src); i < laneWidth; i++ {
		dst[i] = fill
	}
	return &dst[0]
}

// sameLength panics unless all lengths equal want.
func sameLength(op string, want int, lengths ...int) {
	for _, n := range lengths {
		if n != want {
			panic(fmt.Sprintf("kernels.%s: operand of %d elements for a result of %d", op, n, want))
		}
	}
}

// unary applies k; dst and src may be the same slice.
func unary(op string, k unaryKernel, dst, src []float32) {
	sameLength(op, len(dst), len(src))
	full := len(dst) &^ (laneWidth - 1)
	if full > 0 {
		k(&dst[0], &src[0], full)
	}
	if full < len(dst) {
		t := tails.Get().(*tail)
		k(&t.b[0], pad(&t.a, src[full:], 0), laneWidth)
		copy(dst[full:], t.b[:])
		tails.Put(t)
	}
}

// binary applies k; dst may be a or b.
func binary(op string, k binaryKernel, dst, a, b []float32) {
	sameLength(op, len(dst), len(a), len(b))
	full := len(dst) &^ (laneWidth - 1)
	if full > 0 {
		k(&dst[0], &a[0], &b[0], full)
	}
	if full < len(dst) {
		t := tails.Get().(*tail)
		k(&t.c[0], pad(&t.a, a[full:], 0), pad(&t.b, b[full:], 0), laneWidth)
		copy(dst[full:], t.c[:])
		tails.Put(t)
	}
}

// In all functions below dst may be one of the operands; partly overlapping
// slices are not allowed.

// Exp is dst = eˣ, below 1.1 ulp, subnormal results included.
func Exp(dst, x []float32) { unary("Exp", elem().exp, dst, x) }

// Exp32 is eˣ of one value, with the bits of [Exp].
func Exp32(x float32) float32 { return expLane(x) }

// Log is the natural logarithm, below 1 ulp; NaN below zero, −Inf at zero.
func Log(dst, x []float32) { unary("Log", elem().log, dst, x) }

// Log32 is the natural logarithm of one value, with the bits of [Log].
func Log32(x float32) float32 { return logLane(x) }

// Tanh is the hyperbolic tangent, below 1.5 ulp.
func Tanh(dst, x []float32) { unary("Tanh", elem().tanh, dst, x) }

// Sigmoid is 1/(1+e⁻ˣ), with small relative error on both sides.
func Sigmoid(dst, x []float32) { unary("Sigmoid", elem().sigmoid, dst, x) }

// Sigmoid32 is the sigmoid of one value, with the bits of [Sigmoid].
func Sigmoid32(x float32) float32 { return sigmoidLane(x) }

// Softplus is log(1+eˣ).
func Softplus(dst, x []float32) { unary("Softplus", elem().softplus, dst, x) }

// SiLU is x·sigmoid(x). −Inf gives NaN.
func SiLU(dst, x []float32) { unary("SiLU", elem().silu, dst, x) }

// SiLUMul is SiLU(gate)·up, the middle of a gated MLP.
func SiLUMul(dst, gate, up []float32) { binary("SiLUMul", elem().siluMul, dst, gate, up) }

// GELUErf is x·Φ(x), the exact form of GELU. −Inf gives NaN.
func GELUErf(dst, x []float32) { unary("GELUErf", elem().geluErf, dst, x) }

// GELUTanh is ½x(1+tanh(√(2/π)(x+0.044715x³))), computed as x·sigmoid of twice
// the argument. −Inf gives NaN.
func GELUTanh(dst, x []float32) { unary("GELUTanh", elem().geluTanh, dst, x) }

// ReLU2 is max(x,0)².
func ReLU2(dst, x []float32) { unary("ReLU2", elem().relu2, dst, x) }

// ReLU is max(x,0); NaN stays NaN.
func ReLU(dst, x []float32) {
	for i, v := range x[:len(dst)] {
		if 0 > v {
			v = 0
		}
		dst[i] = v
	}
}

// Add is a+b.
func Add(dst, a, b []float32) { binary("Add", elem().add, dst, a, b) }

// Mul is a·b.
func Mul(dst, a, b []float32) { binary("Mul", elem().mul, dst, a, b) }

// Scale is x·s.
func Scale(dst, x []float32, s float32) {
	k := elem().scale
	unary("Scale", func(d, x *float32, n int) { k(d, x, s, n) }, dst, x)
}

// Div is x/s, correctly rounded.
func Div(dst, x []float32, s float32) {
	k := elem().div
	unary("Div", func(d, x *float32, n int) { k(d, x, s, n) }, dst, x)
}

// AXPY is dst = fma(x, s, dst).
func AXPY(dst, x []float32, s float32) {
	sameLength("AXPY", len(dst), len(x))
	k := elem().axpy
	full := len(dst) &^ (laneWidth - 1)
	if full > 0 {
		k(&dst[0], &x[0], s, full)
	}
	if full < len(dst) {
		t := tails.Get().(*tail)
		k(pad(&t.b, dst[full:], 0), pad(&t.a, x[full:], 0), s, laneWidth)
		copy(dst[full:], t.b[:])
		tails.Put(t)
	}
}

// Clamp limits x to lo..hi; NaN stays NaN.
func Clamp(dst, x []float32, lo, hi float32) {
	k := elem().clamp
	unary("Clamp", func(d, x *float32, n int) { k(d, x, lo, hi, n) }, dst, x)
}
