//go:build amd64 && !noasm && !purego && gc

package kernels

import "quire/kernels/internal/asm"

//go:generate go -C internal/asm/_gen_elem run . -out ../elem_amd64.s -stubs ../elem_amd64.go -pkg asm

var avx2Elem = &elemTable{
	level:       LevelAVX2,
	exp:         asm.ElemExpAVX2,
	log:         asm.ElemLogAVX2,
	tanh:        asm.ElemTanhAVX2,
	sigmoid:     asm.ElemSigmoidAVX2,
	softplus:    asm.ElemSoftplusAVX2,
	silu:        asm.ElemSiLUAVX2,
	geluErf:     asm.ElemGELUErfAVX2,
	geluTanh:    asm.ElemGELUTanhAVX2,
	relu2:       asm.ElemReLU2AVX2,
	siluMul:     asm.ElemSiLUMulAVX2,
	add:         asm.ElemAddAVX2,
	mul:         asm.ElemMulAVX2,
	scale:       asm.ElemScaleAVX2,
	div:         asm.ElemDivAVX2,
	axpy:        asm.ElemAXPYAVX2,
	clamp:       asm.ElemClampAVX2,
	shift:       asm.ElemShiftAVX2,
	rms:         asm.ElemRMSAVX2,
	expSub:      asm.ElemExpSubAVX2,
	sum:         asm.ElemSumAVX2,
	sumSquare:   asm.ElemSumSquareAVX2,
	largest:     asm.ElemLargestAVX2,
	extremes:    asm.ElemExtremesAVX2,
	absLarge:    asm.ElemAbsLargeAVX2,
	quantize:    asm.ElemQuantizeAVX2,
	dequantize:  asm.ElemDequantizeAVX2,
	rotate:      asm.ElemRotateAVX2,
	attnSoftmax: asm.ElemAttnSoftmaxAVX2,
	mulRows:     asm.ElemMulRowsAVX2,
	divRows:     asm.ElemDivRowsAVX2,
}

var avx512Elem = &elemTable{
	level:       LevelAVX512,
	exp:         asm.ElemExpAVX512,
	log:         asm.ElemLogAVX512,
	tanh:        asm.ElemTanhAVX512,
	sigmoid:     asm.ElemSigmoidAVX512,
	softplus:    asm.ElemSoftplusAVX512,
	silu:        asm.ElemSiLUAVX512,
	geluErf:     asm.ElemGELUErfAVX512,
	geluTanh:    asm.ElemGELUTanhAVX512,
	relu2:       asm.ElemReLU2AVX512,
	siluMul:     asm.ElemSiLUMulAVX512,
	add:         asm.ElemAddAVX512,
	mul:         asm.ElemMulAVX512,
	scale:       asm.ElemScaleAVX512,
	div:         asm.ElemDivAVX512,
	axpy:        asm.ElemAXPYAVX512,
	clamp:       asm.ElemClampAVX512,
	shift:       asm.ElemShiftAVX512,
	rms:         asm.ElemRMSAVX512,
	expSub:      asm.ElemExpSubAVX512,
	sum:         asm.ElemSumAVX512,
	sumSquare:   asm.ElemSumSquareAVX512,
	largest:     asm.ElemLargestAVX512,
	extremes:    asm.ElemExtremesAVX512,
	absLarge:    asm.ElemAbsLargeAVX512,
	quantize:    asm.ElemQuantizeAVX512,
	dequantize:  asm.ElemDequantizeAVX512,
	rotate:      asm.ElemRotateAVX512,
	attnSoftmax: asm.ElemAttnSoftmaxAVX512,
	mulRows:     asm.ElemMulRowsAVX512,
	divRows:     asm.ElemDivRowsAVX512,
}

func elemOf(l Level) *elemTable {
	switch {
	case l >= LevelAVX512:
		return avx512Elem
	case l == LevelAVX2:
		return avx2Elem
	}
	return scalarElem
}
