package kernels_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"quire/kernels"
)

// slowAttention is the textbook definition in float64, one query at a time.
func slowAttention(dst []float64, q, k, v []float32, ldq, ldk, ldv, ldo int, seqs []kernels.Seq, s kernels.AttentionSpec) {
	g := s.Heads / s.KVHeads
	for _, sq := range seqs {
		for p := range sq.Len {
			for h := range s.Heads {
				qr := q[(sq.Start+p)*ldq+h*s.QKDim:][:s.QKDim]
				var w []float64
				var keys []int
				top := math.Inf(-1)
				for j := 0; j <= p; j++ {
					if s.Window > 0 && p-j >= s.Window || s.Chunk > 0 && j/s.Chunk != p/s.Chunk {
						continue
					}
					kr := k[(sq.Start+j)*ldk+h/g*s.QKDim:][:s.QKDim]
					dot := 0.0
					for i := range qr {
						dot += float64(qr[i]) * float64(kr[i])
					}
					dot *= float64(s.Scale)
					if s.SoftCap > 0 {
						dot = float64(s.SoftCap) * math.Tanh(dot/float64(s.SoftCap))
					}
					w, keys, top = append(w, dot), append(keys, j), max(top, dot)
				}
				sum := 0.0
				if s.Sinks != nil {
					top = max(top, float64(s.Sinks[h]))
					sum = math.Exp(float64(s.Sinks[h]) - top)
				}
				for i := range w {
					w[i] = math.Exp(w[i] - top)
					sum += w[i]
				}
				out := dst[(sq.Start+p)*ldo+h*s.VDim:][:s.VDim]
				clear(out)
				for i, j := range keys {
					vr := v[(sq.Start+j)*ldv+h/g*s.VDim:][:s.VDim]
					for c := range out {
						out[c] += w[i] / sum * float64(vr[c])
					}
				}
			}
		}
	}
}

var attentionCases = []struct {
	name string
	lens []int
	spec kernels.AttentionSpec
}{
	{"plain", []int{1, 33, 150}, kernels.AttentionSpec{Heads: 2, KVHeads: 2, QKDim: 16, VDim: 16}},
	{"grouped, values narrower", []int{70, 0, 129}, kernels.AttentionSpec{Heads: 6, KVHeads: 2, QKDim: 24, VDim: 13}},
	{"window", []int{300}, kernels.AttentionSpec{Heads: 2, KVHeads: 1, QKDim: 8, VDim: 8, Window: 37}},
	{"chunk", []int{300}, kernels.AttentionSpec{Heads: 2, KVHeads: 1, QKDim: 8, VDim: 8, Chunk: 100}},
	{"sinks", []int{40, 140}, kernels.AttentionSpec{Heads: 2, KVHeads: 1, QKDim: 8, VDim: 40, Sinks: []float32{0.5, -2}}},
	{"soft cap", []int{140}, kernels.AttentionSpec{Heads: 1, KVHeads: 1, QKDim: 32, VDim: 32, SoftCap: 3}},
	{"long head", []int{20}, kernels.AttentionSpec{Heads: 1, KVHeads: 1, QKDim: 300, VDim: 7}},
}

func randoms(r *rand.Rand, n int, spread float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64() * spread)
	}
	return x
}

type attentionInput struct {
	q, k, v            []float32
	ldq, ldk, ldv, ldo int
	rows               int
	seqs               []kernels.Seq
	spec               kernels.AttentionSpec
}

// attentionInputs builds a case; row strides are longer than the heads need.
func attentionInputs(i int) attentionInput {
	c := attentionCases[i]
	r := rand.New(rand.NewPCG(7, uint64(i)))
	in := attentionInput{spec: c.spec}
	in.spec.Scale = float32(1 / math.Sqrt(float64(c.spec.QKDim)))
	for _, n := range c.lens {
		in.seqs = append(in.seqs, kernels.Seq{Start: in.rows, Len: n})
		in.rows += n
	}
	s := c.spec
	in.ldq, in.ldk, in.ldv, in.ldo = s.Heads*s.QKDim+3, s.KVHeads*s.QKDim+1, s.KVHeads*s.VDim, s.Heads*s.VDim+2
	in.q, in.k, in.v = randoms(r, in.rows*in.ldq, 2), randoms(r, in.rows*in.ldk, 2), randoms(r, in.rows*in.ldv, 1)
	return in
}

func (in *attentionInput) run(p *kernels.Pool) []float32 {
	dst := make([]float32, in.rows*in.ldo)
	kernels.Attention(p, dst, in.q, in.k, in.v, in.ldq, in.ldk, in.ldv, in.ldo, in.seqs, in.spec)
	return dst
}

// Bound: 2⁻¹⁹ of the largest value (inputs of size about 1–2, up to 300 keys).
func TestAttentionAgainstFloat64(t *testing.T) {
	for i, c := range attentionCases {
		t.Run(c.name, func(t *testing.T) {
			in := attentionInputs(i)
			got := in.run(nil)
			want := make([]float64, len(got))
			slowAttention(want, in.q, in.k, in.v, in.ldq, in.ldk, in.ldv, in.ldo, in.seqs, in.spec)
			worst := 0.0
			for j := range got {
				if d := math.Abs(float64(got[j]) - want[j]); !(d <= worst) {
					worst = d
				}
			}
			if !(worst < 4*0x1p-19) {
				t.Errorf("largest error %g", worst)
			}
		})
	}
}

// A row depends on its sequence and the rows before it only, not on what else is in the batch.
func TestAttentionSequencesAreIndependent(t *testing.T) {
	in := attentionInputs(0)
	all := in.run(nil)
	for _, s := range in.seqs {
		alone := in
		alone.seqs = []kernels.Seq{s}
		got := alone.run(nil)
		for i := s.Start * in.ldo; i < (s.Start+s.Len)*in.ldo; i++ {
			if got[i] != all[i] {
				t.Fatalf("sequence at row %d: element %d is %g alone, %g in the batch", s.Start, i, got[i], all[i])
			}
		}
	}
}

func BenchmarkAttention2048(b *testing.B) {
	const n, heads, kv, d = 2048, 4, 2, 128
	r := rand.New(rand.NewPCG(1, 1))
	q, k, v := randoms(r, n*heads*d, 1), randoms(r, n*kv*d, 1), randoms(r, n*kv*d, 1)
	dst := make([]float32, n*heads*d)
	for _, threads := range []int{1, 2} {
		b.Run(fmt.Sprintf("threads=%d", threads), func(b *testing.B) {
			p := kernels.NewPool(threads)
			defer p.Close()
			for b.Loop() {
				kernels.Attention(p, dst, q, k, v, heads*d, kv*d, kv*d, heads*d, []kernels.Seq{{Start: 0, Len: n}},
					kernels.AttentionSpec{Heads: heads, KVHeads: kv, QKDim: d, VDim: d, Scale: 0.088})
			}
			flop := 2.0 * 2 * d * heads * n * (n + 1) / 2
			b.ReportMetric(flop*float64(b.N)/b.Elapsed().Seconds()/1e9, "GF")
		})
	}
}

// BenchmarkAttentionAgainstGEMM gives the flop rate of causal attention (only
// visible pairs counted) over that of a GEMM with the same inner size, interleaved.
func BenchmarkAttentionAgainstGEMM(b *testing.B) {
	const n, d = 2048, 128
	r := rand.New(rand.NewPCG(1, 1))
	q, k, v := randoms(r, n*d, 1), randoms(r, n*d, 1), randoms(r, n*d, 1)
	w := kernels.PackF32(nil, randoms(r, 1024*1024, 1), 1024, 1024)
	x, y, dst := randoms(r, 512*1024, 1), make([]float32, 512*1024), make([]float32, n*d)
	best := [2]time.Duration{math.MaxInt64, math.MaxInt64}
	for b.Loop() {
		t := time.Now()
		kernels.Attention(nil, dst, q, k, v, d, d, d, d, []kernels.Seq{{Start: 0, Len: n}},
			kernels.AttentionSpec{Heads: 1, KVHeads: 1, QKDim: d, VDim: d, Scale: 0.088})
		best[0] = min(best[0], time.Since(t))
		t = time.Now()
		kernels.GEMM(nil, kernels.GEMMJob{X: kernels.Rows{M: 512, K: 1024, Stride: 1024, F32: x}, W: w, Y: y, LDY: 1024})
		best[1] = min(best[1], time.Since(t))
	}
	attn := 4.0 * d * n * (n + 1) / 2 / float64(best[0].Nanoseconds())
	gemm := 2.0 * 512 * 1024 * 1024 / float64(best[1].Nanoseconds())
	b.ReportMetric(attn, "attention-GF")
	b.ReportMetric(gemm, "gemm-GF")
	b.ReportMetric(attn/gemm, "ratio")
}
