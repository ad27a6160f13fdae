package kernels

import "fmt"

// formBlock is the number of rows of A that one pass over a slab takes.
const formBlock = 128

// Form is x ↦ x·A·xᵀ for a symmetric A of which the upper triangle is known, packed once for the channels of many
// slabs. Off-diagonal elements are doubled, so that only half of the product is computed.
type Form struct {
	n     int
	table *microTable
	lanes []uint32 // [block][panel of rows of the table][k][height]: columns from the block's first one on
	at    []int
}

// N is the number of columns.
func (f *Form) N() int { return f.n }

// Bytes is the memory held.
func (f *Form) Bytes() int64 { return 4 * int64(cap(f.lanes)) }

// PackForm packs the square [from,to) of the symmetric h [n,n], of which the upper triangle is read. cols, when not
// nil, makes it the square of the columns cols[from:to].
func PackForm(p *Pool, h []float32, n, from, to int, cols []int32) *Form {
	if from < 0 || to < from || n < to || len(h) < n*n || (cols != nil && len(cols) < to) {
		panic(fmt.Sprintf("kernels: form of columns %d..%d of %d with %d elements", from, to, n, len(h)))
	}
	t := micro()
	f := &Form{n: to - from, table: t}
	blocks := ceilDiv(f.n, formBlock)
	f.at = make([]int, blocks+1)
	for b := range blocks {
		c0 := b * formBlock
		f.at[b+1] = f.at[b] + (min(f.n, c0+formBlock)-c0)*(f.n-c0)
	}
	f.lanes = alignedLanes(f.at[blocks])
	p.Do(blocks, func(_, b int) {
		c0 := b * formBlock
		k := min(f.n, c0+formBlock) - c0
		dst := floats(f.lanes[f.at[b]:f.at[b+1]])
		row := make([]float32, f.n)
		for j := range k {
			clear(row[c0 : c0+j])
			x := from + c0 + j
			if cols == nil {
				for c, v := range h[x*n+x : x*n+to] {
					row[c0+j+c] = 2 * v
				}
				row[c0+j] = h[x*n+x]
			} else {
				x := int(cols[x])
				for c := c0 + j + 1; c < f.n; c++ {
					y := int(cols[from+c])
					row[c] = 2 * h[min(x, y)*n+max(x, y)]
				}
				row[c0+j] = h[x*n+x]
			}
			for at, c := 0, c0; c < f.n; {
				h := min(t.rows, f.n-c)
				copy(dst[at+j*h:at+j*h+h], row[c:])
				at += k * h
				c += h
			}
		}
	})
	return f
}

// Values adds x·A·xᵀ of 32 channels to sums. x and y are slabs [N][32]; y is scratch. The product with A's half is
// float32: for every block of 128 rows a chain of fused multiply-adds from zero, the blocks added in order; its
// product with x is summed in float64 in column order.
func (f *Form) Values(sums *[SlabWidth]float64, x, y []float32) {
	if f.n == 0 {
		return
	}
	x, y = x[:f.n*SlabWidth], y[:f.n*SlabWidth]
	clear(y)
	for b := range len(f.at) - 1 {
		c0 := b * formBlock
		k := min(f.n, c0+formBlock) - c0
		a := f.lanes[f.at[b]:f.at[b+1]]
		for at, c := 0, c0; c < f.n; {
			h := min(f.table.rows, f.n-c)
			count := max(1, min((f.n-c)/h, 4096/(k*h/8+1))) // a call stays below some 20 µs
			ahead := lanePtr(a, min(at+count*k*h, len(a)-1))
			f.table.f32[h](k, lanePtr(a, at), h, &x[c0*SlabWidth], SlabWidth/2, &y[c*SlabWidth], SlabWidth, modeAdd, count, ahead, 0)
			at += count * k * h
			c += count * h
		}
	}
	s := *sums
	for c := range f.n {
		xs, ys := x[c*SlabWidth:][:SlabWidth], y[c*SlabWidth:][:SlabWidth]
		for l := range s {
			s[l] += float64(xs[l]) * float64(ys[l]) // an exact product: fusing changes nothing
		}
	}
	*sums = s
}
