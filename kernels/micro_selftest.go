package kernels

import (
	"fmt"
	"math"
	"unsafe"
)

// scalarDot defines the dot kernel: VDPBF16PS on operands that were flushed
// when packed, so its own flushing never acts. Used by the self-test.
func scalarDot(h int) microKernel {
	return func(k int, a *float32, lda int, b, c *float32, ldc, mode int, _ *float32) {
		var acc [maxHeight][panelWidth]float32
		startChain(&acc, h, c, ldc, mode)
		if k > 0 {
			as := unsafe.Slice((*uint32)(unsafe.Pointer(a)), (k-1)*lda+h)
			bs := unsafe.Slice((*uint32)(unsafe.Pointer(b)), k*panelWidth)
			for i := range k {
				row := (*[panelWidth]uint32)(bs[i*panelWidth:])
				for r := range h {
					x, s := as[i*lda+r], &acc[r]
					for j := range s {
						t := fma32(f32bits(x&0xffff0000), f32bits(row[j]&0xffff0000), s[j])
						s[j] = fma32(f32bits(x<<16), f32bits(row[j]<<16), t)
					}
				}
			}
		}
		joinTile(&acc, h, c, ldc, mode)
	}
}

// dotSelfTest compares a level's bf16 dot kernels with their definition: 4,096 random lanes with every kind of operand
// that packing lets through. VDPBF16PS is documented, not guaranteed, to work this way; a difference disables the level.
func dotSelfTest(l Level) error {
	t := tableOf(l)
	if !t.nativeBF16() {
		return nil
	}
	const k, h = 8, 4
	a, b := make([]uint32, k*h), make([]uint32, k*panelWidth)
	seed := uint64(1)
	next := func() uint16 {
		seed = seed*6364136223846793005 + 1442695040888963407
		return flushBF16(uint16(seed>>48))&0x8fff | 0x3000
	}
	for round := range 32 {
		for i := range a {
			a[i] = uint32(next()) | uint32(next())<<16
		}
		for i := range b {
			b[i] = uint32(next()) | uint32(next())<<16
		}
		var got, want [h * panelWidth]float32
		t.dot[h](k, f32Ptr(&a[0]), h, f32Ptr(&b[0]), &got[0], panelWidth, modeStore, nil)
		scalarDot(h)(k, f32Ptr(&a[0]), h, f32Ptr(&b[0]), &want[0], panelWidth, modeStore, nil)
		for i := range got {
			if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
				return fmt.Errorf("bf16 dot product, round %d, lane %d: %g, defined %g", round, i, got[i], want[i])
			}
		}
	}
	return nil
}

// microSelfTest compares every matrix kernel of a level with its definition on small tiles.
func microSelfTest(l Level) error {
	t := tableOf(l)
	seed := uint64(7)
	next := func() float32 {
		seed = seed*6364136223846793005 + 1442695040888963407
		return float32(int32(seed>>33)) / (1 << 30)
	}
	const k = 5
	for h := 1; h <= t.rows; h++ {
		a, b := make([]float32, 2*k*h), make([]float32, k*panelWidth)
		for i := range a {
			a[i] = next()
		}
		for i := range b {
			b[i] = math.Float32frombits(math.Float32bits(next()) &^ 0x8000) // also sane as a pair of bf16
		}
		for _, kind := range []struct {
			name       string
			have, want microKernel
		}{{"f32", t.f32[h], scalarTable.f32[h]}, {"wide", t.wide[h], scalarTable.wide[h]}} {
			for _, mode := range []int{modeStore, modeAdd, modeChain, modeSub, modeAdd64} {
				got, want := make([]float32, 2*h*panelWidth), make([]float32, 2*h*panelWidth)
				kind.have(k, &a[0], h, &b[0], &got[0], panelWidth, mode, nil)
				kind.want(k, &a[0], h, &b[0], &want[0], panelWidth, mode, nil)
				for i := range got {
					if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
						return fmt.Errorf("%s kernel of height %d, mode %d, element %d: %g, defined %g", kind.name, h, mode, i, got[i], want[i])
					}
				}
			}
		}
	}
	return dotSelfTest(l)
}

func init() { selfTests = append(selfTests, microSelfTest) }
