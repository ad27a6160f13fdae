package kernels_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"quire/kernels"
)

// digest hashes the bits of y with every NaN made equal.
func digest(ys ...[]float32) string {
	h := sha256.New()
	var b [4]byte
	for _, y := range ys {
		for _, v := range y {
			u := math.Float32bits(v)
			if v != v {
				u = 0x7fc00000
			}
			binary.LittleEndian.PutUint32(b[:], u)
			h.Write(b[:])
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// mixed gives normal values, values of any magnitude and special ones.
func mixed(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		switch r.IntN(8) {
		case 0:
			x[i] = math.Float32frombits(r.Uint32())
		case 1:
			x[i] = float32(r.IntN(9)-4) / 2
		default:
			x[i] = (r.Float32() - 0.5) * 20
		}
	}
	return x
}

func tame(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = (r.Float32() - 0.5) * 8
	}
	return x
}

func widths() []int { return []int{1, 2, 15, 16, 17, 31, 33, 64, 100, 257} }

// goldenOps hash one operation over ragged shapes each. The literals below were
// made by the scalar twin; any level, thread count and architecture must give them.
var goldenOps = []struct {
	name string
	run  func(p *kernels.Pool, r *rand.Rand) []float32
}{
	{"Exp", overWidths(kernels.Exp)},
	{"Log", overWidths(kernels.Log)},
	{"Tanh", overWidths(kernels.Tanh)},
	{"Sigmoid", overWidths(kernels.Sigmoid)},
	{"Softplus", overWidths(kernels.Softplus)},
	{"SiLU", overWidths(kernels.SiLU)},
	{"GELUErf", overWidths(kernels.GELUErf)},
	{"GELUTanh", overWidths(kernels.GELUTanh)},
	{"ReLU2", overWidths(kernels.ReLU2)},
	{"ReLU", overWidths(kernels.ReLU)},
	{"Scale", overWidths(func(d, x []float32) { kernels.Scale(d, x, 0.3) })},
	{"Div", overWidths(func(d, x []float32) { kernels.Div(d, x, 0.3) })},
	{"Clamp", overWidths(func(d, x []float32) { kernels.Clamp(d, x, -1, 2) })},
	{"SinCos", overWidths(func(d, x []float32) { kernels.SinCos(d, make([]float32, len(d)), x) })},
	{"Add", overPairs(kernels.Add)},
	{"Mul", overPairs(kernels.Mul)},
	{"SiLUMul", overPairs(kernels.SiLUMul)},
	{"AXPY", overPairs(func(d, a, b []float32) { copy(d, a); kernels.AXPY(d, b, 1.3) })},
	{"RMSNorm", overPairs(func(d, a, b []float32) { kernels.RMSNorm(d, a, b, 1, len(d), 1e-6, 1) })},
	{"RMSNorm no weight", overWidths(func(d, x []float32) { kernels.RMSNorm(d, x, nil, 1, len(d), 1e-6, 0) })},
	{"LayerNorm", overPairs(func(d, a, b []float32) { kernels.LayerNorm(d, a, b, a, 1, len(d), 1e-5) })},
	{"Softmax", overTame(func(d, x []float32) { kernels.Softmax(d, x, 1, len(d)) })},
	{"SoftmaxSink", overTame(func(d, x []float32) { kernels.SoftmaxSink(d, x, []float32{0.5}, 1, len(d)) })},
	{"SoftmaxMasked", overTame(func(d, x []float32) {
		keep := make([]bool, len(x))
		for i := range keep {
			keep[i] = i%3 != 1
		}
		kernels.SoftmaxMasked(d, x, keep, nil, 1, len(d))
	})},
	{"Sum, SumSquares, Max", overTame(func(d, x []float32) {
		clear(d)
		d[0] = kernels.Sum(x)
		d[len(d)-1] += kernels.SumSquares(x) + kernels.Max(x)
	})},
	{"MinMax", overWidths(func(d, x []float32) {
		n := (len(x) + 6) / 7
		lo, hi := make([]float32, n), make([]float32, n)
		kernels.MinMax(lo, hi, x, 7)
		for i := range d {
			d[i] = lo[i/7]
			if i%2 == 1 {
				d[i] = hi[i/7]
			}
		}
	})},
	{"AbsMax", overWidths(func(d, x []float32) {
		m := make([]float32, (len(x)+18)/19)
		kernels.AbsMax(m, x, 19)
		for i := range d {
			d[i] = m[i/19]
		}
	})},
	{"QuantizeGroup", overWidths(func(d, x []float32) {
		c := make([]uint8, len(x))
		kernels.QuantizeGroup(c, x, 0.7, 8, 15)
		kernels.DequantizeGroup(d, c, 0.7, 8)
		d[0] += kernels.GroupError(x[:1], 0.7, 8, 15)
	})},
	{"TopK", overWidths(func(d, x []float32) {
		idx := make([]int32, (len(x)+1)/2)
		kernels.TopK(idx, nil, x, len(idx))
		clear(d)
		for i, j := range idx {
			d[i] = float32(j)
		}
	})},
	{"Rope", func(_ *kernels.Pool, r *rand.Rand) []float32 {
		var out []float32
		for _, pairs := range []kernels.RopePairs{kernels.RopeHalf, kernels.RopeInterleaved} {
			for _, rot := range []int{2, 34, 64} {
				inv := make([]float32, rot/2)
				for i, f := range kernels.RopeInvFreq(1e4, rot) {
					inv[i] = float32(f)
				}
				const count = 9
				sin, cos := make([]float32, count*rot/2), make([]float32, count*rot/2)
				kernels.RopeTables(sin, cos, inv, 99990, count, 1.1)
				x := tame(r, 5*(2*70+1))
				kernels.ApplyRope(x, 2*70+1, []int32{0, 3, 8, 8, 1}, sin, cos,
					kernels.RopeLayout{Heads: 2, HeadDim: 70, Offset: 6, RotDim: rot, Pairs: pairs})
				out = append(out, x...)
			}
		}
		return out
	}},
	{"Attention", func(p *kernels.Pool, _ *rand.Rand) []float32 {
		var out []float32
		for i := range attentionCases {
			in := attentionInputs(i)
			out = append(out, in.run(p)...)
		}
		return out
	}},
	{"of one value", overWidths(func(d, x []float32) {
		for i, v := range x {
			sin, cos := kernels.SinCos32(v)
			d[i] = kernels.Exp32(v)
			for _, y := range []float32{kernels.Log32(v), kernels.Sigmoid32(v), sin, cos} {
				d[i] = float32(d[i]/2) + y
			}
		}
		if !kernels.AllFinite(x) {
			d[0] = -7
		}
	})},
	{"Pow64, LogSumExp64", func(_ *kernels.Pool, r *rand.Rand) []float32 {
		var out []float32
		for _, n := range widths() {
			x := tame(r, n)
			out = append(out, split64(kernels.LogSumExp64(x))...)
			for _, v := range x {
				out = append(out, split64(kernels.Pow64(float64(v*v)+0.01, float64(x[0])))...)
			}
		}
		return out
	}},
	{"Exp64, Log64", func(_ *kernels.Pool, r *rand.Rand) []float32 {
		var out []float32
		for range 500 {
			x := float64(r.Float64()*1400) - 700
			e := math.Float64bits(kernels.Exp64(x))
			l := math.Float64bits(kernels.Log64(math.Abs(x)))
			for _, u := range []uint64{e, l} {
				out = append(out, float32(u>>48), float32(u>>24&0xffffff), float32(u&0xffffff))
			}
		}
		return out
	}},
}

func overWidths(f func(d, x []float32)) func(*kernels.Pool, *rand.Rand) []float32 {
	return func(_ *kernels.Pool, r *rand.Rand) []float32 {
		var out []float32
		for _, n := range widths() {
			d := make([]float32, n)
			f(d, mixed(r, n))
			out = append(out, d...)
		}
		return out
	}
}

func overTame(f func(d, x []float32)) func(*kernels.Pool, *rand.Rand) []float32 {
	return func(_ *kernels.Pool, r *rand.Rand) []float32 {
		var out []float32
		for _, n := range widths() {
			d := make([]float32, n)
			f(d, tame(r, n))
			out = append(out, d...)
		}
		return out
	}
}

func overPairs(f func(d, a, b []float32)) func(*kernels.Pool, *rand.Rand) []float32 {
	return func(_ *kernels.Pool, r *rand.Rand) []float32 {
		var out []float32
		for _, n := range widths() {
			d := make([]float32, n)
			f(d, tame(r, n), tame(r, n))
			out = append(out, d...)
		}
		return out
	}
}

func TestGoldenElementwise(t *testing.T) {
	for _, level := range kernels.Levels() {
		for _, threads := range []int{1, 2, 5} {
			t.Run(fmt.Sprintf("%v threads=%d", level, threads), func(t *testing.T) {
				defer kernels.ForceLevel(level)()
				p := kernels.NewPool(threads)
				defer p.Close()
				for _, op := range goldenOps {
					got := digest(op.run(p, rand.New(rand.NewPCG(11, 12))))
					if got != goldenDigests[op.name] {
						t.Errorf("%q: %q, want %q", op.name, got, goldenDigests[op.name])
					}
				}
			})
		}
	}
}
