package kernels

import (
	"math"
	"unsafe"
)

// panelWidth64 is the vector side of the float64 kernels.
const panelWidth64 = 16

// microKernel64 is the float64 twin of the f32 microKernel with 16-wide panels.
type microKernel64 func(k int, a *float64, lda int, b, c *float64, ldc, mode int)

// slices64 cuts a 16-wide float64 panel into tile heights, at every level.
var slices64 = [...]int{6, 5, 5}

// scalarF64 is the definition; math.FMA is correctly rounded everywhere.
func scalarF64(h int) microKernel64 {
	return func(k int, a *float64, lda int, b, c *float64, ldc, mode int) {
		var acc [maxHeight][panelWidth64]float64
		cs := unsafe.Slice(c, (h-1)*ldc+panelWidth64)
		if mode == modeChain {
			for r := range h {
				copy(acc[r][:], cs[r*ldc:])
			}
		}
		if k > 0 {
			as := unsafe.Slice(a, (k-1)*lda+h)
			bs := unsafe.Slice(b, k*panelWidth64)
			for i := range k {
				row := (*[panelWidth64]float64)(bs[i*panelWidth64:])
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
}
