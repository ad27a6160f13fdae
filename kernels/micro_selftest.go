package kernels

import (
	"fmt"
	"math"
	"unsafe"
)

// scalarDot defines the dot kernel: VDPBF16PS on operands that were flushed
// when packed, so its own flushing never acts. Used by the self-test.
func scalarDot(h int) tileKernel {
	return func(k int, a *float32, lda int, b, c *float32, ldc, mode int) {
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
	const k = 8
	seed := uint64(1)
	next := func() uint16 {
		seed = seed*6364136223846793005 + 1442695040888963407
		return flushBF16(uint16(seed>>48))&0x8fff | 0x3000
	}
	// 14 heights take 105·32 lanes a round.
	for round := range 2 {
		for h := 1; h <= t.rows; h++ {
			a, b := make([]uint32, k*h), make([]uint32, k*panelWidth)
			for i := range a {
				a[i] = uint32(next()) | uint32(next())<<16
			}
			for i := range b {
				b[i] = uint32(next()) | uint32(next())<<16
			}
			got, want := make([]float32, h*panelWidth), make([]float32, h*panelWidth)
			t.dot[h](k, f32Ptr(&a[0]), h, f32Ptr(&b[0]), panelWidth/2, &got[0], panelWidth, modeStore, 1, f32Ptr(&b[0]), 0)
			scalarDot(h)(k, f32Ptr(&a[0]), h, f32Ptr(&b[0]), &want[0], panelWidth, modeStore)
			for i := range got {
				if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
					return fmt.Errorf("bf16 dot product of height %d, round %d, lane %d: %g, defined %g", h, round, i, got[i], want[i])
				}
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
		const tiles = 3
		a, b := make([]float32, 2*k*h*tiles), make([]float32, k*panelWidth)
		for i := range a {
			a[i] = next()
		}
		for i := range b {
			b[i] = wideOperand(next())
		}
		for _, kind := range []struct {
			name       string
			have, want microKernel
		}{{"f32", t.f32[h], scalarTable.f32[h]}, {"wide", t.wide[h], scalarTable.wide[h]}} {
			for _, half := range []int{panelWidth / 2, k * panelWidth / 2} {
				for _, mode := range []int{modeStore, modeAdd, modeChain, modeSub, modeAdd64} {
					got, want := make([]float32, 2*h*panelWidth*tiles), make([]float32, 2*h*panelWidth*tiles)
					for i := range got { // sane as float32 and as half of a float64
						got[i] = 1 + float32(i)/4
						want[i] = got[i]
					}
					kind.have(k, &a[0], h, &b[0], half, &got[0], panelWidth, mode, tiles, &b[0], 0)
					kind.want(k, &a[0], h, &b[0], half, &want[0], panelWidth, mode, tiles, nil, 0)
					for i := range got {
						if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
							return fmt.Errorf("%s kernel of height %d, mode %d, halves %d apart, element %d: %g, defined %g", kind.name, h, mode, half, i, got[i], want[i])
						}
					}
				}
			}
		}
	}
	for h := 1; h <= t.rows; h++ {
		const tiles = 2
		a, b := make([]float64, k*h*tiles), make([]float64, k*panelWidth64)
		for i := range a {
			a[i] = float64(next()) * float64(next())
		}
		for i := range b {
			b[i] = float64(next()) * float64(next())
		}
		for _, mode := range []int{modeStore, modeAdd, modeChain, modeSub} {
			got, want := make([]float64, h*panelWidth64*tiles), make([]float64, h*panelWidth64*tiles)
			for i := range got {
				got[i] = float64(i)
				want[i] = got[i]
			}
			const half = k * panelWidth64 / 2
			t.f64[h](k, &a[0], h, &b[0], half, &got[0], panelWidth64, mode, tiles, &b[0], 0)
			scalarTable.f64[h](k, &a[0], h, &b[0], half, &want[0], panelWidth64, mode, tiles, nil, 0)
			for i := range got {
				if math.Float64bits(got[i]) != math.Float64bits(want[i]) {
					return fmt.Errorf("f64 kernel of height %d, mode %d, element %d: %g, defined %g", h, mode, i, got[i], want[i])
				}
			}
		}
	}
	if err := packSelfTest(t); err != nil {
		return err
	}
	return dotSelfTest(l)
}

// packSelfTest compares the packers and the column steps of a level with their definitions.
func packSelfTest(t *microTable) error {
	const rows, k = 8, 24
	src := make([]float32, rows*2*k)
	seed := uint64(3)
	for i := range src {
		seed = seed*6364136223846793005 + 1442695040888963407
		src[i] = math.Float32frombits(uint32(seed >> 32)) // any bits at all
		if i%3 == 0 {
			src[i] = float32(int32(seed>>33)) / (1 << 30)
		}
	}
	lanes := lanesOf(src)
	for kind := range laneKinds {
		for r := 1; r <= rows; r++ {
			for _, ld := range []int{r, 14, panelWidth} {
				got, want := make([]uint32, k*panelWidth+8), make([]uint32, k*panelWidth+8)
				first := (*byte)(unsafe.Pointer(&lanes[0]))
				t.transpose[kind](&got[0], ld, first, 8*k, r, k)
				scalarTranspose[kind](&want[0], ld, first, 8*k, r, k)
				for i := range got {
					if got[i] != want[i] {
						return fmt.Errorf("transposer %d of %d rows, distance %d, lane %d: %#x, defined %#x", kind, r, ld, i, got[i], want[i])
					}
				}
			}
		}
	}
	for kind, strip := range t.strip {
		if strip == nil {
			continue
		}
		for _, ld := range []int{6, 8, panelWidth / 2} {
			const steps = 4
			got, want := make([]uint32, steps*ld+8), make([]uint32, steps*ld+8)
			first := (*byte)(unsafe.Pointer(&lanes[0]))
			strip(&got[0], ld, first, 8*k, steps)
			scalarStrip[kind](&want[0], ld, first, 8*k, steps)
			for i := range got {
				if got[i] != want[i] {
					return fmt.Errorf("striper %d, distance %d, lane %d: %#x, defined %#x", kind, ld, i, got[i], want[i])
				}
			}
		}
	}
	w, scale, zero := src[:panelWidth], make([]float32, panelWidth), make([]float32, panelWidth)
	for i := range scale {
		scale[i], zero[i] = float32(i+1)/8, float32(i%16)
	}
	var codes [2][panelWidth]uint8
	var out [2][6 * panelWidth]float32
	for i, f := range []*microTable{t, scalarTable} {
		o := &out[i]
		f.quantize(&codes[i][0], &o[0], &o[panelWidth], &w[0], &scale[0], &zero[0], 15, 0.37)
		f.columns(5, &src[0], 2*k, &o[2*panelWidth], &o[3*panelWidth], &o[4*panelWidth])
	}
	for i := range out[0] {
		if a, b := out[0][i], out[1][i]; math.Float32bits(a) != math.Float32bits(b) && (a == a || b == b) {
			return fmt.Errorf("column step, value %d: %g, defined %g", i, a, b)
		}
	}
	if codes[0] != codes[1] {
		return fmt.Errorf("quantized codes %v, defined %v", codes[0], codes[1])
	}
	return nil
}

func init() { selfTests = append(selfTests, microSelfTest) }

// wideOperand makes a float32 that is below 2 as a pair of bf16 too: no NaN or Inf in its low half, whose
// bits a level may give otherwise.
func wideOperand(x float32) float32 { return math.Float32frombits(math.Float32bits(x) &^ 0xc000) }
