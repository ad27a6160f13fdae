package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

// peak is a loop of independent register operations, the limit that benchmarks compare with: 12 chains, n rounds.
func peak(s isa, kind string) {
	TEXT(fmt.Sprintf("Peak%s%s", kind, s.name), NOSPLIT, "func(n int)")
	Pragma("noescape")
	Doc(fmt.Sprintf("Peak%s%s runs n rounds of 12 independent multiply-adds.", kind, s.name))
	n := Load(Param("n"), GP64())
	for _, v := range s.vec[:14] {
		zero(s, v)
	}
	Label("loop")
	for i := range 12 {
		if kind == "Dot" {
			vdpbf16ps(s.vec[i], s.vec[12], s.vec[13])
		} else {
			VFMADD231PS(s.vec[12], s.vec[13], s.vec[i])
		}
	}
	DECQ(n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

// read is a loop of loads, the limit of memory that benchmarks compare with: 256 bytes a round, fetched ahead.
func read() {
	TEXT("PeakRead", NOSPLIT, "func(p *float32, n int)")
	Pragma("noescape")
	Doc("PeakRead reads n times 64 values.")
	p, n := Load(Param("p"), GP64()), Load(Param("n"), GP64())
	Label("loop")
	for i := range 4 {
		PREFETCHT0(Mem{Base: p, Disp: 2048 + 64*i})
	}
	for i := range 8 {
		VMOVUPS(Mem{Base: p, Disp: 32 * i}, avx2.vec[i])
	}
	ADDQ(U32(256), p)
	DECQ(n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}
