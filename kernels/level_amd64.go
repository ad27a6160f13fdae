//go:build amd64 && !noasm && !purego && gc

package kernels

import "golang.org/x/sys/cpu"

// detectLevel asks CPUID and XGETBV (through x/sys/cpu, which checks that the
// operating system saves the wide registers).
func detectLevel() Level {
	x := &cpu.X86
	switch {
	case !x.HasAVX2 || !x.HasFMA:
		return LevelScalar
	case !x.HasAVX512F || !x.HasAVX512BW || !x.HasAVX512DQ || !x.HasAVX512VL:
		return LevelAVX2
	case !x.HasAVX512BF16:
		return LevelAVX512
	}
	return LevelAVX512BF16
}
