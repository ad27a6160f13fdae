package model

import "context"

// Source is what this package reads of a checkpoint: config, logical tensors, and elements as numbers. FromCheckpoint
// gives it for files; tests and benchmarks make their own.
type Source interface {
	// ConfigJSON is config.json as it lies on disk.
	ConfigJSON() []byte
	// Logical lists the tensors that a model reads, sorted by name: quantized ones stand decoded under one name.
	Logical() []Tensor
	// ReadF32 decodes len(dst) elements from element offset off, row-major.
	ReadF32(ctx context.Context, name string, dst []float32, off int64) error
	// ReadBF16 is ReadF32 rounded to nearest bf16.
	ReadBF16(ctx context.Context, name string, dst []uint16, off int64) error
}

// Tensor is a logical tensor of a source.
type Tensor struct {
	Name    string
	DType   string // as safetensors headers spell it; of the stored codes when decoded
	Shape   []int
	Decoded bool     // its value is made from codes and scales
	Stored  []string // names of the stored tensors it is made from; nil means Name alone
}

// Elements is the number of elements.
func (t Tensor) Elements() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= int64(d)
	}
	return n
}
