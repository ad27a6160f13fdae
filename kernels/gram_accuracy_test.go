package kernels

import (
	"math"
	"math/rand/v2"
	"os"
	"testing"
)

// The error of a statistic's float64 sums against products and sums in float64, relative to
// √(Hᵢᵢ·Hⱼⱼ), on correlated columns with a mean. The bounds are the line "float32 products of 256 rows, float64 across"
// of the measured table (reference/kernels.md, section 4: 131,072 rows, n = 224: 2.1e-8 on other data on the diagonal, 1.8e-7 and
// 1.0e-8 off it). The diagonal of bf16 rows has a bias of up to 2^-21 downwards: an odd significand squared is 1 mod 8, so
// what a chain rounds away of it is below one half more often than above. A partial rounds once more, by at most 2^-24.
// The whole size with QUIRE_LONG=1, 16,384 rows by default.
func TestGramAccuracyOverManyRows(t *testing.T) {
	const n, step, chunk = 224, 9, 4096
	rows := 16384
	if os.Getenv("QUIRE_LONG") != "" {
		rows = 131072
	}
	for _, bf16 := range []bool{false, true} {
		r := rand.New(rand.NewPCG(41, 42))
		g, exact := NewGram(n), make([]float64, n*n)
		diagonal := make([]float64, n)
		x, wide, h := make([]float32, chunk*n), make([]float64, chunk*n), make([]uint16, chunk*n)
		for r0 := 0; r0 < rows; r0 += chunk {
			for i := range chunk {
				common := r.NormFloat64()
				for j := range n {
					at := i*n + j
					x[at] = float32(r.NormFloat64() + common*float64(j%5)/4 + float64(j%7-3)/2)
					if bf16 {
						h[at] = uint16((math.Float32bits(x[at]) + 0x8000) >> 16)
						x[at] = f32bits(uint32(h[at]) << 16)
					}
					wide[at] = float64(x[at])
					diagonal[j] += wide[at] * wide[at]
				}
				row := wide[i*n:][:n]
				for a := 0; a < n; a += step {
					v, out := row[a], exact[a*n:][:n]
					for b := a; b < n; b++ {
						out[b] += v * row[b]
					}
				}
			}
			if bf16 {
				g.Add(nil, RowsBF16(h, chunk, n))
			} else {
				g.Add(nil, RowsF32(x, chunk, n))
			}
		}
		var diag, off, square float64
		count := 0
		for a := 0; a < n; a += step {
			for b := a; b < n; b++ {
				got := g.sum[gramOffset(b/panelWidth)+a*panelWidth+b%panelWidth]
				e := math.Abs(got-exact[a*n+b]) / math.Sqrt(diagonal[a]*diagonal[b])
				if a == b {
					diag = max(diag, e)
					continue
				}
				off = max(off, e)
				square += e * e
				count++
			}
		}
		rms := math.Sqrt(square / float64(count))
		t.Logf("%d rows, bf16 %v: diagonal %.2g, off it at most %.2g, rms %.2g", rows, bf16, diag, off, rms)
		bound := [3]float64{3e-8, 1.8e-7, 1.0e-8}
		if bf16 {
			bound[0] = 0x1p-21
		}
		if rows < 131072 { // fewer blocks average less
			bound = [3]float64{max(1.2e-7, bound[0]), 5e-7, 5e-8}
		}
		if !(diag <= bound[0] && off <= bound[1] && rms <= bound[2]) {
			t.Errorf("bf16 %v: diagonal %.3g, off it %.3g, rms %.3g, allowed %.3g", bf16, diag, off, rms, bound)
		}
	}
}
