package kernels

import "fmt"

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
	per, perSlices := panels*panelWidth*kBlock, t.sliceRows(g.n)*kBlock
	most := max(1, min(8, statisticPackBytes/4/(per+perSlices)))
	buf := borrowLanes(min(most, len(blocks)) * (per + perSlices))
	defer buf.giveBack()
	cut := min(most, len(blocks)) * per
	panelLanes, sliceLanes := buf.lanes[:cut], buf.lanes[cut:]
	for len(blocks) > 0 {
		now := blocks[:min(most, len(blocks))]
		blocks = blocks[len(now):]
		packBlocks(p, t, panelLanes, sliceLanes, now, per, perSlices)
		tiles := triangleTiles(panels, p.Threads())
		p.Do(len(tiles), func(_, i int) {
			tl := tiles[i]
			for b := range now {
				f, steps := panelKernels(t, &now[b])
				for jp := max(tl.j0, tl.i0); jp < tl.j1; jp++ {
					r0, r1 := tl.i0*panelWidth, min(tl.i1, jp+1)*panelWidth
					blockProduct(t, f, steps, sliceLanes[b*perSlices:], r0, r1, panelLanes[b*per+jp*panelWidth*steps:], &g.sum[gramOffset(jp)+r0*panelWidth])
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
	g.export(p, func(i, j int) []float32 {
		if i == j {
			clear(dst[i*n : i*n+i])
		}
		return dst[i*n+j : (i+1)*n]
	})
}

// Triangle is PartialParallel without the lower triangle: n(n+1)/2 elements, row after row.
func (g *Gram) Triangle(p *Pool, dst []float32) {
	n := g.n
	if len(dst) < n*(n+1)/2 {
		panic(fmt.Sprintf("kernels: triangle of %d elements for n = %d", len(dst), n))
	}
	g.export(p, func(i, j int) []float32 {
		row := i*n - i*(i-1)/2 // where H[i,i] goes
		return dst[row+j-i : row+n-i]
	})
}

// export rounds the upper triangle to float32. place says where row i goes from column j >= i on; it is asked once for
// j = i, and for the first column of every panel behind.
func (g *Gram) export(p *Pool, place func(i, j int) []float32) {
	n := g.n
	if n == 0 {
		return
	}
	t := micro()
	panels := ceilDiv(n, panelWidth)
	open := g.blocks.open()
	var panelLanes, sliceLanes []uint32
	if open.M > 0 {
		per, perSlices := panels*panelWidth*kBlock, t.sliceRows(n)*kBlock
		buf := borrowLanes(per + perSlices)
		defer buf.giveBack()
		panelLanes, sliceLanes = buf.lanes[:per], buf.lanes[per:]
		packBlocks(p, t, panelLanes, sliceLanes, []Rows{open}, per, perSlices)
	}
	p.Do(panels, func(_, ip int) {
		tile := make([]float64, panelWidth*panelWidth)
		i0, i1 := ip*panelWidth, min(n, (ip+1)*panelWidth)
		for jp := ip; jp < panels; jp++ {
			at := gramOffset(jp) + i0*panelWidth
			sum := g.sum[at:][:len(tile)]
			if open.M > 0 {
				copy(tile, sum)
				f, steps := panelKernels(t, &open)
				blockProduct(t, f, steps, sliceLanes, i0, i0+panelWidth, panelLanes[jp*panelWidth*steps:], &tile[0])
				sum = tile
			}
			j0, j1 := jp*panelWidth, min(n, (jp+1)*panelWidth)
			for i := i0; i < i1; i++ {
				from := max(i, j0)
				row := sum[(i-i0)*panelWidth+from-j0:][:j1-from]
				out := place(i, from)[:len(row)]
				for j, v := range row {
					out[j] = float32(v)
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

// tileSteps is the tile size in panels: 9 x 16 when there is enough to share out.
// Three panels are whole slices of 6 and of 8.
func tileSteps(products, threads int) (rows, cols int) {
	rows, cols = 9, 16
	for threads > 1 && products < 6*threads*rows*cols && rows*cols > 6 {
		rows, cols = max(3, rows-3), max(2, cols/2)
	}
	return rows, cols
}
