package kernels

import "fmt"

// GEMMJob is one product Y = X·Wᵀ: Y[m,n] (+)= Σ_k X[m,k]·W[n,k] + Bias[n].
//
// The value of an element is fixed by the contract: c starts as nothing, as
// Bias[n], as Y (Add), or as Y + Bias; then for each K block of 256 in order,
// s is a chain of fused multiply-adds from zero and c becomes s or c + s. The order
// inside a block is k = 0,1,2,3… for a float32 weight and 1,0,3,2… for a bf16
// weight, whatever the type of X.
type GEMMJob struct {
	X    Rows
	W    *Weight
	Bias []float32 // nil or n
	Y    []float32
	LDY  int  // row stride of Y, >= n; 0 means n
	Add  bool // add to Y instead of replacing it
}

// gemmPackBytes bounds the packed copy of X that one GEMM call holds, beside one
// row panel of the widest job (14·K·4 bytes).
const gemmPackBytes = 32 << 20

// gemmUnit is a range of rows of one job whose packed X fits the buffer.
type gemmUnit struct {
	job  *GEMMJob
	kind laneKind
	r0   int // first row
	rows int
	high int // height of all row panels but the last
	at   int // first lane in the buffer
	same int // index of an earlier unit with the same packed X, or -1
}

// gemmTile is a task: row panels p0..p1 times weight panels j0..j1 of a unit.
type gemmTile struct{ unit, p0, p1, j0, j1 int }

// GEMM runs the jobs as one list of tasks. Outputs must not overlap each other
// or any input. Jobs that name the same X share its packed copy. The memory
// beside operands is at most gemmPackBytes (32 MiB) or one row panel.
func GEMM(p *Pool, jobs ...GEMMJob) {
	t := micro()
	var units []gemmUnit
	lanes := 0
	flush := func() {
		if len(units) > 0 {
			runUnits(p, t, units, lanes)
			units, lanes = units[:0], 0
		}
	}
	for i := range jobs {
		j := &jobs[i]
		j.check()
		if j.X.M == 0 || j.W.n == 0 {
			continue
		}
		kind := packedKind(t, &j.X, j.W)
		high := ceilDiv(j.X.M, ceilDiv(j.X.M, t.rows))
		perRow := (&gemmUnit{job: j, kind: kind}).xLanes(j.X.K)
		most := max(1, gemmPackBytes/4/max(1, perRow*high)) * high // rows that fit an empty buffer
		for r0 := 0; r0 < j.X.M; {
			u := gemmUnit{job: j, kind: kind, r0: r0, rows: min(most, j.X.M-r0), high: high, same: -1}
			need := (u.rows*perRow + 15) &^ 15
			if s := findSame(units, &u); s >= 0 {
				u.same, u.at, need = s, units[s].at, 0
			} else if lanes > 0 && lanes+need > gemmPackBytes/4 {
				flush()
			}
			if u.same < 0 {
				u.at = lanes
				lanes += need
			}
			units = append(units, u)
			r0 += u.rows
		}
	}
	flush()
}

func (j *GEMMJob) check() {
	j.X.check()
	if j.LDY == 0 {
		j.LDY = j.W.n
	}
	switch {
	case j.X.K != j.W.k:
		panic(fmt.Sprintf("kernels: GEMM of X [%d,%d] with W [%d,%d]", j.X.M, j.X.K, j.W.n, j.W.k))
	case j.LDY < j.W.n:
		panic(fmt.Sprintf("kernels: GEMM row stride %d below %d outputs", j.LDY, j.W.n))
	case j.Bias != nil && len(j.Bias) != j.W.n:
		panic(fmt.Sprintf("kernels: GEMM bias of %d for %d outputs", len(j.Bias), j.W.n))
	case j.X.M > 0 && len(j.Y) < (j.X.M-1)*j.LDY+j.W.n:
		panic(fmt.Sprintf("kernels: GEMM output of %d elements for [%d,%d] with stride %d", len(j.Y), j.X.M, j.W.n, j.LDY))
	}
}

// packedKind is how X is packed to meet W.
func packedKind(t *microTable, x *Rows, w *Weight) laneKind {
	switch {
	case x.BF16 != nil && w.bf16 && t.nativeBF16():
		return lanePair
	case x.BF16 != nil && w.bf16:
		return laneWidenZero
	case x.BF16 != nil:
		return laneWiden
	}
	return laneF32
}

// xLanes is the number of lanes along k of packed X: a float32 X that meets bf16
// pairs is padded to even k.
func (u *gemmUnit) xLanes(k int) int {
	if u.kind == laneF32 && u.job.W.bf16 {
		return (k + 1) &^ 1
	}
	return u.kind.laneCount(k)
}

// findSame looks for a unit whose packed rows can be shared. Only the last few
// can match in practice: gate and up of one expert, q, k and v of one layer.
func findSame(units []gemmUnit, u *gemmUnit) int {
	for i := len(units) - 1; i >= max(0, len(units)-4); i-- {
		o := &units[i]
		a, b := &o.job.X, &u.job.X
		if o.same < 0 && o.kind == u.kind && o.job.W.bf16 == u.job.W.bf16 && o.r0 == u.r0 && o.rows == u.rows && o.high == u.high &&
			a.M == b.M && a.K == b.K && a.Stride == b.Stride && sameStart(a.F32, b.F32) && sameStart(a.BF16, b.BF16) {
			return i
		}
	}
	return -1
}

func sameStart[T any](a, b []T) bool {
	if len(a) == 0 || len(b) == 0 {
		return len(a) == len(b)
	}
	return &a[0] == &b[0]
}

// runUnits packs the rows of all units, then computes all tiles.
func runUnits(p *Pool, t *microTable, units []gemmUnit, lanes int) {
	buf := borrowLanes(lanes + 64)
	defer buf.giveBack()
	type packTask struct{ unit, p0, p1 int }
	var packs []packTask
	for i := range units {
		u := &units[i]
		if u.same >= 0 {
			continue
		}
		panels := ceilDiv(u.rows, u.high)
		step := max(1, (64<<10)/max(1, u.high*u.job.X.K)) // about 64 Ki elements a task
		for p0 := 0; p0 < panels; p0 += step {
			packs = append(packs, packTask{i, p0, min(panels, p0+step)})
		}
	}
	p.Do(len(packs), func(_, i int) {
		u := &units[packs[i].unit]
		for k0 := 0; k0 < u.job.X.K; k0 += kBlock {
			for ip := packs[i].p0; ip < packs[i].p1; ip++ {
				u.pack(t, buf.lanes, k0, ip)
			}
		}
	})
	tiles := cutTiles(units, p.Threads())
	p.Do(len(tiles), func(_, i int) { computeTile(t, &units[tiles[i].unit], buf.lanes, &tiles[i]) })
}

// panel is the place of row panel ip in the K block that begins at k0, and its height.
func (u *gemmUnit) panel(k0, ip int) (at, height int) {
	steps := u.xLanes(min(kBlock, u.job.X.K-k0))
	before := ip * u.high
	return u.at + u.xLanes(k0)*u.rows + steps*before, min(u.high, u.rows-before)
}

func (u *gemmUnit) pack(t *microTable, lanes []uint32, k0, ip int) {
	at, h := u.panel(k0, ip)
	kn := min(kBlock, u.job.X.K-k0)
	steps := u.xLanes(kn)
	dst := lanes[at : at+steps*h]
	packTranspose(t, u.kind, dst, h, &u.job.X, u.r0+ip*u.high, h, k0, kn)
	if n := u.kind.laneCount(kn); n < steps {
		clear(dst[n*h:])
	}
}

// cutTiles cuts the output into tasks: large enough to hide the hand-over, small
// enough that the packed rows of a task stay in the second-level cache and that
// threads end together.
func cutTiles(units []gemmUnit, threads int) []gemmTile {
	const (
		cacheLanes = 60 << 10  // packed lanes of one K block: 240 KB
		least      = 1_500_000 // multiply-adds, some 20 µs on one AVX2 core
		most       = 200_000_000
	)
	var total int64
	for i := range units {
		u := &units[i]
		total += int64(u.rows) * int64(u.job.X.K) * int64(u.job.W.n)
	}
	target := max(least, min(most, total/int64(threads*6)))
	var tiles []gemmTile
	for i := range units {
		u := &units[i]
		rowPanels, cols := ceilDiv(u.rows, u.high), ceilDiv(u.job.W.n, panelWidth)
		stepP := max(1, cacheLanes/(u.high*kBlock))
		stepP = ceilDiv(rowPanels, ceilDiv(rowPanels, stepP))
		perPanel := int64(stepP*u.high) * int64(max(1, u.job.X.K)) * panelWidth
		stepJ := max(1, min(cols, 48, int(target/perPanel)))
		stepJ = ceilDiv(cols, ceilDiv(cols, stepJ))
		for p0 := 0; p0 < rowPanels; p0 += stepP {
			for j0 := 0; j0 < cols; j0 += stepJ {
				tiles = append(tiles, gemmTile{i, p0, min(rowPanels, p0+stepP), j0, min(cols, j0+stepJ)})
			}
		}
	}
	return tiles
}

// computeTile runs all K blocks of one tile.
func computeTile(t *microTable, u *gemmUnit, lanes []uint32, tl *gemmTile) {
	job := u.job
	w, k := job.W, job.X.K
	kernels := &t.f32
	switch {
	case u.kind == lanePair:
		kernels = &t.dot
	case w.bf16:
		kernels = &t.wide
	}
	c0, c1 := tl.j0*panelWidth, min(w.n, tl.j1*panelWidth)
	r0, r1 := u.r0+tl.p0*u.high, u.r0+min(u.rows, tl.p1*u.high)
	mode := job.start(r0, r1, c0, c1)
	var edge [maxHeight * panelWidth]float32
	for k0 := 0; k0 < k; k0 += kBlock {
		for jp := tl.j0; jp < tl.j1; jp++ {
			b := w.panel(k0, jp)
			steps := len(b) / panelWidth
			next := w.after(k0, jp, tl)
			ahead := t.fetchStep(4*len(next), steps*(tl.p1-tl.p0))
			fetched := 0 // bytes
			whole := (jp+1)*panelWidth <= w.n
			for ip := tl.p0; ip < tl.p1; {
				at, h := u.panel(k0, ip)
				a, pf := lanePtr(lanes, at), fetchPtr(next, b, fetched)
				y := job.Y[(u.r0+ip*u.high)*job.LDY+jp*panelWidth:]
				count := 1
				if whole {
					count = min(tl.p1, u.rows/u.high) - ip // tiles of the full height
					if h < u.high {
						count = 1
					}
					kernels[h](steps, a, h, lanePtr(b, 0), steps*panelWidth/2, &y[0], job.LDY, mode, count, pf, ahead)
				} else {
					kernels[h](steps, a, h, lanePtr(b, 0), steps*panelWidth/2, &edge[0], panelWidth, modeStore, 1, pf, ahead)
					n := w.n - jp*panelWidth
					for r := range h {
						joinRow(y[r*job.LDY:][:n], edge[r*panelWidth:], mode)
					}
				}
				ip += count
				fetched += ahead * steps * t.passes * count
			}
		}
		mode = modeAdd
	}
}

// after is the weight panel that the tile reads next, for prefetching; nil behind the last.
func (w *Weight) after(k0, jp int, tl *gemmTile) []uint32 {
	switch {
	case jp+1 < tl.j1:
		return w.panel(k0, jp+1)
	case k0+kBlock < w.k:
		return w.panel(k0+kBlock, tl.j0)
	}
	return nil
}

// fetchPtr is where fetching goes on after so many bytes of next, or the start of here when
// next is empty. It never leaves its slice: the collector stops a program that holds an
// address outside every allocation, read or not.
func fetchPtr(next, here []uint32, bytes int) *float32 {
	if len(next) == 0 {
		return lanePtr(here, 0)
	}
	return lanePtr(next, min(bytes/4, len(next)-1))
}

// start prepares C and says how the first K block joins it.
func (j *GEMMJob) start(r0, r1, c0, c1 int) int {
	if j.Bias == nil && j.X.K > 0 {
		if j.Add {
			return modeAdd
		}
		return modeStore
	}
	for r := r0; r < r1; r++ {
		row := j.Y[r*j.LDY+c0 : r*j.LDY+c1]
		switch {
		case j.Bias == nil && !j.Add:
			clear(row)
		case j.Bias == nil:
		case j.Add:
			for i, b := range j.Bias[c0:c1] {
				row[i] += b
			}
		default:
			copy(row, j.Bias[c0:c1])
		}
	}
	return modeAdd
}

func joinRow(c, s []float32, mode int) {
	if mode == modeStore {
		copy(c, s)
		return
	}
	for i := range c {
		c[i] += s[i]
	}
}
