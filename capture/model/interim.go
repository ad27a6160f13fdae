package model

import (
	"math"

	"quire/kernels"
)

// Seq is a sequence as a range of rows of the flattened batch.
type Seq struct{ Start, Len int }

type attentionSpec struct {
	Heads, KVHeads, QKDim, VDim int
	Scale                       float32
	Window, Chunk               int
	SoftCap                     float32
	Sinks                       []float32
}

func sinCos(s, c, x []float32) {
	for i, v := range x {
		a, b := math.Sincos(float64(v))
		s[i], c[i] = float32(a), float32(b)
	}
}

// attentionKernel is causal attention per sequence, one query at a time.
func attentionKernel(p *kernels.Pool, dst, q, k, v []float32, ldq, ldk, ldv, ldo int, seqs []Seq, a attentionSpec) {
	for _, sq := range seqs {
		p.Do(sq.Len*a.Heads, func(_, t int) {
			i, h := t/a.Heads, t%a.Heads
			g := h / (a.Heads / a.KVHeads)
			lo := 0
			if a.Window > 0 {
				lo = max(0, i-a.Window+1)
			}
			if a.Chunk > 0 {
				lo = max(lo, i/a.Chunk*a.Chunk)
			}
			s := make([]float32, i-lo+1)
			qv := q[(sq.Start+i)*ldq+h*a.QKDim:][:a.QKDim]
			for j := lo; j <= i; j++ {
				kv := k[(sq.Start+j)*ldk+g*a.QKDim:][:a.QKDim]
				sum := 0.0
				for d := range qv {
					sum += float64(qv[d]) * float64(kv[d])
				}
				s[j-lo] = float32(sum) * a.Scale
			}
			if a.SoftCap > 0 {
				kernels.Scale(s, s, 1/a.SoftCap)
				kernels.Tanh(s, s)
				kernels.Scale(s, s, a.SoftCap)
			}
			if a.Sinks != nil {
				kernels.SoftmaxSink(s, s, a.Sinks[h:h+1], 1, len(s))
			} else {
				kernels.Softmax(s, s, 1, len(s))
			}
			o := dst[(sq.Start+i)*ldo+h*a.VDim:][:a.VDim]
			clear(o)
			for j := lo; j <= i; j++ {
				kernels.AXPY(o, v[(sq.Start+j)*ldv+g*a.VDim:][:a.VDim], s[j-lo])
			}
		})
	}
}
