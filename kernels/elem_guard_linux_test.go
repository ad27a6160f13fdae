//go:build linux

package kernels

import (
	"syscall"
	"testing"
	"unsafe"
)

// guarded returns n float32 that end exactly at a page that may not be touched
// (before = false) or start right behind one.
func guarded(t *testing.T, n int, before bool) []float32 {
	t.Helper()
	page := syscall.Getpagesize()
	size := (4*n + page - 1) / page * page
	mem, err := syscall.Mmap(-1, 0, size+page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Munmap(mem) })
	closed, open := mem[size:], mem[size-4*n:size]
	if before {
		closed, open = mem[:page], mem[page:page+4*n]
	}
	if err := syscall.Mprotect(closed, syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&open[0])), n)
}

// Every kernel of every level, with each operand against a guard page on either side.
func TestElementKernelsStayInBounds(t *testing.T) {
	for _, l := range Levels() {
		tab := elemOf(l)
		for _, before := range []bool{false, true} {
			for _, n := range []int{16, 48, 1024} {
				a, b, c, d := guarded(t, n, before), guarded(t, n, before), guarded(t, n, before), guarded(t, n, before)
				lane, more, ten := guarded(t, 16, before), guarded(t, 16, before), guarded(t, 16, before)
				codes := unsafe.Slice((*uint8)(unsafe.Pointer(&guarded(t, n/4, before)[0])), n)
				probe(a, uint32(n))
				for _, k := range []unaryKernel{tab.exp, tab.log, tab.tanh, tab.sigmoid, tab.softplus, tab.silu, tab.geluErf, tab.geluTanh, tab.relu2} {
					k(&b[0], &a[0], n)
				}
				for _, k := range []binaryKernel{tab.siluMul, tab.add, tab.mul} {
					k(&c[0], &a[0], &b[0], n)
				}
				tab.scale(&b[0], &a[0], 2, n)
				tab.div(&b[0], &a[0], 2, n)
				tab.axpy(&b[0], &a[0], 2, n)
				tab.clamp(&b[0], &a[0], -1, 1, n)
				tab.shift(&b[0], &a[0], 1, 2, n)
				tab.rms(&c[0], &a[0], &b[0], 2, 1, n)
				tab.expSub(&b[0], &a[0], 1, &lane[0], n)
				tab.sum(&a[0], &lane[0], n)
				tab.sumSquare(&a[0], 0, &lane[0], n)
				tab.largest(&a[0], &lane[0], n)
				tab.extremes(&a[0], &lane[0], &more[0], n)
				tab.absLarge(&a[0], &ten[0], n)
				tab.quantize(&codes[0], &a[0], 1, 8, 15, n)
				tab.dequantize(&b[0], &codes[0], 1, 8, n)
				tab.rotate(&a[0], &b[0], &c[0], &d[0], n)
				m, s, f := guarded(t, panelWidth, before), guarded(t, panelWidth, before), guarded(t, panelWidth, before)
				if n%panelWidth == 0 {
					tab.attnSoftmax(&a[0], n/panelWidth, 1, &m[0], &s[0], &f[0])
					tab.mulRows(&a[0], &f[0], n/panelWidth)
					tab.divRows(&a[0], &f[0], n/panelWidth)
				}
			}
		}
	}
}
