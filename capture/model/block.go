package model

import (
	"context"
	"fmt"

	"quire/kernels"
)

// Routing gives the router's choice for the span, in the block stage.
func (s *Span) Routing() *Routing { return s.routing }

// SetRouting replaces the choice that the block's output uses (another stream's router). It must precede the first expert.
func (s *Span) SetRouting(r *Routing) error {
	if s.routing == nil || s.next > 0 || r.Rows() != s.rows || r.Experts != s.routing.Experts {
		return s.err(ErrOrder, -1, "routing set outside the start of the block stage, or of another shape")
	}
	s.routing = r
	return nil
}

// ExpertRows gathers the rows with the given ids as expert e multiplies them, in order of ids. The rows live in buf.
func (s *Span) ExpertRows(buf *RowBuf, e int, ids []int32) (kernels.Rows, error) {
	x, ok := s.plane(SiteBlockIn)
	if !ok {
		return kernels.Rows{}, s.err(ErrOrder, -1, "expert rows outside the block stage")
	}
	y := buf.make(s.run.m.Compute, len(ids), x.K)
	if err := s.gatherRows(y, x, e, ids); err != nil {
		return kernels.Rows{}, err
	}
	return y, nil
}

func (s *Span) gatherRows(y, x kernels.Rows, e int, ids []int32) error {
	scaled := s.run.Layer.Block.InputScaled
	if scaled && s.routing.Logits == nil {
		return s.err(ErrOrder, -1, "rows of this family's experts are scaled by the router, whose logits are missing")
	}
	blocks(s.run.r.pool, len(ids), 64, func(_, a, b int) {
		var f []float32
		for i := a; i < b; i++ {
			r := int(ids[i])
			if !scaled {
				if x.BF16 != nil {
					copy(y.BF16[i*y.Stride:i*y.Stride+x.K], x.BF16[r*x.Stride:])
				} else {
					copy(y.F32[i*y.Stride:i*y.Stride+x.K], x.F32[r*x.Stride:])
				}
				continue
			}
			f = grow(f, x.K)
			CopyF32(f, part(x, r, r+1))
			kernels.Scale(f, f, kernels.Sigmoid32(s.routing.Logits[r*s.routing.Experts+e]))
			store(part(y, i, i+1), 0, f)
		}
	})
	return nil
}

// ExpertMid computes act(gate)·up of rows with expert e's weights: the rows of its expert_mid site, in buf.
func (s *Span) ExpertMid(buf *RowBuf, e int, rows kernels.Rows) (kernels.Rows, error) {
	y := s.NewMid(buf, rows.M)
	return y, s.ExpertMids([]ExpertPart{{Expert: e, In: rows, Mid: y}})
}

// NewMid gives rows [m, inter] in buf, or of their own where buf is nil; contents are undefined.
func (s *Span) NewMid(buf *RowBuf, m int) kernels.Rows {
	if buf == nil {
		buf = &RowBuf{}
	}
	return buf.make(s.run.m.Compute, m, s.run.Layer.Block.Inter)
}

// ExpertPart is some rows of one expert: what its gate and up multiply [m, hidden], and act(gate)·up [m, inter].
type ExpertPart struct {
	Expert  int
	In, Mid kernels.Rows
}

// ExpertMids is ExpertMid of several experts: it fills in Mid of every part. Small parts are computed together.
func (s *Span) ExpertMids(parts []ExpertPart) error {
	b, run := s.run.Layer.Block, s.run
	width := len(b.ExpertIn[0].Linears) * b.Inter
	limit := chunkRows(run.r.opt.ScratchBytes, int64(4*width))
	var now []ExpertPart
	rows := 0
	flush := func() {
		run.hid = grow(run.hid, rows*width)
		s.middles(now, run.hid, width)
		now, rows = now[:0], 0
	}
	for _, p := range parts {
		if !run.Loaded(p.Expert) {
			return s.err(ErrOrder, -1, fmt.Sprintf("expert %d is not loaded", p.Expert))
		}
		for lo := 0; lo < p.In.M; {
			hi := min(p.In.M, lo+limit-rows)
			now = append(now, ExpertPart{p.Expert, part(p.In, lo, hi), part(p.Mid, lo, hi)})
			rows += hi - lo
			if lo = hi; rows == limit {
				flush()
			}
		}
	}
	flush()
	return nil
}

// middles computes the parts at once; h is scratch of width values a row.
func (s *Span) middles(parts []ExpertPart, h []float32, width int) {
	var jobs []kernels.GEMMJob
	type task struct{ part, at, lo, hi int } // rows lo..hi of a part, whose first row is at in h
	var tasks []task
	at := 0
	for i, p := range parts {
		jobs = s.expertJobs(jobs, s.run.Layer.Block.ExpertIn[p.Expert].Linears, p.In, h[at*width:], width)
		for lo := 0; lo < p.In.M; lo += 32 {
			tasks = append(tasks, task{i, at, lo, min(lo+32, p.In.M)})
		}
		at += p.In.M
	}
	kernels.GEMM(s.run.r.pool, jobs...)
	s.run.r.pool.Do(len(tasks), func(_, i int) {
		t := tasks[i]
		activate(nil, s.run.Layer.arch.moe.act, part(parts[t.part].Mid, t.lo, t.hi), h[(t.at+t.lo)*width:], width)
	})
}

// expertJobs appends the jobs of gate and up (or up) side by side into h [x.M, width].
func (s *Span) expertJobs(jobs []kernels.GEMMJob, ls []*Linear, x kernels.Rows, h []float32, width int) []kernels.GEMMJob {
	for i, l := range ls {
		jobs = append(jobs, s.run.job(l, x, h[i*l.Out:], width))
	}
	return jobs
}

// AddExpert adds expert e's output to the block output: mid are its rows for Routing.Native(e), in order. Experts must come
// in ascending order; those without native rows may be left out.
func (s *Span) AddExpert(e int, mid kernels.Rows) error {
	ids, w := s.routing.Native(e)
	if err := s.inOrder(e); err != nil {
		return err
	}
	if mid.M != len(ids) {
		return s.err(ErrOrder, -1, fmt.Sprintf("expert %d: %d middle rows for %d native rows", e, mid.M, len(ids)))
	}
	if len(ids) == 0 {
		s.next = e + 1
		return nil
	}
	if !s.run.Loaded(e) {
		return s.err(ErrOrder, -1, fmt.Sprintf("expert %d is not loaded", e))
	}
	down, h := s.run.Layer.Block.ExpertMid[e].Linears[0], s.run.m.Hidden
	step := chunkRows(s.run.r.opt.ScratchBytes, int64(4*h))
	y := make([]float32, min(step, mid.M)*h)
	for lo := 0; lo < mid.M; lo += step {
		hi := min(lo+step, mid.M)
		s.linear(down, part(mid, lo, hi), y)
		blocks(s.run.r.pool, hi-lo, 32, func(_, a, b int) {
			for i := a; i < b; i++ {
				r := int(ids[lo+i])
				kernels.AXPY(s.block[r*h:(r+1)*h], y[i*h:(i+1)*h], s.outWeight(w[lo+i]))
			}
		})
	}
	s.next = e + 1
	return nil
}

// outWeight is the factor of an expert's output; where the router scales the input it is 1.
func (s *Span) outWeight(w float32) float32 {
	if s.run.Layer.Block.InputScaled {
		return 1
	}
	return w
}

// inOrder checks that e follows and nothing with rows was left out.
func (s *Span) inOrder(e int) error {
	if s.routing == nil || s.block == nil {
		return s.err(ErrOrder, -1, "expert added outside the block stage")
	}
	if e < s.next {
		return s.err(ErrOrder, -1, fmt.Sprintf("expert %d after %d", e, s.next-1))
	}
	for i := s.next; i < e; i++ {
		if ids, _ := s.routing.Native(i); len(ids) > 0 {
			return s.err(ErrOrder, -1, fmt.Sprintf("expert %d was left out, it has %d rows", i, len(ids)))
		}
	}
	return nil
}

// RunExperts runs experts lo..hi-1 on their native rows and adds their outputs: one job list over (expert, rows). Same
// bits as ExpertRows, ExpertMid and AddExpert one by one. The experts must be loaded. mids, where not nil, gives the middle
// rows of experts that are known already, by expert; the others have M 0.
func (s *Span) RunExperts(lo, hi int, mids []kernels.Rows) error {
	if err := s.inOrder(lo); err != nil {
		return err
	}
	b := s.run.Layer.Block
	perRow := (2*int64(b.Inter)+int64(s.run.m.Hidden))*4 + (int64(b.Inter)+int64(s.run.m.Hidden))*s.run.m.Compute.ElemBytes()
	limit := chunkRows(s.run.r.opt.ScratchBytes, perRow)
	for a := lo; a < hi; {
		n, z := 0, a
		for z < hi {
			ids, _ := s.routing.Native(z)
			if n > 0 && n+len(ids) > limit {
				break
			}
			n += len(ids)
			z++
		}
		if err := s.runGroup(a, z, n, limit, mids); err != nil {
			return err
		}
		a = z
	}
	s.next = hi
	return nil
}

// runGroup runs experts a..z-1 with n native rows together.
func (s *Span) runGroup(a, z, n, limit int, mids []kernels.Rows) error {
	if n == 0 {
		return nil
	}
	if n > limit { // one expert with very many rows: in pieces
		ids, ws := s.routing.Native(a)
		for lo := 0; lo < n; lo += limit {
			hi := min(lo+limit, n)
			var mid kernels.Rows
			if mids != nil && mids[a].M > 0 {
				mid = part(mids[a], lo, hi)
			}
			if err := s.runRows([]int{a}, ids[lo:hi], ws[lo:hi], []int{0, hi - lo}, []kernels.Rows{mid}); err != nil {
				return err
			}
		}
		return nil
	}
	ids := make([]int32, 0, n)
	ws := make([]float32, 0, n)
	var experts []int
	var known []kernels.Rows
	from := []int{0}
	for e := a; e < z; e++ {
		i, w := s.routing.Native(e)
		if len(i) == 0 {
			continue
		}
		var mid kernels.Rows
		if mids != nil {
			mid = mids[e]
		}
		ids, ws = append(ids, i...), append(ws, w...)
		experts, known, from = append(experts, e), append(known, mid), append(from, len(ids))
	}
	return s.runRows(experts, ids, ws, from, known)
}

// runRows adds the outputs of experts whose rows are ids[from[i]:from[i+1]], with their weights. The middle rows of some
// are known.
func (s *Span) runRows(experts []int, ids []int32, ws []float32, from []int, known []kernels.Rows) error {
	b, run, h := s.run.Layer.Block, s.run, s.run.m.Hidden
	x, _ := s.plane(SiteBlockIn)
	g := run.scratch(0, len(ids), h)
	mid := run.scratch(1, len(ids), b.Inter)
	width := len(b.ExpertIn[0].Linears) * b.Inter
	run.out = grow(run.out, len(ids)*h)
	var first []ExpertPart
	var last []kernels.GEMMJob
	rows := 0 // of first
	for i, e := range experts {
		lo, hi := from[i], from[i+1]
		if !run.Loaded(e) {
			return s.err(ErrOrder, -1, fmt.Sprintf("expert %d is not loaded", e))
		}
		m := known[i]
		if m.M == 0 {
			m = part(mid, lo, hi)
			first = append(first, ExpertPart{e, part(g, lo, hi), m})
			rows += hi - lo
			if err := s.gatherRows(part(g, lo, hi), x, e, ids[lo:hi]); err != nil {
				return err
			}
		} else if m.M != hi-lo {
			return s.err(ErrOrder, -1, fmt.Sprintf("expert %d: %d middle rows for %d native rows", e, m.M, hi-lo))
		}
		last = append(last, run.job(b.ExpertMid[e].Linears[0], m, run.out[lo*h:], h))
	}
	run.hid = grow(run.hid, rows*width)
	s.middles(first, run.hid, width)
	kernels.GEMM(run.r.pool, last...)
	s.scatter(ids, ws, run.out)
	return nil
}

// scatter adds outputs y, grouped by ascending expert, to the block output. Tokens are spread over tasks; within a token
// the order is that of experts.
func (s *Span) scatter(ids []int32, ws, y []float32) {
	h := s.run.m.Hidden
	start := make([]int32, s.rows+1)
	for _, r := range ids {
		start[r+1]++
	}
	for r := range s.rows {
		start[r+1] += start[r]
	}
	order := make([]int32, len(ids))
	fill := append([]int32{}, start...)
	for i, r := range ids {
		order[fill[r]] = int32(i)
		fill[r]++
	}
	blocks(s.run.r.pool, s.rows, 64, func(_, a, b int) {
		for r := a; r < b; r++ {
			for _, i := range order[start[r]:start[r+1]] {
				kernels.AXPY(s.block[r*h:(r+1)*h], y[int(i)*h:(int(i)+1)*h], s.outWeight(ws[i]))
			}
		}
	})
}

// scratch is reusable row memory of the layer.
func (run *LayerRun) scratch(i, m, k int) kernels.Rows { return run.bufs[i].make(run.m.Compute, m, k) }

// SharedMid computes the rows of the shared_mid site with the weights that act now, in buf.
func (s *Span) SharedMid(buf *RowBuf) (kernels.Rows, error) {
	x, ok := s.plane(SiteBlockIn)
	a := s.run.Layer.arch.moe
	if !ok || a.shared == nil {
		return kernels.Rows{}, s.err(ErrOrder, -1, "no shared experts here")
	}
	y := buf.make(s.run.m.Compute, s.rows, a.shared.inter)
	s.middle(a.shared, x, y)
	return y, nil
}

// restOfBlock runs the experts not added yet and the shared experts, last.
func (s *Span) restOfBlock(ctx context.Context) error {
	b := s.run.Layer.Block
	batch := s.run.r.expertBatch(s.run.Layer)
	for lo := s.next; lo < b.Experts; {
		hi := lo
		var loaded []int
		for hi < b.Experts && hi-lo < batch {
			if !s.run.Loaded(hi) {
				if ids, _ := s.routing.Native(hi); len(ids) > 0 {
					if err := s.run.LoadExperts(ctx, hi, hi+1); err != nil {
						return err
					}
					loaded = append(loaded, hi)
				}
			}
			hi++
		}
		if err := s.RunExperts(lo, hi, nil); err != nil {
			return err
		}
		for _, e := range loaded {
			s.run.UnloadExperts(e, e+1)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		lo = hi
	}
	return s.addShared()
}

// addShared adds the shared experts' output to the block's.
func (s *Span) addShared() error {
	a, h := s.run.Layer.arch.moe, s.run.m.Hidden
	if a.shared != nil {
		var buf RowBuf
		mid, err := s.SharedMid(&buf)
		if err != nil {
			return err
		}
		var gate []float32
		if a.sharedGate != "" {
			x, _ := s.plane(SiteBlockIn)
			gate = make([]float32, s.rows)
			s.linear(s.find(x, a.sharedGate), x, gate)
			kernels.Sigmoid(gate, gate)
		}
		step := chunkRows(s.run.r.opt.ScratchBytes, int64(4*h))
		y := make([]float32, min(step, s.rows)*h)
		for lo := 0; lo < s.rows; lo += step {
			hi := min(lo+step, s.rows)
			s.linear(s.find(mid, a.shared.down), part(mid, lo, hi), y)
			blocks(s.run.r.pool, hi-lo, 32, func(_, i, j int) {
				for ; i < j; i++ {
					f, dst := float32(1), s.block[(lo+i)*h:(lo+i+1)*h]
					if gate != nil {
						f = gate[lo+i]
					}
					kernels.AXPY(dst, y[i*h:(i+1)*h], f)
				}
			})
		}
	}
	if a.sharedMul != 0 && a.sharedMul != 1 {
		blocks(s.run.r.pool, s.rows, 64, func(_, i, j int) { kernels.Scale(s.block[i*h:j*h], s.block[i*h:j*h], a.sharedMul) })
	}
	return nil
}
