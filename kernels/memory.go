package kernels

import (
	"math"
	"sync"
	"unsafe"
)

// vectorAlign is the alignment of packed buffers: a cache line, and the widest vector.
const vectorAlign = 64

// alignedLanes allocates n zeroed 32-bit lanes that start on a cache line.
func alignedLanes(n int) []uint32 {
	const pad = vectorAlign / 4
	raw := make([]uint32, n+pad)
	skip := 0
	for uintptr(unsafe.Pointer(&raw[skip]))%vectorAlign != 0 {
		skip++
	}
	return raw[skip : skip+n : skip+n]
}

// alignedDoubles allocates n zeroed float64 that start on a cache line.
func alignedDoubles(n int) []float64 {
	const pad = vectorAlign / 8
	raw := make([]float64, n+pad)
	skip := 0
	for uintptr(unsafe.Pointer(&raw[skip]))%vectorAlign != 0 {
		skip++
	}
	return raw[skip : skip+n : skip+n]
}

// floats views lanes as float32.
func floats(lanes []uint32) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(lanes))), len(lanes))
}

// lanePtr is the address of lane i as the micro-kernels take it.
func lanePtr(lanes []uint32, i int) *float32 {
	return (*float32)(unsafe.Pointer(&lanes[i]))
}

func f32bits(u uint32) float32 { return math.Float32frombits(u) }

// laneBuffers keeps work buffers between calls so that their pages stay
// touched. sync.Pool gives them back to the collector when they rest.
var laneBuffers sync.Pool

type laneBuffer struct{ lanes []uint32 }

// borrowLanes returns a buffer of at least n lanes with arbitrary content.
func borrowLanes(n int) *laneBuffer {
	if b, _ := laneBuffers.Get().(*laneBuffer); b != nil && cap(b.lanes) >= n {
		b.lanes = b.lanes[:n]
		return b
	}
	return &laneBuffer{alignedLanes(n)}
}

func (b *laneBuffer) giveBack() { laneBuffers.Put(b) }

// f32Ptr reinterprets the address of a lane.
func f32Ptr(lane *uint32) *float32 { return (*float32)(unsafe.Pointer(lane)) }

// lanesOf views float32 as lanes.
func lanesOf(f []float32) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(f))), len(f))
}
