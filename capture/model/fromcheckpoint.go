package model

import (
	"context"

	"quire/capture/checkpoint"
)

// FromCheckpoint is the Source of a checkpoint on disk.
func FromCheckpoint(src *checkpoint.Source) Source { return checkpointSource{src} }

type checkpointSource struct{ src *checkpoint.Source }

func (c checkpointSource) ConfigJSON() []byte { return c.src.ConfigJSON() }

func (c checkpointSource) Logical() []Tensor {
	ls := c.src.Logical()
	out := make([]Tensor, len(ls))
	for i, l := range ls {
		out[i] = Tensor{Name: l.Name, DType: string(l.DType), Shape: l.Shape, Decoded: l.Decoded, Stored: l.Stored}
	}
	return out
}

func (c checkpointSource) ReadF32(ctx context.Context, name string, dst []float32, off int64) error {
	return c.src.DecodeF32(ctx, name, dst, off)
}

func (c checkpointSource) ReadBF16(ctx context.Context, name string, dst []uint16, off int64) error {
	return c.src.DecodeBF16(ctx, name, dst, off)
}
