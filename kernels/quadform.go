package kernels

import "fmt"

// QuadForm is x ↦ x·A·xᵀ for a symmetric A [n,n], packed for many x. Off-diagonal
// elements are doubled and the lower half is left out, which halves the work.
type QuadForm struct {
	n     int
	lanes []uint32 // panel after panel of 32 columns, each [K block][half][k][16] for k up to its last column
}

// QuadRows is the number of rows that Sums takes as one task.
const QuadRows = 96

// PackQuadForm packs the square [from,to) of a row-major matrix with ld columns, of
// which the upper triangle is read. dst is reused when not nil.
func PackQuadForm(p *Pool, dst *QuadForm, a []float32, ld, from, to int) *QuadForm {
	if from < 0 || to < from || to > ld || to > 0 && len(a) < (to-1)*ld+to {
		panic(fmt.Sprintf("kernels: square %d..%d of %d elements in rows of %d", from, to, len(a), ld))
	}
	if dst == nil {
		dst = &QuadForm{}
	}
	dst.n = to - from
	panels := ceilDiv(dst.n, panelWidth)
	if need := gramOffset(panels); cap(dst.lanes) < need {
		dst.lanes = alignedLanes(need)
	} else {
		dst.lanes = dst.lanes[:need]
	}
	p.Do(panels, func(_, jp int) {
		c0 := jp * panelWidth
		cols := min(panelWidth, dst.n-c0)
		out := floats(dst.lanes[gramOffset(jp):gramOffset(jp+1)])
		if cols < panelWidth {
			clear(out)
		}
		last := min(dst.n, c0+panelWidth)
		for k := range last {
			k0 := k / kBlock * kBlock
			kn := min(kBlock, last-k0)
			src := a[(from+k)*ld+from+c0:][:cols]
			for j, v := range src {
				switch {
				case k < c0+j:
					v *= 2
				case k > c0+j:
					v = 0
				}
				out[k0*panelWidth+j/16*kn*16+(k-k0)*16+j%16] = v
			}
		}
	})
	return dst
}

// N is the number of columns.
func (q *QuadForm) N() int { return q.n }

// Bytes is the memory held.
func (q *QuadForm) Bytes() int64 { return 4 * int64(cap(q.lanes)) }

// Sums writes x·A·xᵀ of every row of x [M,n], float32, into sums [M]. With
// y = x·A′ (A′ upper, off-diagonal doubled) in chains over K blocks of 256, the sum of
// the products x[c]·y[c] is float64 in column order.
func (q *QuadForm) Sums(p *Pool, sums []float64, x Rows) {
	x.check()
	if x.BF16 != nil || x.K != q.n || len(sums) < x.M {
		panic(fmt.Sprintf("kernels: quadratic form of %d columns: x [%d,%d] float32 %v, %d sums", q.n, x.M, x.K, x.BF16 == nil, len(sums)))
	}
	if q.n == 0 {
		clear(sums[:x.M])
		return
	}
	t := micro()
	p.Do(ceilDiv(x.M, QuadRows), func(_, task int) {
		r0 := task * QuadRows
		q.rows(t, sums[r0:], &x, r0, min(QuadRows, x.M-r0))
	})
}

// rows is one task.
func (q *QuadForm) rows(t *microTable, sums []float64, x *Rows, r0, rows int) {
	buf := borrowLanes(rows * q.n)
	defer buf.giveBack()
	high := ceilDiv(rows, ceilDiv(rows, t.rows))
	for k0 := 0; k0 < q.n; k0 += kBlock { // [K block][tile][k][height]
		kn := min(kBlock, q.n-k0)
		for r := 0; r < rows; r += high {
			h := min(high, rows-r)
			packTranspose(t, laneF32, buf.lanes[rows*k0+r*kn:][:h*kn], h, x, r0+r, h, k0, kn)
		}
	}
	var tile [QuadRows * panelWidth]float32
	clear(sums[:rows])
	for jp := range ceilDiv(q.n, panelWidth) {
		c0 := jp * panelWidth
		panel := q.lanes[gramOffset(jp):]
		last := min(q.n, c0+panelWidth)
		for k0 := 0; k0 < last; k0 += kBlock {
			kn := min(kBlock, last-k0)
			mode := modeAdd
			if k0 == 0 {
				mode = modeStore
			}
			b := lanePtr(panel, k0*panelWidth)
			next := panel[min(len(panel)-1, (k0+kn)*panelWidth):] // what is read next
			ahead := t.fetchStep(4*min(len(next), kBlock*panelWidth), kn*ceilDiv(rows, high))
			fetched := 0 // bytes
			// A packed tile holds the whole K block, of which the panel's last block may use the first kn steps only.
			kAll := min(kBlock, q.n-k0)
			for r := 0; r < rows; {
				h, count := min(high, rows-r), 1
				if kn == kAll {
					count = max(1, (rows-r)/high)
				}
				t.f32[h](kn, lanePtr(buf.lanes, rows*k0+r*kAll), h, b, kn*panelWidth/2, &tile[r*panelWidth], panelWidth, mode, count, fetchPtr(next, panel, fetched), ahead)
				r += h * count
				fetched += ahead * kn * t.passes * count
			}
		}
		cols := min(panelWidth, q.n-c0)
		row := func(r int) []float32 { return x.F32[(r0+r)*x.Stride+c0:][:cols] }
		r := 0
		for ; r+4 <= rows; r += 4 { // four chains side by side
			dot4(sums[r:], tile[r*panelWidth:], row(r), row(r+1), row(r+2), row(r+3))
		}
		for ; r < rows; r++ {
			s := sums[r]
			for i, v := range row(r) {
				s += float64(v) * float64(tile[r*panelWidth+i])
			}
			sums[r] = s
		}
	}
}

// dot4 adds the products of four rows with four rows of a tile. A product of two
// float32 is exact in float64, so fusing changes nothing.
func dot4(sums []float64, tile, x0, x1, x2, x3 []float32) {
	s0, s1, s2, s3 := sums[0], sums[1], sums[2], sums[3]
	y0, y1, y2, y3 := tile[:len(x0)], tile[panelWidth:][:len(x0)], tile[2*panelWidth:][:len(x0)], tile[3*panelWidth:][:len(x0)]
	x1, x2, x3 = x1[:len(x0)], x2[:len(x0)], x3[:len(x0)]
	for i, v := range x0 {
		s0 += float64(v) * float64(y0[i])
		s1 += float64(x1[i]) * float64(y1[i])
		s2 += float64(x2[i]) * float64(y2[i])
		s3 += float64(x3[i]) * float64(y3[i])
	}
	sums[0], sums[1], sums[2], sums[3] = s0, s1, s2, s3
}
