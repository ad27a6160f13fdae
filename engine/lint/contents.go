package lint

import (
	"context"
	"encoding/binary"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"quire/engine/format"
	"quire/kernels/dtype"
)

// each runs f over n items on all cores and stops early when ctx ends.
func each(ctx context.Context, n int, f func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				f(i)
			}
		})
	}
	wg.Wait()
}

// decode reads a sound module.
func (m *subject) decode(mod *module) (*format.Module, map[string][]byte, error) {
	var tensors []format.TensorData
	raw := map[string][]byte{}
	for suffix, t := range mod.parts {
		data, err := t.read()
		if err != nil {
			return nil, nil, err
		}
		raw[suffix] = data
		tensors = append(tensors, format.TensorData{TensorSpec: format.TensorSpec{Name: t.Name, DType: format.DType(t.DType), Shape: t.Shape}, Data: data})
	}
	f, s := m.quant.format, mod.scheme
	if mod.kind == int8Plain {
		f, _ = format.Lookup("compressed-tensors-w8a8")
		s.Bits = 8
	} else if m.quant.method == methodCT {
		f, _ = format.Lookup("compressed-tensors")
	}
	fm, err := f.Decode(mod.name, s, tensors)
	return fm, raw, err
}

// checkContents reads every sound module and every plain tensor.
func (m *subject) checkContents(ctx context.Context) {
	each(ctx, len(m.modules), func(i int) {
		mod := m.modules[i]
		if mod.sound {
			m.checkModule(mod)
		} else if mod.quantized() {
			m.checkLooseScales(mod)
		}
	})
	var loose []*tensor
	for name, t := range m.files.tensors {
		leaf := name[strings.LastIndexByte(name, '.')+1:]
		if plainFloat(t.DType) && !slices.Contains(packedParts, leaf) {
			loose = append(loose, t)
		}
	}
	slices.SortFunc(loose, func(a, b *tensor) int { return strings.Compare(a.Name, b.Name) })
	each(ctx, len(loose), func(i int) {
		if at := nonFinite(loose[i]); at >= 0 {
			m.c.add("E_WEIGHT_NAN", loose[i].Name, "element %d", at)
		}
	})
}

// nonFinite finds the first element that is NaN or infinite, −1 if none. It reads a MiB at a time.
func nonFinite(t *tensor) int64 {
	size := t.elementBytes()
	buf := make([]byte, min(t.size, 1<<20))
	for at := int64(0); at < t.size; at += int64(len(buf)) {
		n := min(int64(len(buf)), t.size-at)
		if err := t.readAt(buf[:n], at); err != nil {
			return -1
		}
		for i := int64(0); i+size <= n; i += size {
			bad := false
			switch t.DType {
			case "BF16":
				bad = buf[i+1]&0x7F == 0x7F && buf[i]&0x80 != 0
			case "F16":
				bad = buf[i+1]&0x7C == 0x7C
			case "F32":
				bad = binary.LittleEndian.Uint32(buf[i:])&0x7F800000 == 0x7F800000
			case "F64":
				bad = binary.LittleEndian.Uint64(buf[i:])&0x7FF0000000000000 == 0x7FF0000000000000
			}
			if bad {
				return (at + i) / size
			}
		}
	}
	return -1
}

// checkModule looks at the numbers of one module.
func (m *subject) checkModule(mod *module) {
	fm, raw, err := m.decode(mod)
	if err != nil {
		code := "E_SHAPE"
		if strings.Contains(err.Error(), "g_idx") {
			code = "E_GIDX_RANGE"
		}
		m.c.add(code, mod.name, "%v", err)
		mod.readError = true
		return
	}
	g := fm.Groups()
	scaleName := mod.name + ".scales"
	if m.quant.method == methodCT {
		scaleName = mod.name + ".weight_scale"
	}
	m.checkScales(scaleName, fm.Scales, string(fm.ScaleDType), g, fm.MaxQ())
	m.checkZeros(mod, fm)
	m.checkGIdx(mod, fm)
	m.checkCodes(mod, fm, raw)
}

// tiny is the smallest normal value of a dtype.
func tiny(dt string) float64 {
	if dt == "F16" {
		return 0x1p-14
	}
	return 0x1p-126
}

// checkScales looks for scales that cannot be meant. Only the first of a kind is named, with the number of them.
func (m *subject) checkScales(name string, scales []float32, dt string, g, maxq int) {
	type hit struct {
		n, at int
	}
	hits := map[string]*hit{}
	note := func(code string, i int) {
		if hits[code] == nil {
			hits[code] = &hit{0, i}
		}
		hits[code].n++
	}
	median := medianOf(scales)
	for i, s := range scales {
		v := float64(s)
		switch {
		case math.IsNaN(v) || math.IsInf(v, 0):
			note("E_SCALE_NAN", i)
		case v == 0:
			note("E_SCALE_ZERO", i)
		case v < 0:
			note("E_SCALE_NEGATIVE", i)
		case v < tiny(dt):
			note("E_SCALE_TINY", i)
		case v*float64(maxq+1)/2 > 65504 || median > 0 && v > 1e4*median:
			note("E_SCALE_HUGE", i)
		}
	}
	for code, h := range hits {
		m.c.add(code, name, "%g at output %d, group %d (%d of %d)", scales[h.at], h.at/g, h.at%g, h.n, len(scales))
	}
}

func medianOf(s []float32) float64 {
	c := make([]float32, 0, len(s))
	for _, v := range s {
		if v == v {
			c = append(c, v)
		}
	}
	if len(c) == 0 {
		return 0
	}
	slices.Sort(c)
	return float64(c[len(c)/2])
}

// checkZeros compares zero points with the symmetry and the format the config declares.
func (m *subject) checkZeros(mod *module, fm *format.Module) {
	if mod.scheme.Bits > 8 || fm.Zeros == nil {
		return // symmetric, and every zero is the symmetric one
	}
	half, maxq := 1<<(fm.Bits-1), fm.MaxQ()
	low, high, wrapped, allHalf := 0, 0, 0, true
	for _, z := range fm.Zeros {
		v := int(z)
		if m.quant.storage == "gptq" && (v > maxq || fm.Bits == 8 && v == 0) {
			wrapped++
			continue
		}
		allHalf = allHalf && v == half
		switch v {
		case half + 1:
			high++
		case half - 1:
			low++
		}
	}
	n := len(fm.Zeros)
	switch {
	case wrapped > 0:
		m.c.add("E_ZERO_RANGE", mod.name+".qzeros", "%d of %d", wrapped, n)
	case mod.scheme.Sym && m.quant.storage == "gptq" && high == n:
		m.c.add("E_LABEL", mod.name+".qzeros", "every stored zero is %d, as in gptq_v2, but checkpoint_format is gptq", half)
	case mod.scheme.Sym && m.quant.storage == "gptq_v2" && low == n:
		m.c.add("E_LABEL", mod.name+".qzeros", "every stored zero is %d, as in gptq, but checkpoint_format is gptq_v2", half-1)
	case mod.scheme.Sym && !allHalf && m.quant.method != methodAWQ:
		m.c.add("E_ZERO_SYM", mod.name, "%d is among the zero points", fm.Zeros[slices.IndexFunc(fm.Zeros, func(z uint8) bool { return int(z) != half })])
	case mod.scheme.Sym && !allHalf:
		m.c.add("E_ZERO_SYM", mod.name, "zero_point is false, but zero points other than 8 are stored")
	case !mod.scheme.Sym && allHalf && m.quant.method != methodAWQ: // awq says zero_point: true either way
		m.c.add("E_ZERO_CONST", mod.name, "all %d zero points are %d", n, half)
	}
}

// checkGIdx compares the stored group numbers with the declared order.
func (m *subject) checkGIdx(mod *module, fm *format.Module) {
	mod.anyGIdx = mod.parts["g_idx"] != nil || mod.parts["weight_g_idx"] != nil
	mod.gidx = fm.GIdx
	if fm.GIdx == nil {
		return
	}
	count := make([]int, fm.Groups())
	for _, g := range fm.GIdx {
		count[g]++
	}
	for g, n := range count {
		want := min(fm.GroupSize, fm.In-g*fm.GroupSize)
		if fm.GroupSize > 0 && n != want {
			m.c.add("E_GIDX_COUNT", mod.name, "group %d has %d columns, not %d", g, n, want)
			break
		}
	}
	declared := m.quant.descAct
	if m.quant.method == methodCT {
		declared = mod.group != nil && (mod.group.actorder == "group" || mod.group.actorder == "dynamic")
	}
	for _, r := range m.quant.rules {
		if r.match.match(mod.name) {
			if r.descAct != nil {
				declared = *r.descAct
			}
			break
		}
	}
	if !declared {
		m.c.add("E_GIDX_ORDER", mod.name, "g_idx begins %v", fm.GIdx[:min(8, len(fm.GIdx))])
	}
}

// checkCodes looks for codes that cannot be meant.
func (m *subject) checkCodes(mod *module, fm *format.Module, raw map[string][]byte) {
	if mod.kind == int8Plain && mod.scheme.Bits < 8 {
		half := 1 << (mod.scheme.Bits - 1)
		for i, c := range fm.Codes {
			if v := int(c) - 128; v < -half || v >= half {
				m.c.add("E_CODE_RANGE", mod.name+".weight", "%d at [%d, %d] is not a %d-bit code", v, i/fm.In, i%fm.In, mod.scheme.Bits)
				break
			}
		}
	}
	const fewest = 64 // an even draw of so many equal codes does not happen
	if len(fm.Codes) >= fewest && !slices.ContainsFunc(fm.Codes, func(c uint8) bool { return c != fm.Codes[0] }) {
		m.c.add("E_CODE_CONST", mod.name, "all codes are %d", fm.Codes[0])
	}
	if words := raw["weight_packed"]; words != nil && fm.In*fm.Bits%32 != 0 {
		line := len(words) / fm.Out
		used := fm.In * fm.Bits
		for o := range fm.Out {
			last := binary.LittleEndian.Uint32(words[(o+1)*line-4:])
			if last>>(used%32) != 0 {
				m.c.add("E_CODE_PADDING", mod.name+".weight_packed", "row %d ends in %#x, %d bits are used", o, last, used%32)
				break
			}
		}
	}
}

// checkLooseScales looks at the scales of modules whose codes are not read: float formats and unsound ones.
func (m *subject) checkLooseScales(mod *module) {
	for _, suffix := range []string{"scales", "weight_scale", "weight_global_scale", "weight_scale_2", "input_global_scale", "input_scale"} {
		t := mod.parts[suffix]
		if t == nil {
			continue
		}
		data, err := t.read()
		if err != nil {
			m.c.add("E_FILE", t.Name, "%v", err)
			continue
		}
		values := make([]float32, 0, len(data))
		zeroCounts := true
		switch t.DType {
		case "F32":
			for i := 0; i+4 <= len(data); i += 4 {
				values = append(values, math.Float32frombits(binary.LittleEndian.Uint32(data[i:])))
			}
		case "F16":
			for i := 0; i+2 <= len(data); i += 2 {
				values = append(values, dtype.F16ToF32(binary.LittleEndian.Uint16(data[i:])))
			}
		case "BF16":
			for i := 0; i+2 <= len(data); i += 2 {
				values = append(values, dtype.BF16ToF32(binary.LittleEndian.Uint16(data[i:])))
			}
		case "F8_E4M3":
			zeroCounts = false // a block of zeros has the scale zero and decodes right
			for _, b := range data {
				values = append(values, dtype.E4M3ToF32(b))
			}
		default:
			continue
		}
		for i, v := range values {
			f := float64(v)
			code := ""
			switch {
			case math.IsNaN(f) || math.IsInf(f, 0):
				code = "E_SCALE_NAN"
			case f == 0 && zeroCounts:
				code = "E_SCALE_ZERO"
			case f < 0:
				code = "E_SCALE_NEGATIVE"
			}
			if code != "" {
				m.c.add(code, t.Name, "%g at element %d of %d", v, i, len(values))
				break
			}
		}
	}
}
