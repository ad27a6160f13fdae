package kernels

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

// packBlocks packs every block into 32-wide panels [panel][half][step][16], per lanes
// apart. Without a bf16 dot product, bf16 rows are widened with each pair
// swapped, so that the natural order of the f32 kernel is the contract's 1,0,3,2.
// slices, if not nil, gets the same panels cut for the broadcast side.
func packBlocks(p *Pool, t *microTable, lanes, slices []uint32, blocks []Rows, per int) {
	panels := ceilDiv(blocks[0].K, panelWidth)
	const group = 16
	groups := ceilDiv(panels, group)
	p.Do(len(blocks)*groups, func(_, task int) {
		b, g := task/groups, task%groups
		x := &blocks[b]
		_, steps := panelKernels(t, x)
		for jp := g * group; jp < min(panels, g*group+group); jp++ {
			at := b*per + jp*panelWidth*steps
			panel := lanes[at : at+panelWidth*steps]
			x.packPanel(t, panel, jp*panelWidth)
			if slices != nil {
				slicePanel(t, slices[at:at+panelWidth*steps], panel, steps)
			}
		}
	})
}

// slicePanel cuts a panel [half][step][16] into the tile heights of the level, slice
// after slice as [step][height]: as the broadcast side of a product a slice of the
// panel itself would touch a cache line a step and push the other side out of the cache.
func slicePanel(t *microTable, dst, panel []uint32, steps int) {
	const w = panelWidth / 2
	r := 0
	for _, s := range t.slices {
		for range s.count {
			h := s.height
			out := dst[r*steps : (r+h)*steps]
			left := min(h, max(0, w-r)) // rows of the left half
			switch {
			case r < w && r+h > w:
				a, b := panel[r:], panel[steps*w:]
				for i := range steps {
					row := out[i*h : (i+1)*h]
					copy(row, a[i*w:][:left])
					copy(row[left:], b[i*w:])
				}
			default:
				from := panel[r:]
				if r >= w {
					from = panel[steps*w+r-w:]
				}
				copyColumns(out, from, h, steps)
			}
			r += h
		}
	}
}

// copyColumns takes the first h lanes of every 16.
func copyColumns(out, from []uint32, h, steps int) {
	const w = panelWidth / 2
	switch h {
	case 8:
		for i := range steps {
			*(*[8]uint32)(out[i*8:]) = *(*[8]uint32)(from[i*w:])
		}
	case 6:
		for i := range steps {
			*(*[6]uint32)(out[i*6:]) = *(*[6]uint32)(from[i*w:])
		}
	case 5:
		for i := range steps {
			*(*[5]uint32)(out[i*5:]) = *(*[5]uint32)(from[i*w:])
		}
	default:
		for i := range steps {
			copy(out[i*h:(i+1)*h], from[i*w:])
		}
	}
}

// packPanel packs columns c0..c0+32 of x along its rows: step i, lane j holds
// x[i][c0+j] (bf16: see packBlocks). Columns past K are zero.
func (x *Rows) packPanel(t *microTable, dst []uint32, c0 int) {
	x.packHalf(t, dst[:len(dst)/2], c0)
	x.packHalf(t, dst[len(dst)/2:], c0+panelWidth/2)
}

func (x *Rows) packHalf(t *microTable, dst []uint32, c0 int) {
	const w = panelWidth / 2
	cols := max(0, min(w, x.K-c0))
	if cols < w {
		clear(dst)
	}
	if cols == 0 {
		return
	}
	switch {
	case x.BF16 == nil:
		out := floats(dst)
		for r := range x.M {
			if cols == w {
				*(*[w]float32)(out[r*w:]) = *(*[w]float32)(x.F32[r*x.Stride+c0:])
				continue
			}
			copy(out[r*w:r*w+cols], x.F32[r*x.Stride+c0:])
		}
	case t.nativeBF16():
		for r := 0; r < x.M; r += 2 {
			lo := x.BF16[r*x.Stride+c0:][:cols]
			var hi []uint16
			if r+1 < x.M {
				hi = x.BF16[(r+1)*x.Stride+c0:][:cols]
			}
			interleaveRows(t, dst[r/2*w:][:w], lo, hi)
		}
	default:
		for r := range x.M {
			widenRow(t, dst[(r^1)*w:][:w], x.BF16[r*x.Stride+c0:][:cols])
		}
		if x.M&1 == 1 {
			clear(dst[(x.M-1)*w:][:w])
		}
	}
}
