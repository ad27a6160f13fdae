//go:build linux

package kernels

import (
	"testing"
	"unsafe"
)

// Every matrix kernel of every level, with each operand against a guard page on either side.
func TestMatrixKernelsStayInBounds(t *testing.T) {
	for _, l := range Levels() {
		tab := tableOf(l)
		for _, before := range []bool{false, true} {
			for h := 1; h <= tab.rows; h++ {
				const k, tiles, ldc = 5, 2, panelWidth + 3
				a, wide := guarded(t, tiles*k*h, before), guarded(t, 2*tiles*k*h, before)
				b := guarded(t, k*panelWidth, before)
				c := guarded(t, (tiles*h-1)*ldc+panelWidth, before)
				c64 := guarded(t, 2*((tiles*h-1)*ldc+panelWidth), before)
				a64, b64 := guarded(t, 2*tiles*k*h, before), guarded(t, 2*k*panelWidth64, before)
				d64 := guarded(t, 2*((tiles*h-1)*ldc+panelWidth64), before)
				double := func(x []float32) *float64 { return (*float64)(unsafe.Pointer(&x[0])) }
				for _, half := range []int{panelWidth / 2, k * panelWidth / 2} {
					for _, mode := range []int{modeStore, modeAdd, modeChain, modeSub, modeAdd64} {
						out := c
						if mode == modeAdd64 {
							out = c64
						}
						tab.f32[h](k, &a[0], h, &b[0], half, &out[0], ldc, mode, tiles, &b[0], 0)
						tab.wide[h](k, &wide[0], h, &b[0], half, &out[0], ldc, mode, tiles, &b[0], 0)
						if tab.nativeBF16() {
							tab.dot[h](k, &a[0], h, &b[0], half, &out[0], ldc, mode, tiles, &b[0], 0)
						}
						if mode != modeAdd64 {
							tab.f64[h](k, double(a64), h, double(b64), half/2, double(d64), ldc, mode, tiles, double(b64), 0)
						}
					}
				}
			}
			w, err, deq := guarded(t, panelWidth, before), guarded(t, panelWidth, before), guarded(t, panelWidth, before)
			scale, zero, codes := guarded(t, panelWidth, before), guarded(t, panelWidth, before), guarded(t, panelWidth/4, before)
			tab.quantize((*uint8)(unsafe.Pointer(&codes[0])), &deq[0], &err[0], &w[0], &scale[0], &zero[0], 15, 1)
			x := guarded(t, 2*40+panelWidth, before)
			tab.columns(3, &x[0], 40, &w[0], &err[0], &deq[0])
		}
	}
}

// Whole operations on operands against guard pages: packing reads and results written up to the edge only.
func TestMatrixOperandsStayInBounds(t *testing.T) {
	for _, l := range Levels() {
		restore := ForceLevel(l)
		for _, before := range []bool{false, true} {
			for _, s := range []struct{ m, n, k int }{{1, 1, 2}, {7, 33, 10}, {9, 48, 24}, {14, 70, 258}, {31, 16, 40}} {
				f32 := func(r, c int) Rows {
					x := guarded(t, r*c, before)
					probe(x, uint32(r*c))
					return RowsF32(x, r, c)
				}
				bf16 := func(r, c int) Rows { // r*c is even
					x := guarded(t, r*c/2, before)
					probe(x, uint32(r+c))
					return RowsBF16(unsafe.Slice((*uint16)(unsafe.Pointer(&x[0])), r*c), r, c)
				}
				for _, w := range []Rows{f32(s.n, s.k), bf16(s.n, s.k)} {
					for _, x := range []Rows{f32(s.m, s.k), bf16(s.m, s.k)} {
						GEMM(nil, GEMMJob{X: x, W: PackRows(nil, nil, w), Y: guarded(t, s.m*s.n, before), Bias: guarded(t, s.n, before)})
						g := NewGram(s.k)
						g.Add(nil, x)
						g.Partial(guarded(t, s.k*s.k, before))
						c := NewColumns(s.k)
						c.Add(nil, x)
						c.Values(nil, guarded(t, s.k, before), guarded(t, s.k, before))
					}
				}
				d := NewCross(s.k, s.k)
				d.Add(nil, f32(s.m, s.k), bf16(s.m, s.k))
				d.Partial(guarded(t, s.k*s.k, before))
				h, u := guarded(t, s.n*s.n, before), guarded(t, s.n*s.n, before)
				for i := range s.n {
					h[i*s.n+i] = 2
				}
				if f := InverseFactor(nil, u, h, s.n); f != nil {
					t.Fatal(f)
				}
				f := PackFactor(nil, u, s.n, 32)
				slab, e := guarded(t, s.n*SlabWidth, before), guarded(t, 32*SlabWidth, before)
				PackSlab(slab, f32(s.m, s.n).F32, s.m, s.n, 0)
				for b := range f.Blocks() {
					for i := range min(32, s.n-32*b) {
						f.Column(slab, e, b, i)
					}
					f.Tail(slab, e, b)
				}
			}
		}
		restore()
	}
}
