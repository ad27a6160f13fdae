package model

import (
	"quire/kernels"
)

// dense computes the middle of a feed-forward: plane in → gate, up, activation → plane mid.
func (s *Span) dense(a *mlpArch, in, mid string) {
	x, _ := s.plane(in)
	y := s.newPlane(mid, a.inter)
	s.middle(a, x, y)
}

// middle fills y [x.M, inter] with act(gate)·up of x, in chunks of rows.
func (s *Span) middle(a *mlpArch, x, y kernels.Rows) {
	run, n := s.run, a.inter
	var gate, up, both *Linear
	width := n
	switch {
	case a.gateUp != "":
		both, width = s.find(x, a.gateUp), 2*n
	case a.gate != "":
		gate, up = s.find(x, a.gate), s.find(x, a.up)
		width = 2 * n
	default:
		up = s.find(x, a.up)
	}
	step := chunkRows(run.r.opt.ScratchBytes, int64(4*width))
	buf := make([]float32, min(step, x.M)*width)
	for lo := 0; lo < x.M; lo += step {
		hi := min(lo+step, x.M)
		xs := part(x, lo, hi)
		switch {
		case both != nil:
			kernels.GEMM(run.r.pool, run.job(both, xs, buf, width))
		case gate != nil:
			kernels.GEMM(run.r.pool, run.job(gate, xs, buf, width), run.job(up, xs, buf[n:], width))
		default:
			kernels.GEMM(run.r.pool, run.job(up, xs, buf, width))
		}
		activate(run.r.pool, a.act, part(y, lo, hi), buf, width)
	}
}

// activate writes act(gate)·up (or act(up) when width is one matrix wide) of rows h [y.M,width] to y, rounded. h is
// overwritten.
func activate(p *kernels.Pool, a activation, y kernels.Rows, h []float32, width int) {
	n := y.K
	blocks(p, y.M, 32, func(_, lo, hi int) {
		for r := lo; r < hi; r++ {
			g := h[r*width : r*width+n]
			if width == n {
				a.apply(g)
			} else {
				a.gated(g, h[r*width+n:r*width+2*n])
			}
			store(part(y, r, r+1), 0, g)
		}
	})
}

// apply is the activation in place.
func (a activation) apply(x []float32) {
	switch a.kind {
	case "silu":
		kernels.SiLU(x, x)
	case "gelu_tanh":
		kernels.GELUTanh(x, x)
	case "gelu":
		kernels.GELUErf(x, x)
	case "relu":
		kernels.ReLU(x, x)
	case "relu2":
		kernels.ReLU2(x, x)
	}
}

// gated is g = act(g)·u in place; u may be overwritten.
func (a activation) gated(g, u []float32) {
	switch a.kind {
	case "silu":
		kernels.SiLUMul(g, g, u)
	case "swiglu_oss": // (min(max(u,−l),l)+1) · g·σ(αg), g clamped above
		for i, v := range g {
			g[i] = min(v, a.limit)
			u[i] = min(max(u[i], -a.limit), a.limit) + 1
		}
		for i, v := range g {
			g[i] = v * kernels.Sigmoid32(float32(a.alpha*v))
		}
		kernels.Mul(g, g, u)
	default:
		a.apply(g)
		kernels.Mul(g, g, u)
	}
}
