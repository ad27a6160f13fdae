package checkpoint

import (
	"context"
	"slices"

	"quire/kernels/dtype"
)

// blocks reads gpt-oss's mxfp4 experts: X_blocks [E, O, I/32, 16] and X_scales [E, O, I/32] stand for X [E, I, O], the
// transposed layout that the unquantized file of that family has.
func (s *Source) blocks(name string, w Tensor) (*logicalTensor, *Error) {
	sc, err := s.need(w, name+"_scales")
	if err != nil {
		return nil, err
	}
	if len(w.Shape) != 4 || w.Shape[3] != 16 || sc.DType != U8 && sc.DType != F8E8M0 || !slices.Equal(sc.Shape, w.Shape[:3]) {
		return nil, fail(codeScaleShape, w.Shard, w.Name, -1, fetchAgain, "blocks %v with scales %v of %s, want [E, O, I/32, 16] and [E, O, I/32]", w.Shape, sc.Shape, sc.DType)
	}
	e, out, groups := w.Shape[0], w.Shape[1], w.Shape[2]
	in := groups * 32
	l := &logicalTensor{Logical: Logical{Name: name, DType: w.DType, Shape: []int{e, in, out}, Decoded: true, Format: "mxfp4 blocks", Stored: names(w, sc)}}
	l.decode = func(ctx context.Context, dst sink, r0, r1, c0, c1 int) error {
		const tile, block = 64, 16
		codes, exps := make([]byte, tile*groups*16), make([]byte, tile*groups)
		v := make([]float32, tile*in)         // [output][input]
		turned := make([]float32, block*tile) // [input][output]
		scale := make([]float32, groups)
		for r := r0; r < r1; { // expert by expert
			expert := r / in
			last := min(r1, (expert+1)*in)
			for o := c0; o < c1; o += tile {
				n := min(tile, c1-o)
				line := int64(expert*out+o) * int64(groups)
				if err := s.ReadAt(ctx, w.Name, codes[:n*groups*16], line*16); err != nil {
					return err
				}
				if err := s.ReadAt(ctx, sc.Name, exps[:n*groups], line); err != nil {
					return err
				}
				for k := range n {
					row := v[k*in : (k+1)*in]
					dtype.DecodeE2M1(row, codes[k*groups*16:(k+1)*groups*16])
					dtype.DecodeE8M0(scale, exps[k*groups:(k+1)*groups])
					for g, f := range scale {
						for j := range row[g*32 : g*32+32] {
							row[g*32+j] *= f
						}
					}
				}
				for i := r; i < last; i += block { // turned over in blocks that stay in the nearest cache
					m := min(block, last-i)
					for k := range n {
						for j, x := range v[k*in+i-expert*in:][:m] {
							turned[j*tile+k] = x
						}
					}
					for j := range m {
						dst.put((i+j-r0)*(c1-c0)+o-c0, turned[j*tile:j*tile+n])
					}
				}
			}
			r = last
		}
		return nil
	}
	return l, nil
}
