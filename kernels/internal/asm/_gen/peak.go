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
