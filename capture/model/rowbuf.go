package model

import (
	"quire/kernels"
	"quire/kernels/dtype"
)

// RowBuf is reusable memory for rows in the arithmetic of a model.
type RowBuf struct {
	f32  []float32
	bf16 []uint16
}

// make gives rows [m,k] of the compute type; contents are undefined.
func (b *RowBuf) make(c Compute, m, k int) kernels.Rows {
	if c == BF16 {
		b.bf16 = grow(b.bf16, m*k)
		return kernels.RowsBF16(b.bf16, m, k)
	}
	b.f32 = grow(b.f32, m*k)
	return kernels.RowsF32(b.f32, m, k)
}

// newRows allocates rows of the compute type.
func newRows(c Compute, m, k int) kernels.Rows {
	var b RowBuf
	return b.make(c, m, k)
}

// part is rows a..b-1.
func part(x kernels.Rows, a, b int) kernels.Rows {
	y := kernels.Rows{M: b - a, K: x.K, Stride: x.Stride}
	if x.BF16 != nil {
		y.BF16 = x.BF16[a*x.Stride : max((b-1)*x.Stride+x.K, a*x.Stride)]
	} else {
		y.F32 = x.F32[a*x.Stride : max((b-1)*x.Stride+x.K, a*x.Stride)]
	}
	return y
}

// store rounds v, [m,K] dense, into rows a.. of dst.
func store(dst kernels.Rows, a int, v []float32) {
	if dst.BF16 != nil {
		dtype.EncodeBF16(dst.BF16[a*dst.Stride:a*dst.Stride+len(v)], v)
		return
	}
	copy(dst.F32[a*dst.Stride:], v)
}

// CopyF32 widens dense rows into dst [M,K].
func CopyF32(dst []float32, x kernels.Rows) {
	for r := range x.M {
		d := dst[r*x.K : (r+1)*x.K]
		if x.BF16 != nil {
			dtype.DecodeBF16(d, x.BF16[r*x.Stride:r*x.Stride+x.K])
		} else {
			copy(d, x.F32[r*x.Stride:])
		}
	}
}

// blocks splits n rows into tasks of at most size and runs f on the pool.
func blocks(p *kernels.Pool, n, size int, f func(worker, a, b int)) {
	p.Do((n+size-1)/size, func(w, t int) { f(w, t*size, min((t+1)*size, n)) })
}

// chunkRows is how many rows a call handles at once within a byte budget: a multiple of 256, at least 256.
func chunkRows(budget, bytesPerRow int64) int {
	return max(int(min(budget/max(bytesPerRow, 1), 1<<30)), 256) &^ 255
}
