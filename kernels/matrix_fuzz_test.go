package kernels_test

import (
	"testing"

	"quire/kernels"
	"quire/kernels/dtype"
)

// cycle fills n values from the pool of x, with small ones between, so that few special
// values do not drown everything.
func cycle(x []float32, n, from int) []float32 {
	y := make([]float32, n)
	for i := range y {
		y[i] = float32((i+from)*7%23-11) / 8
		if len(x) > 0 && (i+from)%17 == 3 {
			y[i] = x[(i+from)/17%len(x)]
		}
	}
	return y
}

func bf16Of(x []float32) []uint16 {
	h := make([]uint16, len(x))
	dtype.EncodeBF16(h, x)
	return h
}

// FuzzMatrixLevels: every level gives the bits of the scalar twin (NaN where it has NaN) for any shape and any values.
func FuzzMatrixLevels(f *testing.F) {
	for _, s := range seedBytes() {
		f.Add(s, uint8(5), uint8(33), uint16(9), uint8(0))
		f.Add(s, uint8(17), uint8(40), uint16(259), uint8(3))
	}
	f.Fuzz(func(t *testing.T, b []byte, mm, nn uint8, kk uint16, how uint8) {
		m, n, k := int(mm)%24, int(nn)%72, int(kk)%300
		x := floatsOf(b)
		rows := func(r, c, from int, bf16 bool) kernels.Rows {
			pad := int(how) % 3
			v := cycle(x, r*(c+pad), from)
			out := kernels.Rows{M: r, K: c, Stride: c + pad}
			if bf16 {
				out.BF16 = bf16Of(v)
			} else {
				out.F32 = v
			}
			return out
		}
		ops := []func(p *kernels.Pool) []float32{}
		for pair := range 4 {
			xb, wb := pair&1 == 1, pair&2 == 2
			ops = append(ops, func(p *kernels.Pool) []float32 {
				j := kernels.GEMMJob{X: rows(m, k, 0, xb), W: kernels.PackRows(p, nil, rows(n, k, 5, wb)), LDY: n + 1, Add: how&4 != 0}
				j.Y = cycle(x, m*j.LDY, 9)
				if how&8 != 0 {
					j.Bias = cycle(x, n, 11)
				}
				kernels.GEMM(p, j)
				return j.Y
			}, func(p *kernels.Pool) []float32 { // statistics over k rows, in two calls
				out := make([]float32, m*n)
				c, cut := kernels.NewCross(m, n), k*int(how)/256
				for _, e := range [][2]int{{0, cut}, {cut, k}} {
					c.Add(p, rows(e[1]-e[0], m, e[0], xb), rows(e[1]-e[0], n, 3+e[0], wb))
				}
				c.Partial(out)
				g, h := kernels.NewGram(n), make([]float32, n*n)
				if !wb || xb {
					g.Add(p, rows(cut, n, 0, wb))
					g.Add(p, rows(k-cut, n, cut, xb))
				}
				g.PartialParallel(p, h)
				cols, abs := kernels.NewColumns(n), make([]float64, n)
				least, most := make([]float32, n), make([]float32, n)
				cols.Add(p, rows(cut, n, 0, xb))
				cols.Add(p, rows(k-cut, n, cut, wb))
				cols.Values(abs, least, most)
				out = append(append(append(out, h...), least...), most...)
				for _, v := range abs {
					if v != v { // the payload is free
						v = -1.5
					}
					out = append(out, split64(v)...)
				}
				return out
			})
		}
		ops = append(ops, func(p *kernels.Pool) []float32 {
			h := cycle(x, n*n, 2)
			h64 := make([]float64, n*n)
			for i := range n {
				h[i*n+i] = h[i*n+i]/8 + 40
			}
			for i, v := range h {
				h64[i] = float64(v)
			}
			u, u64 := make([]float32, n*n), make([]float64, n*n)
			var out []float32
			if f := kernels.InverseFactor(p, u, h, n); f != nil {
				out = append(out, float32(f.Index), float32(f.Value))
			} else {
				out = append(out, u...)
			}
			if f := kernels.InverseFactor64(p, u64, h64, n); f != nil {
				return append(out, float32(f.Index), float32(f.Value))
			}
			for _, v := range u64 {
				if v != v {
					v = -1.5
				}
				out = append(out, split64(v)...)
			}
			return out
		}, func(p *kernels.Pool) []float32 {
			block := 1 + int(how)%80
			f := kernels.PackFactorParallel(p, nil, cycle(x, n*n, 4), n, block)
			slab := make([]float32, n*kernels.SlabWidth)
			kernels.PackSlab(slab, cycle(x, 32*n, 6), 32, n, 0)
			codes, deq := gptqSteps(f, slab, n, block)
			for _, q := range codes {
				deq = append(deq, float32(q))
			}
			return append(deq, slab...)
		})
		want := make([]string, len(ops))
		for _, l := range kernels.Levels() {
			restore := kernels.ForceLevel(l)
			p := kernels.NewPool(1 + int(how)%3)
			for i, op := range ops {
				d := digest(op(p))
				if want[i] == "" {
					want[i] = d
				}
				if d != want[i] {
					t.Errorf("operation %d, m=%d n=%d k=%d how=%d at %v: other bits than the scalar twin", i, m, n, k, how, l)
				}
			}
			p.Close()
			restore()
		}
	})
}
