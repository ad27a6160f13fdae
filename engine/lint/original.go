package lint

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	capture "quire/capture/model"
	"quire/kernels/dtype"
)

// original is the model that a checkpoint was made from. Where its family is known, linears are found through the family
// table, which states layouts: fused, transposed or interleaved experts are never guessed from a shape. Otherwise a
// module is compared with the plain tensor of its name.
type original struct {
	files  *checkpointFiles
	config []byte
	family *capture.Model // nil: unknown family
}

// openOriginal opens dir. What is wrong with the original is no finding about the checkpoint.
func openOriginal(ctx context.Context, dir string) *original {
	o := &original{files: openFiles(dir, &collector{})}
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return o
	}
	o.config = raw
	if m, err := capture.Open(ctx, plainSource{o}, capture.Options{}); err == nil {
		o.family = m
	}
	return o
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

// plainSource gives the tensors of a checkpoint as they are stored.
type plainSource struct{ o *original }

func (s plainSource) ConfigJSON() []byte { return s.o.config }

func (s plainSource) Logical() []capture.Tensor {
	out := make([]capture.Tensor, 0, len(s.o.files.tensors))
	for _, t := range s.o.files.tensors {
		out = append(out, capture.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape})
	}
	slices.SortFunc(out, func(a, b capture.Tensor) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (s plainSource) ReadF32(_ context.Context, name string, dst []float32, off int64) error {
	t := s.o.files.tensors[name]
	if t == nil || !plainFloat(t.DType) {
		return fmt.Errorf("%s: no plain tensor of this name", name)
	}
	v := readFloats(t, int(off), len(dst))
	if v == nil {
		return fmt.Errorf("%s: elements %d to %d are outside the tensor", name, off, off+int64(len(dst)))
	}
	copy(dst, v)
	return nil
}

func (s plainSource) ReadBF16(ctx context.Context, name string, dst []uint16, off int64) error {
	v := make([]float32, len(dst))
	if err := s.ReadF32(ctx, name, v, off); err != nil {
		return err
	}
	dtype.EncodeBF16(dst, v)
	return nil
}

// readFloats reads n elements from element at, nil when they lie outside the tensor.
func readFloats(t *tensor, at, n int) []float32 {
	size := dtypeBits[t.DType] / 8
	if at < 0 || n < 0 || int64(at+n)*int64(size) > t.size {
		return nil
	}
	raw := make([]byte, n*size)
	if _, err := t.shard.file.ReadAt(raw, t.begin+int64(at*size)); err != nil && n > 0 {
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
