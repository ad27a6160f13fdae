package kernels_test

import (
	"encoding/binary"
	"math"
	"testing"

	"quire/kernels"
)

// floatsOf reads little-endian float32 bit patterns.
func floatsOf(b []byte) []float32 {
	x := make([]float32, len(b)/4)
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return x
}

// seedBytes are patterns with NaN, Inf, subnormals, zeros and huge values.
func seedBytes() [][]byte {
	var all []byte
	for _, u := range []uint32{0, 1 << 31, 1, 0x80000001, 0x007fffff, 0x00800000, 0x3f800000, 0xbf800000, 0x7f7fffff, 0xff7fffff,
		0x7f800000, 0xff800000, 0x7fc00000, 0x42b17218, 0xc2cff1b5, 0x3ed413cd, 0x3f4ccccd, 0x4f000000, 0x7effffff} {
		all = binary.LittleEndian.AppendUint32(all, u)
	}
	return [][]byte{{}, all, all[:40], append(append([]byte(nil), all...), all...)}
}

// FuzzElementLevels: every level gives the bits of the scalar twin for any
// length and any values, in place or not.
func FuzzElementLevels(f *testing.F) {
	for _, s := range seedBytes() {
		f.Add(s, float32(1.5))
	}
	ops := []func(d, x []float32, s float32){
		func(d, x []float32, _ float32) { kernels.Exp(d, x) },
		func(d, x []float32, _ float32) { kernels.Log(d, x) },
		func(d, x []float32, _ float32) { kernels.Tanh(d, x) },
		func(d, x []float32, _ float32) { kernels.Sigmoid(d, x) },
		func(d, x []float32, _ float32) { kernels.Softplus(d, x) },
		func(d, x []float32, _ float32) { kernels.SiLU(d, x) },
		func(d, x []float32, _ float32) { kernels.GELUErf(d, x) },
		func(d, x []float32, _ float32) { kernels.GELUTanh(d, x) },
		func(d, x []float32, _ float32) { kernels.ReLU2(d, x) },
		func(d, x []float32, s float32) { kernels.Scale(d, x, s) },
		func(d, x []float32, s float32) { kernels.Div(d, x, s) },
		func(d, x []float32, s float32) { copy(d, x); kernels.AXPY(d, x, s) },
		func(d, x []float32, s float32) { kernels.Clamp(d, x, -s, s) },
		func(d, x []float32, s float32) { kernels.RMSNorm(d, x, x, 1, len(x), s, s) },
		func(d, x []float32, s float32) { kernels.LayerNorm(d, x, x, x, 1, len(x), s) },
		func(d, x []float32, _ float32) { kernels.Softmax(d, x, 1, len(x)) },
		func(d, x []float32, s float32) { kernels.SoftmaxSink(d, x, []float32{s}, 1, len(x)) },
		func(d, x []float32, s float32) {
			c := make([]uint8, len(x))
			kernels.QuantizeGroup(c, x, s, 8, 15)
			kernels.DequantizeGroup(d, c, s, 8)
		},
		func(d, x []float32, _ float32) {
			kernels.AbsMax(d[:(len(x)+4)/5], x, 5)
			lo, hi := make([]float32, (len(x)+4)/5), make([]float32, (len(x)+4)/5)
			kernels.MinMax(lo, hi, x, 5)
			for i := range d {
				d[i] += lo[i/5] + 2*hi[i/5]
			}
		},
	}
	f.Fuzz(func(t *testing.T, b []byte, s float32) {
		x := floatsOf(b)
		for i, op := range ops {
			var want []float32
			for _, l := range kernels.Levels() {
				restore := kernels.ForceLevel(l)
				d := make([]float32, len(x))
				op(d, x, s)
				restore()
				if want == nil {
					want = d
				}
				for j := range d {
					if math.Float32bits(d[j]) != math.Float32bits(want[j]) && !(d[j] != d[j] && want[j] != want[j]) {
						t.Fatalf("operation %d at %v, element %d of %d (x = %x, s = %x): %x, scalar %x", i, l, j, len(x), x[j], s, d[j], want[j])
					}
				}
			}
		}
	})
}

// FuzzTopK against a definition that sorts.
func FuzzTopK(f *testing.F) {
	for _, s := range seedBytes() {
		f.Add(s, uint8(3))
	}
	f.Fuzz(func(t *testing.T, b []byte, k uint8) {
		x := floatsOf(b)
		n := min(int(k), len(x))
		idx := make([]int32, n)
		kernels.TopK(idx, nil, x, n)
		used := make([]bool, len(x))
		for r, got := range idx {
			best := -1
			for i, v := range x {
				if used[i] {
					continue
				}
				if best < 0 || v > x[best] || x[best] != x[best] && v == v {
					best = i
				}
			}
			used[best] = true
			if int(got) != best {
				t.Fatalf("rank %d: index %d, want %d", r, got, best)
			}
		}
	})
}

// FuzzAttention: any shape and any values; scalar and widest level, one and three threads agree.
func FuzzAttention(f *testing.F) {
	for _, s := range seedBytes() {
		f.Add(s, uint8(3), uint8(2), uint8(8), uint8(5), uint8(3), uint8(0))
		f.Add(s, uint8(200), uint8(1), uint8(3), uint8(33), uint8(0), uint8(7))
	}
	f.Fuzz(func(t *testing.T, b []byte, length, group, qk, vd, window, chunk uint8) {
		s := kernels.AttentionSpec{Heads: 2 * (int(group)%3 + 1), KVHeads: 2, QKDim: int(qk)%40 + 1, VDim: int(vd)%40 + 1, Scale: 0.3, Window: int(window), Chunk: int(chunk)}
		n := int(length) + 3
		x := floatsOf(b)
		fill := func(m int) []float32 {
			y := make([]float32, m)
			for i := range y {
				y[i] = float32(i*7%13) - 6
				if len(x) > 0 && i%11 == 0 {
					y[i] = x[i/11%len(x)]
				}
			}
			return y
		}
		q, k, v := fill(n*s.Heads*s.QKDim), fill(n*s.KVHeads*s.QKDim), fill(n*s.KVHeads*s.VDim)
		var want []float32
		levels := kernels.Levels()
		for _, l := range []kernels.Level{levels[0], levels[len(levels)-1]} {
			restore := kernels.ForceLevel(l)
			for _, threads := range []int{1, 3} {
				p := kernels.NewPool(threads)
				d := make([]float32, n*s.Heads*s.VDim)
				kernels.Attention(p, d, q, k, v, s.Heads*s.QKDim, s.KVHeads*s.QKDim, s.KVHeads*s.VDim, s.Heads*s.VDim,
					[]kernels.Seq{{Start: 0, Len: 2}, {Start: 2, Len: n - 2}}, s)
				p.Close()
				if want == nil {
					want = d
				}
				if digest(d) != digest(want) {
					t.Errorf("%+v over %d rows at %v, %d threads: other bits than scalar", s, n, l, threads)
				}
			}
			restore()
		}
	})
}
