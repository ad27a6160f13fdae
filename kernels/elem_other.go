//go:build !amd64 || noasm || purego || !gc

package kernels

func elemOf(Level) *elemTable { return scalarElem }
