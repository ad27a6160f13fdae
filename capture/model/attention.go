package model

import (
	"quire/kernels"
)

// declare states the linears, sites and norms of grouped-query attention.
func (a *attnArch) declare(b *layerBuilder) {
	in := b.norm(b.l.arch.inNorm, b.c.m.arch.hidden)
	x := b.site(b.stage(SiteAttnIn), SiteAttnIn, b.c.m.arch.hidden, in)
	q, kv := a.heads*a.dim, a.kvHeads*a.dim
	if a.qkv != "" {
		b.linear(x, a.prefix+a.qkv, RoleQKV, q+2*kv, a.qkvBias)
	} else {
		b.linear(x, a.prefix+a.q, RoleQ, q, a.qkvBias)
		b.linear(x, a.prefix+a.k, RoleK, kv, a.qkvBias)
		b.linear(x, a.prefix+a.v, RoleV, kv, a.qkvBias)
	}
	if a.gate != "" {
		b.linear(x, a.prefix+a.gate, RoleAttnGate, q, false)
	}
	if a.qNorm != "" {
		nq, nk := a.dim, a.dim
		if a.normWhole {
			nq, nk = q, kv
		}
		b.small(a.prefix+a.qNorm+".weight", RoleNorm, nq)
		b.small(a.prefix+a.kNorm+".weight", RoleNorm, nk)
	}
	if a.sinks != "" {
		b.small(a.prefix+a.sinks, RoleSinks, a.heads)
	}
	o := b.site(b.stage(SiteAttnOut), SiteAttnOut, q, nil)
	b.linear(o, a.prefix+a.o, RoleO, b.c.m.arch.hidden, a.oBias)
	if a.heads%a.kvHeads != 0 {
		b.fault(errAt(ErrConfig, "", "%d heads over %d key-value heads", a.heads, a.kvHeads))
	}
}

// bytesPerRow is q, k, v, output and gate in float32.
func (a *attnArch) bytesPerRow() int64 {
	n := int64(2*a.heads+2*a.kvHeads) * int64(a.dim)
	if a.gate != "" {
		n += int64(a.heads) * int64(a.dim)
	}
	return 4 * n
}

func (a *attnArch) newMixer(run *LayerRun) (mixer, error) {
	m := &attnMixer{a: a, run: run, lin: func(rel string) *Linear { return run.m.byName[run.Layer.Prefix+a.prefix+rel] }}
	if a.sinks != "" {
		m.sinks = run.small[run.Layer.Prefix+a.prefix+a.sinks]
	}
	return m, nil
}

// attnMixer computes grouped-query attention.
type attnMixer struct {
	a     *attnArch
	run   *LayerRun
	lin   func(rel string) *Linear
	sinks []float32
}

func (m *attnMixer) stage(s *Span, i int) ([]float32, error) {
	if i == 0 {
		m.attend(s)
		if !m.run.Layer.arch.parallel() {
			s.drop(SiteAttnIn)
		}
		return nil, nil
	}
	x, _ := s.plane(SiteAttnOut)
	out := make([]float32, s.rows*m.run.m.Hidden)
	s.linear(m.lin(m.a.o), x, out)
	s.drop(SiteAttnOut)
	return out, nil
}

// attend computes q, k, v, positions and attention, whole sequences at a time within the scratch.
func (m *attnMixer) attend(s *Span) {
	a := m.a
	x, _ := s.plane(SiteAttnIn)
	dst := s.newPlane(SiteAttnOut, a.heads*a.dim)
	limit := chunkRows(m.run.r.opt.ScratchBytes, a.bytesPerRow())
	var buf []float32
	for lo := 0; lo < len(s.seqs); {
		hi, rows := lo, 0
		for hi < len(s.seqs) && (hi == lo || rows+s.seqs[hi].Len <= limit) {
			rows += s.seqs[hi].Len
			hi++
		}
		buf = grow(buf, rows*int(a.bytesPerRow()/4))
		first := s.seqs[lo].Start
		m.group(s.seqs[lo:hi], part(x, first, first+rows), part(dst, first, first+rows), buf)
		lo = hi
	}
}

// group is attend for the sequences seqs, whose rows are x.
func (m *attnMixer) group(seqs []kernels.Seq, x, dst kernels.Rows, buf []float32) {
	a, run, n := m.a, m.run, x.M
	nq, nk := a.heads*a.dim, a.kvHeads*a.dim
	ld := nq + 2*nk
	qkv, out := buf[:n*ld], buf[n*ld:n*(ld+nq)]
	var jobs []kernels.GEMMJob
	if a.qkv != "" {
		jobs = append(jobs, run.job(m.lin(a.qkv), x, qkv, ld))
	} else {
		jobs = append(jobs, run.job(m.lin(a.q), x, qkv, ld), run.job(m.lin(a.k), x, qkv[nq:], ld), run.job(m.lin(a.v), x, qkv[nq+nk:], ld))
	}
	var gate []float32
	if a.gate != "" {
		gate = buf[n*(ld+nq) : n*(ld+2*nq)]
		jobs = append(jobs, run.job(m.lin(a.gate), x, gate, nq))
	}
	kernels.GEMM(run.r.pool, jobs...)

	pos, tabs := positions(run, a.rope, seqs, n)
	base := seqs[0].Start
	blocks(run.r.pool, n, 16, func(_, lo, hi int) {
		for r := lo; r < hi; r++ {
			row := qkv[r*ld : (r+1)*ld]
			m.normRope(row[:nq], a.heads, a.qNorm, pos[r:r+1], tabs[r])
			m.normRope(row[nq:nq+nk], a.kvHeads, a.kNorm, pos[r:r+1], tabs[r])
			if a.tempScale != 0 && a.rope == nil {
				t := kernels.Log64(float64((pos[r]+1)/int32(a.tempFloor)) + 1)
				kernels.Scale(row[:nq], row[:nq], float32(float64(t*float64(a.tempScale))+1))
			}
		}
	})
	local := make([]kernels.Seq, len(seqs))
	for i, q := range seqs {
		local[i] = kernels.Seq{Start: q.Start - base, Len: q.Len}
	}
	kernels.Attention(run.r.pool, out, qkv, qkv[nq:], qkv[nq+nk:], ld, ld, ld, nq, local, kernels.AttentionSpec{
		Heads: a.heads, KVHeads: a.kvHeads, QKDim: a.dim, VDim: a.dim, Scale: a.scale, Window: a.window, Chunk: a.chunk, SoftCap: a.softCap, Sinks: m.sinks})
	blocks(run.r.pool, n, 32, func(_, lo, hi int) {
		o := out[lo*nq : hi*nq]
		if gate != nil {
			g := gate[lo*nq : hi*nq]
			kernels.Sigmoid(g, g)
			kernels.Mul(o, o, g)
		}
		store(dst, lo, o)
	})
}

// normRope applies head norm and positions to one row of q or k.
func (m *attnMixer) normRope(x []float32, heads int, norm string, pos []int32, t *ropeTable) {
	a := m.a
	apply := func() {
		switch {
		case norm == "":
		case a.normWhole:
			m.run.norm(x, x, a.prefix+norm, 1, len(x))
		default:
			m.run.norm(x, x, a.prefix+norm, heads, a.dim)
		}
	}
	if !a.normAfterRope {
		apply()
	}
	if t != nil {
		t.rotate(x, heads, a.dim, 0, pos, a.rope.interleaved)
	}
	if a.normAfterRope {
		apply()
	}
	if a.l2Norm && a.rope != nil {
		kernels.RMSNorm(x, x, nil, heads, a.dim, a.l2Eps, 0)
	}
}

// positions gives position and rope table of every row of a group of sequences.
func positions(run *LayerRun, r *rope, seqs []kernels.Seq, n int) ([]int32, []*ropeTable) {
	pos, tabs := make([]int32, n), make([]*ropeTable, n)
	base := seqs[0].Start
	for _, q := range seqs {
		var t *ropeTable
		if r != nil {
			t = run.table(r, q.Len)
		}
		for i := range q.Len {
			pos[q.Start-base+i], tabs[q.Start-base+i] = int32(i), t
		}
	}
	return pos, tabs
}

// table gives the rope table for a sequence of n tokens, kept for the layer.
func (run *LayerRun) table(r *rope, n int) *ropeTable {
	v := r.variant(n)
	t := run.tables[v]
	if t == nil || len(t.cos) < n*t.half {
		t = r.table(v, (n+255)&^255)
		run.tables[v] = t
	}
	return t
}

func (a *attnArch) keptPerRow() int64 { return 0 }
