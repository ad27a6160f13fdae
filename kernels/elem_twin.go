package kernels

import (
	"math"
	"unsafe"
)

// laneWidth is the number of virtual lanes: element i of a row belongs to lane
// i mod 16, whatever the width of the CPU's vectors.
const laneWidth = 16

// elemTable is what a level provides for element-wise work. Every n is a
// positive multiple of 16; callers pad the rest.
// Sums and extremes are kept in 16 lanes that the kernel reads and updates.
type elemTable struct {
	level Level

	exp, log, tanh, sigmoid, softplus, silu, geluErf, geluTanh, relu2 unaryKernel

	siluMul, add, mul binaryKernel

	scale func(dst, x *float32, s float32, n int)              // x·s
	div   func(dst, x *float32, s float32, n int)              // x/s
	axpy  func(dst, x *float32, s float32, n int)              // fma(x, s, dst)
	clamp func(dst, x *float32, lo, hi float32, n int)         // lo > x → lo, hi < x → hi
	shift func(dst, x *float32, mean, inv float32, n int)      // (x−mean)·inv
	rms   func(dst, x, w *float32, inv, offset float32, n int) // (x·inv)·(w+offset)

	expSub func(dst, x *float32, m float32, lanes *float32, n int) // e^(x−m), lanes += it

	sum       func(x, lanes *float32, n int)
	sumSquare func(x *float32, mean float32, lanes *float32, n int) // lanes = fma(x−mean, x−mean, lanes)
	largest   func(x, lanes *float32, n int)
	extremes  func(x, lo, hi *float32, n int)
	absLarge  func(x, lanes *float32, n int)

	quantize   func(codes *uint8, w *float32, scale, zero, maxq float32, n int)
	dequantize func(dst *float32, codes *uint8, scale, zero float32, n int)
	rotate     func(x1, x2, sin, cos *float32, n int) // half-split rotary pairs in place

	attnSoftmax func(s *float32, keys int, scale float32, m, l, alpha *float32) // tile [keys][32]
	mulRows     func(o, f *float32, rows int)                                   // [rows][32] · [32]
	divRows     func(o, f *float32, rows int)                                   // [rows][32] ÷ [32]
}

type (
	unaryKernel  func(dst, src *float32, n int)
	binaryKernel func(dst, a, b *float32, n int)
)

var scalarElem = &elemTable{
	level:    LevelScalar,
	exp:      twinOf(expLane),
	log:      twinOf(logLane),
	tanh:     twinOf(tanhLane),
	sigmoid:  twinOf(sigmoidLane),
	softplus: twinOf(softplusLane),
	silu:     twinOf(siluLane),
	geluErf:  twinOf(geluErfLane),
	geluTanh: twinOf(geluTanhLane),
	relu2:    twinOf(relu2Lane),
	siluMul:  twinOf2(siluMulLane),
	add:      twinOf2(func(a, b float32) float32 { return a + b }),
	mul:      twinOf2(func(a, b float32) float32 { return a * b }),

	scale: func(dst, x *float32, s float32, n int) {
		d, xs := view(dst, n), view(x, n)
		for i, v := range xs {
			d[i] = v * s
		}
	},
	div: func(dst, x *float32, s float32, n int) {
		d, xs := view(dst, n), view(x, n)
		for i, v := range xs {
			d[i] = v / s
		}
	},
	axpy: func(dst, x *float32, s float32, n int) {
		d, xs := view(dst, n), view(x, n)
		for i, v := range xs {
			d[i] = fma32(v, s, d[i])
		}
	},
	clamp: func(dst, x *float32, lo, hi float32, n int) {
		d, xs := view(dst, n), view(x, n)
		for i, v := range xs {
			if lo > v {
				v = lo
			}
			if hi < v {
				v = hi
			}
			d[i] = v
		}
	},
	shift: func(dst, x *float32, mean, inv float32, n int) {
		d, xs := view(dst, n), view(x, n)
		for i, v := range xs {
			d[i] = (v - mean) * inv
		}
	},
	rms: func(dst, x, w *float32, inv, offset float32, n int) {
		d, xs, ws := view(dst, n), view(x, n), view(w, n)
		for i, v := range xs {
			d[i] = float32(v*inv) * (ws[i] + offset)
		}
	},
	expSub: func(dst, x *float32, m float32, lanes *float32, n int) {
		d, xs, ls := view(dst, n), view(x, n), view(lanes, laneWidth)
		for i, v := range xs {
			e := expLane(v - m)
			d[i] = e
			ls[i%laneWidth] += e
		}
	},
	sum: func(x, lanes *float32, n int) {
		ls := view(lanes, laneWidth)
		for i, v := range view(x, n) {
			ls[i%laneWidth] += v
		}
	},
	sumSquare: func(x *float32, mean float32, lanes *float32, n int) {
		ls := view(lanes, laneWidth)
		for i, v := range view(x, n) {
			d := v - mean
			ls[i%laneWidth] = fma32(d, d, ls[i%laneWidth])
		}
	},
	largest: func(x, lanes *float32, n int) {
		ls := view(lanes, laneWidth)
		for i, v := range view(x, n) {
			if v > ls[i%laneWidth] {
				ls[i%laneWidth] = v
			}
		}
	},
	extremes: func(x, lo, hi *float32, n int) {
		los, his := view(lo, laneWidth), view(hi, laneWidth)
		for i, v := range view(x, n) {
			j := i % laneWidth
			if v < los[j] {
				los[j] = v
			}
			if v > his[j] {
				his[j] = v
			}
		}
	},
	absLarge: func(x, lanes *float32, n int) {
		ls := view(lanes, laneWidth)
		for i, v := range view(x, n) {
			if v = absLane(v); v > ls[i%laneWidth] {
				ls[i%laneWidth] = v
			}
		}
	},
	quantize: func(codes *uint8, w *float32, scale, zero, maxq float32, n int) {
		cs := unsafe.Slice(codes, n)
		for i, v := range view(w, n) {
			q := float32(math.RoundToEven(float64(v/scale))) + zero
			if !(q > 0) {
				q = 0
			}
			if !(q < maxq) {
				q = maxq
			}
			cs[i] = uint8(q)
		}
	},
	dequantize: func(dst *float32, codes *uint8, scale, zero float32, n int) {
		cs := unsafe.Slice(codes, n)
		for i := range view(dst, n) {
			view(dst, n)[i] = scale * (float32(cs[i]) - zero)
		}
	},
	rotate: func(x1, x2, sin, cos *float32, n int) {
		a, b, s, c := view(x1, n), view(x2, n), view(sin, n), view(cos, n)
		for i := range a {
			u, v := a[i], b[i]
			a[i] = float32(u*c[i]) - float32(v*s[i])
			b[i] = float32(v*c[i]) + float32(u*s[i])
		}
	},
	attnSoftmax: func(s *float32, keys int, scale float32, m, l, alpha *float32) {
		tile, ms, ls, as := view(s, keys*panelWidth), view(m, panelWidth), view(l, panelWidth), view(alpha, panelWidth)
		for j := range panelWidth {
			top := ms[j]
			for i := j; i < len(tile); i += panelWidth {
				v := tile[i] * scale
				tile[i] = v
				if v > top {
					top = v
				}
			}
			a := expLane(ms[j] - top)
			ms[j], as[j] = top, a
			sum := float32(0)
			for i := j; i < len(tile); i += panelWidth {
				e := expLane(tile[i] - top)
				tile[i] = e
				sum += e
			}
			ls[j] = float32(ls[j]*a) + sum
		}
	},
	mulRows: func(o, f *float32, rows int) {
		os, fs := view(o, rows*panelWidth), view(f, panelWidth)
		for i := range os {
			os[i] *= fs[i%panelWidth]
		}
	},
	divRows: func(o, f *float32, rows int) {
		os, fs := view(o, rows*panelWidth), view(f, panelWidth)
		for i := range os {
			os[i] /= fs[i%panelWidth]
		}
	},
}

func view(p *float32, n int) []float32 { return unsafe.Slice(p, n) }

func twinOf(f func(float32) float32) unaryKernel {
	return func(dst, src *float32, n int) {
		d := view(dst, n)
		for i, v := range view(src, n) {
			d[i] = f(v)
		}
	}
}

func twinOf2(f func(a, b float32) float32) binaryKernel {
	return func(dst, a, b *float32, n int) {
		d, bs := view(dst, n), view(b, n)
		for i, v := range view(a, n) {
			d[i] = f(v, bs[i])
		}
	}
}
