//go:build amd64 && !noasm && !purego && gc

package main

import (
	"quire/kernels"
	"quire/kernels/internal/asm"
)

// peakLoops: the multiply-add loop of the level in use, then the bf16 one if there is one.
func peakLoops() []peakLoop {
	switch kernels.CPULevel() {
	case kernels.LevelAVX2:
		return []peakLoop{{"FMA", 12 * 8 * 2, asm.PeakFMAAVX2}}
	case kernels.LevelAVX512:
		return []peakLoop{{"FMA", 12 * 16 * 2, asm.PeakFMAAVX512}}
	case kernels.LevelAVX512BF16:
		return []peakLoop{{"FMA", 12 * 16 * 2, asm.PeakFMAAVX512}, {"bf16", 12 * 16 * 4, asm.PeakDotAVX512}}
	}
	return []peakLoop{scalarPeak}
}

// readLoop reads n·64 float32; nil: there is none at this level.
var readLoop = func() func(p *float32, n int) {
	if kernels.CPULevel() < kernels.LevelAVX2 {
		return nil
	}
	return asm.PeakRead
}()
