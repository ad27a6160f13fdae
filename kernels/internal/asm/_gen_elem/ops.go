package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// bundle is the vectors in flight: every operation is emitted for all of them
// before the next one, so that a core finds independent work close by. One vector's
// steps in a row are a chain of some twenty dependent operations, and the
// scheduler holds two or three such chains at most.
type bundle []reg.VecVirtual

// each emits an operation for every vector in flight. Operands are bundles, masks,
// addresses of each ([]Mem), or the same for all (bundles of one, too).
func each(emit func(o []Op), operands ...any) {
	n := 1
	for _, o := range operands {
		switch o := o.(type) {
		case bundle:
			n = max(n, len(o))
		case mask:
			n = max(n, len(o))
		case []Mem:
			n = max(n, len(o))
		}
	}
	for i := range n {
		out := make([]Op, len(operands))
		for j, o := range operands {
			switch o := o.(type) {
			case bundle:
				out[j] = o[i%len(o)]
			case mask:
				out[j] = o[i%len(o)]
			case []Mem:
				out[j] = o[i%len(o)]
			default:
				out[j] = o.(Op)
			}
		}
		emit(out)
	}
}

func vaddps(o ...any)       { each(func(o []Op) { VADDPS(o...) }, o...) }
func vandps(o ...any)       { each(func(o []Op) { VANDPS(o...) }, o...) }
func vbroadcastss(o ...any) { each(func(o []Op) { VBROADCASTSS(o...) }, o...) }
func vcvtdq2ps(o ...any)    { each(func(o []Op) { VCVTDQ2PS(o...) }, o...) }
func vcvttps2dq(o ...any)   { each(func(o []Op) { VCVTTPS2DQ(o...) }, o...) }
func vdivps(o ...any)       { each(func(o []Op) { VDIVPS(o...) }, o...) }
func vextracti128(o ...any) { each(func(o []Op) { VEXTRACTI128(o[0], o[1], o[2]) }, o...) }
func vfmadd213ps(o ...any)  { each(func(o []Op) { VFMADD213PS(o...) }, o...) }
func vfmadd231ps(o ...any)  { each(func(o []Op) { VFMADD231PS(o...) }, o...) }
func vmaxps(o ...any)       { each(func(o []Op) { VMAXPS(o...) }, o...) }
func vminps(o ...any)       { each(func(o []Op) { VMINPS(o...) }, o...) }
func vmovdqu(o ...any)      { each(func(o []Op) { VMOVDQU(o[0], o[1]) }, o...) }
func vmovups(o ...any)      { each(func(o []Op) { VMOVUPS(o...) }, o...) }
func vmulps(o ...any)       { each(func(o []Op) { VMULPS(o...) }, o...) }
func vorps(o ...any)        { each(func(o []Op) { VORPS(o...) }, o...) }
func vpackusdw(o ...any)    { each(func(o []Op) { VPACKUSDW(o...) }, o...) }
func vpackuswb(o ...any)    { each(func(o []Op) { VPACKUSWB(o...) }, o...) }
func vpaddd(o ...any)       { each(func(o []Op) { VPADDD(o...) }, o...) }
func vpermq(o ...any)       { each(func(o []Op) { VPERMQ(o...) }, o...) }
func vpmovdb(o ...any)      { each(func(o []Op) { VPMOVDB(o...) }, o...) }
func vpmovzxbd(o ...any)    { each(func(o []Op) { VPMOVZXBD(o...) }, o...) }
func vpslld(o ...any)       { each(func(o []Op) { VPSLLD(o...) }, o...) }
func vpsrad(o ...any)       { each(func(o []Op) { VPSRAD(o...) }, o...) }
func vpsubd(o ...any)       { each(func(o []Op) { VPSUBD(o...) }, o...) }
func vrndscaleps(o ...any)  { each(func(o []Op) { VRNDSCALEPS(o...) }, o...) }
func vroundps(o ...any)     { each(func(o []Op) { VROUNDPS(o[0], o[1], o[2]) }, o...) }
func vsubps(o ...any)       { each(func(o []Op) { VSUBPS(o...) }, o...) }
func vxorps(o ...any)       { each(func(o []Op) { VXORPS(o...) }, o...) }
func vcmpps(o ...any)       { each(func(o []Op) { VCMPPS(o...) }, o...) }
func vblendmps(o ...any)    { each(func(o []Op) { VBLENDMPS(o...) }, o...) }
func vblendvps(o ...any)    { each(func(o []Op) { VBLENDVPS(o[0], o[1], o[2], o[3]) }, o...) }
