package model

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"quire/kernels"
	"quire/kernels/dtype"
)

// Embed looks up the rows of token ids, after any embedding multiplier: [len(ids), hidden] in the compute type. Each
// distinct token is read once.
func (r *Runner) Embed(ctx context.Context, ids []int32) (kernels.Rows, error) {
	m, h := r.m, r.m.Hidden
	if len(ids) == 0 {
		return kernels.Rows{}, &Error{Kind: ErrInput, What: "no tokens", Where: Where{Layer: -1, Row: -1}}
	}
	for i, t := range ids {
		if t < 0 || int(t) >= m.Vocab {
			return kernels.Rows{}, &Error{Kind: ErrInput, What: fmt.Sprintf("token id %d, the vocabulary has %d", t, m.Vocab), Where: Where{Layer: -1, Row: i}, Try: tries[ErrInput]}
		}
	}
	scale := m.arch.embedScale
	if m.arch.embedScaleRounded && m.Compute == BF16 {
		scale = dtype.BF16ToF32(dtype.F32ToBF16(scale))
	}
	order := make([]int, len(ids))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(ids[a]) - int(ids[b]) })
	out := newRows(m.Compute, len(ids), h)
	row := make([]float32, h)
	last := int32(-1)
	for _, i := range order {
		if ids[i] != last {
			last = ids[i]
			if err := m.src.ReadF32(ctx, m.arch.embed, row, int64(last)*int64(h)); err != nil {
				return kernels.Rows{}, err
			}
			if !kernels.AllFinite(row) {
				e := nonFinite(m.arch.embed, -1, row, h)
				e.Where.Row = int(last)
				return kernels.Rows{}, e
			}
			if scale != 0 && scale != 1 {
				kernels.Scale(row, row, scale)
			}
		}
		store(out, i, row)
	}
	return out, nil
}

// Head is final norm and output head with the weight in memory.
type Head struct {
	r    *Runner
	norm []float32
	nb   []float32
	w    *kernels.Weight
	bias []float32
	buf  RowBuf
}

// OpenHead reads the final norm and the head's weight, HeadBytes of it.
func (r *Runner) OpenHead(ctx context.Context) (*Head, error) {
	m := r.m
	h := &Head{r: r, norm: make([]float32, m.Hidden)}
	if err := m.src.ReadF32(ctx, m.arch.finalNorm, h.norm, 0); err != nil {
		return nil, err
	}
	if m.arch.norm.bias {
		h.nb = make([]float32, m.Hidden)
		if err := m.src.ReadF32(ctx, strings.TrimSuffix(m.arch.finalNorm, "weight")+"bias", h.nb, 0); err != nil {
			return nil, err
		}
	}
	if m.Head.HasBias() {
		h.bias = make([]float32, m.Vocab)
		if err := m.ReadBias(ctx, m.Head, h.bias); err != nil {
			return nil, err
		}
	}
	var raw []uint16
	var raw32 []float32
	var err error
	h.w, err = m.pack(ctx, m.Head, nil, &raw, &raw32)
	return h, err
}

// Normed gives the rows of the head's site: the final norm of hidden rows x [n, hidden]. They are valid until the next call.
func (h *Head) Normed(x kernels.Rows) kernels.Rows {
	m := h.r.m
	dst := h.buf.make(m.Compute, x.M, m.Hidden)
	blocks(h.r.pool, x.M, 32, func(_, a, b int) {
		buf := make([]float32, (b-a)*m.Hidden)
		CopyF32(buf, part(x, a, b))
		r := m.arch.norm
		if r.layerNorm {
			kernels.LayerNorm(buf, buf, h.norm, h.nb, b-a, m.Hidden, r.eps)
		} else {
			kernels.RMSNorm(buf, buf, h.norm, b-a, m.Hidden, r.eps, r.offset)
		}
		store(dst, a, buf)
	})
	return dst
}

// Logits computes the logits of hidden rows x [n, hidden] into dst [n, vocab], after any scale or soft cap.
func (h *Head) Logits(x kernels.Rows, dst []float32) {
	m := h.r.m
	kernels.GEMM(h.r.pool, kernels.GEMMJob{X: h.Normed(x), W: h.w, Bias: h.bias, Y: dst, LDY: m.Vocab})
	if m.arch.logitScale == 0 && m.arch.logitCap == 0 {
		return
	}
	blocks(h.r.pool, x.M, 4, func(_, a, b int) {
		y := dst[a*m.Vocab : b*m.Vocab]
		if s := m.arch.logitScale; s != 0 {
			kernels.Scale(y, y, s)
		}
		if c := m.arch.logitCap; c != 0 {
			kernels.Div(y, y, c)
			kernels.Tanh(y, y)
			kernels.Scale(y, y, c)
		}
	})
}
