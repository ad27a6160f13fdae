package kernels_test

import (
	"math/rand/v2"
	"testing"

	"quire/kernels"
)

// BenchmarkElementwise reports GB/s of operands moved, on rows in L2 (64 KB each)
// and from memory (64 MB each); copy is the yardstick.
func BenchmarkElementwise(b *testing.B) {
	ops := []struct {
		name    string
		streams int // reads + writes
		f       func(d, x, y []float32)
	}{
		{"copy", 2, func(d, x, _ []float32) { copy(d, x) }},
		{"Add", 3, kernels.Add},
		{"Scale", 2, func(d, x, _ []float32) { kernels.Scale(d, x, 2) }},
		{"Exp", 2, func(d, x, _ []float32) { kernels.Exp(d, x) }},
		{"SiLUMul", 3, kernels.SiLUMul},
		{"RMSNorm", 3, func(d, x, w []float32) { kernels.RMSNorm(d, x, w[:2048], len(x)/2048, 2048, 1e-6, 0) }},
		{"Softmax", 2, func(d, x, _ []float32) { kernels.Softmax(d, x, len(x)/2048, 2048) }},
		{"AbsMax", 1, func(d, x, _ []float32) { kernels.AbsMax(d[:len(x)/128], x, 128) }},
	}
	for _, size := range []struct {
		name string
		n    int
	}{{"L2", 1 << 14}, {"memory", 1 << 24}} {
		r := rand.New(rand.NewPCG(1, 2))
		d, x, y := make([]float32, size.n), tame(r, size.n), tame(r, size.n)
		for _, op := range ops {
			b.Run(size.name+"/"+op.name, func(b *testing.B) {
				b.SetBytes(int64(4 * op.streams * size.n))
				for b.Loop() {
					op.f(d, x, y)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(size.n), "ns/elem")
			})
		}
	}
}
