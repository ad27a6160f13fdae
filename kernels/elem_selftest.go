package kernels

import (
	"fmt"
	"math"
)

func init() { selfTests = append(selfTests, elemSelfTest) }

// probe fills x with values of every magnitude, signs, ties and special values,
// from a fixed generator.
func probe(x []float32, seed uint32) {
	special := [...]float32{0, float32(math.Copysign(0, -1)), 1, -1, 0.5, 88.8, -103.5, 0.8, 1e-40, -1e-45,
		math.MaxFloat32, -math.MaxFloat32, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 0.41421356}
	for i := range x {
		seed = seed*1664525 + 1013904223
		switch {
		case seed>>28 == 0:
			x[i] = special[seed>>20&15]
		case seed>>28 < 4:
			x[i] = math.Float32frombits(seed<<7 ^ seed>>9)
		default:
			x[i] = float32(int32(seed<<4)) * 0x1p-27
		}
	}
}

// sameBits treats all NaN as equal: their payload is not part of the contract.
func sameBits(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

// elemSelfTest compares every element-wise kernel of a level with its twin.
func elemSelfTest(level Level) error { return compareElem(elemOf(level), scalarElem) }

func compareElem(t, twin *elemTable) error {
	const n = 512
	in := make([]float32, 4*n)
	probe(in, 1)
	a, b, c, d := in[:n], in[n:2*n], in[2*n:3*n], in[3*n:]
	var fail error
	// check runs one kernel on copies of the operands with both tables.
	check := func(name string, run func(t *elemTable, a, b, c, d []float32)) {
		if fail != nil {
			return
		}
		var out [2][]float32
		for i, tab := range []*elemTable{twin, t} {
			m := append([]float32(nil), in...)
			run(tab, m[:n], m[n:2*n], m[2*n:3*n], m[3*n:])
			out[i] = m
		}
		for i := range out[0] {
			if !sameBits(out[0][i], out[1][i]) {
				fail = fmt.Errorf("kernels: %s at %v differs from its twin: %x instead of %x (operands %x %x %x %x)", name, t.level,
					math.Float32bits(out[1][i]), math.Float32bits(out[0][i]), a[i%n], b[i%n], c[i%n], d[i%n])
				return
			}
		}
	}
	for _, u := range []struct {
		name string
		of   func(*elemTable) unaryKernel
	}{
		{"exp", func(t *elemTable) unaryKernel { return t.exp }},
		{"log", func(t *elemTable) unaryKernel { return t.log }},
		{"tanh", func(t *elemTable) unaryKernel { return t.tanh }},
		{"sigmoid", func(t *elemTable) unaryKernel { return t.sigmoid }},
		{"softplus", func(t *elemTable) unaryKernel { return t.softplus }},
		{"silu", func(t *elemTable) unaryKernel { return t.silu }},
		{"geluErf", func(t *elemTable) unaryKernel { return t.geluErf }},
		{"geluTanh", func(t *elemTable) unaryKernel { return t.geluTanh }},
		{"relu2", func(t *elemTable) unaryKernel { return t.relu2 }},
	} {
		check(u.name, func(t *elemTable, a, b, _, _ []float32) { u.of(t)(&b[0], &a[0], n) })
	}
	check("siluMul", func(t *elemTable, a, b, c, _ []float32) { t.siluMul(&c[0], &a[0], &b[0], n) })
	check("add", func(t *elemTable, a, b, c, _ []float32) { t.add(&c[0], &a[0], &b[0], n) })
	check("mul", func(t *elemTable, a, b, c, _ []float32) { t.mul(&c[0], &a[0], &b[0], n) })
	check("scale", func(t *elemTable, a, b, _, _ []float32) { t.scale(&b[0], &a[0], 1.7, n) })
	check("div", func(t *elemTable, a, b, _, _ []float32) { t.div(&b[0], &a[0], 1.7, n) })
	check("axpy", func(t *elemTable, a, b, _, _ []float32) { t.axpy(&b[0], &a[0], 1.7, n) })
	check("clamp", func(t *elemTable, a, b, _, _ []float32) { t.clamp(&b[0], &a[0], -2, 3, n) })
	check("shift", func(t *elemTable, a, b, _, _ []float32) { t.shift(&b[0], &a[0], 0.3, 1.7, n) })
	check("rms", func(t *elemTable, a, b, c, _ []float32) { t.rms(&c[0], &a[0], &b[0], 1.7, 1, n) })
	check("expSub", func(t *elemTable, a, b, c, _ []float32) { t.expSub(&b[0], &a[0], 1.7, &c[0], n) })
	check("sum", func(t *elemTable, a, b, _, _ []float32) { t.sum(&a[0], &b[0], n) })
	check("sumSquare", func(t *elemTable, a, b, _, _ []float32) { t.sumSquare(&a[0], 0.3, &b[0], n) })
	check("largest", func(t *elemTable, a, b, _, _ []float32) { t.largest(&a[0], &b[0], n) })
	check("extremes", func(t *elemTable, a, b, c, _ []float32) { t.extremes(&a[0], &b[0], &c[0], n) })
	check("absLarge", func(t *elemTable, a, b, _, _ []float32) { t.absLarge(&a[0], &b[0], n) })
	check("quantize", func(t *elemTable, a, b, _, _ []float32) {
		var codes [n]uint8
		t.quantize(&codes[0], &a[0], 0.37, 7, 15, n)
		for i, q := range codes {
			b[i] = float32(q)
		}
	})
	check("dequantize", func(t *elemTable, a, _, _, _ []float32) {
		var codes [n]uint8
		for i := range codes {
			codes[i] = uint8(i)
		}
		t.dequantize(&a[0], &codes[0], 0.37, 7, n)
	})
	check("rotate", func(t *elemTable, a, b, c, d []float32) { t.rotate(&a[0], &b[0], &c[0], &d[0], n) })
	const rows = n / panelWidth
	check("attnSoftmax", func(t *elemTable, a, b, c, d []float32) { t.attnSoftmax(&a[0], rows, 0.7, &b[0], &c[0], &d[0]) })
	check("mulRows", func(t *elemTable, a, b, _, _ []float32) { t.mulRows(&a[0], &b[0], rows) })
	check("divRows", func(t *elemTable, a, b, _, _ []float32) { t.divRows(&a[0], &b[0], rows) })
	return fail
}
