//go:build !amd64 || noasm || purego || !gc

package kernels

// detectLevel: only the generic twin exists here.
func detectLevel() Level { return LevelScalar }
