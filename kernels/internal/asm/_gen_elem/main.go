// Command _gen_elem writes the element-wise, reduction and softmax kernels of
// package kernels for AVX2 (two ymm make the 16 virtual lanes) and AVX-512 (one
// zmm) from one description. Each follows, step by step, the twin of the same
// name in kernels/elem_lane.go and kernels/elem_twin.go.
package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// gen describes the vector width in use.
type gen struct {
	wide bool // 512 bits
}

func (g gen) bytes() int {
	if g.wide {
		return 64
	}
	return 32
}

// vectors is the number of vectors that make 16 lanes.
func (g gen) vectors() int { return 64 / g.bytes() }

func (g gen) vec() reg.VecVirtual {
	if g.wide {
		return ZMM()
	}
	return YMM()
}

// begin starts a kernel; sig is the part behind the name.
func (g gen) begin(name, sig, doc string) {
	suffix := "AVX2"
	if g.wide {
		suffix = "AVX512"
	}
	TEXT("Elem"+name+suffix, NOSPLIT, "func"+sig)
	Doc(doc)
	Pragma("noescape")
}

func (g gen) end() {
	VZEROUPPER()
	RET()
}

var constants = map[uint32]Mem{}

// bits is a 64-byte constant of one 32-bit pattern.
func bits(u uint32) Mem {
	if m, ok := constants[u]; ok {
		return m
	}
	m := GLOBL(fmt.Sprintf("c%08x", u), RODATA|NOPTR)
	for i := range 16 {
		DATA(4*i, U32(u))
	}
	constants[u] = m
	return m
}

func f32(x float64) Mem { return bits(math.Float32bits(float32(x))) }

func (g gen) load(m Op) reg.VecVirtual {
	v := g.vec()
	VMOVUPS(m, v)
	return v
}

func (g gen) param(name string) reg.VecVirtual {
	a, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	v := g.vec()
	VBROADCASTSS(a.Addr, v)
	return v
}

// mask is the result of a comparison.
type mask struct {
	y, k reg.Register
}

// Comparison predicates of VCMPPS, quiet.
const (
	lt  = 17
	gt  = 30
	eq  = 0
	nlt = 21
)

// compare gives a OP b; b may be memory.
func (g gen) compare(op uint8, a reg.VecVirtual, b Op) mask {
	if g.wide {
		k := K()
		VCMPPS(U8(op), b, a, k)
		return mask{k: k}
	}
	y := YMM()
	VCMPPS(U8(op), b, a, y)
	return mask{y: y}
}

// choose is yes where m, else no; yes may be memory.
func (g gen) choose(m mask, yes Op, no reg.VecVirtual) reg.VecVirtual {
	v := g.vec()
	if g.wide {
		VBLENDMPS(yes, no, m.k, v)
	} else {
		VBLENDVPS(m.y, yes, no, v)
	}
	return v
}

func (g gen) and(m Op, a reg.VecVirtual) reg.VecVirtual {
	v := g.vec()
	VANDPS(m, a, v)
	return v
}

const (
	signBit = 0x80000000
	absBits = 0x7fffffff
)

// horner evaluates c, highest power first.
func (g gen) horner(c []float64, x reg.VecVirtual) reg.VecVirtual {
	p := g.load(f32(c[0]))
	for _, v := range c[1:] {
		VFMADD213PS(f32(v), x, p)
	}
	return p
}

var (
	expPoly  = []float64{0.000198909809, 0.00139336416, 0.00833331048, 0.0416664667, 0.166666672, 0.5}
	tanhPoly = []float64{-0.000634542259, 0.00298704533, -0.00862106401, 0.0218177605, -0.0539628826, 0.133333117, -0.333333343}
	logPoly  = []float64{0.0697161183, -0.114797339, 0.116854198, -0.124256872, 0.142490581, -0.166678026, 0.200007156, -0.24999997, 0.333333313}
	phiPoly  = []float64{5.37264327e-07, -9.27440124e-06, 0.000115320749, -0.00118728878, 0.00997355022, -0.066490382, 0.398942292}
	phiTail  = []float64{0.0259936638, -0.10857521, 0.14844124, -0.0881127641, 0.100661092, 0.043592006, 0.085663721, 0.092809543, 0.0997958854, 0.0997332484}
)

const (
	log2E      = 1.44269502
	roundMagic = 12582912
	ln2Hi      = 0.693359375
	ln2Lo      = -2.12194440e-4
)

func (g gen) exp(x reg.VecVirtual) reg.VecVirtual {
	c := g.load(f32(89))
	VMINPS(x, c, c)
	r := g.load(f32(-104))
	VMAXPS(c, r, r) // r = x clamped
	t := g.load(f32(log2E))
	VFMADD213PS(f32(roundMagic), r, t)
	k := g.vec()
	VSUBPS(f32(roundMagic), t, k)
	VFMADD231PS(f32(-ln2Hi), k, r)
	VFMADD231PS(f32(-ln2Lo), k, r)
	p := g.horner(expPoly, r)
	z := g.vec()
	VMULPS(r, r, z)
	VFMADD213PS(r, z, p)
	VADDPS(f32(1), p, p)
	VPSUBD(f32(roundMagic), t, t)
	a := g.vec()
	VPSRAD(U8(1), t, a)
	VPSUBD(a, t, t)
	VPADDD(bits(127), a, a)
	VPSLLD(U8(23), a, a)
	VPADDD(bits(127), t, t)
	VPSLLD(U8(23), t, t)
	VMULPS(a, p, p)
	VMULPS(t, p, p)
	return p
}

// logCore is k·ln2 + log(1+f).
func (g gen) logCore(f, k reg.VecVirtual) reg.VecVirtual {
	z := g.vec()
	VMULPS(f, f, z)
	y := g.horner(logPoly, f)
	VMULPS(f, y, y)
	VMULPS(z, y, y)
	VFMADD231PS(f32(ln2Lo), k, y)
	VFMADD231PS(f32(-0.5), z, y)
	VADDPS(y, f, y)
	VFMADD231PS(f32(ln2Hi), k, y)
	return y
}

func (g gen) log(x reg.VecVirtual) reg.VecVirtual {
	const sqrtHalf = 0x3f3504f3
	small := g.compare(lt, x, f32(0x1p-126))
	s := g.vec()
	VMULPS(f32(0x1p23), x, s)
	u := g.choose(small, s, x)
	zero := g.vec()
	VXORPS(zero, zero, zero)
	k := g.choose(small, f32(-23), zero)
	VPSUBD(bits(sqrtHalf), u, u)
	e := g.vec()
	VPSRAD(U8(23), u, e)
	VCVTDQ2PS(e, e)
	VADDPS(k, e, k)
	f := g.and(bits(0x7fffff), u)
	VPADDD(bits(sqrtHalf), f, f)
	VSUBPS(f32(1), f, f)
	r := g.logCore(f, k)
	r = g.choose(g.compare(nlt, x, f32(math.Inf(1))), x, r)
	r = g.choose(g.compare(lt, x, zero), bits(0x7fc00000), r)
	return g.choose(g.compare(eq, x, zero), f32(math.Inf(-1)), r)
}

func (g gen) tanh(x reg.VecVirtual) reg.VecVirtual {
	a := g.and(bits(absBits), x)
	two := g.vec()
	VADDPS(a, a, two)
	e := g.exp(two)
	VADDPS(f32(1), e, e)
	q := g.load(f32(2))
	VDIVPS(e, q, q)
	r := g.load(f32(1))
	VSUBPS(q, r, r)
	z := g.vec()
	VMULPS(a, a, z)
	p := g.horner(tanhPoly, z)
	VMULPS(z, p, p)
	VFMADD213PS(a, a, p)
	r = g.choose(g.compare(lt, a, f32(0.8)), p, r)
	sign := g.and(bits(signBit), x)
	VORPS(sign, r, r)
	return r
}

func (g gen) negAbs(x reg.VecVirtual) reg.VecVirtual {
	v := g.vec()
	VORPS(bits(signBit), x, v)
	return v
}

func (g gen) sigmoid(x reg.VecVirtual) reg.VecVirtual {
	e := g.exp(g.negAbs(x))
	zero := g.vec()
	VXORPS(zero, zero, zero)
	one := g.load(f32(1))
	n := g.choose(g.compare(lt, x, zero), e, one)
	VADDPS(one, e, e)
	VDIVPS(e, n, n)
	return n
}

func (g gen) softplus(x reg.VecVirtual) reg.VecVirtual {
	e := g.exp(g.negAbs(x))
	big := g.compare(gt, e, f32(0.41421356))
	h := g.vec()
	VSUBPS(f32(1), e, h)
	VMULPS(f32(0.5), h, h)
	f := g.choose(big, h, e)
	zero := g.vec()
	VXORPS(zero, zero, zero)
	k := g.choose(big, f32(1), zero)
	r := g.logCore(f, k)
	VXORPS(zero, zero, zero)
	VMAXPS(x, zero, zero)
	VADDPS(zero, r, r)
	return r
}

func (g gen) silu(x reg.VecVirtual) reg.VecVirtual {
	s := g.sigmoid(x)
	VMULPS(s, x, s)
	return s
}

func (g gen) geluErf(x reg.VecVirtual) reg.VecVirtual {
	abs := g.and(bits(absBits), x)
	a := g.load(f32(15))
	VMINPS(abs, a, a)
	z := g.vec()
	VMULPS(a, a, z)
	low := g.vec()
	VXORPS(bits(signBit), z, low)
	VFMADD231PS(a, a, low)
	half := g.vec()
	VMULPS(f32(-0.5), z, half)
	e := g.exp(half)
	VMULPS(f32(-0.5), low, low)
	VFMADD213PS(e, e, low) // low = low·e + e
	d := g.load(f32(0.25))
	VFMADD213PS(f32(1), a, d)
	t := g.load(f32(1))
	VDIVPS(d, t, t)
	p := g.horner(phiTail, t)
	VMULPS(t, p, p)
	VMULPS(p, low, p) // tail
	phi := g.load(f32(1))
	VSUBPS(p, phi, phi)
	zero := g.vec()
	VXORPS(zero, zero, zero)
	phi = g.choose(g.compare(lt, x, zero), p, phi)
	q := g.horner(phiPoly, z)
	VFMADD213PS(f32(0.5), x, q)
	phi = g.choose(g.compare(lt, a, f32(1)), q, phi)
	VMULPS(phi, x, phi)
	return phi
}

func (g gen) geluTanh(x reg.VecVirtual) reg.VecVirtual {
	v := g.vec()
	VMULPS(x, x, v)
	c := g.load(f32(0.071354814))
	VFMADD213PS(f32(1.5957691), v, c)
	VMULPS(c, x, c)
	s := g.sigmoid(c)
	VMULPS(s, x, s)
	return s
}

func (g gen) relu2(x reg.VecVirtual) reg.VecVirtual {
	m := g.vec()
	VXORPS(m, m, m)
	VMAXPS(x, m, m)
	VMULPS(m, m, m)
	return m
}

// loop runs body for every 16 elements; body gets the byte offset of the group
// in a register. n is in elements.
func loop(body func(i reg.GPVirtual)) {
	n := Load(Param("n"), GP64())
	SHLQ(U8(2), n)
	i := GP64()
	XORQ(i, i)
	label := fmt.Sprintf("loop%d", labels)
	labels++
	Label(label)
	body(i.(reg.GPVirtual))
	ADDQ(U8(64), i)
	CMPQ(i, n)
	JB(LabelRef(label))
}

var labels int

// at is vector v of the group at byte offset i of p.
func (g gen) at(p, i reg.Register, v int) Mem {
	return Mem{Base: p, Index: i, Scale: 1, Disp: v * g.bytes()}
}

func ptr(name string) reg.Register { return Load(Param(name), GP64()) }

func (g gen) unary(name, doc string, f func(reg.VecVirtual) reg.VecVirtual) {
	g.begin(name, "(dst, src *float32, n int)", doc)
	dst, src := ptr("dst"), ptr("src")
	loop(func(i reg.GPVirtual) {
		for v := range g.vectors() {
			VMOVUPS(f(g.load(g.at(src, i, v))), g.at(dst, i, v))
		}
	})
	g.end()
}

func (g gen) binary(name, doc string, f func(a, b reg.VecVirtual) reg.VecVirtual) {
	g.begin(name, "(dst, a, b *float32, n int)", doc)
	dst, a, b := ptr("dst"), ptr("a"), ptr("b")
	loop(func(i reg.GPVirtual) {
		for v := range g.vectors() {
			VMOVUPS(f(g.load(g.at(a, i, v)), g.load(g.at(b, i, v))), g.at(dst, i, v))
		}
	})
	g.end()
}

// withScalars is a unary kernel with broadcast parameters.
func (g gen) withScalars(name, sig, doc string, params []string, f func(x reg.VecVirtual, s []reg.VecVirtual)) {
	g.begin(name, sig, doc)
	dst, x := ptr("dst"), ptr("x")
	var s []reg.VecVirtual
	for _, p := range params {
		s = append(s, g.param(p))
	}
	loop(func(i reg.GPVirtual) {
		for v := range g.vectors() {
			r := g.load(g.at(x, i, v))
			f(r, s)
			VMOVUPS(r, g.at(dst, i, v))
		}
	})
	g.end()
}

// lanes loads the 16 lanes behind p.
func (g gen) lanes(p reg.Register) []reg.VecVirtual {
	var ls []reg.VecVirtual
	for v := range g.vectors() {
		ls = append(ls, g.load(Mem{Base: p, Disp: v * g.bytes()}))
	}
	return ls
}

func (g gen) storeLanes(p reg.Register, ls []reg.VecVirtual) {
	for v, l := range ls {
		VMOVUPS(l, Mem{Base: p, Disp: v * g.bytes()})
	}
}

func (g gen) elementwise() {
	g.unary("Exp", "e^x.", g.exp)
	g.unary("Log", "Natural logarithm.", g.log)
	g.unary("Tanh", "Hyperbolic tangent.", g.tanh)
	g.unary("Sigmoid", "1/(1+e^-x).", g.sigmoid)
	g.unary("Softplus", "log(1+e^x).", g.softplus)
	g.unary("SiLU", "x·sigmoid(x).", g.silu)
	g.unary("GELUErf", "x·Φ(x).", g.geluErf)
	g.unary("GELUTanh", "GELU, tanh form.", g.geluTanh)
	g.unary("ReLU2", "max(x,0)².", g.relu2)
	g.binary("SiLUMul", "SiLU(a)·b.", func(a, b reg.VecVirtual) reg.VecVirtual {
		s := g.silu(a)
		VMULPS(b, s, s)
		return s
	})
	g.binary("Add", "a+b.", func(a, b reg.VecVirtual) reg.VecVirtual { VADDPS(b, a, a); return a })
	g.binary("Mul", "a·b.", func(a, b reg.VecVirtual) reg.VecVirtual { VMULPS(b, a, a); return a })
	g.withScalars("Scale", "(dst, x *float32, s float32, n int)", "x·s.", []string{"s"},
		func(x reg.VecVirtual, s []reg.VecVirtual) { VMULPS(s[0], x, x) })
	g.withScalars("Div", "(dst, x *float32, s float32, n int)", "x/s.", []string{"s"},
		func(x reg.VecVirtual, s []reg.VecVirtual) { VDIVPS(s[0], x, x) })
	g.withScalars("Clamp", "(dst, x *float32, lo, hi float32, n int)", "x limited to lo..hi.", []string{"lo", "hi"},
		func(x reg.VecVirtual, s []reg.VecVirtual) {
			VMAXPS(x, s[0], x)
			VMINPS(x, s[1], x)
		})
	g.withScalars("Shift", "(dst, x *float32, mean, inv float32, n int)", "(x−mean)·inv.", []string{"mean", "inv"},
		func(x reg.VecVirtual, s []reg.VecVirtual) {
			VSUBPS(s[0], x, x)
			VMULPS(s[1], x, x)
		})

	g.begin("AXPY", "(dst, x *float32, s float32, n int)", "dst = x·s + dst.")
	dst, x, s := ptr("dst"), ptr("x"), g.param("s")
	loop(func(i reg.GPVirtual) {
		for v := range g.vectors() {
			d := g.load(g.at(dst, i, v))
			VFMADD231PS(g.at(x, i, v), s, d)
			VMOVUPS(d, g.at(dst, i, v))
		}
	})
	g.end()

	g.begin("RMS", "(dst, x, w *float32, inv, offset float32, n int)", "(x·inv)·(w+offset).")
	dst, x = ptr("dst"), ptr("x")
	w, inv, off := ptr("w"), g.param("inv"), g.param("offset")
	loop(func(i reg.GPVirtual) {
		for v := range g.vectors() {
			a, b := g.vec(), g.vec()
			VMULPS(g.at(x, i, v), inv, a)
			VADDPS(g.at(w, i, v), off, b)
			VMULPS(b, a, a)
			VMOVUPS(a, g.at(dst, i, v))
		}
	})
	g.end()

	g.begin("Rotate", "(x1, x2, sin, cos *float32, n int)", "Rotary pairs (x1,x2) in place.")
	x1, x2, sn, cs := ptr("x1"), ptr("x2"), ptr("sin"), ptr("cos")
	loop(func(i reg.GPVirtual) {
		for v := range g.vectors() {
			a, b := g.load(g.at(x1, i, v)), g.load(g.at(x2, i, v))
			c, s := g.load(g.at(cs, i, v)), g.load(g.at(sn, i, v))
			p, q := g.vec(), g.vec()
			VMULPS(c, a, p)
			VMULPS(s, b, q)
			VSUBPS(q, p, p)
			VMULPS(c, b, b)
			VMULPS(s, a, a)
			VADDPS(a, b, b)
			VMOVUPS(p, g.at(x1, i, v))
			VMOVUPS(b, g.at(x2, i, v))
		}
	})
	g.end()
}

func (g gen) reductions() {
	g.begin("ExpSub", "(dst, x *float32, m float32, lanes *float32, n int)", "dst = e^(x−m), lanes += dst.")
	dst, x, m, lp := ptr("dst"), ptr("x"), g.param("m"), ptr("lanes")
	ls := g.lanes(lp)
	loop(func(i reg.GPVirtual) {
		for v := range g.vectors() {
			a := g.load(g.at(x, i, v))
			VSUBPS(m, a, a)
			e := g.exp(a)
			VMOVUPS(e, g.at(dst, i, v))
			VADDPS(e, ls[v], ls[v])
		}
	})
	g.storeLanes(lp, ls)
	g.end()

	reduce := func(name, sig, doc string, body func(x Mem, l, mean reg.VecVirtual)) {
		g.begin(name, sig, doc)
		x, lp := ptr("x"), ptr("lanes")
		var mean reg.VecVirtual
		if name == "SumSquare" {
			mean = g.param("mean")
		}
		ls := g.lanes(lp)
		loop(func(i reg.GPVirtual) {
			for v := range g.vectors() {
				body(g.at(x, i, v), ls[v], mean)
			}
		})
		g.storeLanes(lp, ls)
		g.end()
	}
	reduce("Sum", "(x, lanes *float32, n int)", "lanes += x.", func(x Mem, l, _ reg.VecVirtual) { VADDPS(x, l, l) })
	reduce("SumSquare", "(x *float32, mean float32, lanes *float32, n int)", "lanes += (x−mean)².", func(x Mem, l, mean reg.VecVirtual) {
		d := g.load(x)
		VSUBPS(mean, d, d)
		VFMADD231PS(d, d, l)
	})
	reduce("Largest", "(x, lanes *float32, n int)", "lanes = max(lanes, x), NaN ignored.", func(x Mem, l, _ reg.VecVirtual) {
		VMAXPS(l, g.load(x), l)
	})
	reduce("AbsLarge", "(x, lanes *float32, n int)", "lanes = max(lanes, |x|), NaN ignored.", func(x Mem, l, _ reg.VecVirtual) {
		VMAXPS(l, g.and(bits(absBits), g.load(x)), l)
	})

	g.begin("Extremes", "(x, lo, hi *float32, n int)", "lo = min(lo, x), hi = max(hi, x), NaN ignored.")
	x, lo, hi := ptr("x"), ptr("lo"), ptr("hi")
	los, his := g.lanes(lo), g.lanes(hi)
	loop(func(i reg.GPVirtual) {
		for v := range g.vectors() {
			a := g.load(g.at(x, i, v))
			VMINPS(los[v], a, los[v])
			VMAXPS(his[v], a, his[v])
		}
	})
	g.storeLanes(lo, los)
	g.storeLanes(hi, his)
	g.end()
}

func (g gen) groups() {
	g.begin("Quantize", "(codes *uint8, w *float32, scale, zero, maxq float32, n int)", "code = clamp(round(w/scale)+zero, 0, maxq).")
	codes, w := ptr("codes"), ptr("w")
	scale, zero, maxq := g.param("scale"), g.param("zero"), g.param("maxq")
	nought := g.vec()
	VXORPS(nought, nought, nought)
	loop(func(i reg.GPVirtual) {
		var q []reg.VecVirtual
		for v := range g.vectors() {
			a := g.load(g.at(w, i, v))
			VDIVPS(scale, a, a)
			if g.wide {
				VRNDSCALEPS(U8(8), a, a)
			} else {
				VROUNDPS(U8(8), a, a)
			}
			VADDPS(zero, a, a)
			VMAXPS(nought, a, a)
			VMINPS(maxq, a, a)
			VCVTTPS2DQ(a, a)
			q = append(q, a)
		}
		if g.wide {
			x := XMM()
			VPMOVDB(q[0], x)
			VMOVDQU(x, Mem{Base: codes})
		} else {
			VPACKUSDW(q[1], q[0], q[0])
			VPERMQ(U8(0xd8), q[0], q[0])
			x := XMM()
			VEXTRACTI128(U8(1), q[0], x)
			VPACKUSWB(x, q[0].AsX(), x)
			VMOVDQU(x, Mem{Base: codes})
		}
		ADDQ(U8(16), codes)
	})
	g.end()

	g.begin("Dequantize", "(dst *float32, codes *uint8, scale, zero float32, n int)", "scale·(code−zero).")
	dst := ptr("dst")
	codes = ptr("codes")
	scale, zero = g.param("scale"), g.param("zero")
	loop(func(i reg.GPVirtual) {
		for v := range g.vectors() {
			a := g.vec()
			VPMOVZXBD(Mem{Base: codes, Disp: v * g.bytes() / 4}, a)
			VCVTDQ2PS(a, a)
			VSUBPS(zero, a, a)
			VMULPS(scale, a, a)
			VMOVUPS(a, g.at(dst, i, v))
		}
		ADDQ(U8(16), codes)
	})
	g.end()
}

// attention kernels work on tiles [rows][32].
func (g gen) attention() {
	row := 128 / g.bytes()
	at := func(p reg.Register, v int) Mem { return Mem{Base: p, Disp: v * g.bytes()} }
	rowsLoop := func(p, n reg.Register, body func()) {
		label := fmt.Sprintf("rows%d", labels)
		labels++
		Label(label)
		body()
		ADDQ(U32(128), p)
		DECQ(n)
		JNZ(LabelRef(label))
	}

	g.begin("AttnSoftmax", "(s *float32, keys int, scale float32, m, l, alpha *float32)",
		"One key block of a streaming softmax over the rows of s, [keys][32].")
	m := ptr("m")
	scale := g.param("scale")
	s, n := ptr("s"), Load(Param("keys"), GP64())
	var top []reg.VecVirtual
	for v := range row {
		top = append(top, g.load(at(m, v)))
	}
	rowsLoop(s, n, func() {
		for v := range row {
			a := g.vec()
			VMULPS(at(s, v), scale, a)
			VMOVUPS(a, at(s, v))
			VMAXPS(top[v], a, top[v])
		}
	})
	alpha := ptr("alpha")
	for v := range row {
		a := g.load(at(m, v))
		VSUBPS(top[v], a, a)
		VMOVUPS(g.exp(a), at(alpha, v))
		VMOVUPS(top[v], at(m, v))
	}
	s, n = ptr("s"), Load(Param("keys"), GP64())
	var sum []reg.VecVirtual
	for range row {
		z := g.vec()
		VXORPS(z, z, z)
		sum = append(sum, z)
	}
	rowsLoop(s, n, func() {
		for v := range row {
			a := g.load(at(s, v))
			VSUBPS(top[v], a, a)
			e := g.exp(a)
			VMOVUPS(e, at(s, v))
			VADDPS(e, sum[v], sum[v])
		}
	})
	l := ptr("l")
	for v := range row {
		a := g.load(at(alpha, v))
		VMULPS(at(l, v), a, a)
		VADDPS(sum[v], a, a)
		VMOVUPS(a, at(l, v))
	}
	g.end()

	for _, k := range []struct{ name, doc string }{{"MulRows", "o · f for every row of o, [rows][32]."}, {"DivRows", "o ÷ f for every row of o, [rows][32]."}} {
		g.begin(k.name, "(o, f *float32, rows int)", k.doc)
		f := ptr("f")
		var fs []reg.VecVirtual
		for v := range row {
			fs = append(fs, g.load(at(f, v)))
		}
		o, n := ptr("o"), Load(Param("rows"), GP64())
		rowsLoop(o, n, func() {
			for v := range row {
				a := g.load(at(o, v))
				if k.name == "MulRows" {
					VMULPS(fs[v], a, a)
				} else {
					VDIVPS(fs[v], a, a)
				}
				VMOVUPS(a, at(o, v))
			}
		})
		g.end()
	}
}

func main() {
	ConstraintExpr("amd64,!noasm,!purego,gc")
	for _, g := range []gen{{false}, {true}} {
		g.elementwise()
		g.reductions()
		g.groups()
		g.attention()
	}
	Generate()
}
