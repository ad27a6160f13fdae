package lint

import (
	"cmp"
	"context"
	"encoding/binary"
	"math"
	"slices"
	"strings"

	"quire/engine/format"
	"quire/kernels/dtype"
)

// AgainstTable is the error of every module against the original.
type AgainstTable struct {
	Original string        `json:"original"`
	Modules  []ModuleError `json:"modules"` // worst first
	Median   float64       `json:"median_relative_error"`
	Copied   int           `json:"copied_tensors"`   // equal byte for byte
	Unread   []string      `json:"unread,omitempty"` // modules whose original was not found or has no stated layout
}

// ModuleError is ‖W−Q‖/‖W‖ (Frobenius) and the largest difference of one module.
type ModuleError struct {
	Name     string  `json:"name"`
	Relative float64 `json:"relative_error"`
	Largest  float64 `json:"largest_difference"`
	Rescaled bool    `json:"rescaled,omitempty"` // compared after column and row scales of smoothing were taken out
}

// bound is the relative error above which a module is reported: three times what rounding uniform weights to a grid of
// 2^bits steps over the range costs, at least 1 %.
func bound(bits int) float64 {
	return max(3*2/float64(int(1)<<bits), 0.01)
}

// compareWith reads the original beside the checkpoint, a module at a time on each core.
func (m *model) compareWith(ctx context.Context, dir string, limit float64) *AgainstTable {
	table := &AgainstTable{Original: dir}
	own := &collector{} // the original's own faults are not findings about the checkpoint
	orig := openFiles(dir, own)
	defer orig.close() //nolint:errcheck // read only
	if len(orig.tensors) == 0 {
		m.c.add("E_AGAINST", dir, "no tensors there")
		return table
	}
	errs := make([]*ModuleError, len(m.modules))
	used := make([]string, len(m.modules))
	each(ctx, len(m.modules), func(i int) {
		mod := m.modules[i]
		if !mod.quantized() || !mod.sound || mod.readError {
			return
		}
		w, source := originalWeight(orig, m.modelType, mod)
		used[i] = source
		if w == nil {
			return
		}
		fm, _, err := m.decode(mod)
		if err != nil {
			return
		}
		deq := make([]float32, fm.Out*fm.In)
		fm.Dequantize(deq)
		errs[i] = moduleError(mod.name, w, deq)
		if errs[i].Relative > 0.05 && unscale(w, deq, fm.Out, fm.In) {
			errs[i] = moduleError(mod.name, w, deq)
			errs[i].Rescaled = true
		}
		most := limit
		if most <= 0 {
			most = bound(mod.scheme.Bits)
		}
		if errs[i].Relative > most {
			m.c.add("E_AGAINST_ERROR", mod.name, "relative error %.3g, the bound is %.3g", errs[i].Relative, most)
		}
	})
	covered := map[string]bool{}
	for i, mod := range m.modules {
		switch {
		case errs[i] != nil:
			table.Modules = append(table.Modules, *errs[i])
		case mod.quantized() && m.quant.known:
			table.Unread = append(table.Unread, mod.name)
		}
		if used[i] != "" {
			covered[used[i]] = true
		} else if mod.quantized() {
			covered[mod.name+".weight"] = true
		}
	}
	slices.SortFunc(table.Modules, func(a, b ModuleError) int {
		return cmp.Or(cmp.Compare(b.Relative, a.Relative), format.CompareNames(a.Name, b.Name))
	})
	if n := len(table.Modules); n > 0 {
		table.Median = table.Modules[n/2].Relative
	}
	m.compareCopies(ctx, orig, covered, table)
	return table
}

// compareCopies holds what was left alone against the original, byte for byte where dtypes agree.
func (m *model) compareCopies(ctx context.Context, orig *checkpointFiles, covered map[string]bool, table *AgainstTable) {
	var names []string
	for n := range orig.tensors {
		names = append(names, n)
	}
	slices.SortFunc(names, format.CompareNames)
	equal := make([]bool, len(names))
	each(ctx, len(names), func(i int) {
		n := names[i]
		a, b := orig.tensors[n], m.files.tensors[n]
		switch {
		case covered[n] || strings.HasSuffix(n, "weight_scale_inv"):
		case b == nil:
			if len(a.Shape) == 3 && fusedExperts.MatchString(n) {
				return // written expert by expert; compared there, or listed as unread
			}
			m.c.add("E_AGAINST_MISSING", n, "%s %v", a.DType, a.Shape)
		case !slices.Equal(a.Shape, b.Shape):
			m.c.add("E_AGAINST_COPY", n, "shape %v, the original has %v", b.Shape, a.Shape)
		case a.DType != b.DType:
			if plainFloat(a.DType) {
				m.c.add("E_AGAINST_COPY", n, "%s, the original is %s", b.DType, a.DType)
			}
		case a.size == b.size:
			switch equal[i] = sameBytes(a, b); {
			case equal[i]:
			case smoothed(a, b):
				m.c.add("E_AGAINST_FOLDED", n, "its columns are multiplied by other factors than in the original")
			default:
				m.c.add("E_AGAINST_COPY", n, "its bytes differ")
			}
		}
	})
	for _, e := range equal {
		if e {
			table.Copied++
		}
	}
}

// smoothed says whether a norm or a matrix differs by positive column factors only.
func smoothed(a, b *tensor) bool {
	const most = 1 << 24 // elements; larger ones are embeddings and heads, which nothing is folded into
	n := 1
	for _, d := range a.Shape {
		n *= d
	}
	if len(a.Shape) < 1 || len(a.Shape) > 2 || n == 0 || n > most || !plainFloat(a.DType) {
		return false
	}
	in := a.Shape[len(a.Shape)-1]
	x, y := readFloats(a, 0, n), readFloats(b, 0, n)
	return x != nil && y != nil && rescaled(x, y, n/in, in)
}

func sameBytes(a, b *tensor) bool {
	x, y := make([]byte, min(a.size, 1<<20)), make([]byte, min(a.size, 1<<20))
	for at := int64(0); at < a.size; at += int64(len(x)) {
		n := min(int64(len(x)), a.size-at)
		if _, err := a.shard.file.ReadAt(x[:n], a.begin+at); err != nil {
			return false
		}
		if _, err := b.shard.file.ReadAt(y[:n], b.begin+at); err != nil {
			return false
		}
		if string(x[:n]) != string(y[:n]) {
			return false
		}
	}
	return true
}

func moduleError(name string, w, q []float32) *ModuleError {
	var num, den, most float64
	for i, v := range w {
		d := float64(v) - float64(q[i])
		num += d * d
		den += float64(v) * float64(v)
		most = max(most, math.Abs(d))
	}
	e := &ModuleError{Name: name, Largest: finiteOr(most, math.MaxFloat64)}
	switch {
	case num == 0:
	case den == 0:
		e.Relative = math.MaxFloat64
	default:
		e.Relative = finiteOr(math.Sqrt(num/den), math.MaxFloat64)
	}
	return e
}

// originalWeight reads the source of a module as [out, in]: the tensor of the same name, or its part of a fused 3-D
// tensor of experts where the shape says the layout without doubt. The second result is the tensor used.
func originalWeight(orig *checkpointFiles, modelType string, mod *module) ([]float32, string) {
	if t := orig.tensors[mod.name+".weight"]; t != nil {
		if !plainFloat(t.DType) || !slices.Equal(t.Shape, []int{mod.out, mod.in}) {
			return nil, t.Name
		}
		return readFloats(t, 0, mod.out*mod.in), t.Name
	}
	parent, e, leaf, ok := format.SplitExpert(mod.name)
	if !ok {
		return nil, ""
	}
	half, name := 0, parent+".gate_up_proj"
	switch leaf {
	case "gate_proj":
	case "up_proj":
		half = 1
	case "down_proj":
		half, name = -1, parent+".down_proj"
	default:
		return nil, ""
	}
	t := orig.tensors[name]
	if t == nil || len(t.Shape) != 3 || e >= t.Shape[0] || !plainFloat(t.DType) {
		return nil, ""
	}
	rows := mod.out
	if half >= 0 {
		rows *= 2
	}
	straight, transposed := t.Shape[1] == rows && t.Shape[2] == mod.in, t.Shape[1] == mod.in && t.Shape[2] == rows
	if straight == transposed || modelType == "gpt_oss" { // square, or interleaved: the shape does not say
		return nil, t.Name
	}
	all := readFloats(t, e*rows*mod.in, rows*mod.in)
	if all == nil {
		return nil, t.Name
	}
	first := max(half, 0) * mod.out
	w := make([]float32, mod.out*mod.in)
	for o := range mod.out {
		for i := range mod.in {
			if straight {
				w[o*mod.in+i] = all[(first+o)*mod.in+i]
			} else {
				w[o*mod.in+i] = all[i*rows+first+o]
			}
		}
	}
	return w, t.Name
}

// readFloats reads n elements from element at.
func readFloats(t *tensor, at, n int) []float32 {
	size := dtypeBits[t.DType] / 8
	raw := make([]byte, n*size)
	if int64((at+n)*size) > t.size {
		return nil
	}
	if _, err := t.shard.file.ReadAt(raw, t.begin+int64(at*size)); err != nil {
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
