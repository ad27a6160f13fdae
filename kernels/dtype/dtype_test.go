package dtype_test

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"quire/kernels/dtype"
)

func same(got float32, want float64) bool {
	return want != want && got != got || math.Float64bits(float64(got)) == math.Float64bits(want)
}

func TestEveryCodeDecodesExactly(t *testing.T) {
	for _, f := range formats {
		for c := range f.codes {
			if got := f.decode(c); !same(got, f.value(c)) {
				t.Errorf("%s code %#x: %g, want %g", f.name, c, got, f.value(c))
			}
		}
		if largest := f.positive[len(f.positive)-1]; map[string]float64{"bf16": 0x1.fep127, "f16": 65504, "e4m3": 448, "e5m2": 57344, "e2m1": 6}[f.name] != largest {
			t.Errorf("%s: largest value %g", f.name, largest)
		}
	}
	for c := range 255 {
		if got := dtype.E8M0ToF32(byte(c)); !same(got, math.Ldexp(1, c-127)) {
			t.Errorf("e8m0 code %d: %g", c, got)
		}
	}
	if got := dtype.E8M0ToF32(255); got == got {
		t.Errorf("e8m0 code 255: %g", got)
	}
}

// Every code that is not NaN comes back from its value.
func TestCodesComeBack(t *testing.T) {
	for _, f := range formats {
		for c := range f.codes {
			if v := f.decode(c); v == v {
				if got := f.encode(v); got != c {
					t.Errorf("%s code %#x is %g, encoded again %#x", f.name, c, v, got)
				}
			}
		}
	}
	for c := range 255 {
		if got := dtype.F32ToE8M0(dtype.E8M0ToF32(byte(c))); int(got) != c {
			t.Errorf("e8m0 code %d comes back as %d", c, got)
		}
	}
}

// inputs calls f with a million float32 bit patterns spread over all 2^32, special ones
// and everything within three steps of a value of the format or the middle of two.
func inputs(f *format, visit func(u uint32)) {
	for u := uint64(0); u < 1<<32; u += 4093 {
		visit(uint32(u))
	}
	for _, u := range []uint32{0, 1, 0x007fffff, 0x00800000, 0x00400000, 0x00600000, 0x005fffff, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fbfffff, 0x7fc00000, 0x7fffffff} {
		visit(u)
		visit(u | 1<<31)
	}
	around := func(v float64) {
		u := math.Float32bits(float32(v))
		for d := uint32(0); d < 7; d++ {
			if w := u + d - 3; w < 1<<31 {
				visit(w)
				visit(w | 1<<31)
			}
		}
	}
	for _, v := range f.positive {
		around(v)
	}
	for _, v := range f.middle {
		around(v)
	}
}

func TestEncodeIsNearestEven(t *testing.T) {
	for _, f := range formats {
		t.Run(f.name, func(t *testing.T) {
			bad := 0
			inputs(f, func(u uint32) {
				x := math.Float32frombits(u)
				if got, want := f.encode(x), f.want(x); got != want && bad < 10 {
					bad++
					t.Errorf("%g (%#08x): code %#x, want %#x", x, u, got, want)
				}
			})
		})
	}
	t.Run("e8m0", func(t *testing.T) {
		powers := &format{}
		for c := range 255 {
			powers.positive = append(powers.positive, math.Ldexp(1, c-127))
			powers.middle = append(powers.middle, math.Ldexp(1.5, c-127))
		}
		bad := 0
		inputs(powers, func(u uint32) {
			x := math.Float32frombits(u)
			if got, want := uint32(dtype.F32ToE8M0(x)), nearestPower(x); got != want && bad < 10 {
				bad++
				t.Errorf("%g (%#08x): code %d, want %d", x, u, got, want)
			}
		})
	})
}

// All 2^32 inputs with QUIRE_LONG=1: encoding is checked in order of magnitude, so the
// definition's search becomes a pointer that moves on.
func TestEncodeOfEveryFloat32(t *testing.T) {
	if os.Getenv("QUIRE_LONG") == "" {
		t.Log("left to QUIRE_LONG=1; TestEncodeIsNearestEven covers a part")
		return
	}
	const piece = 1 << 24
	for _, f := range formats {
		everyFloat(t, f.name, piece, func(from, to uint32) error {
			c := f.nearest(math.Float32frombits(from))
			for u := from; u < to; u++ {
				x := math.Float32frombits(u)
				var want, minus uint32
				if u > 0x7f800000 {
					want, minus = f.nan(u), f.nan(u|1<<31)
				} else {
					for v := float64(x); int(c) < len(f.middle) && (v > f.middle[c] || v == f.middle[c] && c%2 == 1); {
						c++
					}
					want, minus = c, c|f.signBit
				}
				if got := f.encode(x); got != want {
					return fmt.Errorf("%g (%#08x): code %#x, want %#x", x, u, got, want)
				}
				if got := f.encode(-x); got != minus {
					return fmt.Errorf("%g (%#08x): code %#x, want %#x", -x, u|1<<31, got, minus)
				}
			}
			return nil
		})
	}
	everyFloat(t, "e8m0", piece, func(from, to uint32) error {
		c := nearestPower(math.Float32frombits(from))
		step := math.Ldexp(1.5, int(c)-127)
		for u := from; u < to; u++ {
			x := math.Float32frombits(u)
			if u >= 0x7f800000 {
				c = 255
			} else {
				for c < 254 && float64(x) >= step {
					c++
					step *= 2
				}
			}
			if got := uint32(dtype.F32ToE8M0(x)); got != c {
				return fmt.Errorf("%g (%#08x): code %d, want %d", x, u, got, c)
			}
			minus := uint32(255)
			if u == 0 {
				minus = 0
			}
			if got := uint32(dtype.F32ToE8M0(-x)); got != minus {
				return fmt.Errorf("%g (%#08x): code %d, want %d", -x, u|1<<31, got, minus)
			}
		}
		return nil
	})
}

// everyFloat calls check with pieces of 0 … 2^31-1 on all processors.
func everyFloat(t *testing.T, name string, piece uint32, check func(from, to uint32) error) {
	t.Run(name, func(t *testing.T) {
		var next atomic.Int64
		var wait sync.WaitGroup
		for range runtime.GOMAXPROCS(0) {
			wait.Go(func() {
				for {
					at := uint64(next.Add(1)-1) * uint64(piece)
					if at >= 1<<31 {
						return
					}
					if err := check(uint32(at), uint32(at)+piece); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wait.Wait()
	})
}
