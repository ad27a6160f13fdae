package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Packing and column steps. They move bytes or divide, so 256-bit vectors serve every level.

// constant spreads a 32-bit pattern over a vector.
func constant(v uint32) reg.VecVirtual {
	r, y := GP32(), YMM()
	MOVL(U32(v), r)
	VMOVD(r, y.AsX())
	VPBROADCASTD(y.AsX(), y)
	return y
}

// flusher zeroes bf16 halves whose magnitude is below 2^-55 (kernels/pack.go, tinyBF16).
type flusher struct{ magnitude, limit reg.VecVirtual }

func newFlusher() *flusher {
	const below = (127-55)<<7 - 1
	return &flusher{constant(0x7fff7fff), constant(below<<16 | below)}
}

func (f *flusher) apply(y reg.VecVirtual) {
	t := YMM()
	VPAND(f.magnitude, y, t)
	VPCMPGTW(f.limit, t, t)
	VPAND(t, y, y)
}

// transposer packs eight rows as lanes; see kernels/pack.go. kind: F32, Pair, Widen, WidenZero.
func transposer(kind string) {
	TEXT("Transpose"+kind, NOSPLIT, "func(dst *uint32, ld int, src *byte, stride, rows, k int)")
	Pragma("noescape")
	Doc("Transpose" + kind + " packs up to eight rows; rows past the end repeat the last. k is a multiple of 8.")
	var flush *flusher
	if kind == "Pair" || kind == "WidenZero" {
		flush = newFlusher()
	}
	dst := Load(Param("dst"), GP64())
	ld := Load(Param("ld"), GP64())
	SHLQ(U8(2), ld)
	var row [8]reg.GPVirtual
	row[0] = GP64()
	Load(Param("src"), row[0])
	stride := Load(Param("stride"), GP64())
	rows := Load(Param("rows"), GP64())
	for i := 1; i < 8; i++ {
		row[i] = GP64()
		next := GP64()
		MOVQ(row[i-1], row[i])
		LEAQ(Mem{Base: row[i-1], Index: stride, Scale: 1}, next)
		CMPQ(rows, U8(uint64(i+1)))
		CMOVQGE(next, row[i])
	}
	k := Load(Param("k"), GP64())
	at := GP64()
	XORQ(at, at)
	TESTQ(k, k)
	JZ(LabelRef("done"))
	Label("loop")
	var in, t, u [8]reg.VecVirtual
	for i := range in {
		in[i] = YMM()
		m := Mem{Base: row[i], Index: at, Scale: 1}
		switch kind {
		case "F32", "Pair":
			VMOVUPS(m, in[i])
		default:
			VPMOVZXWD(m, in[i])
		}
		if flush != nil {
			flush.apply(in[i])
		}
		if kind == "Widen" || kind == "WidenZero" {
			VPSLLD(U8(16), in[i], in[i])
		}
	}
	for i := 0; i < 8; i += 2 {
		t[i], t[i+1] = YMM(), YMM()
		VUNPCKLPS(in[i+1], in[i], t[i])
		VUNPCKHPS(in[i+1], in[i], t[i+1])
	}
	for i := 0; i < 8; i += 4 {
		for j := range 4 {
			u[i+j] = YMM()
			VSHUFPS(U8([]uint64{0x44, 0xee}[j%2]), t[i+2+j/2], t[i+j/2], u[i+j])
		}
	}
	for i := range 8 {
		out := YMM()
		VPERM2F128(U8([]uint64{0x20, 0x31}[i/4]), u[4+i%4], u[i%4], out)
		VMOVUPS(out, Mem{Base: dst})
		ADDQ(ld, dst)
	}
	step := uint64(32)
	if kind == "Widen" || kind == "WidenZero" {
		step = 16
	}
	ADDQ(U8(step), at)
	SUBQ(U8(8), k)
	JNZ(LabelRef("loop"))
	Label("done")
	VZEROUPPER()
	RET()
}

// strip packs eight columns along their rows; see kernels/rows_pack.go. kind: F32, Pair, WidenZero.
func strip(kind string) {
	TEXT("Strip"+kind, NOSPLIT, "func(dst *uint32, ld int, src *byte, stride, steps int)")
	Pragma("noescape")
	Doc("Strip" + kind + " packs eight columns, one step after the other.")
	var flush *flusher
	if kind != "F32" {
		flush = newFlusher()
	}
	dst, ld := Load(Param("dst"), GP64()), Load(Param("ld"), GP64())
	src, stride := Load(Param("src"), GP64()), Load(Param("stride"), GP64())
	steps := Load(Param("steps"), GP64())
	SHLQ(U8(2), ld)
	TESTQ(steps, steps)
	JZ(LabelRef("done"))
	Label("loop")
	a, b := YMM(), YMM()
	second := Mem{Base: src, Index: stride, Scale: 1}
	switch kind {
	case "F32":
		VMOVUPS(Mem{Base: src}, a)
		VMOVUPS(a, Mem{Base: dst})
		ADDQ(stride, src)
		ADDQ(ld, dst)
		DECQ(steps)
	case "Pair":
		VPMOVZXWD(Mem{Base: src}, a)
		VPMOVZXWD(second, b)
		VPSLLD(U8(16), b, b)
		VPOR(b, a, a)
		flush.apply(a)
		VMOVDQU(a, Mem{Base: dst})
		LEAQ(Mem{Base: src, Index: stride, Scale: 2}, src)
		ADDQ(ld, dst)
		DECQ(steps)
	case "WidenZero": // the second row of a pair first
		VPMOVZXWD(Mem{Base: src}, a)
		VPMOVZXWD(second, b)
		for _, y := range []reg.VecVirtual{a, b} {
			flush.apply(y)
			VPSLLD(U8(16), y, y)
		}
		VMOVDQU(b, Mem{Base: dst})
		VMOVDQU(a, Mem{Base: dst, Index: ld, Scale: 1})
		LEAQ(Mem{Base: src, Index: stride, Scale: 2}, src)
		LEAQ(Mem{Base: dst, Index: ld, Scale: 2}, dst)
		SUBQ(U8(2), steps)
	}
	JNZ(LabelRef("loop"))
	Label("done")
	VZEROUPPER()
	RET()
}

// quantize is one column of a slab; kernels/gptq.go, scalarQuantize, defines it.
func quantize() {
	TEXT("Quantize", NOSPLIT, "func(codes *uint8, deq, err, w, scale, zero *float32, maxq, diag float32)")
	Pragma("noescape")
	Doc("Quantize quantizes one column of 32 channels.")
	order := GLOBL("quantizeOrder", RODATA|NOPTR)
	for i, v := range []uint32{0, 4, 1, 5, 2, 6, 3, 7} {
		DATA(4*i, U32(v))
	}
	codes, deq, errs := Load(Param("codes"), GP64()), Load(Param("deq"), GP64()), Load(Param("err"), GP64())
	w, scale, zero := Load(Param("w"), GP64()), Load(Param("scale"), GP64()), Load(Param("zero"), GP64())
	maxq, diag, nought := YMM(), YMM(), YMM()
	m, err := Param("maxq").Resolve()
	if err != nil {
		panic(err)
	}
	d, err := Param("diag").Resolve()
	if err != nil {
		panic(err)
	}
	VBROADCASTSS(m.Addr, maxq)
	VBROADCASTSS(d.Addr, diag)
	VXORPS(nought, nought, nought)
	var q [4]reg.VecVirtual
	for i := range q {
		q[i] = YMM()
		x, s, z, e := YMM(), YMM(), YMM(), YMM()
		VMOVUPS(Mem{Base: w, Disp: 32 * i}, x)
		VMOVUPS(Mem{Base: scale, Disp: 32 * i}, s)
		VMOVUPS(Mem{Base: zero, Disp: 32 * i}, z)
		VDIVPS(s, x, q[i])
		VROUNDPS(U8(8), q[i], q[i])
		VADDPS(z, q[i], q[i])
		VMAXPS(nought, q[i], q[i]) // the second source where q is NaN or a zero
		VMINPS(q[i], maxq, q[i])
		VSUBPS(z, q[i], e)
		VMULPS(e, s, e)
		VMOVUPS(e, Mem{Base: deq, Disp: 32 * i})
		VSUBPS(e, x, e)
		VDIVPS(diag, e, e)
		VMOVUPS(e, Mem{Base: errs, Disp: 32 * i})
		VCVTTPS2DQ(q[i], q[i])
	}
	VPACKUSDW(q[1], q[0], q[0])
	VPACKUSDW(q[3], q[2], q[2])
	VPACKUSWB(q[2], q[0], q[0])
	o := YMM()
	VMOVDQU(order, o)
	VPERMD(q[0], o, q[0])
	VMOVDQU(q[0], Mem{Base: codes})
	VZEROUPPER()
	RET()
}

// columns accumulates 32 columns; kernels/columns.go, columnStep, defines it.
func columns() {
	TEXT("Columns", NOSPLIT, "func(rows int, x *float32, stride int, abs, least, most *float32)")
	Pragma("noescape")
	Doc("Columns accumulates absolute sums, least and greatest values of 32 columns.")
	magnitude := constant(0x7fffffff)
	abs, least, most := Load(Param("abs"), GP64()), Load(Param("least"), GP64()), Load(Param("most"), GP64())
	var a, l, g [4]reg.VecVirtual
	for i := range a {
		a[i], l[i], g[i] = YMM(), YMM(), YMM()
		VMOVUPS(Mem{Base: abs, Disp: 32 * i}, a[i])
		VMOVUPS(Mem{Base: least, Disp: 32 * i}, l[i])
		VMOVUPS(Mem{Base: most, Disp: 32 * i}, g[i])
	}
	rows, x, stride := Load(Param("rows"), GP64()), Load(Param("x"), GP64()), Load(Param("stride"), GP64())
	SHLQ(U8(2), stride)
	TESTQ(rows, rows)
	JZ(LabelRef("done"))
	Label("loop")
	for i := range a {
		v := YMM()
		VMOVUPS(Mem{Base: x, Disp: 32 * i}, v)
		VMINPS(l[i], v, l[i]) // v < least ? v : least
		VMAXPS(g[i], v, g[i])
		VANDPS(magnitude, v, v)
		VADDPS(v, a[i], a[i])
	}
	ADDQ(stride, x)
	DECQ(rows)
	JNZ(LabelRef("loop"))
	Label("done")
	for i := range a {
		VMOVUPS(a[i], Mem{Base: abs, Disp: 32 * i})
		VMOVUPS(l[i], Mem{Base: least, Disp: 32 * i})
		VMOVUPS(g[i], Mem{Base: most, Disp: 32 * i})
	}
	VZEROUPPER()
	RET()
}
