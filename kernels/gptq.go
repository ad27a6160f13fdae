package kernels

import (
	"fmt"
	"math"
	"unsafe"
)

// SlabWidth is the number of output channels in a slab. A slab is a strip of
// W [out, in] stored as [column][32] float32, so every step of GPTQ is a vector
// operation over 32 independent channels.
const SlabWidth = panelWidth

// Factor is U, packed once per statistic for the GPTQ loop of all slabs of all
// its linears: for every block of columns, −U of the block for the feedback
// inside it, and −U of the block's rows for the tail behind it.
type Factor struct {
	n, block int
	table    *microTable
	inside   []uint32 // [column][block]: lane j of column i is −U[c0+j, i]
	tail     []uint32 // [block][panel of rows of the table][k][height]
	tailAt   []int
	diag     []float32
}

// N is the number of columns.
func (f *Factor) N() int { return f.n }

// Block is the number of columns in a block; the last may be shorter.
func (f *Factor) Block() int { return f.block }

// Blocks is the number of blocks.
func (f *Factor) Blocks() int { return ceilDiv(f.n, f.block) }

// Diag is U[i,i].
func (f *Factor) Diag(i int) float32 { return f.diag[i] }

// Bytes is the memory held.
func (f *Factor) Bytes() int64 { return 4 * int64(cap(f.inside)+cap(f.tail)+cap(f.diag)) }

// PackFactor packs u [n,n] row-major (the upper triangle is read) for blocks of
// the given number of columns. dst is reused when not nil.
func PackFactor(dst *Factor, u []float32, n, block int) *Factor {
	return PackFactorParallel(nil, dst, u, n, block)
}

// PackFactorParallel is PackFactor on a pool.
func PackFactorParallel(p *Pool, dst *Factor, u []float32, n, block int) *Factor {
	if n < 0 || block <= 0 || len(u) < n*n {
		panic(fmt.Sprintf("kernels: factor of n = %d, block %d, %d elements", n, block, len(u)))
	}
	if dst == nil {
		dst = &Factor{}
	}
	t := micro()
	dst.n, dst.block, dst.table = n, block, t
	blocks := dst.Blocks()
	dst.tailAt = append(dst.tailAt[:0], make([]int, blocks+1)...)
	for b := range blocks {
		c1 := min(n, (b+1)*block)
		dst.tailAt[b+1] = dst.tailAt[b] + (c1-b*block)*(n-c1)
	}
	if need := dst.tailAt[blocks]; cap(dst.tail) < need {
		dst.tail = alignedLanes(need)
	} else {
		dst.tail = dst.tail[:need]
	}
	if need := n * block; cap(dst.inside) < need {
		dst.inside = alignedLanes(need)
	} else {
		dst.inside = dst.inside[:need]
	}
	if cap(dst.diag) < n {
		dst.diag = make([]float32, n)
	}
	dst.diag = dst.diag[:n]
	p.Do(blocks, func(_, b int) {
		c0, c1 := b*block, min(n, (b+1)*block)
		k := c1 - c0
		inside := floats(dst.inside)
		for i := c0; i < c1; i++ {
			dst.diag[i] = u[i*n+i]
		}
		for j := range k {
			row := u[(c0+j)*n:]
			for i := c0 + j + 1; i < c1; i++ {
				inside[i*block+j] = -row[i]
			}
		}
		if c1 == n {
			return
		}
		tail := floats(dst.tail[dst.tailAt[b]:dst.tailAt[b+1]])
		for j := range k {
			row := u[(c0+j)*n:][:n]
			for at, c := 0, c1; c < n; {
				h := min(t.rows, n-c)
				out := tail[at+j*h:][:h]
				for r, v := range row[c : c+h] {
					out[r] = -v
				}
				at += k * h
				c += h
			}
		}
	})
	return dst
}

// Column brings column i of block blk up to date inside its block: the slab's
// column c0+i becomes a chain, from its value, of fma(−U[c0+j, c0+i], e[j], ·) over
// j = 0..i-1. slab is [n][32], e is [block][32], the errors of the block's columns.
func (f *Factor) Column(slab, e []float32, blk, i int) {
	if i == 0 {
		return
	}
	col := blk*f.block + i
	c := slab[col*SlabWidth:][:SlabWidth]
	e = e[:i*SlabWidth]
	a := lanePtr(f.inside, col*f.block)
	f.table.f32[1](i, a, 1, &e[0], SlabWidth/2, &c[0], SlabWidth, modeChain, 1, a, 0)
}

// Tail brings all columns behind block blk up to date: column c gets
// C + Σ_j −U[c0+j, c]·e[j], the sum as chains from zero over K blocks of 256.
func (f *Factor) Tail(slab, e []float32, blk int) {
	c0 := blk * f.block
	c1 := min(f.n, c0+f.block)
	k := c1 - c0
	if c1 == f.n {
		return
	}
	slab, e = slab[:f.n*SlabWidth], e[:k*SlabWidth]
	tail := f.tail[f.tailAt[blk]:f.tailAt[blk+1]]
	for k0 := 0; k0 < k; k0 += kBlock {
		kn := min(kBlock, k-k0)
		for at, c := 0, c1; c < f.n; {
			h, count := min(f.table.rows, f.n-c), 1
			if kn == k { // the tiles lie one behind the other; a call stays below some 20 µs
				count = max(1, min((f.n-c)/h, 4096/(k*h/8+1)))
			}
			ahead := lanePtr(tail, min(at+count*k*h+k0*h, len(tail)-1))
			f.table.f32[h](kn, lanePtr(tail, at+k0*h), h, &e[k0*SlabWidth], SlabWidth/2, &slab[c*SlabWidth], SlabWidth, modeAdd, count, ahead, 0)
			at += count * k * h
			c += count * h
		}
	}
}

// PackSlab gathers channels r0..r0+32 of w [rows, n] as [column][32]; channels
// past rows are zero.
func PackSlab(slab, w []float32, rows, n, r0 int) {
	x := Rows{M: rows, K: n, Stride: n, F32: w}
	h := min(SlabWidth, rows-r0)
	lanes := lanesOf(slab[:n*SlabWidth])
	packTranspose(micro(), laneF32, lanes, SlabWidth, &x, r0, h, 0, n)
	clearLanes(lanes, SlabWidth, h)
}

// QuantizeColumn quantizes one column of a slab, 32 channels (all slices hold at
// least 32 values):
//
//	q    = clamp(roundHalfEven(w/scale) + zero, 0, maxq)   NaN gives 0
//	deq  = scale·(q − zero)
//	err  = (w − deq) / diag
//
// each operation rounded to float32 on its own, w/scale and the last one true
// divisions. diag is U[i,i]; err is what Column and Tail take as e.
func QuantizeColumn(codes []uint8, deq, err, w, scale, zero []float32, maxq, diag float32) {
	_, _, _ = codes[SlabWidth-1], deq[SlabWidth-1], err[SlabWidth-1]
	_, _, _ = w[SlabWidth-1], scale[SlabWidth-1], zero[SlabWidth-1]
	micro().quantize(&codes[0], &deq[0], &err[0], &w[0], &scale[0], &zero[0], maxq, diag)
}

// scalarQuantize defines QuantizeColumn.
func scalarQuantize(codes *uint8, deq, err, w, scale, zero *float32, maxq, diag float32) {
	cs := unsafe.Slice(codes, SlabWidth)
	ds, es := unsafe.Slice(deq, SlabWidth), unsafe.Slice(err, SlabWidth)
	ws, ss, zs := unsafe.Slice(w, SlabWidth), unsafe.Slice(scale, SlabWidth), unsafe.Slice(zero, SlabWidth)
	for i := range SlabWidth {
		q := float32(math.RoundToEven(float64(ws[i]/ss[i]))) + zs[i]
		if !(q > 0) {
			q = 0
		}
		if q > maxq {
			q = maxq
		}
		d := float32(ss[i] * (q - zs[i]))
		cs[i] = uint8(q)
		ds[i] = d
		es[i] = (ws[i] - d) / diag
	}
}
