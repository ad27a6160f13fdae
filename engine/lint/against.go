package lint

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"

	"quire/engine/format"
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
func (m *subject) compareWith(ctx context.Context, dir string, limit float64) *AgainstTable {
	table := &AgainstTable{Original: dir}
	source := openOriginal(ctx, dir)
	orig := source.files
	defer source.close() //nolint:errcheck // read only
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
		w, from := source.weight(ctx, mod)
		used[i] = from
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
			for _, n := range source.stored(used[i]) {
				covered[n] = true
			}
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
func (m *subject) compareCopies(ctx context.Context, orig *checkpointFiles, covered map[string]bool, table *AgainstTable) {
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
			if len(a.Shape) > 2 && fusedExperts.MatchString(n) {
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
		if err := a.readAt(x[:n], at); err != nil {
			return false
		}
		if err := b.readAt(y[:n], at); err != nil {
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
