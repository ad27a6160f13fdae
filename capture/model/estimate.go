package model

import "quire/kernels"

// weightBytes is the packed size of a linear and its bias.
func (m *Model) weightBytes(l *Linear) int64 {
	n := kernels.PackedBytes(l.Out, l.In, m.bf16Weight(l))
	if l.HasBias() {
		n += 4 * int64(l.Out)
	}
	return n
}

// LayerBytes is what OpenLayer holds: norms, attention, router, dense and shared feed-forward weights, packed. Routed
// experts come on top with ExpertBytes each.
func (m *Model) LayerBytes(layer int) int64 {
	var n int64
	l := m.Layers[layer]
	for _, x := range l.linears {
		if x.Expert < 0 {
			n += m.weightBytes(x)
		}
	}
	for _, s := range l.small {
		n += 4 * m.tensor[s].Elements()
	}
	return n
}

// ExpertBytes is one routed expert's packed weights; 0 for a dense layer.
func (m *Model) ExpertBytes(layer int) int64 {
	var n int64
	for _, x := range m.Layers[layer].Expert(0) {
		n += m.weightBytes(x)
	}
	return n
}

// LoadBytes is the unpacked copy that exists while the largest linear of a layer is read.
func (m *Model) LoadBytes(layer int) int64 {
	var n int64
	for _, x := range m.Layers[layer].linears {
		e := x.Elements() * 4
		if m.bf16Weight(x) {
			e = x.Elements() * 2
		}
		if x.layout.si != 1 { // the strided copy too
			e += e / max(x.Elements(), 1) * x.layout.span
		}
		n = max(n, e)
	}
	return n
}

// HeadBytes is the packed output head, with its unpacked copy while it is read.
func (m *Model) HeadBytes() int64 {
	e := m.Head.Elements() * 4
	if m.bf16Weight(m.Head) {
		e /= 2
	}
	return m.weightBytes(m.Head) + e
}

// SpanBytes is the most that a span of rows holds at any moment of a layer, residual, site rows and routing included,
// without the scratch of RunnerOptions.
func (m *Model) SpanBytes(layer, rows int) int64 {
	l := m.Layers[layer]
	el, h := m.Compute.ElemBytes(), int64(m.Hidden)
	x := 4 * h // residual
	peak := x + el*h
	in := int64(0) // rows that live on: the block input of a parallel layer
	if l.arch.parallel() {
		in = el * h
	}
	for _, st := range l.Stages {
		held := x + in
		switch {
		case st.Block != nil:
			b := st.Block
			held += el*h + 4*h + int64(b.Experts)*4 + int64(b.TopK)*8*2
			if b.SharedMid != nil {
				held += el * int64(b.SharedMid.In)
			}
		case st.Name == SiteAttnIn:
			held += el * h
			for _, nx := range l.Stages[1].Sites {
				held += el * int64(nx.In)
			}
			held += l.arch.mixer.keptPerRow()
		case st.Name == SiteQB || st.Name == SiteKVB:
			for _, s := range append(append([]*Site{}, st.Sites...), l.Stages[st.Index+1].Sites...) {
				held += el * int64(s.In)
			}
			held += l.arch.mixer.keptPerRow()
		case st.Name == SiteAttnOut:
			held += el*int64(st.Sites[0].In) + 4*h
		case st.Name == SiteMLPIn:
			held += el*h + el*int64(l.arch.dense.inter)
		case st.Name == SiteMLPMid:
			held += el*int64(l.arch.dense.inter) + 4*h
		}
		peak = max(peak, held)
	}
	return peak * int64(rows)
}

// ScratchNeeded is the working memory of one call for a span whose longest sequence has maxLen tokens: the scratch of the
// options, or more where a single sequence's attention needs it.
func (m *Model) ScratchNeeded(layer int, maxLen int, scratch int64) int64 {
	if scratch <= 0 {
		scratch = 64 << 20
	}
	return max(scratch, m.Layers[layer].arch.mixer.bytesPerRow()*int64(max(maxLen, 256))) + 32<<20 // and GEMM's packed rows
}

// expertBatch is how many experts a call loads at once when the caller has not loaded them.
func (r *Runner) expertBatch(l *Layer) int {
	if l.Block == nil {
		return 1
	}
	return int(min(max(r.opt.ScratchBytes/max(r.m.ExpertBytes(l.Index), 1), 1), int64(l.Block.Experts)))
}
