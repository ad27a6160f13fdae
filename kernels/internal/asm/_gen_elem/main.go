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
	wide   bool // 512 bits
	flight int  // vectors that are computed side by side, step by step
}

func (g gen) bytes() int {
	if g.wide {
		return 64
	}
	return 32
}

// vectors is the number of vectors that make 16 lanes.
func (g gen) vectors() int { return 64 / g.bytes() }

// vec is a new vector for each one in flight.
func (g gen) vec() bundle {
	b := make(bundle, max(1, g.flight))
	for i := range b {
		if g.wide {
			b[i] = ZMM()
		} else {
			b[i] = YMM()
		}
	}
	return b
}

// single is the generator for values that are the same for all vectors in flight.
func (g gen) single() gen { return gen{g.wide, 1} }

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

func (g gen) load(m any) bundle {
	v := g.vec()
	vmovups(m, v)
	return v
}

func (g gen) param(name string) bundle {
	a, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	v := g.vec()
	vbroadcastss(a.Addr, v)
	return v
}

// mask is the result of a comparison, for each vector in flight.
type mask []reg.Register

// Comparison predicates of VCMPPS, quiet.
const (
	lt  = 17
	gt  = 30
	eq  = 0
	nlt = 21
)

// compare gives a OP b; b may be memory.
func (g gen) compare(op uint8, a bundle, b any) mask {
	m := make(mask, len(a))
	for i := range m {
		if g.wide {
			m[i] = K()
		} else {
			m[i] = YMM()
		}
	}
	vcmpps(U8(op), b, a, m)
	return m
}

// choose is yes where m, else no; yes may be memory.
func (g gen) choose(m mask, yes any, no bundle) bundle {
	v := g.vec()
	if g.wide {
		vblendmps(yes, no, m, v)
	} else {
		vblendvps(m, yes, no, v)
	}
	return v
}

func (g gen) and(m any, a bundle) bundle {
	v := g.vec()
	vandps(m, a, v)
	return v
}

const (
	signBit = 0x80000000
	absBits = 0x7fffffff
)

// horner evaluates c, highest power first.
func (g gen) horner(c []float64, x bundle) bundle {
	p := g.load(f32(c[0]))
	for _, v := range c[1:] {
		vfmadd213ps(f32(v), x, p)
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

func (g gen) exp(x bundle) bundle {
	c := g.load(f32(89))
	vminps(x, c, c)
	r := g.load(f32(-104))
	vmaxps(c, r, r) // r = x clamped
	t := g.load(f32(log2E))
	vfmadd213ps(f32(roundMagic), r, t)
	k := g.vec()
	vsubps(f32(roundMagic), t, k)
	vfmadd231ps(f32(-ln2Hi), k, r)
	vfmadd231ps(f32(-ln2Lo), k, r)
	p := g.horner(expPoly, r)
	z := g.vec()
	vmulps(r, r, z)
	vfmadd213ps(r, z, p)
	vaddps(f32(1), p, p)
	vpsubd(f32(roundMagic), t, t)
	a := g.vec()
	vpsrad(U8(1), t, a)
	vpsubd(a, t, t)
	vpaddd(bits(127), a, a)
	vpslld(U8(23), a, a)
	vpaddd(bits(127), t, t)
	vpslld(U8(23), t, t)
	vmulps(a, p, p)
	vmulps(t, p, p)
	return p
}

// logCore is k·ln2 + log(1+f).
func (g gen) logCore(f, k bundle) bundle {
	z := g.vec()
	vmulps(f, f, z)
	y := g.horner(logPoly, f)
	vmulps(f, y, y)
	vmulps(z, y, y)
	vfmadd231ps(f32(ln2Lo), k, y)
	vfmadd231ps(f32(-0.5), z, y)
	vaddps(y, f, y)
	vfmadd231ps(f32(ln2Hi), k, y)
	return y
}

func (g gen) log(x bundle) bundle {
	const sqrtHalf = 0x3f3504f3
	small := g.compare(lt, x, f32(0x1p-126))
	s := g.vec()
	vmulps(f32(0x1p23), x, s)
	u := g.choose(small, s, x)
	zero := g.vec()
	vxorps(zero, zero, zero)
	k := g.choose(small, f32(-23), zero)
	vpsubd(bits(sqrtHalf), u, u)
	e := g.vec()
	vpsrad(U8(23), u, e)
	vcvtdq2ps(e, e)
	vaddps(k, e, k)
	f := g.and(bits(0x7fffff), u)
	vpaddd(bits(sqrtHalf), f, f)
	vsubps(f32(1), f, f)
	r := g.logCore(f, k)
	r = g.choose(g.compare(nlt, x, f32(math.Inf(1))), x, r)
	r = g.choose(g.compare(lt, x, zero), bits(0x7fc00000), r)
	return g.choose(g.compare(eq, x, zero), f32(math.Inf(-1)), r)
}

func (g gen) tanh(x bundle) bundle {
	a := g.and(bits(absBits), x)
	two := g.vec()
	vaddps(a, a, two)
	e := g.exp(two)
	vaddps(f32(1), e, e)
	q := g.load(f32(2))
	vdivps(e, q, q)
	r := g.load(f32(1))
	vsubps(q, r, r)
	z := g.vec()
	vmulps(a, a, z)
	p := g.horner(tanhPoly, z)
	vmulps(z, p, p)
	vfmadd213ps(a, a, p)
	r = g.choose(g.compare(lt, a, f32(0.8)), p, r)
	sign := g.and(bits(signBit), x)
	vorps(sign, r, r)
	return r
}

func (g gen) negAbs(x bundle) bundle {
	v := g.vec()
	vorps(bits(signBit), x, v)
	return v
}

// sigmoid of x. signs is where values with the sign of x are: they are loaded
// when needed, so that nothing holds registers during exp.
func (g gen) sigmoid(x bundle, signs any) bundle {
	e := g.exp(g.negAbs(x))
	zero := g.single().vec()
	vxorps(zero, zero, zero)
	one := g.single().load(f32(1))
	n := g.choose(g.compare(lt, g.load(signs), zero), e, one)
	vaddps(one, e, e)
	vdivps(e, n, n)
	return n
}

func (g gen) softplus(x bundle) bundle {
	e := g.exp(g.negAbs(x))
	big := g.compare(gt, e, f32(0.41421356))
	h := g.vec()
	vsubps(f32(1), e, h)
	vmulps(f32(0.5), h, h)
	f := g.choose(big, h, e)
	zero := g.vec()
	vxorps(zero, zero, zero)
	k := g.choose(big, f32(1), zero)
	r := g.logCore(f, k)
	vxorps(zero, zero, zero)
	vmaxps(x, zero, zero)
	vaddps(zero, r, r)
	return r
}

func (g gen) silu(m any) bundle {
	s := g.sigmoid(g.load(m), m)
	x := g.load(m)
	vmulps(s, x, s)
	return s
}

func (g gen) geluErf(x bundle) bundle {
	abs := g.and(bits(absBits), x)
	a := g.load(f32(15))
	vminps(abs, a, a)
	z := g.vec()
	vmulps(a, a, z)
	low := g.vec()
	vxorps(bits(signBit), z, low)
	vfmadd231ps(a, a, low)
	half := g.vec()
	vmulps(f32(-0.5), z, half)
	e := g.exp(half)
	vmulps(f32(-0.5), low, low)
	vfmadd213ps(e, e, low) // low = low·e + e
	d := g.load(f32(0.25))
	vfmadd213ps(f32(1), a, d)
	t := g.load(f32(1))
	vdivps(d, t, t)
	p := g.horner(phiTail, t)
	vmulps(t, p, p)
	vmulps(p, low, p) // tail
	phi := g.load(f32(1))
	vsubps(p, phi, phi)
	zero := g.vec()
	vxorps(zero, zero, zero)
	phi = g.choose(g.compare(lt, x, zero), p, phi)
	q := g.horner(phiPoly, z)
	vfmadd213ps(f32(0.5), x, q)
	phi = g.choose(g.compare(lt, a, f32(1)), q, phi)
	vmulps(phi, x, phi)
	return phi
}

func (g gen) geluTanh(m any) bundle {
	x, v := g.load(m), g.vec()
	vmulps(x, x, v)
	c := g.load(f32(0.071354814))
	vfmadd213ps(f32(1.5957691), v, c)
	vmulps(c, x, c)
	s := g.sigmoid(c, m) // |c| >= |x|: it is below zero where x is
	x = g.load(m)
	vmulps(s, x, s)
	return s
}

func (g gen) relu2(x bundle) bundle {
	m := g.vec()
	vxorps(m, m, m)
	vmaxps(x, m, m)
	vmulps(m, m, m)
	return m
}

// loop runs body for every 16 elements; body gets the byte offset of the group
// in a register. n is in elements.
func loop(body func(i reg.GPVirtual)) { loops(1, func(_ int, i reg.GPVirtual) { body(i) }) }

// loops runs body for groups of 16 elements, most at a time, and the rest one by one.
func loops(most int, body func(groups int, i reg.GPVirtual)) {
	n := Load(Param("n"), GP64())
	SHLQ(U8(2), n)
	i := GP64()
	XORQ(i, i)
	label := func(what string) string { return fmt.Sprintf("%s%d", what, labels) }
	defer func() { labels++ }()
	if most > 1 {
		left := GP64()
		Label(label("many"))
		MOVQ(n, left)
		SUBQ(i, left)
		CMPQ(left, U32(uint64(64*most)))
		JB(LabelRef(label("rest")))
		body(most, i.(reg.GPVirtual))
		ADDQ(U32(uint64(64*most)), i)
		JMP(LabelRef(label("many")))
		Label(label("rest"))
		CMPQ(i, n)
		JAE(LabelRef(label("done")))
	}
	Label(label("loop"))
	body(1, i.(reg.GPVirtual))
	ADDQ(U8(64), i)
	CMPQ(i, n)
	JB(LabelRef(label("loop")))
	if most > 1 {
		Label(label("done"))
	}
}

var labels int

// at is vector v of the group at byte offset i of p.
func (g gen) at(p, i reg.Register, v int) Mem {
	return Mem{Base: p, Index: i, Scale: 1, Disp: v * g.bytes()}
}

func ptr(name string) reg.Register { return Load(Param(name), GP64()) }

// group is the addresses of groups times 16 elements at byte offset i of p.
func (g gen) group(p, i reg.Register, groups int) []Mem {
	var ms []Mem
	for v := range groups * g.vectors() {
		ms = append(ms, g.at(p, i, v))
	}
	return ms
}

// unary computes most groups of 16 at a time, as many as the registers allow.
func (g gen) unary(name, doc string, most int, f func(g gen, m any) bundle) {
	g.begin(name, "(dst, src *float32, n int)", doc)
	dst, src := ptr("dst"), ptr("src")
	loops(most, func(groups int, i reg.GPVirtual) {
		g.flight = groups * g.vectors()
		vmovups(f(g, g.group(src, i, groups)), g.group(dst, i, groups))
	})
	g.end()
}

// ofValue is an f of unary that needs its argument once.
func ofValue(f func(g gen, x bundle) bundle) func(gen, any) bundle {
	return func(g gen, m any) bundle { return f(g, g.load(m)) }
}

func (g gen) binary(name, doc string, most int, f func(g gen, a, b any) bundle) {
	g.begin(name, "(dst, a, b *float32, n int)", doc)
	dst, a, b := ptr("dst"), ptr("a"), ptr("b")
	loops(most, func(groups int, i reg.GPVirtual) {
		g.flight = groups * g.vectors()
		vmovups(f(g, g.group(a, i, groups), g.group(b, i, groups)), g.group(dst, i, groups))
	})
	g.end()
}

// withScalars is a unary kernel with broadcast parameters.
func (g gen) withScalars(name, sig, doc string, params []string, f func(x bundle, s []bundle)) {
	g.begin(name, sig, doc)
	dst, x := ptr("dst"), ptr("x")
	var s []bundle
	for _, p := range params {
		s = append(s, g.param(p))
	}
	loop(func(i reg.GPVirtual) {
		for v := range g.vectors() {
			r := g.load(g.at(x, i, v))
			f(r, s)
			vmovups(r, g.at(dst, i, v))
		}
	})
	g.end()
}

// lanes loads the 16 lanes behind p.
func (g gen) lanes(p reg.Register) []bundle {
	var ls []bundle
	for v := range g.vectors() {
		ls = append(ls, g.load(Mem{Base: p, Disp: v * g.bytes()}))
	}
	return ls
}

// joined is the vectors of several bundles as one.
func joined(bs []bundle) bundle {
	var all bundle
	for _, b := range bs {
		all = append(all, b...)
	}
	return all
}

// lanesAt is the addresses of the 16 lanes behind p.
func (g gen) lanesAt(p reg.Register) []Mem {
	var ms []Mem
	for v := range g.vectors() {
		ms = append(ms, Mem{Base: p, Disp: v * g.bytes()})
	}
	return ms
}

func (g gen) storeLanes(p reg.Register, ls []bundle) {
	for v, l := range ls {
		vmovups(l, Mem{Base: p, Disp: v * g.bytes()})
	}
}

func (g gen) elementwise() {
	g.unary("Exp", "e^x.", 2, ofValue(gen.exp))
	g.unary("Log", "Natural logarithm.", 1, ofValue(gen.log))
	g.unary("Tanh", "Hyperbolic tangent.", 1, ofValue(gen.tanh))
	g.unary("Sigmoid", "1/(1+e^-x).", 2, func(g gen, m any) bundle { return g.sigmoid(g.load(m), m) })
	g.unary("Softplus", "log(1+e^x).", 1, ofValue(gen.softplus))
	g.unary("SiLU", "x·sigmoid(x).", 2, gen.silu)
	g.unary("GELUErf", "x·Φ(x).", 1, ofValue(gen.geluErf))
	g.unary("GELUTanh", "GELU, tanh form.", 2, gen.geluTanh)
	g.unary("ReLU2", "max(x,0)².", 1, ofValue(gen.relu2))
	g.binary("SiLUMul", "SiLU(a)·b.", 2, func(g gen, a, b any) bundle {
		s := g.silu(a)
		vmulps(b, s, s)
		return s
	})
	g.binary("Add", "a+b.", 1, func(g gen, a, b any) bundle { v := g.load(a); vaddps(b, v, v); return v })
	g.binary("Mul", "a·b.", 1, func(g gen, a, b any) bundle { v := g.load(a); vmulps(b, v, v); return v })
	g.withScalars("Scale", "(dst, x *float32, s float32, n int)", "x·s.", []string{"s"},
		func(x bundle, s []bundle) { vmulps(s[0], x, x) })
	g.withScalars("Div", "(dst, x *float32, s float32, n int)", "x/s.", []string{"s"},
		func(x bundle, s []bundle) { vdivps(s[0], x, x) })
	g.withScalars("Clamp", "(dst, x *float32, lo, hi float32, n int)", "x limited to lo..hi.", []string{"lo", "hi"},
		func(x bundle, s []bundle) {
			vmaxps(x, s[0], x)
			vminps(x, s[1], x)
		})
	g.withScalars("Shift", "(dst, x *float32, mean, inv float32, n int)", "(x−mean)·inv.", []string{"mean", "inv"},
		func(x bundle, s []bundle) {
			vsubps(s[0], x, x)
			vmulps(s[1], x, x)
		})

	g.begin("AXPY", "(dst, x *float32, s float32, n int)", "dst = x·s + dst.")
	dst, x, s := ptr("dst"), ptr("x"), g.param("s")
	loop(func(i reg.GPVirtual) {
		for v := range g.vectors() {
			d := g.load(g.at(dst, i, v))
			vfmadd231ps(g.at(x, i, v), s, d)
			vmovups(d, g.at(dst, i, v))
		}
	})
	g.end()

	g.begin("RMS", "(dst, x, w *float32, inv, offset float32, n int)", "(x·inv)·(w+offset).")
	dst, x = ptr("dst"), ptr("x")
	w, inv, off := ptr("w"), g.param("inv"), g.param("offset")
	loop(func(i reg.GPVirtual) {
		for v := range g.vectors() {
			a, b := g.vec(), g.vec()
			vmulps(g.at(x, i, v), inv, a)
			vaddps(g.at(w, i, v), off, b)
			vmulps(b, a, a)
			vmovups(a, g.at(dst, i, v))
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
			vmulps(c, a, p)
			vmulps(s, b, q)
			vsubps(q, p, p)
			vmulps(c, b, b)
			vmulps(s, a, a)
			vaddps(a, b, b)
			vmovups(p, g.at(x1, i, v))
			vmovups(b, g.at(x2, i, v))
		}
	})
	g.end()
}

func (g gen) reductions() {
	g.begin("ExpSub", "(dst, x *float32, m float32, lanes *float32, n int)", "dst = e^(x−m), lanes += dst.")
	dst, x, m, lp := ptr("dst"), ptr("x"), g.param("m"), ptr("lanes")
	ls := joined(g.lanes(lp))
	loops(1, func(groups int, i reg.GPVirtual) {
		g := gen{g.wide, g.vectors()}
		a := g.load(g.group(x, i, groups))
		vsubps(m, a, a)
		e := g.exp(a)
		vmovups(e, g.group(dst, i, groups))
		vaddps(e, ls, ls)
	})
	vmovups(ls, g.lanesAt(lp))
	g.end()

	reduce := func(name, sig, doc string, body func(x Mem, l, mean bundle)) {
		g.begin(name, sig, doc)
		x, lp := ptr("x"), ptr("lanes")
		var mean bundle
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
	reduce("Sum", "(x, lanes *float32, n int)", "lanes += x.", func(x Mem, l, _ bundle) { vaddps(x, l, l) })
	reduce("SumSquare", "(x *float32, mean float32, lanes *float32, n int)", "lanes += (x−mean)².", func(x Mem, l, mean bundle) {
		d := g.load(x)
		vsubps(mean, d, d)
		vfmadd231ps(d, d, l)
	})
	reduce("Largest", "(x, lanes *float32, n int)", "lanes = max(lanes, x), NaN ignored.", func(x Mem, l, _ bundle) {
		vmaxps(l, g.load(x), l)
	})
	reduce("AbsLarge", "(x, lanes *float32, n int)", "lanes = max(lanes, |x|), NaN ignored.", func(x Mem, l, _ bundle) {
		vmaxps(l, g.and(bits(absBits), g.load(x)), l)
	})

	g.begin("Extremes", "(x, lo, hi *float32, n int)", "lo = min(lo, x), hi = max(hi, x), NaN ignored.")
	x, lo, hi := ptr("x"), ptr("lo"), ptr("hi")
	los, his := g.lanes(lo), g.lanes(hi)
	loop(func(i reg.GPVirtual) {
		for v := range g.vectors() {
			a := g.load(g.at(x, i, v))
			vminps(los[v], a, los[v])
			vmaxps(his[v], a, his[v])
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
	vxorps(nought, nought, nought)
	loop(func(i reg.GPVirtual) {
		var q []bundle
		for v := range g.vectors() {
			a := g.load(g.at(w, i, v))
			vdivps(scale, a, a)
			if g.wide {
				vrndscaleps(U8(8), a, a)
			} else {
				vroundps(U8(8), a, a)
			}
			vaddps(zero, a, a)
			vmaxps(nought, a, a)
			vminps(maxq, a, a)
			vcvttps2dq(a, a)
			q = append(q, a)
		}
		if g.wide {
			x := XMM()
			vpmovdb(q[0], x)
			vmovdqu(x, Mem{Base: codes})
		} else {
			vpackusdw(q[1], q[0], q[0])
			vpermq(U8(0xd8), q[0], q[0])
			x := XMM()
			vextracti128(U8(1), q[0], x)
			vpackuswb(x, q[0][0].AsX(), x)
			vmovdqu(x, Mem{Base: codes})
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
			vpmovzxbd(Mem{Base: codes, Disp: v * g.bytes() / 4}, a)
			vcvtdq2ps(a, a)
			vsubps(zero, a, a)
			vmulps(scale, a, a)
			vmovups(a, g.at(dst, i, v))
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
	var top []bundle
	for v := range row {
		top = append(top, g.load(at(m, v)))
	}
	rowsLoop(s, n, func() {
		for v := range row {
			a := g.vec()
			vmulps(at(s, v), scale, a)
			vmovups(a, at(s, v))
			vmaxps(top[v], a, top[v])
		}
	})
	alpha := ptr("alpha")
	for v := range row {
		a := g.load(at(m, v))
		vsubps(top[v], a, a)
		vmovups(g.exp(a), at(alpha, v))
		vmovups(top[v], at(m, v))
	}
	s, n = ptr("s"), Load(Param("keys"), GP64())
	var sum []bundle
	pair := gen{g.wide, 2}
	for range row / 2 {
		z := pair.vec()
		vxorps(z, z, z)
		sum = append(sum, z)
	}
	rowsLoop(s, n, func() {
		for v := 0; v < row; v += 2 {
			a := pair.load([]Mem{at(s, v), at(s, v+1)})
			vsubps([]Mem{at(m, v), at(m, v+1)}, a, a) // the new maximum
			e := pair.exp(a)
			vmovups(e, []Mem{at(s, v), at(s, v+1)})
			vaddps(e, sum[v/2], sum[v/2])
		}
	})
	l := ptr("l")
	for v := range row {
		a := g.load(at(alpha, v))
		vmulps(at(l, v), a, a)
		vaddps(bundle{sum[v/2][v%2]}, a, a)
		vmovups(a, at(l, v))
	}
	g.end()

	for _, k := range []struct{ name, doc string }{{"MulRows", "o · f for every row of o, [rows][32]."}, {"DivRows", "o ÷ f for every row of o, [rows][32]."}} {
		g.begin(k.name, "(o, f *float32, rows int)", k.doc)
		f := ptr("f")
		var fs []bundle
		for v := range row {
			fs = append(fs, g.load(at(f, v)))
		}
		o, n := ptr("o"), Load(Param("rows"), GP64())
		rowsLoop(o, n, func() {
			for v := range row {
				a := g.load(at(o, v))
				if k.name == "MulRows" {
					vmulps(fs[v], a, a)
				} else {
					vdivps(fs[v], a, a)
				}
				vmovups(a, at(o, v))
			}
		})
		g.end()
	}
}

func main() {
	ConstraintExpr("amd64,!noasm,!purego,gc")
	for _, g := range []gen{{false, 1}, {true, 1}} {
		g.elementwise()
		g.reductions()
		g.groups()
		g.attention()
	}
	Generate()
}
