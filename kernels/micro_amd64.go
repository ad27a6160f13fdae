//go:build amd64 && !noasm && !purego && gc

package kernels

import "quire/kernels/internal/asm"

//go:generate go -C internal/asm/_gen run . -out ../gemm_amd64.s -stubs ../gemm_amd64.go -pkg asm

var avx2Table, avx512Table, avx512BF16Table = makeTables()

// tableOf gives the kernels of a level.
func tableOf(l Level) *microTable {
	switch l {
	case LevelAVX2:
		return avx2Table
	case LevelAVX512:
		return avx512Table
	case LevelAVX512BF16:
		return avx512BF16Table
	}
	return scalarTable
}

func makeTables() (avx2, avx512, bf16 *microTable) {
	t2 := *scalarTable
	t2.level, t2.rows, t2.passes, t2.slice = LevelAVX2, 6, 2, 6
	t2.transpose = transposer{laneF32: asm.TransposeF32, lanePair: asm.TransposePair, laneWiden: asm.TransposeWiden, laneWidenZero: asm.TransposeWidenZero}
	t2.strip = striper{laneF32: asm.StripF32, lanePair: asm.StripPair, laneWidenZero: asm.StripWidenZero}
	t2.quantize, t2.columns = asm.Quantize, asm.Columns
	t2.f32[1] = asm.F32AVX2x1
	t2.f32[2] = asm.F32AVX2x2
	t2.f32[3] = asm.F32AVX2x3
	t2.f32[4] = asm.F32AVX2x4
	t2.f32[5] = asm.F32AVX2x5
	t2.f32[6] = asm.F32AVX2x6
	t2.wide[1] = asm.WideAVX2x1
	t2.wide[2] = asm.WideAVX2x2
	t2.wide[3] = asm.WideAVX2x3
	t2.wide[4] = asm.WideAVX2x4
	t2.wide[5] = asm.WideAVX2x5
	t2.wide[6] = asm.WideAVX2x6
	t2.f64[1] = asm.F64AVX2x1
	t2.f64[2] = asm.F64AVX2x2
	t2.f64[3] = asm.F64AVX2x3
	t2.f64[4] = asm.F64AVX2x4
	t2.f64[5] = asm.F64AVX2x5
	t2.f64[6] = asm.F64AVX2x6

	t5 := t2
	t5.wide, t5.f32, t5.f64 = scalarTable.wide, scalarTable.f32, scalarTable.f64
	t5.level, t5.rows, t5.passes, t5.slice = LevelAVX512, 14, 1, 8
	t5.f32[1] = asm.F32AVX512x1
	t5.f32[2] = asm.F32AVX512x2
	t5.f32[3] = asm.F32AVX512x3
	t5.f32[4] = asm.F32AVX512x4
	t5.f32[5] = asm.F32AVX512x5
	t5.f32[6] = asm.F32AVX512x6
	t5.f32[7] = asm.F32AVX512x7
	t5.f32[8] = asm.F32AVX512x8
	t5.f32[9] = asm.F32AVX512x9
	t5.f32[10] = asm.F32AVX512x10
	t5.f32[11] = asm.F32AVX512x11
	t5.f32[12] = asm.F32AVX512x12
	t5.f32[13] = asm.F32AVX512x13
	t5.f32[14] = asm.F32AVX512x14
	t5.wide[1] = asm.WideAVX512x1
	t5.wide[2] = asm.WideAVX512x2
	t5.wide[3] = asm.WideAVX512x3
	t5.wide[4] = asm.WideAVX512x4
	t5.wide[5] = asm.WideAVX512x5
	t5.wide[6] = asm.WideAVX512x6
	t5.wide[7] = asm.WideAVX512x7
	t5.wide[8] = asm.WideAVX512x8
	t5.wide[9] = asm.WideAVX512x9
	t5.wide[10] = asm.WideAVX512x10
	t5.wide[11] = asm.WideAVX512x11
	t5.wide[12] = asm.WideAVX512x12
	t5.wide[13] = asm.WideAVX512x13
	t5.wide[14] = asm.WideAVX512x14
	t5.f64[1] = asm.F64AVX512x1
	t5.f64[2] = asm.F64AVX512x2
	t5.f64[3] = asm.F64AVX512x3
	t5.f64[4] = asm.F64AVX512x4
	t5.f64[5] = asm.F64AVX512x5
	t5.f64[6] = asm.F64AVX512x6
	t5.f64[7] = asm.F64AVX512x7
	t5.f64[8] = asm.F64AVX512x8
	t5.f64[9] = asm.F64AVX512x9
	t5.f64[10] = asm.F64AVX512x10
	t5.f64[11] = asm.F64AVX512x11
	t5.f64[12] = asm.F64AVX512x12
	t5.f64[13] = asm.F64AVX512x13
	t5.f64[14] = asm.F64AVX512x14

	tb := t5
	tb.level = LevelAVX512BF16
	tb.dot[1] = asm.DotAVX512x1
	tb.dot[2] = asm.DotAVX512x2
	tb.dot[3] = asm.DotAVX512x3
	tb.dot[4] = asm.DotAVX512x4
	tb.dot[5] = asm.DotAVX512x5
	tb.dot[6] = asm.DotAVX512x6
	tb.dot[7] = asm.DotAVX512x7
	tb.dot[8] = asm.DotAVX512x8
	tb.dot[9] = asm.DotAVX512x9
	tb.dot[10] = asm.DotAVX512x10
	tb.dot[11] = asm.DotAVX512x11
	tb.dot[12] = asm.DotAVX512x12
	tb.dot[13] = asm.DotAVX512x13
	tb.dot[14] = asm.DotAVX512x14
	return &t2, &t5, &tb
}
