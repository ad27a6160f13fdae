//go:build !amd64 || noasm || purego || !gc

package kernels

func tableOf(Level) *microTable { return scalarTable }
