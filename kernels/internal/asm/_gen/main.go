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
	for _, kind := range []string{"F32", "Pair", "WidenZero"} {
		strip(kind)
	}
	quantize()
	columns()
	peak(avx2, "FMA")
	peak(avx512, "FMA")
	peak(avx512, "Dot")
	read()
	Generate()
}

func kernel(s isa, kind string, h int) {
	typ, shift := "float32", uint64(2)
	if kind == "F64" {
		typ, shift = "float64", 3
	}
	TEXT(fmt.Sprintf("%s%sx%d", kind, s.name, h), NOSPLIT,
		fmt.Sprintf("func(k int, a *%[1]s, lda int, b *%[1]s, half int, c *%[1]s, ldc, mode, count int, pf *%[1]s, ahead int)", typ))
	Pragma("noescape")
	Doc(fmt.Sprintf("%s%sx%d is the %s micro-kernel of height %d.", kind, s.name, h, kind, h))
	lda := Load(Param("lda"), GP64())
	b0 := Load(Param("b"), GP64())
	ldc := Load(Param("ldc"), GP64())
	mode := Load(Param("mode"), GP64())
	pf := Load(Param("pf"), GP64())
	ahead := Load(Param("ahead"), GP64())
	half := GP64()
	Load(Param("half"), half)
	SHLQ(U8(shift), lda)
	SHLQ(U8(shift), ldc) // of elements of C; float64 sums double it below
	SHLQ(U8(shift), half)
	// A step of half a panel is 64 bytes; where the halves lie side by side it is 128 to the next.
	ldb := GP64()
	MOVQ(U32(64), ldb)
	CMPQ(half, U8(64))
	JNE(LabelRef("apart"))
	ADDQ(U8(64), ldb)
	Label("apart")
	if kind != "F64" {
		CMPQ(mode, U8(3))
		JNE(LabelRef("single"))
		SHLQ(U8(1), ldc)
		Label("single")
	}
	k := &stepper{s: s, kind: kind, h: h, lda: lda, ldb: ldb, half: half, ap: GP64(), bp: GP64(), bv: s.vec[2*s.height:][:2], av: s.vec[2*s.height+2:][:2]}
	left, cp, count, row := GP64(), GP64(), GP64(), GP64()
	Load(Param("c"), cp)

	Label("pass")
	Load(Param("count"), count)
	Load(Param("a"), k.ap)
	Label("tile")
	Load(Param("k"), left)
	MOVQ(b0, k.bp)
	// C arrives while the products are made.
	lines := 2 * s.bytes / 64
	if kind != "F64" {
		lines *= 2 // float64 sums
	}
	MOVQ(cp, row)
	for r := range h {
		for l := range lines {
			PREFETCHT0(Mem{Base: row, Disp: 64 * l})
		}
		if r+1 < h {
			ADDQ(ldc, row)
		}
	}
	// accumulators: zero, or C
	CMPQ(mode, U8(2))
	JEQ(LabelRef("chain"))
	for r := range h {
		for v := range 2 {
			zero(s, k.acc(r, v))
		}
	}
	JMP(LabelRef("loop"))
	Label("chain")
	MOVQ(cp, row)
	for r := range h {
		for v := range 2 {
			k.load(Mem{Base: row, Disp: v * s.bytes}, k.acc(r, v))
		}
		ADDQ(ldc, row)
	}
	Label("loop")
	const unroll = 4
	CMPQ(left, U8(unroll))
	JL(LabelRef("tail"))
	Label("body")
	// Four lines ahead apart (or the same one again, where ahead is small).
	PREFETCHT1(Mem{Base: pf})
	PREFETCHT1(Mem{Base: pf, Index: ahead, Scale: 1})
	LEAQ(Mem{Base: pf, Index: ahead, Scale: 2}, pf)
	PREFETCHT1(Mem{Base: pf})
	PREFETCHT1(Mem{Base: pf, Index: ahead, Scale: 1})
	LEAQ(Mem{Base: pf, Index: ahead, Scale: 2}, pf)
	for range unroll {
		k.step()
	}
	SUBQ(U8(unroll), left)
	CMPQ(left, U8(unroll))
	JGE(LabelRef("body"))
	Label("tail")
	TESTQ(left, left)
	JZ(LabelRef("join"))
	Label("one")
	k.step()
	DECQ(left)
	JNZ(LabelRef("one"))

	Label("join")
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
				f(Mem{Base: cp, Disp: v * s.bytes}, k.acc(r, v))
			}
			ADDQ(ldc, cp) // after the last row: the next tile
		}
	}
	rows(func(m Mem, x reg.VecPhysical) { k.store(x, m) })
	JMP(LabelRef("next"))
	Label("add")
	rows(func(m Mem, x reg.VecPhysical) {
		if kind == "F64" {
			VADDPD(m, x, x)
		} else {
			VADDPS(m, x, x)
		}
		k.store(x, m)
	})
	JMP(LabelRef("next"))
	Label("sub")
	rows(func(m Mem, x reg.VecPhysical) {
		t := k.bv[0]
		k.load(m, t)
		if kind == "F64" {
			VSUBPD(x, t, t)
		} else {
			VSUBPS(x, t, t)
		}
		k.store(t, m)
	})
	if kind != "F64" {
		JMP(LabelRef("next"))
		Label("add64")
		rows(func(m Mem, x reg.VecPhysical) {
			m.Disp *= 2
			join64(s, x, k.bv, m)
		})
	}
	Label("next") // A has moved on by itself
	DECQ(count)
	JNZ(LabelRef("tile"))
	if s.passes > 1 {
		first, err := Param("b").Resolve()
		if err != nil {
			panic(err)
		}
		CMPQ(b0, first.Addr)
		JNE(LabelRef("done"))
		ADDQ(half, b0)
		Load(Param("c"), cp)
		ADDQ(U8(64), cp)
		if kind != "F64" {
			CMPQ(mode, U8(3))
			JNE(LabelRef("pass"))
			ADDQ(U8(64), cp) // a float64 tile is twice as wide
		}
		JMP(LabelRef("pass"))
		Label("done")
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

// stepper emits the products of a kernel, one step after the other.
type stepper struct {
	s                      isa
	kind                   string
	h                      int
	lda, ldb, half, ap, bp reg.Register
	bv, av                 []reg.VecPhysical // two vectors of B, two broadcasts of A
}

func (k *stepper) acc(r, v int) reg.VecPhysical { return k.s.vec[2*r+v] }

func (k *stepper) load(m Mem, x reg.VecPhysical) {
	if k.kind == "F64" {
		VMOVUPD(m, x)
	} else {
		VMOVUPS(m, x)
	}
}

func (k *stepper) store(x reg.VecPhysical, m Mem) {
	if k.kind == "F64" {
		VMOVUPD(x, m)
	} else {
		VMOVUPS(x, m)
	}
}

// b is vector v of a step: two vectors of one half, or one of each.
func (k *stepper) b(v int) Mem {
	switch {
	case v == 0:
		return Mem{Base: k.bp}
	case k.s.passes > 1:
		return Mem{Base: k.bp, Disp: k.s.bytes}
	}
	return Mem{Base: k.bp, Index: k.half, Scale: 1}
}

// step is one k (one pair of k for Wide and Dot): every row's broadcast times two vectors of B.
func (k *stepper) step() {
	products := func(a Mem) {
		for r := range k.h {
			x, m := k.av[r%2], a
			switch k.kind {
			case "F64":
				m.Disp = 8 * r
				VBROADCASTSD(m, x)
			case "Dot":
				m.Disp = 4 * r
				VPBROADCASTD(m, x)
			default:
				m.Disp = 4 * r
				VBROADCASTSS(m, x)
			}
			for v := range 2 {
				switch k.kind {
				case "F64":
					VFMADD231PD(k.bv[v], x, k.acc(r, v))
				case "Dot":
					vdpbf16ps(k.acc(r, v), x, k.bv[v])
				default:
					VFMADD231PS(k.bv[v], x, k.acc(r, v))
				}
			}
		}
	}
	for v := range 2 {
		k.load(k.b(v), k.bv[v])
	}
	if k.kind != "Wide" {
		products(Mem{Base: k.ap})
		ADDQ(k.lda, k.ap)
		ADDQ(k.ldb, k.bp)
		return
	}
	// Odd k first: the high halves of the lanes.
	for v := range 2 {
		if k.s.bytes == 64 {
			VPANDD(highHalves(), k.bv[v], k.bv[v])
		} else {
			VPAND(highHalves(), k.bv[v], k.bv[v])
		}
	}
	products(Mem{Base: k.ap, Index: k.lda, Scale: 1})
	for v := range 2 {
		k.load(k.b(v), k.bv[v])
		VPSLLD(U8(16), k.bv[v], k.bv[v])
	}
	products(Mem{Base: k.ap})
	LEAQ(Mem{Base: k.ap, Index: k.lda, Scale: 2}, k.ap)
	ADDQ(k.ldb, k.bp)
}

var highMask *Mem

// highHalves is a vector of 0xffff0000.
func highHalves() Mem {
	if highMask == nil {
		m := GLOBL("highHalves", RODATA|NOPTR)
		for i := range 16 {
			DATA(4*i, U32(0xffff0000))
		}
		highMask = &m
	}
	return *highMask
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
