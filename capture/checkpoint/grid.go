package checkpoint

import (
	"context"
	"fmt"
	"slices"

	"quire/kernels/dtype"
)

// scaleGrid is a scale tensor over a weight of shape [experts, rows, cols] (experts 1 for matrices): element (e, r, c) has
// the scale (e/expertsPer, r/rowsPer, c/colsPer).
type scaleGrid struct {
	t                            Tensor
	experts, rows, cols          int // of the weight
	expertsPer, rowsPer, colsPer int
	across, down                 int // scales along cols and along rows
	exponent                     bool
	global                       Tensor // second level; no name: none
	divide                       bool   // by the global scale, not times it
}

// lead folds a shape to [experts, rows, cols].
func lead(shape []int) (e, r, c int) {
	if len(shape) < 2 {
		return 1, 1, shape[len(shape)-1]
	}
	e = 1
	for _, d := range shape[:len(shape)-2] {
		e *= d
	}
	return e, shape[len(shape)-2], shape[len(shape)-1]
}

// blockSizes are tried when a scale's dimension neither is 1 nor that of the weight and the config names no block.
var blockSizes = []int{128, 64, 32, 16}

// per finds how many of n elements share one of k scales; 0 when no stated way fits.
func per(n, k, block int) int {
	switch {
	case k == 1:
		return max(n, 1)
	case k == n:
		return 1
	case block > 0:
		if (n+block-1)/block == k {
			return block
		}
		return 0
	}
	for _, b := range blockSizes {
		if (n+b-1)/b == k {
			return b
		}
	}
	if k > 0 && n%k == 0 {
		return n / k
	}
	return 0
}

// newScaleGrid fits a scale tensor to a weight. block is what the config says of rows and columns, 0 for nothing.
func newScaleGrid(sc Tensor, shape []int, block [2]int) (*scaleGrid, *Error) {
	g := &scaleGrid{t: sc, exponent: sc.DType == U8}
	g.experts, g.rows, g.cols = lead(shape)
	bad := fail(codeScaleShape, sc.Shard, sc.Name, -1, "check weight_block_size and group_size in config.json", "scale %v does not fit weight %v", sc.Shape, shape)
	if sc.Elements() == 1 {
		g.expertsPer, g.rowsPer, g.colsPer, g.across, g.down = g.experts, max(g.rows, 1), max(g.cols, 1), 1, 1
		return g, nil
	}
	s := sc.Shape
	switch {
	case len(s) == 4 && len(shape) == 2 && s[1] == 1 && s[3] == 1: // ModelOpt writes [rows/128, 1, cols/128, 1]
		s = []int{1, s[0], s[2]}
	case len(s) == 1 && g.experts == 1: // per channel
		s = []int{1, s[0], 1}
		if sc.Shape[0] != g.rows {
			return nil, bad
		}
	case len(s) == 1 && s[0] == g.experts && g.experts != g.rows: // per expert
		s = []int{s[0], 1, 1}
	case len(s) == 2 && g.experts == 1:
		s = []int{1, s[0], s[1]}
	case len(s) == 2 && s[0] == g.experts && len(shape) == 3: // per expert and row
		s = []int{s[0], s[1], 1}
	case len(s) == 3 && len(shape) == 3:
	default:
		return nil, bad
	}
	g.expertsPer, g.rowsPer, g.colsPer = per(g.experts, s[0], -1), per(g.rows, s[1], block[0]), per(g.cols, s[2], block[1])
	g.down, g.across = s[1], s[2]
	if s[0] != 1 && s[0] != g.experts || g.rowsPer == 0 || g.colsPer == 0 {
		return nil, bad
	}
	return g, nil
}

// line says in which line of scales row r of the folded weight lies.
func (g *scaleGrid) line(r int) int {
	e, in := r/g.rows, r%g.rows
	return e/g.expertsPer*g.down + in/g.rowsPer
}

// span is the lines that rows r0..r1-1 touch.
func (g *scaleGrid) span(r0, r1 int) (lo, hi int) {
	if g.expertsPer > 1 { // several experts share lines: all of them
		return 0, g.experts / g.expertsPer * g.down
	}
	return g.line(r0), g.line(r1-1) + 1
}

// load reads the lines for rows r0..r1-1 with the second level folded in, and gives the first line's number.
func (g *scaleGrid) load(ctx context.Context, s *Source, r0, r1 int, buf []float32) ([]float32, int, error) {
	lo, hi := g.span(r0, r1)
	n := (hi - lo) * g.across
	buf = slices.Grow(buf[:0], n)[:n]
	if g.exponent {
		raw := make([]byte, n)
		if err := s.ReadAt(ctx, g.t.Name, raw, int64(lo)*int64(g.across)); err != nil {
			return nil, 0, err
		}
		dtype.DecodeE8M0(buf, raw)
	} else if err := s.floats(ctx, g.t, buf, int64(lo)*int64(g.across)); err != nil {
		return nil, 0, err
	}
	if g.global.Name == "" {
		return buf, lo, nil
	}
	all := make([]float32, g.global.Elements())
	if err := s.floats(ctx, g.global, all, 0); err != nil {
		return nil, 0, err
	}
	for i := range buf {
		second := all[0]
		if len(all) > 1 {
			second = all[(lo+i/g.across)/g.down]
		}
		if g.divide {
			buf[i] /= second
		} else {
			buf[i] *= second
		}
	}
	return buf, lo, nil
}

func (g *scaleGrid) String() string {
	switch {
	case g.across == 1 && g.down == 1:
		return "per tensor"
	case g.across == 1 && g.rowsPer == 1:
		return "per channel"
	case g.rowsPer == 1:
		return fmt.Sprintf("group %d", g.colsPer)
	}
	return fmt.Sprintf("%dx%d", g.rowsPer, g.colsPer)
}

// rowCodes says how the codes of one row of the folded weight lie and become numbers.
type rowCodes struct {
	t      Tensor
	bytes  int // a row
	unpack func(dst []float32, row []byte)
}

// gridDecoder multiplies row codes with a scale grid: value = code * scale.
func (s *Source) gridDecoder(codes rowCodes, g *scaleGrid) rectangle {
	return func(ctx context.Context, dst sink, r0, r1, c0, c1 int) error {
		batch := min(max(1, BufferBytes/max(codes.bytes, 1)), r1-r0)
		raw := make([]byte, batch*codes.bytes)
		v := make([]float32, g.cols)
		var scales []float32
		for r := r0; r < r1; r += batch {
			n := min(batch, r1-r)
			if err := s.ReadAt(ctx, codes.t.Name, raw[:n*codes.bytes], int64(r)*int64(codes.bytes)); err != nil {
				return err
			}
			var lo int
			var err error
			if scales, lo, err = g.load(ctx, s, r, r+n, scales); err != nil {
				return err
			}
			for i := range n {
				codes.unpack(v, raw[i*codes.bytes:(i+1)*codes.bytes])
				at := (g.line(r+i) - lo) * g.across
				for c, k := 0, 0; c < g.cols; c, k = c+g.colsPer, k+1 {
					f := scales[at+k]
					part := v[c:min(c+g.colsPer, g.cols)]
					for j := range part {
						part[j] *= f
					}
				}
				dst.put((r+i-r0)*(c1-c0), v[c0:c1])
			}
		}
		return nil
	}
}
