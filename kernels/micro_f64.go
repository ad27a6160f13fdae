package kernels

import (
	"math"
	"unsafe"
)

// panelWidth64 is the vector side of the float64 kernels.
const panelWidth64 = 16

// microKernel64 is the float64 twin of the f32 microKernel with 16-wide panels in two halves of 8.
type microKernel64 func(k int, a *float64, lda int, b *float64, half int, c *float64, ldc, mode, count int, pf *float64, ahead int)

// slice64 is the tile height of float64 products, at every level.
const slice64 = 6

// scalarF64 is the definition; math.FMA is correctly rounded everywhere.
func scalarF64(h int) microKernel64 {
	tile := func(k int, a *float64, lda int, b *float64, half int, c *float64, ldc, mode int) {
		var acc [maxHeight][panelWidth64]float64
		cs := unsafe.Slice(c, (h-1)*ldc+panelWidth64)
		if mode == modeChain {
			for r := range h {
				copy(acc[r][:], cs[r*ldc:])
			}
		}
		if k > 0 {
			as := unsafe.Slice(a, (k-1)*lda+h)
			const w = panelWidth64 / 2
			step := w
			if half == w {
				step = panelWidth64
			}
			bs := unsafe.Slice(b, half+(k-1)*step+w)
			var row [panelWidth64]float64
			for i := range k {
				copy(row[:w], bs[i*step:])
				copy(row[w:], bs[half+i*step:])
				for r := range h {
					x, s := as[i*lda+r], &acc[r]
					for j := range s {
						s[j] = math.FMA(x, row[j], s[j])
					}
				}
			}
		}
		for r := range h {
			row := cs[r*ldc : r*ldc+panelWidth64]
			for j, s := range acc[r] {
				switch mode {
				case modeAdd:
					s = row[j] + s
				case modeSub:
					s = row[j] - s
				}
				row[j] = s
			}
		}
	}
	return func(k int, a *float64, lda int, b *float64, half int, c *float64, ldc, mode, count int, _ *float64, _ int) {
		for t := range count {
			tile(k, advance(a, 8*t*k*lda), lda, b, half, advance(c, 8*t*h*ldc), ldc, mode)
		}
	}
}
