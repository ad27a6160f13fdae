package kernels

import "unsafe"

// striper packs eight columns along their rows: step i, lane j goes to dst[i*ld+j].
// It writes eight lanes a step in increasing order, so up to 8-ld lanes after the last
// are overwritten. src is the address of the first row, stride in bytes; all
// source elements exist. A step is one row (laneF32), a pair of rows (lanePair), or a row with the
// two of every pair swapped (laneWidenZero; steps is even).
type striper [laneKinds]func(dst *uint32, ld int, src *byte, stride, steps int)

// packColumns packs columns c0..c0+cols of x along its rows: dst[i*ld+j], cols <= ld.
// Lanes past cols are zero, and so is the missing row of an odd last pair.
func (x *Rows) packColumns(t *microTable, kind laneKind, dst []uint32, ld, c0, cols int) {
	steps := len(dst) / ld
	if cols < ld {
		clear(dst)
	}
	perRow := 1
	if kind == lanePair {
		perRow = 2
	}
	for g := 0; g < cols; g += 8 {
		fast := 0
		if c0+g+8 <= x.K && len(dst) >= g+8 {
			fast = min(steps, x.M/perRow, (len(dst)-g-8)/ld+1) // eight lanes a step within dst
			if kind == laneWidenZero {
				fast &^= 1
			}
			src, stride := x.address(0, c0+g)
			t.strip[kind](&dst[g], ld, src, stride, fast)
		}
		for i := fast; i < steps; i++ {
			out := dst[i*ld+g:][:min(8, cols-g)]
			for j := range out {
				out[j] = x.stripLane(kind, i, c0+g+j)
			}
		}
	}
}

// stripLane is one lane of step i, column c.
func (x *Rows) stripLane(kind laneKind, i, c int) uint32 {
	half := func(r int) uint32 {
		if r >= x.M {
			return 0
		}
		return uint32(flushBF16(x.BF16[r*x.Stride+c]))
	}
	switch kind {
	case lanePair:
		return half(2*i) | half(2*i+1)<<16
	case laneWidenZero:
		return half(i^1) << 16
	}
	return lane32(x.F32[i*x.Stride:], c)
}

// scalarStrip defines the stripers.
var scalarStrip = striper{laneF32: stripRows(laneF32), lanePair: stripRows(lanePair), laneWidenZero: stripRows(laneWidenZero)}

func stripRows(kind laneKind) func(dst *uint32, ld int, src *byte, stride, steps int) {
	return func(dst *uint32, ld int, src *byte, stride, steps int) {
		x := Rows{M: steps, K: 8, Stride: stride / 2}
		if kind == lanePair {
			x.M = 2 * steps
		}
		if kind == laneF32 {
			x.Stride = stride / 4
			x.F32 = unsafe.Slice((*float32)(unsafe.Pointer(src)), max(0, (x.M-1)*x.Stride+8))
		} else {
			x.BF16 = unsafe.Slice((*uint16)(unsafe.Pointer(src)), max(0, (x.M-1)*x.Stride+8))
		}
		for i := range steps {
			for j := range 8 {
				*advance(dst, 4*(i*ld+j)) = x.stripLane(kind, i, j)
			}
		}
	}
}
