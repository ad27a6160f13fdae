package model

import "quire/kernels"

// declare states the linears, sites and norms of multi-head latent attention.
func (a *mlaArch) declare(b *layerBuilder) {
	h := b.c.m.arch.hidden
	in := b.norm(b.l.arch.inNorm, h)
	x := b.site(b.stage(SiteAttnIn), SiteAttnIn, h, in)
	qk := a.nope + a.ropeDim
	if a.qRank == 0 {
		b.linear(x, a.prefix+a.q, RoleQ, a.heads*qk, false).FusedSet = ""
	} else {
		b.linear(x, a.prefix+a.qa, RoleQA, a.qRank, a.bias)
	}
	kva := b.linear(x, a.prefix+a.kva, RoleKVA, a.kvRank+a.ropeDim, a.bias)
	if a.qRank == 0 {
		kva.FusedSet = ""
	}
	st := b.stage(SiteKVB)
	if a.qRank != 0 {
		st.Name = SiteQB
		q := b.site(st, SiteQB, a.qRank, b.norm(a.prefix+a.qaNorm, a.qRank))
		b.linear(q, a.prefix+a.qb, RoleQB, a.heads*qk, false)
	}
	kv := b.site(st, SiteKVB, a.kvRank, b.norm(a.prefix+a.kvaNorm, a.kvRank))
	b.linear(kv, a.prefix+a.kvb, RoleKVB, a.heads*(a.nope+a.vDim), false)
	o := b.site(b.stage(SiteAttnOut), SiteAttnOut, a.heads*a.vDim, nil)
	b.linear(o, a.prefix+a.o, RoleO, h, a.bias)
}

// bytesPerRow is q, k, v, kv_b output and attention output in float32.
func (a *mlaArch) bytesPerRow() int64 {
	qk := int64(a.nope + a.ropeDim)
	return 4 * int64(a.heads) * (2*qk + int64(a.nope+a.vDim) + int64(a.vDim))
}

func (a *mlaArch) newMixer(run *LayerRun) (mixer, error) {
	return &mlaMixer{a: a, run: run, lin: func(rel string) *Linear { return run.m.byName[run.Layer.Prefix+a.prefix+rel] }}, nil
}

// mlaMixer computes multi-head latent attention (DeepSeek-V2, section 2.1): keys and values from a low-rank latent, a
// rope part of the key shared by all heads.
type mlaMixer struct {
	a   *mlaArch
	run *LayerRun
	lin func(rel string) *Linear
}

// Planes that MLA keeps between its stages.
const (
	planeQ    = "mla.q"     // [rows, heads*(nope+rope)] when there is no q_a
	planeKPos = "mla.k_pos" // [rows, rope]
)

func (m *mlaMixer) stage(s *Span, i int) ([]float32, error) {
	switch i {
	case 0:
		m.down(s)
		if !m.run.Layer.arch.parallel() {
			s.drop(SiteAttnIn)
		}
		return nil, nil
	case 1:
		m.attend(s)
		for _, p := range []string{planeQ, planeKPos, SiteQB, SiteKVB} {
			s.drop(p)
		}
		return nil, nil
	}
	x, _ := s.plane(SiteAttnOut)
	out := make([]float32, s.rows*m.run.m.Hidden)
	s.linear(m.lin(m.a.o), x, out)
	s.drop(SiteAttnOut)
	return out, nil
}

// down computes the latents and their norms.
func (m *mlaMixer) down(s *Span) {
	a := m.a
	x, _ := s.plane(SiteAttnIn)
	if a.qRank == 0 {
		q := s.newPlaneF32(planeQ, a.heads*(a.nope+a.ropeDim))
		s.linear(m.lin(a.q), x, q.F32)
	} else {
		m.latent(s, x, m.lin(a.qa), a.qRank, a.qaNorm, SiteQB, kernels.Rows{})
	}
	m.latent(s, x, m.lin(a.kva), a.kvRank, a.kvaNorm, SiteKVB, s.newPlaneF32(planeKPos, a.ropeDim))
}

// latent computes norm(x·Wᵀ) of the first rank features into a site plane, and the rest into kpos.
func (m *mlaMixer) latent(s *Span, x kernels.Rows, l *Linear, rank int, norm, site string, kpos kernels.Rows) {
	run, w := m.run, l.Out
	dst := s.newPlane(site, rank)
	step := chunkRows(run.r.opt.ScratchBytes, int64(4*w))
	buf := make([]float32, min(step, s.rows)*w)
	for lo := 0; lo < s.rows; lo += step {
		hi := min(lo+step, s.rows)
		s.linear(l, part(x, lo, hi), buf)
		blocks(run.r.pool, hi-lo, 32, func(_, i, j int) {
			for ; i < j; i++ {
				v := buf[i*w : i*w+rank]
				kernels.RMSNorm(v, v, run.small[run.Layer.Prefix+m.a.prefix+norm+".weight"], 1, rank, m.a.innerEps, 0)
				store(dst, lo+i, v)
				if w > rank {
					copy(kpos.F32[(lo+i)*kpos.K:], buf[i*w+rank:(i+1)*w])
				}
			}
		})
	}
}

// attend builds q, k and v per head and attends, whole sequences at a time within the scratch.
func (m *mlaMixer) attend(s *Span) {
	a := m.a
	dst := s.newPlane(SiteAttnOut, a.heads*a.vDim)
	limit := chunkRows(m.run.r.opt.ScratchBytes, a.bytesPerRow())
	var buf []float32
	for lo := 0; lo < len(s.seqs); {
		hi, rows := lo, 0
		for hi < len(s.seqs) && (hi == lo || rows+s.seqs[hi].Len <= limit) {
			rows += s.seqs[hi].Len
			hi++
		}
		buf = grow(buf, rows*int(a.bytesPerRow()/4))
		m.group(s, s.seqs[lo:hi], dst, buf)
		lo = hi
	}
}

func (m *mlaMixer) group(s *Span, seqs []kernels.Seq, dst kernels.Rows, buf []float32) {
	a, run := m.a, m.run
	first := seqs[0].Start
	n := seqs[len(seqs)-1].Start + seqs[len(seqs)-1].Len - first
	qk, kv := a.nope+a.ropeDim, a.nope+a.vDim
	take := func(k int) (b []float32) { b, buf = buf[:n*k], buf[n*k:]; return b }
	q, k, up, out := take(a.heads*qk), take(a.heads*qk), take(a.heads*kv), take(a.heads*a.vDim)
	c, _ := s.plane(SiteKVB)
	jobs := []kernels.GEMMJob{run.job(m.lin(a.kvb), part(c, first, first+n), up, a.heads*kv)}
	if a.qRank == 0 {
		p, _ := s.plane(planeQ)
		copy(q, p.F32[first*p.K:(first+n)*p.K])
	} else {
		x, _ := s.plane(SiteQB)
		jobs = append(jobs, run.job(m.lin(a.qb), part(x, first, first+n), q, a.heads*qk))
	}
	kernels.GEMM(run.r.pool, jobs...)
	kpos, _ := s.plane(planeKPos)
	pos, tabs := positions(run, a.rope, seqs, n)
	blocks(run.r.pool, n, 16, func(_, lo, hi int) {
		kr := make([]float32, a.ropeDim)
		for r := lo; r < hi; r++ {
			copy(kr, kpos.F32[(first+r)*kpos.K:(first+r+1)*kpos.K])
			if tabs[r] != nil {
				tabs[r].rotate(kr, 1, a.ropeDim, 0, pos[r:r+1], a.rope.interleaved)
				tabs[r].rotate(q[r*a.heads*qk:(r+1)*a.heads*qk], a.heads, qk, a.nope, pos[r:r+1], a.rope.interleaved)
			}
			for h := range a.heads {
				y := k[(r*a.heads+h)*qk : (r*a.heads+h+1)*qk]
				copy(y, up[(r*a.heads+h)*kv:(r*a.heads+h)*kv+a.nope])
				copy(y[a.nope:], kr)
			}
		}
	})
	local := make([]kernels.Seq, len(seqs))
	for i, x := range seqs {
		local[i] = kernels.Seq{Start: x.Start - first, Len: x.Len}
	}
	v := values(up, n, a.heads, a.nope, a.vDim)
	kernels.Attention(run.r.pool, out, q, k, v, a.heads*qk, a.heads*qk, a.heads*a.vDim, a.heads*a.vDim, local, kernels.AttentionSpec{
		Heads: a.heads, KVHeads: a.heads, QKDim: qk, VDim: a.vDim, Scale: a.scale})
	blocks(run.r.pool, n, 32, func(_, lo, hi int) { store(dst, first+lo, out[lo*a.heads*a.vDim:hi*a.heads*a.vDim]) })
}

// values closes the gaps of kv_b outputs in place: [rows][heads][nope+v] → [rows][heads][v].
func values(up []float32, n, heads, nope, v int) []float32 {
	for i := range n * heads {
		copy(up[i*v:(i+1)*v], up[i*(nope+v)+nope:(i+1)*(nope+v)])
	}
	return up[:n*heads*v]
}

func (a *mlaArch) keptPerRow() int64 {
	n := int64(4 * a.ropeDim)
	if a.qRank == 0 {
		n += 4 * int64(a.heads) * int64(a.nope+a.ropeDim)
	}
	return n
}
