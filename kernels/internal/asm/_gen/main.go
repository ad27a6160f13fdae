// Command gen writes the matrix micro-kernels of package asm, from one description for AVX2 and AVX-512:
//
//	go -C _gen run . -out ../gemm_amd64.s -stubs ../gemm_amd64.go -pkg asm
//
// A kernel computes an h x 32 tile (16 wide for float64); kernels/micro.go defines every kind.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// isa is a vector width.
type isa struct {
	name   string
	vec    []reg.VecPhysical
	bytes  int
	height int
	passes int // times the kernel runs over its panel, each with two vectors a row
}

var (
	avx2   = isa{"AVX2", []reg.VecPhysical{reg.Y0, reg.Y1, reg.Y2, reg.Y3, reg.Y4, reg.Y5, reg.Y6, reg.Y7, reg.Y8, reg.Y9, reg.Y10, reg.Y11, reg.Y12, reg.Y13, reg.Y14, reg.Y15}, 32, 6, 2}
	avx512 = isa{"AVX512", []reg.VecPhysical{reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7, reg.Z8, reg.Z9, reg.Z10, reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15,
		reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23, reg.Z24, reg.Z25, reg.Z26, reg.Z27, reg.Z28, reg.Z29, reg.Z30, reg.Z31}, 64, 14, 1}
)

func main() {
	ConstraintExpr("amd64,!noasm,!purego,gc")
	for _, s := range []isa{avx2, avx512} {
		for h := 1; h <= s.height; h++ {
			for _, kind := range []string{"F32", "Wide", "F64"} {
				kernel(s, kind, h)
			}
			if s.bytes == 64 {
				kernel(s, "Dot", h)
			}
		}
	}
	for _, kind := range []string{"F32", "Pair", "Widen", "WidenZero"} {
		transposer(kind)
	}
	interleave()
	widen()
	quantize()
	columns()
	peak(avx2, "FMA")
	peak(avx512, "FMA")
	peak(avx512, "Dot")
	Generate()
}

func kernel(s isa, kind string, h int) {
	elem := 4
	signature := "func(k int, a *float32, lda int, b, c *float32, ldc, mode int, pf *float32)"
	if kind == "F64" {
		elem = 8
		signature = "func(k int, a *float64, lda int, b, c *float64, ldc, mode int)"
	}
	TEXT(fmt.Sprintf("%s%sx%d", kind, s.name, h), NOSPLIT, signature)
	Pragma("noescape")
	Doc(fmt.Sprintf("%s%sx%d is the %s micro-kernel of height %d.", kind, s.name, h, kind, h))
	a0 := Load(Param("a"), GP64())
	lda := Load(Param("lda"), GP64())
	b0 := Load(Param("b"), GP64())
	c := Load(Param("c"), GP64())
	ldc := Load(Param("ldc"), GP64())
	mode := Load(Param("mode"), GP64())
	shift := map[int]uint64{4: 2, 8: 3}[elem]
	SHLQ(U8(shift), lda)
	SHLQ(U8(shift), ldc) // of elements of C; float64 sums double it below
	pf := GP64()
	if kind != "F64" {
		Load(Param("pf"), pf)
		CMPQ(mode, U8(3))
		JNE(LabelRef("single"))
		SHLQ(U8(1), ldc)
		Label("single")
	}
	passes := GP64()
	MOVQ(U32(uint64(s.passes)), passes)
	acc := func(r, v int) reg.VecPhysical { return s.vec[2*r+v] }
	spare := s.vec[2*s.height:] // two for B, two for A
	bv := spare[:2]
	av := spare[2:4]
	ap, bp, k := GP64(), GP64(), GP64()

	Label("pass")
	Load(Param("k"), k)
	MOVQ(a0, ap)
	MOVQ(b0, bp)
	// accumulators: zero, or C
	CMPQ(mode, U8(2))
	JEQ(LabelRef("chain"))
	for r := range h {
		for v := range 2 {
			x := acc(r, v)
			zero(s, x)
		}
	}
	JMP(LabelRef("loop"))
	Label("chain")
	cp := GP64()
	MOVQ(c, cp)
	for r := range h {
		for v := range 2 {
			if elem == 8 {
				VMOVUPD(Mem{Base: cp, Disp: v * s.bytes}, acc(r, v))
			} else {
				VMOVUPS(Mem{Base: cp, Disp: v * s.bytes}, acc(r, v))
			}
		}
		ADDQ(ldc, cp)
	}
	Label("loop")
	const unroll = 4
	CMPQ(k, U8(unroll))
	JL(LabelRef("tail"))
	Label("body")
	if kind != "F64" {
		PREFETCHT1(Mem{Base: pf})
		ADDQ(U8(64), pf)
	}
	for u := range unroll {
		step(s, kind, h, u, acc, bv, av, ap, bp, lda)
	}
	panel := 128
	ADDQ(U32(uint64(unroll*panel)), bp)
	SUBQ(U8(unroll), k)
	CMPQ(k, U8(unroll))
	JGE(LabelRef("body"))
	Label("tail")
	TESTQ(k, k)
	JZ(LabelRef("join"))
	Label("one")
	step(s, kind, h, 0, acc, bv, av, ap, bp, lda)
	ADDQ(U32(uint64(panel)), bp)
	DECQ(k)
	JNZ(LabelRef("one"))

	Label("join")
	MOVQ(c, cp)
	CMPQ(mode, U8(1))
	JEQ(LabelRef("add"))
	CMPQ(mode, U8(4))
	JEQ(LabelRef("sub"))
	if kind != "F64" {
		CMPQ(mode, U8(3))
		JEQ(LabelRef("add64"))
	}
	rows := func(f func(m Mem, x reg.VecPhysical)) {
		for r := range h {
			for v := range 2 {
				f(Mem{Base: cp, Disp: v * s.bytes}, acc(r, v))
			}
			if r+1 < h {
				ADDQ(ldc, cp)
			}
		}
	}
	store := func(x reg.VecPhysical, m Mem) {
		if elem == 8 {
			VMOVUPD(x, m)
		} else {
			VMOVUPS(x, m)
		}
	}
	rows(func(m Mem, x reg.VecPhysical) { store(x, m) })
	JMP(LabelRef("next"))
	Label("add")
	rows(func(m Mem, x reg.VecPhysical) {
		if elem == 8 {
			VADDPD(m, x, x)
		} else {
			VADDPS(m, x, x)
		}
		store(x, m)
	})
	JMP(LabelRef("next"))
	Label("sub")
	rows(func(m Mem, x reg.VecPhysical) {
		t := bv[0]
		if elem == 8 {
			VMOVUPD(m, t)
			VSUBPD(x, t, t)
		} else {
			VMOVUPS(m, t)
			VSUBPS(x, t, t)
		}
		store(t, m)
	})
	if kind != "F64" {
		JMP(LabelRef("next"))
		Label("add64")
		for r := range h {
			for v := range 2 {
				join64(s, acc(r, v), bv, Mem{Base: cp, Disp: 2 * v * s.bytes})
			}
			if r+1 < h {
				ADDQ(ldc, cp)
			}
		}
		if s.passes > 1 {
			ADDQ(U8(uint64(2*s.bytes)), c) // the float64 tile moves on twice as far
		}
	}
	Label("next")
	if s.passes > 1 {
		ADDQ(U8(uint64(2*s.bytes)), c)
		ADDQ(U8(uint64(2*s.bytes)), b0)
		DECQ(passes)
		JNZ(LabelRef("pass"))
	}
	VZEROUPPER()
	RET()
}

func zero(s isa, x reg.VecPhysical) {
	if s.bytes == 64 {
		VPXORD(x, x, x)
	} else {
		VXORPS(x, x, x)
	}
}

// step is one k (one pair of k for Wide and Dot): every row's broadcast times two vectors of B.
func step(s isa, kind string, h, u int, acc func(r, v int) reg.VecPhysical, bv, av []reg.VecPhysical, ap, bp, lda reg.Register) {
	disp := 128 * u
	switch kind {
	case "F32":
		for v := range 2 {
			VMOVUPS(Mem{Base: bp, Disp: disp + v*s.bytes}, bv[v])
		}
		for r := range h {
			x := av[r%2]
			VBROADCASTSS(Mem{Base: ap, Disp: 4 * r}, x)
			for v := range 2 {
				VFMADD231PS(bv[v], x, acc(r, v))
			}
		}
		ADDQ(lda, ap)
	case "F64":
		for v := range 2 {
			VMOVUPD(Mem{Base: bp, Disp: disp + v*s.bytes}, bv[v])
		}
		for r := range h {
			x := av[r%2]
			VBROADCASTSD(Mem{Base: ap, Disp: 8 * r}, x)
			for v := range 2 {
				VFMADD231PD(bv[v], x, acc(r, v))
			}
		}
		ADDQ(lda, ap)
	case "Wide": // odd k first: the high halves of the lanes
		for v := range 2 {
			VMOVUPS(Mem{Base: bp, Disp: disp + v*s.bytes}, bv[v])
			VPSRLD(U8(16), bv[v], bv[v])
			VPSLLD(U8(16), bv[v], bv[v])
		}
		for r := range h {
			x := av[r%2]
			VBROADCASTSS(Mem{Base: ap, Disp: 4 * r, Index: lda, Scale: 1}, x)
			for v := range 2 {
				VFMADD231PS(bv[v], x, acc(r, v))
			}
		}
		for v := range 2 {
			VMOVUPS(Mem{Base: bp, Disp: disp + v*s.bytes}, bv[v])
			VPSLLD(U8(16), bv[v], bv[v])
		}
		for r := range h {
			x := av[r%2]
			VBROADCASTSS(Mem{Base: ap, Disp: 4 * r}, x)
			for v := range 2 {
				VFMADD231PS(bv[v], x, acc(r, v))
			}
		}
		LEAQ(Mem{Base: ap, Index: lda, Scale: 2}, ap)
	case "Dot":
		for v := range 2 {
			VMOVUPS(Mem{Base: bp, Disp: disp + v*s.bytes}, bv[v])
		}
		for r := range h {
			x := av[r%2]
			VPBROADCASTD(Mem{Base: ap, Disp: 4 * r}, x)
			for v := range 2 {
				vdpbf16ps(acc(r, v), x, bv[v])
			}
		}
		ADDQ(lda, ap)
	}
}

// join64 is C64 += float64(x), C64 twice as wide as x.
func join64(s isa, x reg.VecPhysical, t []reg.VecPhysical, m Mem) {
	high := m
	high.Disp += s.bytes
	if s.bytes == 64 {
		VEXTRACTF64X4(U8(1), x, t[0].AsY())
		VCVTPS2PD(x.AsY(), t[1])
		VADDPD(m, t[1], t[1])
		VMOVUPD(t[1], m)
		VCVTPS2PD(t[0].AsY(), t[1])
		VADDPD(high, t[1], t[1])
		VMOVUPD(t[1], high)
		return
	}
	VEXTRACTF128(U8(1), x, t[0].AsX())
	VCVTPS2PD(x.AsX(), t[1])
	VADDPD(m, t[1], t[1])
	VMOVUPD(t[1], m)
	VCVTPS2PD(t[0].AsX(), t[1])
	VADDPD(high, t[1], t[1])
	VMOVUPD(t[1], high)
}

// vdpbf16ps emits EVEX.512.F3.0F38.W0 52 /r: Go's assembler does not know it.
func vdpbf16ps(dst, s1, s2 reg.VecPhysical) {
	d, a, b := number(dst), number(s1), number(s2)
	p0 := byte(0x02)
	if d&8 == 0 {
		p0 |= 0x80
	}
	if b&16 == 0 {
		p0 |= 0x40
	}
	if b&8 == 0 {
		p0 |= 0x20
	}
	if d&16 == 0 {
		p0 |= 0x10
	}
	p1 := (^a&15)<<3 | 0x06
	p2 := byte(0x40)
	if a&16 == 0 {
		p2 |= 0x08
	}
	for _, x := range []byte{0x62, p0, p1, p2, 0x52, 0xC0 | (d&7)<<3 | b&7} {
		Instruction(&ir.Instruction{Opcode: "BYTE", Operands: []Op{U8(uint64(x))}})
	}
}

// number is the encoding of a vector register.
func number(r reg.VecPhysical) byte {
	for i, z := range avx512.vec {
		if z.Asm() == r.Asm() {
			return byte(i)
		}
	}
	panic("not a zmm register: " + r.Asm())
}
