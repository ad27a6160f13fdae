package model

import (
	"context"
	"fmt"

	"quire/kernels"
)

// Span is the activations of consecutive batches inside one layer, rows flattened in batch order. Between stages it holds
// the residual and the rows of the current sites, nothing else.
type Span struct {
	run   *LayerRun
	seqs  []kernels.Seq
	rows  int
	stage int
	x     []float32 // residual [rows,hidden]

	planes []plane // rows of sites and what a mixer keeps between its stages

	routing *Routing
	block   []float32 // [rows,hidden] sum of expert outputs
	next    int       // first expert not added yet
	failed  bool
}

// plane is a named matrix of a span.
type plane struct {
	name string
	rows kernels.Rows
}

// NewSpan starts a span at the layer's input. lengths are the token counts of its batches, x their rows flattened, in
// float32 or bf16. The rows of the first stage's sites are there when it returns.
func (run *LayerRun) NewSpan(lengths []int, x kernels.Rows) (*Span, error) {
	s := &Span{run: run}
	for _, n := range lengths {
		s.seqs = append(s.seqs, kernels.Seq{Start: s.rows, Len: n})
		s.rows += n
	}
	if x.M != s.rows || x.K != run.m.Hidden || s.rows == 0 {
		return nil, s.err(ErrInput, -1, fmt.Sprintf("rows [%d,%d] for %d tokens of %d features", x.M, x.K, s.rows, run.m.Hidden))
	}
	s.x = make([]float32, s.rows*run.m.Hidden)
	CopyF32(s.x, x)
	if err := s.finite(s.x, run.m.Hidden, "layer input"); err != nil {
		return nil, err
	}
	s.normed(SiteAttnIn, s.x, run.Layer.arch.inNorm)
	return s, nil
}

// Rows is the number of rows of the span.
func (s *Span) Len() int { return s.rows }

// Seqs gives the batches as ranges of rows.
func (s *Span) Seqs() []kernels.Seq { return s.seqs }

// Stage is the index of the stage whose sites have their rows now; len(Layer.Stages) when the layer is done.
func (s *Span) Stage() int { return s.stage }

// Done reports that Output is there.
func (s *Span) Done() bool { return s.stage == len(s.run.Layer.Stages) }

// Rows gives the rows of a site of the current stage, exactly the bits that its linears multiply. They are valid until
// Advance. Expert sites: ExpertRows, ExpertMid; shared_mid: SharedMid.
func (s *Span) Rows(site *Site) (kernels.Rows, error) {
	if site.Expert < 0 {
		if x, ok := s.plane(site.Name); ok {
			return x, nil
		}
	}
	return kernels.Rows{}, s.err(ErrOrder, -1, fmt.Sprintf("site %s has no rows at stage %d", site.Key(), s.stage))
}

// Advance computes the current stage's linears with the weights that act now, and what follows up to the rows of the
// next stage's sites. In the block stage, experts that were not added yet are run here, loaded where they are not.
func (s *Span) Advance(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.failed || s.Done() {
		return s.err(ErrOrder, -1, "advanced after its end")
	}
	err := s.advance(ctx)
	s.failed = err != nil
	return err
}

func (s *Span) advance(ctx context.Context) error {
	l := s.run.Layer
	a := l.arch
	switch name := l.Stages[s.stage].Name; name {
	case SiteMLPIn:
		s.dense(a.dense, SiteMLPIn, SiteMLPMid)
		s.drop(SiteMLPIn)
		s.stage++
	case SiteMLPMid:
		mid, _ := s.plane(SiteMLPMid)
		out := make([]float32, s.rows*s.run.m.Hidden)
		s.linear(s.find(mid, a.dense.down), mid, out)
		s.drop(SiteMLPMid)
		return s.finish(out)
	case SiteBlockIn:
		if err := s.restOfBlock(ctx); err != nil {
			return err
		}
		out := s.block
		s.block, s.routing = nil, nil
		s.drop(SiteBlockIn)
		return s.finish(out)
	default: // a mixer's stage
		out, err := s.run.mix.stage(s, s.stage)
		if err != nil {
			return err
		}
		s.stage++
		if out != nil {
			return s.afterMixer(out)
		}
	}
	return nil
}

// find gives the linear of a module name relative to the layer.
func (s *Span) find(_ kernels.Rows, rel string) *Linear {
	return s.run.m.byName[s.run.Layer.Prefix+rel]
}

// afterMixer adds the mixer's output and prepares the feed-forward's rows.
func (s *Span) afterMixer(out []float32) error {
	a := s.run.Layer.arch
	s.add(out, a.postMixNorm)
	if a.parallel() {
		if a.moe != nil {
			s.rename(SiteAttnIn, SiteBlockIn)
			return s.route()
		}
		s.dense(a.dense, SiteAttnIn, SiteMLPMid)
		s.drop(SiteAttnIn)
		return nil
	}
	name := s.run.Layer.Stages[s.stage].Name
	s.normed(name, s.x, a.mlpNorm)
	if a.moe != nil {
		return s.route()
	}
	return nil
}

// finish adds the feed-forward's output: the layer is done.
func (s *Span) finish(out []float32) error {
	s.add(out, s.run.Layer.arch.postMLPNorm)
	s.planes = nil
	s.stage = len(s.run.Layer.Stages)
	return s.finite(s.x, s.run.m.Hidden, "layer output")
}

// Output gives the layer's output [rows,hidden]: bf16 in BF16, where the residual is rounded at layer borders. The memory
// of a float32 output belongs to the span.
func (s *Span) Output() (kernels.Rows, error) {
	if !s.Done() || s.failed {
		return kernels.Rows{}, s.err(ErrOrder, -1, "has no output before its last stage")
	}
	h := s.run.m.Hidden
	if s.run.m.Compute == F32 {
		return kernels.RowsF32(s.x, s.rows, h), nil
	}
	out := newRows(BF16, s.rows, h)
	store(out, 0, s.x)
	return out, nil
}

// Residual gives the float32 residual stream [rows,hidden] as it is now, to look at.
func (s *Span) Residual() []float32 { return s.x }

// add is x += residual·(norm of) out.
func (s *Span) add(out []float32, norm string) {
	h, mul := s.run.m.Hidden, s.run.Layer.arch.residual
	blocks(s.run.r.pool, s.rows, 32, func(_, a, b int) {
		o, x := out[a*h:b*h], s.x[a*h:b*h]
		if norm != "" {
			s.run.norm(o, o, norm, b-a, h)
		}
		if mul != 0 && mul != 1 {
			kernels.Scale(o, o, mul)
		}
		kernels.Add(x, x, o)
	})
}

// norm applies a norm of the family's kind.
func (run *LayerRun) norm(dst, x []float32, rel string, rows, n int) {
	r := run.m.arch.norm
	name := run.Layer.Prefix + rel
	if r.layerNorm {
		var bias []float32
		if r.bias {
			bias = run.small[name+".bias"]
		}
		kernels.LayerNorm(dst, x, run.small[name+".weight"], bias, rows, n, r.eps)
		return
	}
	kernels.RMSNorm(dst, x, run.small[name+".weight"], rows, n, r.eps, r.offset)
}

// normed makes plane name = rows of norm(x), x [rows, hidden].
func (s *Span) normed(name string, x []float32, norm string) {
	h := s.run.m.Hidden
	dst := s.newPlane(name, h)
	s.perRows(h, func(buf []float32, a, b int) {
		s.run.norm(buf, x[a*h:b*h], norm, b-a, h)
		store(dst, a, buf)
	})
}

// perRows runs f over blocks of rows with a buffer [b-a, k] of its own.
func (s *Span) perRows(k int, f func(buf []float32, a, b int)) {
	const size = 32
	p := s.run.r.pool
	bufs := make([][]float32, p.Threads())
	blocks(p, s.rows, size, func(w, a, b int) {
		if bufs[w] == nil {
			bufs[w] = make([]float32, size*k)
		}
		f(bufs[w][:(b-a)*k], a, b)
	})
}

// linear is dst [x.M, out] = x·Wᵀ + bias.
func (s *Span) linear(l *Linear, x kernels.Rows, dst []float32) {
	kernels.GEMM(s.run.r.pool, s.run.job(l, x, dst, l.Out))
}

func (run *LayerRun) job(l *Linear, x kernels.Rows, dst []float32, ld int) kernels.GEMMJob {
	return kernels.GEMMJob{X: x, W: run.w[l], Bias: run.bias[l], Y: dst, LDY: ld}
}

func (s *Span) plane(name string) (kernels.Rows, bool) {
	for _, p := range s.planes {
		if p.name == name {
			return p.rows, true
		}
	}
	return kernels.Rows{}, false
}

// newPlane adds rows [rows,k] of the compute type.
func (s *Span) newPlane(name string, k int) kernels.Rows {
	x := newRows(s.run.m.Compute, s.rows, k)
	s.planes = append(s.planes, plane{name, x})
	return x
}

// newPlaneF32 adds float32 rows whatever the compute type: what a mixer keeps between stages.
func (s *Span) newPlaneF32(name string, k int) kernels.Rows {
	x := newRows(F32, s.rows, k)
	s.planes = append(s.planes, plane{name, x})
	return x
}

func (s *Span) drop(name string) {
	for i, p := range s.planes {
		if p.name == name {
			s.planes = append(s.planes[:i], s.planes[i+1:]...)
			return
		}
	}
}

func (s *Span) rename(from, to string) {
	for i := range s.planes {
		if s.planes[i].name == from {
			s.planes[i].name = to
		}
	}
}

// finite checks [rows,n] values and names the first bad row.
func (s *Span) finite(x []float32, n int, what string) error {
	bad := make([]bool, (s.rows+63)/64)
	blocks(s.run.r.pool, s.rows, 64, func(_, a, b int) { bad[a/64] = !kernels.AllFinite(x[a*n : b*n]) })
	for i, b := range bad {
		if !b {
			continue
		}
		for r := i * 64; r < s.rows; r++ {
			if !kernels.AllFinite(x[r*n : (r+1)*n]) {
				return s.err(ErrNonFinite, r, what)
			}
		}
	}
	return nil
}

// BatchOf gives the batch of the span, counted from its first, and the position that a row belongs to.
func (s *Span) BatchOf(row int) (batch, position int) {
	for i, q := range s.seqs {
		if row < q.Start+q.Len {
			return i, row - q.Start
		}
	}
	return -1, -1
}

func (s *Span) err(kind error, row int, what string) *Error {
	e := &Error{Kind: kind, What: what, Where: Where{Layer: s.run.Layer.Index, Row: row}, Try: tries[kind]}
	if row >= 0 {
		b, p := s.BatchOf(row)
		e.What += fmt.Sprintf(" (batch %d of the span, position %d)", b, p)
	}
	return e
}
