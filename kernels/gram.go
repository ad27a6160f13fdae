package kernels

import (
	"fmt"
	"unsafe"
)

// Gram accumulates H = XᵀX of one statistic, upper triangle.
//
// Rows are counted from the first row after NewGram or Reset. Every 256 rows
// make a block, across calls; a block's products are float32 chains from zero, and
// blocks are added in float64 in order. For bf16 rows the chain takes rows
// 1,0,3,2… and tiny values are flushed (contract). A partly filled block is kept
// as rows, so how rows are split over calls cannot matter.
//
// The type of the first rows is the type of the statistic: bf16 rows may be
// added to a float32 statistic (they are widened), not the other way round.
type Gram struct {
	n      int
	rows   int64
	sum    []float64 // [panel j][row < 32(j+1)][32]: upper triangle by panels of 32 columns
	blocks blockStore
}

// statisticPackBytes bounds the packed copies of rows that one Add holds, beside
// those of one block of 256 rows (2 KiB a column).
const statisticPackBytes = 32 << 20

// gramOffset is the first element of panel j.
func gramOffset(j int) int { return panelWidth * panelWidth * (j * (j + 1) / 2) }

// NewGram makes an empty statistic over n columns.
func NewGram(n int) *Gram {
	g := &Gram{}
	g.Reset(n)
	return g
}

// GramBytes is the memory of a Gram over n columns: the float64 triangle and
// one open block of float32 rows.
func GramBytes(n int) int64 {
	p := int64(ceilDiv(n, panelWidth))
	return 8*panelWidth*panelWidth*p*(p+1)/2 + 4*kBlock*int64(n)
}

// Reset empties the statistic and sets its width, keeping memory where it fits.
func (g *Gram) Reset(n int) {
	if n < 0 {
		panic(fmt.Sprintf("kernels: Gram over %d columns", n))
	}
	need := gramOffset(ceilDiv(n, panelWidth))
	if cap(g.sum) < need {
		g.sum = alignedDoubles(need)
	} else {
		g.sum = g.sum[:need]
		clear(g.sum)
	}
	g.n, g.rows = n, 0
	g.blocks.reset(n)
}

// N is the number of columns.
func (g *Gram) N() int { return g.n }

// Rows is the number of rows added since the last Reset.
func (g *Gram) Rows() int64 { return g.rows }

// Add accumulates the rows of x, [M, n].
func (g *Gram) Add(p *Pool, x Rows) {
	x.check()
	if x.M == 0 {
		return
	}
	if x.K != g.n {
		panic(fmt.Sprintf("kernels: rows of %d columns for a Gram over %d", x.K, g.n))
	}
	g.rows += int64(x.M)
	if g.n == 0 {
		return
	}
	t := micro()
	g.blocks.add(x, func(blocks []Rows) { g.addBlocks(p, t, blocks) })
}

// addBlocks adds whole blocks, as many at a time as the pack buffer takes.
func (g *Gram) addBlocks(p *Pool, t *microTable, blocks []Rows) {
	panels := ceilDiv(g.n, panelWidth)
	per := panels * panelWidth * kBlock
	most := max(1, min(8, statisticPackBytes/8/per))
	buf := borrowLanes(2 * min(most, len(blocks)) * per)
	defer buf.giveBack()
	half := len(buf.lanes) / 2
	panelLanes, sliceLanes := buf.lanes[:half], buf.lanes[half:]
	for len(blocks) > 0 {
		now := blocks[:min(most, len(blocks))]
		blocks = blocks[len(now):]
		packBlocks(p, t, panelLanes, sliceLanes, now, per)
		tiles := triangleTiles(panels, p.Threads())
		p.Do(len(tiles), func(_, i int) {
			tl := tiles[i]
			for b := range now {
				f, steps := panelKernels(t, &now[b])
				lanes, slices := panelLanes[b*per:], sliceLanes[b*per:]
				for jp := tl.j0; jp < tl.j1; jp++ {
					bp := lanePtr(lanes, jp*panelWidth*steps)
					for ip := tl.i0; ip < min(tl.i1, jp+1); ip++ {
						c := g.sum[gramOffset(jp)+ip*panelWidth*panelWidth:]
						panelProduct(t, f, steps, slices[ip*panelWidth*steps:], bp, &c[0], panelWidth)
					}
				}
			}
		})
	}
}

// Partial writes H [n,n] row-major to dst: the upper triangle rounded to float32
// once, the lower triangle zero. The open block is included and stays open.
func (g *Gram) Partial(dst []float32) { g.PartialParallel(nil, dst) }

// PartialParallel is Partial on a pool.
func (g *Gram) PartialParallel(p *Pool, dst []float32) {
	n := g.n
	if len(dst) < n*n {
		panic(fmt.Sprintf("kernels: partial of %d elements for n = %d", len(dst), n))
	}
	if n == 0 {
		return
	}
	t := micro()
	panels := ceilDiv(n, panelWidth)
	open := g.blocks.open()
	var panelLanes, sliceLanes []uint32
	if open.M > 0 {
		per := panels * panelWidth * kBlock
		buf := borrowLanes(2 * per)
		defer buf.giveBack()
		panelLanes, sliceLanes = buf.lanes[:per], buf.lanes[per:2*per]
		packBlocks(p, t, panelLanes, sliceLanes, []Rows{open}, per)
	}
	p.Do(panels, func(_, ip int) {
		tile := make([]float64, panelWidth*panelWidth)
		i0, i1 := ip*panelWidth, min(n, (ip+1)*panelWidth)
		for i := i0; i < i1; i++ {
			clear(dst[i*n : i*n+i0])
		}
		for jp := ip; jp < panels; jp++ {
			at := gramOffset(jp) + i0*panelWidth
			copy(tile, g.sum[at:at+len(tile)])
			if open.M > 0 {
				f, steps := panelKernels(t, &open)
				panelProduct(t, f, steps, sliceLanes[ip*panelWidth*steps:], lanePtr(panelLanes, jp*panelWidth*steps), &tile[0], panelWidth)
			}
			j0, j1 := jp*panelWidth, min(n, (jp+1)*panelWidth)
			for i := i0; i < i1; i++ {
				row := dst[i*n+j0 : i*n+j1]
				for j := range row {
					row[j] = float32(tile[(i-i0)*panelWidth+j])
				}
				if jp == ip {
					clear(row[:i-i0])
				}
			}
		}
	})
}

// AddPartial adds a float32 partial into a float64 sum, element by element.
// Callers add lanes in lane order.
func AddPartial(sum []float64, partial []float32) {
	sum = sum[:len(partial)]
	for i, v := range partial {
		sum[i] += float64(v)
	}
}

// tileRange is a block of panels of the output of a statistic.
type tileRange struct{ i0, i1, j0, j1 int }

// triangleTiles cuts the panels with i <= j into tasks.
func triangleTiles(panels, threads int) []tileRange {
	rb, cb := tileSteps(panels*panels/2, threads)
	var tiles []tileRange
	for j0 := 0; j0 < panels; j0 += cb {
		j1 := min(panels, j0+cb)
		for i0 := 0; i0 < j1; i0 += rb {
			tiles = append(tiles, tileRange{i0, min(i0+rb, j1), j0, j1})
		}
	}
	return tiles
}

// tileSteps is the tile size in panels: 10 x 16 when there is enough to share out.
func tileSteps(products, threads int) (rows, cols int) {
	rows, cols = 10, 16
	for threads > 1 && products < 6*threads*rows*cols && rows*cols > 4 {
		rows, cols = (rows+1)/2, (cols+1)/2
	}
	return rows, cols
}

// panelProduct joins AᵀB of a sliced panel and a panel into a float64 tile.
func panelProduct(t *microTable, f *[maxHeight + 1]microKernel, steps int, a []uint32, b *float32, c *float64, ldc int) {
	pf := lanePtr(a, 0)
	r := 0
	for _, s := range t.slices {
		f[s.height](steps, lanePtr(a, r*steps), s.height, b, steps*panelWidth/2, (*float32)(unsafe.Pointer(advance(c, 8*r*ldc))), ldc, modeAdd64, s.count, pf, 0)
		r += s.count * s.height
	}
}
