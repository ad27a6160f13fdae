package kernels

import (
	"math"
	"unsafe"
)

// laneKind says what a packed 32-bit lane holds and how it is made.
type laneKind int

const (
	laneF32       laneKind = iota // float32 as it is
	lanePair                      // two bf16, even k low, tiny values flushed
	laneWiden                     // bf16 widened to float32
	laneWidenZero                 // bf16 widened, tiny values flushed
	laneKinds
)

// tinyBF16 is the magnitude code of 2^-55. Where both operands of a product are
// bf16, or the packed side is, smaller magnitudes are packed as +0: every product
// and partial sum is then a multiple of 2^-124 and never subnormal, so the
// flush-to-zero of VDPBF16PS cannot act (contract, "flush of tiny values").
const tinyBF16 = (127 - 55) << 7

// flushBF16 applies the rule above to one value.
func flushBF16(h uint16) uint16 {
	if h&0x7fff < tinyBF16 {
		return 0
	}
	return h
}

// laneCount is the number of lanes that k elements take along k. Kinds that meet
// pairs of bf16 have an even number of k; elements past the end are zero.
func (l laneKind) laneCount(k int) int {
	switch l {
	case lanePair:
		return (k + 1) / 2
	case laneWidenZero:
		return (k + 1) &^ 1
	}
	return k
}

// transposer packs min(rows,8) source rows: lane i of row r goes to
// dst[i*ld+r], for i < k. It always writes eight lanes for each i (rows past the end repeat
// the last one), in increasing i, so up to 7 lanes after the last are
// overwritten. src is the address of the first row, stride in bytes. k is a
// multiple of 8 and all source elements exist.
type transposer [laneKinds]func(dst *uint32, ld int, src *byte, stride, rows, k int)

// lane32 makes one lane of a float32 row; i may lie past the end.
func lane32(row []float32, i int) uint32 {
	if i >= len(row) {
		return 0
	}
	return math.Float32bits(row[i])
}

// lane16 makes one lane of a bf16 row; i may lie past the end.
func (l laneKind) lane16(row []uint16, i int) uint32 {
	switch l {
	case lanePair:
		var lo, hi uint16
		if 2*i < len(row) {
			lo = flushBF16(row[2*i])
		}
		if 2*i+1 < len(row) {
			hi = flushBF16(row[2*i+1])
		}
		return uint32(lo) | uint32(hi)<<16
	case laneWidenZero:
		if i < len(row) {
			return uint32(flushBF16(row[i])) << 16
		}
	case laneWiden:
		if i < len(row) {
			return uint32(row[i]) << 16
		}
	}
	return 0
}

// packTranspose writes rows r0..r0+h of x, elements k0..k0+kn, as lanes
// dst[i*ld+r]. Lanes r >= h below the next multiple of 8 may change too; see clearLanes.
func packTranspose(t *microTable, kind laneKind, dst []uint32, ld int, x *Rows, r0, h, k0, kn int) {
	lanes := kind.laneCount(kn)
	whole := kn // lanes whose elements all exist
	if kind == lanePair {
		whole = kn / 2
	}
	for g := (h - 1) / 8 * 8; g >= 0; g -= 8 { // last group first: it spills into the lanes of the first
		rows := min(8, h-g)
		spill := max(0, g+8-ld) // lanes written past the end of a k step
		if rows == 8 {
			spill = 0
		}
		fast := max(0, min(whole, lanes-(spill+ld-1)/ld)) &^ 7
		if rows == 1 && ld > 1 {
			fast = 0
		}
		if fast > 0 {
			src, stride := x.address(r0+g, k0)
			t.transpose[kind](&dst[g], ld, src, stride, rows, fast)
		}
		for r := range rows {
			if x.F32 != nil {
				row := x.F32[(r0+g+r)*x.Stride+k0:][:kn]
				for i := fast; i < lanes; i++ {
					dst[i*ld+g+r] = lane32(row, i)
				}
				continue
			}
			row := x.BF16[(r0+g+r)*x.Stride+k0:][:kn]
			for i := fast; i < lanes; i++ {
				dst[i*ld+g+r] = kind.lane16(row, i)
			}
		}
	}
}

// clearLanes zeroes the lanes r >= h of a packed panel with ld lanes a step.
func clearLanes(panel []uint32, ld, h int) {
	if h >= ld {
		return
	}
	for i := 0; i < len(panel); i += ld {
		clear(panel[i+h : i+ld])
	}
}

// address gives row r, element k as the transposers take it.
func (x *Rows) address(r, k int) (src *byte, stride int) {
	i := r*x.Stride + k
	if x.F32 != nil {
		return (*byte)(unsafe.Pointer(&x.F32[i])), 4 * x.Stride
	}
	return (*byte)(unsafe.Pointer(&x.BF16[i])), 2 * x.Stride
}

// scalarTranspose defines the transposers.
var scalarTranspose = transposer{
	laneF32: transposeF32,
	lanePair: func(dst *uint32, ld int, src *byte, stride, rows, k int) {
		transposePairs(dst, ld, src, stride, rows, k, func(u uint32) uint32 {
			return uint32(flushBF16(uint16(u))) | uint32(flushBF16(uint16(u>>16)))<<16
		})
	},
	laneWiden: func(dst *uint32, ld int, src *byte, stride, rows, k int) {
		transposeHalves(dst, ld, src, stride, rows, k, func(h uint16) uint32 { return uint32(h) << 16 })
	},
	laneWidenZero: func(dst *uint32, ld int, src *byte, stride, rows, k int) {
		transposeHalves(dst, ld, src, stride, rows, k, func(h uint16) uint32 { return uint32(flushBF16(h)) << 16 })
	},
}

// eightRows views the eight source rows of a transposer, rows past the end being the last one.
func eightRows[T uint16 | uint32](src *byte, stride, rows, k int) (r [8][]T) {
	for i := range r {
		r[i] = unsafe.Slice((*T)(unsafe.Add(unsafe.Pointer(src), min(i, rows-1)*stride)), k)
	}
	return r
}

func transposeF32(dst *uint32, ld int, src *byte, stride, rows, k int) {
	r := eightRows[uint32](src, stride, rows, k)
	r0, r1, r2, r3, r4, r5, r6, r7 := r[0], r[1][:k], r[2][:k], r[3][:k], r[4][:k], r[5][:k], r[6][:k], r[7][:k]
	p := unsafe.Pointer(dst)
	for i := range r0 {
		d := (*[8]uint32)(unsafe.Add(p, 4*i*ld))
		d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7] = r0[i], r1[i], r2[i], r3[i], r4[i], r5[i], r6[i], r7[i]
	}
}

func transposePairs(dst *uint32, ld int, src *byte, stride, rows, k int, lane func(uint32) uint32) {
	r := eightRows[uint32](src, stride, rows, k)
	for i := range k {
		for j := range r {
			*(*uint32)(unsafe.Add(unsafe.Pointer(dst), 4*(i*ld+j))) = lane(r[j][i])
		}
	}
}

func transposeHalves(dst *uint32, ld int, src *byte, stride, rows, k int, lane func(uint16) uint32) {
	r := eightRows[uint16](src, stride, rows, k)
	for i := range k {
		for j := range r {
			*(*uint32)(unsafe.Add(unsafe.Pointer(dst), 4*(i*ld+j))) = lane(r[j][i])
		}
	}
}
