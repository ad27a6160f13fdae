package kernels

import "unsafe"

// blockStore cuts the rows of a statistic into blocks of 256 counted from its
// first row, and keeps the rows of the last, partly filled one between calls.
type blockStore struct {
	width int
	kind  rowKind
	f32   []float32
	bf16  []uint16
	held  int // rows of the open block
}

type rowKind int

const (
	rowsUndecided rowKind = iota
	rowsF32
	rowsBF16
)

func (s *blockStore) reset(width int) {
	s.width, s.kind, s.held = width, rowsUndecided, 0
}

// open is the partly filled block as rows; M is 0 when there is none.
func (s *blockStore) open() Rows {
	x := Rows{M: s.held, K: s.width, Stride: s.width}
	if s.held == 0 {
		return x
	}
	if s.kind == rowsBF16 {
		x.BF16 = s.bf16
	} else {
		x.F32 = s.f32
	}
	return x
}

// add splits x and calls full with every list of filled blocks, in order. The
// blocks are valid during the call.
func (s *blockStore) add(x Rows, full func([]Rows)) {
	if s.kind == rowsUndecided {
		s.kind = rowsF32
		if x.BF16 != nil {
			s.kind = rowsBF16
		}
	}
	if s.kind == rowsBF16 && x.BF16 == nil {
		panic("kernels: float32 rows for a statistic of bf16 rows")
	}
	var blocks []Rows
	at := 0
	if s.held > 0 {
		at = min(kBlock-s.held, x.M)
		s.keep(x, 0, at)
		if s.held < kBlock {
			return
		}
		// The open block is packed before its memory is used again.
		full([]Rows{s.open()})
		s.held = 0
	}
	direct := s.kind == rowsBF16 || x.F32 != nil
	for ; at+kBlock <= x.M; at += kBlock {
		if !direct {
			s.keep(x, at, at+kBlock)
			full([]Rows{s.open()})
			s.held = 0
			continue
		}
		blocks = append(blocks, x.slice(at, kBlock))
	}
	if len(blocks) > 0 {
		full(blocks)
	}
	s.keep(x, at, x.M)
}

// slice is rows r..r+m.
func (x *Rows) slice(r, m int) Rows {
	y := Rows{M: m, K: x.K, Stride: x.Stride}
	if x.F32 != nil {
		y.F32 = x.F32[r*x.Stride:]
	} else {
		y.BF16 = x.BF16[r*x.Stride:]
	}
	return y
}

// keep copies rows r0..r1 behind the held ones.
func (s *blockStore) keep(x Rows, r0, r1 int) {
	if r0 == r1 {
		return
	}
	if s.kind == rowsBF16 {
		if len(s.bf16) < kBlock*s.width {
			s.bf16 = make([]uint16, kBlock*s.width)
		}
	} else if len(s.f32) < kBlock*s.width {
		s.f32 = make([]float32, kBlock*s.width)
	}
	for r := r0; r < r1; r++ {
		at := s.held * s.width
		switch {
		case s.kind == rowsBF16:
			copy(s.bf16[at:at+s.width], x.BF16[r*x.Stride:])
		case x.F32 != nil:
			copy(s.f32[at:at+s.width], x.F32[r*x.Stride:])
		default:
			row := x.BF16[r*x.Stride:][:s.width]
			for i, h := range row {
				s.f32[at+i] = f32bits(uint32(h) << 16)
			}
		}
		s.held++
	}
}

// panelKernels chooses the kernel kind for one block of rows, and its steps.
func panelKernels(t *microTable, x *Rows) (f *[maxHeight + 1]microKernel, steps int) {
	switch {
	case x.BF16 == nil:
		return &t.f32, x.M
	case t.nativeBF16():
		return &t.dot, (x.M + 1) / 2
	}
	return &t.f32, (x.M + 1) &^ 1
}

// sliceRows is the rows of a sliced operand of n columns: whole slices.
func (t *microTable) sliceRows(n int) int {
	return ceilDiv(ceilDiv(n, panelWidth)*panelWidth, t.slice) * t.slice
}

// packBlocks packs every block into panels [panel][half][step][16], per lanes apart,
// and, if slices is not nil, once more for the broadcast side: the same columns in slices
// of the height of the level, [slice][step][height], perSlices lanes apart.
// Without a bf16 dot product, bf16 rows are widened with each pair swapped, so that the natural
// order of the f32 kernel is the contract's 1,0,3,2.
func packBlocks(p *Pool, t *microTable, lanes, slices []uint32, blocks []Rows, per, perSlices int) {
	const group = 12 // panels a task: whole slices of 6 and of 8
	cols := ceilDiv(blocks[0].K, panelWidth) * panelWidth
	groups := ceilDiv(cols, group*panelWidth)
	kind := laneF32
	if blocks[0].BF16 != nil {
		kind = laneWidenZero
		if t.nativeBF16() {
			kind = lanePair
		}
	}
	p.Do(len(blocks)*groups, func(_, task int) {
		b, g := task/groups, task%groups
		x := &blocks[b]
		_, steps := panelKernels(t, x)
		c0, c1 := g*group*panelWidth, min(cols, (g+1)*group*panelWidth)
		const w = panelWidth / 2
		for c := c0; c < c1 && lanes != nil; c += w {
			x.packColumns(t, kind, lanes[b*per+c*steps:][:w*steps], w, c, max(0, min(w, x.K-c)))
		}
		for c := c0; c < c1 && slices != nil; c += t.slice {
			x.packColumns(t, kind, slices[b*perSlices+c*steps:][:t.slice*steps], t.slice, c, max(0, min(t.slice, x.K-c)))
		}
	})
}

// cutRows cuts rows r0..r1 of an operand in slices of height h into tiles: count
// tiles of high rows from row r. Only the first and the last tile can be lower than a slice.
func cutRows(r0, r1, h int, tiles func(r, high, count int)) {
	for r := r0; r < r1; {
		high, count := min(h-r%h, r1-r), 1
		if high == h {
			count = (r1 - r) / h
		}
		tiles(r, high, count)
		r += high * count
	}
}

// blockProduct joins AᵀB with a float64 C [row][32]: columns r0..r1 of a sliced
// operand and one panel. c is the element of row r0. The panel behind b, if there is one, is fetched meanwhile.
func blockProduct(t *microTable, f *[maxHeight + 1]microKernel, steps int, a []uint32, r0, r1 int, b []uint32, c *float64) {
	var next []uint32
	if len(b) >= 2*panelWidth*steps {
		next = b[panelWidth*steps : 2*panelWidth*steps]
	}
	ahead, fetched := t.fetchStep(4*len(next), steps*ceilDiv(r1-r0, t.slice)), 0 // bytes
	cutRows(r0, r1, t.slice, func(r, high, count int) {
		at := lanePtr(a, r/t.slice*t.slice*steps+r%t.slice)
		out := (*float32)(unsafe.Pointer(advance(c, 8*(r-r0)*panelWidth)))
		f[high](steps, at, t.slice, lanePtr(b, 0), steps*panelWidth/2, out, panelWidth, modeAdd64, count, fetchPtr(next, b, fetched), ahead)
		fetched += ahead * steps * count * t.passes
	})
}
