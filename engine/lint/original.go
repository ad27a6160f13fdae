package lint

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"

	"quire/capture/checkpoint"
	"quire/capture/model"
	"quire/kernels/dtype"
)

// original is the model that a checkpoint was made from. Where its family is known, linears are found through the family
// table, which states layouts: fused, transposed or interleaved experts are never guessed from a shape, and quantized
// sources are decoded. Otherwise a module is compared with the plain tensor of its name.
type original struct {
	files  *checkpointFiles
	source *checkpoint.Source // nil: it does not open, or its family is unknown
	family *model.Model
}

// openOriginal opens dir. What is wrong with the original is no finding about the checkpoint.
func openOriginal(ctx context.Context, dir string) *original {
	o := &original{files: openFiles(dir, &collector{})}
	src, err := checkpoint.Open(ctx, dir)
	if err != nil {
		return o
	}
	o.source = src
	if m, err := model.Open(ctx, model.FromCheckpoint(src), model.Options{}); err == nil {
		o.family = m
	}
	return o
}

func (o *original) close() error {
	err := o.files.close()
	if o.source != nil {
		err = errors.Join(err, o.source.Close())
	}
	return err
}

// stored names the tensors in files behind a source tensor.
func (o *original) stored(name string) []string {
	if o.source != nil {
		if names := o.source.StoredOf(name); len(names) > 0 {
			return names
		}
	}
	return []string{name}
}

// weight reads the source of a module as [out, in], nil if there is none that can be compared. The second result is the
// source tensor.
func (o *original) weight(ctx context.Context, mod *module) ([]float32, string) {
	if o.family != nil {
		if l := o.family.Linear(mod.name); l != nil {
			if l.Out != mod.out || l.In != mod.in {
				return nil, l.Tensor()
			}
			w := make([]float32, l.Out*l.In)
			if err := o.family.ReadLinear(ctx, l, w); err != nil {
				return nil, l.Tensor()
			}
			return w, l.Tensor()
		}
	}
	t := o.files.tensors[mod.name+".weight"]
	if t == nil {
		return nil, ""
	}
	if !plainFloat(t.DType) || !slices.Equal(t.Shape, []int{mod.out, mod.in}) {
		return nil, t.Name
	}
	return readFloats(t, 0, mod.out*mod.in), t.Name
}

// readFloats reads n elements from element at, nil when they lie outside the tensor.
func readFloats(t *tensor, at, n int) []float32 {
	size := int(t.elementBytes())
	if at < 0 || n < 0 || int64(at+n)*int64(size) > t.size {
		return nil
	}
	raw := make([]byte, n*size)
	if t.readAt(raw, int64(at*size)) != nil {
		return nil
	}
	out := make([]float32, n)
	for i := range out {
		switch t.DType {
		case "BF16":
			out[i] = dtype.BF16ToF32(binary.LittleEndian.Uint16(raw[2*i:]))
		case "F16":
			out[i] = dtype.F16ToF32(binary.LittleEndian.Uint16(raw[2*i:]))
		case "F64":
			out[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(raw[8*i:])))
		default:
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		}
	}
	return out
}
