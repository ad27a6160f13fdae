package dtype_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"quire/kernels/dtype"
)

var lengths = []int{0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, 255, 256, 257, 513}

// patterns gives float32 of every kind: any bits, values near 1, special ones.
func patterns(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		switch r.IntN(4) {
		case 0:
			x[i] = math.Float32frombits(r.Uint32())
		case 1:
			x[i] = []float32{0, float32(math.Copysign(0, -1)), float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 1e-40, 448, 464, 65519, 65520, 5, -0.25}[r.IntN(12)]
		default:
			x[i] = float32(r.NormFloat64() * 4)
		}
	}
	return x
}

// guarded is a slice of n with room behind it that must keep its content.
type guarded[T comparable] struct {
	all, part []T
	mark      T
}

func guard[T comparable](n int, mark T) guarded[T] {
	g := guarded[T]{all: make([]T, n+9), mark: mark}
	for i := range g.all {
		g.all[i] = mark
	}
	g.part = g.all[:n]
	return g
}

func (g *guarded[T]) check(t *testing.T, what string, used int) {
	t.Helper()
	for i, v := range g.all[used:] {
		if v != g.mark {
			t.Fatalf("%s of %d: element %d was written", what, used, used+i)
		}
	}
}

func TestBulkEncodeEqualsScalar(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	type byteCase struct {
		name string
		bulk func([]byte, []float32)
		one  func(float32) byte
	}
	for _, n := range lengths {
		for _, room := range []int{n, n + 5, max(0, n-3)} {
			x, m := patterns(r, n), min(n, room)
			for _, c := range []struct {
				name string
				bulk func([]uint16, []float32)
				one  func(float32) uint16
			}{{"bf16", dtype.EncodeBF16, dtype.F32ToBF16}, {"f16", dtype.EncodeF16, dtype.F32ToF16}} {
				g := guard[uint16](room, 0xabcd)
				c.bulk(g.part, x)
				for i, v := range x[:m] {
					if g.part[i] != c.one(v) {
						t.Fatalf("%s element %d of %d: %#x, alone %#x", c.name, i, n, g.part[i], c.one(v))
					}
				}
				g.check(t, c.name, m)
			}
			for _, c := range []byteCase{{"e4m3", dtype.EncodeE4M3, dtype.F32ToE4M3}, {"e5m2", dtype.EncodeE5M2, dtype.F32ToE5M2}, {"e8m0", dtype.EncodeE8M0, dtype.F32ToE8M0}} {
				g := guard[byte](room, 0xa5)
				c.bulk(g.part, x)
				for i, v := range x[:m] {
					if g.part[i] != c.one(v) {
						t.Fatalf("%s element %d of %d: %#x, alone %#x", c.name, i, n, g.part[i], c.one(v))
					}
				}
				g.check(t, c.name, m)
			}
			for _, c := range []struct {
				name string
				bulk func(dst, src []float32)
				one  func(float32) float32
			}{
				{"round bf16", dtype.RoundBF16, func(v float32) float32 { return dtype.BF16ToF32(dtype.F32ToBF16(v)) }},
				{"round f16", dtype.RoundF16, func(v float32) float32 { return dtype.F16ToF32(dtype.F32ToF16(v)) }},
			} {
				g := guard[float32](room, -77)
				c.bulk(g.part, x)
				inPlace := append([]float32(nil), x...)
				c.bulk(inPlace, inPlace)
				for i, v := range x[:m] {
					if !same(g.part[i], float64(c.one(v))) || !same(inPlace[i], float64(c.one(v))) {
						t.Fatalf("%s element %d of %d: %g, in place %g, alone %g", c.name, i, n, g.part[i], inPlace[i], c.one(v))
					}
				}
				g.check(t, c.name, m)
			}
		}
		x := patterns(r, n)
		g := guard[byte]((n+1)/2, 0xa5)
		dtype.EncodeE2M1(g.part, x)
		for i, v := range x {
			if got := g.part[i/2] >> (i % 2 * 4) & 15; got != dtype.F32ToE2M1(v) {
				t.Fatalf("e2m1 element %d of %d: %d, alone %d", i, n, got, dtype.F32ToE2M1(v))
			}
		}
		if n%2 == 1 && g.part[n/2]>>4 != 0 {
			t.Fatalf("the spare nibble of %d codes is %#x", n, g.part[n/2]>>4)
		}
		g.check(t, "e2m1", (n+1)/2)
	}
}

func TestBulkDecodeEqualsScalar(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, n := range lengths {
		for _, room := range []int{n, n + 5, max(0, n-3)} {
			codes, raw := make([]uint16, n), make([]byte, n)
			for i := range codes {
				codes[i], raw[i] = uint16(r.Uint32()), byte(r.Uint32())
			}
			m := min(n, room)
			check := func(name string, m int, run func(dst []float32), one func(i int) float32) {
				g := guard[float32](room, -77)
				run(g.part)
				for i := range m {
					if !same(g.part[i], float64(one(i))) {
						t.Fatalf("%s element %d of %d: %g, alone %g", name, i, n, g.part[i], one(i))
					}
				}
				g.check(t, name, m)
			}
			check("bf16", m, func(d []float32) { dtype.DecodeBF16(d, codes) }, func(i int) float32 { return dtype.BF16ToF32(codes[i]) })
			check("f16", m, func(d []float32) { dtype.DecodeF16(d, codes) }, func(i int) float32 { return dtype.F16ToF32(codes[i]) })
			check("e4m3", m, func(d []float32) { dtype.DecodeE4M3(d, raw) }, func(i int) float32 { return dtype.E4M3ToF32(raw[i]) })
			check("e5m2", m, func(d []float32) { dtype.DecodeE5M2(d, raw) }, func(i int) float32 { return dtype.E5M2ToF32(raw[i]) })
			check("e8m0", m, func(d []float32) { dtype.DecodeE8M0(d, raw) }, func(i int) float32 { return dtype.E8M0ToF32(raw[i]) })
			check("e2m1", min(room, 2*n), func(d []float32) { dtype.DecodeE2M1(d, raw) }, func(i int) float32 { return dtype.E2M1ToF32(raw[i/2] >> (i % 2 * 4) & 15) })
		}
	}
}

// Little-endian bytes at any alignment, an odd byte left over.
func TestBulkBytesEqualScalar(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, n := range lengths {
		for shift := range 4 {
			x := patterns(r, n)
			wide := make([]byte, shift+4*n+1)[shift:]
			dtype.EncodeF32Bytes(wide, x)
			back := make([]float32, n)
			dtype.DecodeF32Bytes(back, wide)
			for i, v := range x {
				if binary.LittleEndian.Uint32(wide[4*i:]) != math.Float32bits(v) || math.Float32bits(back[i]) != math.Float32bits(v) {
					t.Fatalf("float32 element %d of %d", i, n)
				}
			}
			for _, c := range []struct {
				name   string
				encode func([]byte, []float32)
				decode func([]float32, []byte)
				to     func(float32) uint16
				from   func(uint16) float32
			}{
				{"bf16", dtype.EncodeBF16Bytes, dtype.DecodeBF16Bytes, dtype.F32ToBF16, dtype.BF16ToF32},
				{"f16", dtype.EncodeF16Bytes, dtype.DecodeF16Bytes, dtype.F32ToF16, dtype.F16ToF32},
			} {
				b := make([]byte, shift+2*n+1)[shift:]
				b[2*n] = 0xa5
				c.encode(b, x)
				c.decode(back, b)
				codes := make([]uint16, n)
				dtype.DecodeU16Bytes(codes, b)
				for i, v := range x {
					code := binary.LittleEndian.Uint16(b[2*i:])
					if code != c.to(v) || codes[i] != code || !same(back[i], float64(c.from(code))) {
						t.Fatalf("%s element %d of %d at alignment %d: code %#x and %#x, value %g", c.name, i, n, shift, code, codes[i], back[i])
					}
				}
				if b[2*n] != 0xa5 {
					t.Fatalf("%s of %d wrote past its end", c.name, n)
				}
			}
		}
	}
}
