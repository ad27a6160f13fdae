package checkpoint

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strings"
)

// quantConfig is what a source's quantization_config says that decoding needs.
type quantConfig struct {
	Method           string `json:"quant_method"`
	Format           string `json:"format"`
	CheckpointFormat string `json:"checkpoint_format"`
	Bits             int    `json:"bits"`
	GroupSize        int    `json:"group_size"`
	ConfigGroups     map[string]struct {
		Format  string `json:"format"`
		Weights *struct {
			NumBits   int    `json:"num_bits"`
			Type      string `json:"type"`
			Strategy  string `json:"strategy"`
			GroupSize *int   `json:"group_size"`
		} `json:"weights"`
	} `json:"config_groups"`
	WeightBlockSize []int `json:"weight_block_size"`
}

// QuantMethod names the source's quantization as its config does, "" for none.
func (s *Source) QuantMethod() string { return s.quant.Method }

// readQuantConfig finds the quantization_config at the top, in text_config, or under its older name.
func readQuantConfig(config []byte) quantConfig {
	var top map[string]json.RawMessage
	var q quantConfig
	if json.Unmarshal(config, &top) != nil {
		return q
	}
	var inner map[string]json.RawMessage
	if t, ok := top["text_config"]; ok && json.Unmarshal(t, &inner) != nil {
		inner = nil
	}
	for _, raw := range []json.RawMessage{top["quantization_config"], top["compression_config"], inner["quantization_config"]} {
		if len(raw) > 0 && string(raw) != "null" && json.Unmarshal(raw, &q) == nil {
			return q
		}
	}
	return q
}

// parts are the stored tensors of one module, by suffix.
type parts map[string]Tensor

// quantizedModules makes logical tensors of stored sets: packed integers, GPTQ, AWQ, int8, and floats with scales.
func (s *Source) quantizedModules() Errors {
	s.quant = readQuantConfig(s.config)
	modules := map[string]parts{}
	var names []string
	for _, t := range s.stored {
		i := strings.LastIndexByte(t.Name, '.')
		if i < 0 {
			continue
		}
		m := t.Name[:i]
		if modules[m] == nil {
			modules[m] = parts{}
			names = append(names, m)
		}
		modules[m][t.Name[i+1:]] = t
	}
	var es Errors
	for _, m := range names {
		p := modules[m]
		var l *logicalTensor
		var err *Error
		switch {
		case p.has("weight_packed"):
			l, err = s.packed(m, p)
		case p.has("qweight"):
			l, err = s.columnPacked(m, p)
		case p.has("weight") && p.has("weight_scale_inv"):
			l, err = s.scaled(m, p, "weight_scale_inv")
		case p.has("weight") && p.has("weight_scale"):
			l, err = s.scaled(m, p, "weight_scale")
		default:
			continue
		}
		if err != nil {
			es = append(es, err)
			continue
		}
		s.take(l)
	}
	return es
}

func (p parts) has(suffix string) bool { _, ok := p[suffix]; return ok }

// take adds a logical tensor and claims the stored ones behind it.
func (s *Source) take(l *logicalTensor) {
	for _, n := range l.Stored {
		s.companion[n] = l.Name
	}
	s.decode[l.Name] = l
}

func (s *Source) missing(module, codes, suffix string, p parts) *Error {
	return fail(codeNoScale, p[codes].Shard, module+"."+codes, -1, "fetch the shard that holds "+module+"."+suffix+", or start from the unquantized model",
		"the codes have no %s.%s", module, suffix)
}

// stored lists the names of a module's tensors, sorted; a bias stays a tensor of its own.
func (p parts) stored() []string {
	var out []string
	for suffix, t := range p {
		if suffix != "bias" {
			out = append(out, t.Name)
		}
	}
	slices.Sort(out)
	return out
}

// streamWords is the 32-bit words of n fields of b bits as one stream.
func streamWords(n, b int) int { return (n*b + 31) / 32 }

// field reads the i-th b-bit field of a little-endian bit stream.
func field(stream []byte, i, b int) int {
	bit := i * b
	at := bit / 8
	var w uint32
	for k := 0; k < 3 && at+k < len(stream); k++ {
		w |= uint32(stream[at+k]) << (8 * k)
	}
	return int(w>>(bit%8)) & (1<<b - 1)
}

// packed reads compressed-tensors pack-quantized: rows of b-bit streams, code − 2^(b−1) signed.
func (s *Source) packed(module string, p parts) (*logicalTensor, *Error) {
	w := p["weight_packed"]
	if w.DType != I32 { // nvfp4 and other packed floats
		return nil, fail(codeSourceFormat, w.Shard, w.Name, -1, "start from the unquantized model", "weight_packed of %s in format %q", w.DType, s.quant.Format)
	}
	for _, need := range []string{"weight_scale", "weight_shape"} {
		if !p.has(need) {
			return nil, s.missing(module, "weight_packed", need, p)
		}
	}
	shape, err := s.integers(p["weight_shape"], 2)
	if err != nil {
		return nil, err
	}
	out, in := shape[0], shape[1]
	bits := 0
	for _, b := range s.groupBits() {
		if len(w.Shape) == 2 && w.Shape[0] == out && w.Shape[1] == streamWords(in, b) {
			bits = b
			break
		}
	}
	sc := p["weight_scale"]
	if bits == 0 || len(sc.Shape) != 2 || sc.Shape[0] != out || sc.Shape[1] < 1 {
		return nil, fail(codeScaleShape, w.Shard, w.Name, -1, "check num_bits in config.json", "packed %v with scale %v does not hold [%d, %d]", w.Shape, sc.Shape, out, in)
	}
	groups := sc.Shape[1]
	size := (in + groups - 1) / groups
	if gs := s.groupSizes(); slices.Contains(gs, size) || groups == 1 {
		// the even division
	} else if i := slices.IndexFunc(gs, func(g int) bool { return g > 0 && (in+g-1)/g == groups }); i >= 0 {
		size = gs[i]
	}
	var gIdx []int
	if p.has("weight_g_idx") {
		if gIdx, err = s.integers(p["weight_g_idx"], in); err != nil {
			return nil, err
		}
	}
	l := &logicalTensor{Logical: Logical{Name: module + ".weight", DType: w.DType, Shape: []int{out, in}, Decoded: true, Stored: p.stored()}}
	zp, hasZero := p["weight_zero_point"]
	line := 4 * streamWords(in, bits)
	l.decode = func(ctx context.Context, s *Source, dst []float32, off int64) error {
		var zeros []byte
		zeroLine := 4 * groups
		if hasZero {
			zeros = make([]byte, zp.Bytes())
			if err := s.ReadAt(ctx, zp.Name, zeros, 0); err != nil {
				return err
			}
		}
		scale := make([]float32, groups)
		codes := make([]byte, line)
		return rowsOf(dst, off, in, func(row int, part []float32, from int) error {
			if err := s.plainF32(ctx, sc.Name, scale, int64(row)*int64(groups)); err != nil {
				return err
			}
			if err := s.ReadAt(ctx, w.Name, codes, int64(row)*int64(line)); err != nil {
				return err
			}
			for i := range part {
				c := from + i
				g := c / size
				if gIdx != nil {
					g = gIdx[c]
				}
				if g < 0 || g >= groups {
					return fail(codeCompanionValue, w.Shard, module, -1, fetchAgain, "column %d has group %d of %d", c, g, groups)
				}
				z := 1 << (bits - 1)
				if hasZero { // packed along the outputs: word row·b/32 of column g
					z = zeroAt(zeros, zeroLine, row, g, bits)
				}
				part[i] = scale[g] * float32(field(codes, c, bits)-z)
			}
			return nil
		})
	}
	return l, nil
}

// zeroAt reads the zero point of an output channel and group: streams of b-bit fields run down the outputs, one word
// column a group.
func zeroAt(b []byte, line, row, group, bits int) int {
	bit := row * bits
	at := bit / 32
	word := func(i int) uint64 {
		o := i*line + 4*group
		if o+4 > len(b) {
			return 0
		}
		return uint64(binary.LittleEndian.Uint32(b[o:]))
	}
	v := word(at) | word(at+1)<<32
	return int(v>>(bit%32)) & (1<<bits - 1)
}

// groupBits lists the bits that the config names, most likely first.
func (s *Source) groupBits() []int {
	var out []int
	for _, g := range s.quant.ConfigGroups {
		if g.Weights != nil && !slices.Contains(out, g.Weights.NumBits) {
			out = append(out, g.Weights.NumBits)
		}
	}
	if s.quant.Bits > 0 {
		out = append(out, s.quant.Bits)
	}
	slices.Sort(out)
	if len(out) == 0 {
		out = []int{4, 8}
	}
	return out
}

func (s *Source) groupSizes() []int {
	var out []int
	for _, g := range s.quant.ConfigGroups {
		if g.Weights != nil && g.Weights.GroupSize != nil {
			out = append(out, *g.Weights.GroupSize)
		}
	}
	if s.quant.GroupSize > 0 {
		out = append(out, s.quant.GroupSize)
	}
	slices.Sort(out)
	return out
}

// rowsOf cuts a range of elements of a matrix with in columns into pieces of rows.
func rowsOf(dst []float32, off int64, in int, f func(row int, part []float32, from int) error) error {
	for len(dst) > 0 {
		row, from := int(off/int64(in)), int(off%int64(in))
		n := min(in-from, len(dst))
		if err := f(row, dst[:n], from); err != nil {
			return err
		}
		dst, off = dst[n:], off+int64(n)
	}
	return nil
}

// integers reads a small integer tensor.
func (s *Source) integers(t Tensor, n int) ([]int, *Error) {
	size := t.DType.Bits() / 8
	if t.Elements() != int64(n) || t.DType != I64 && t.DType != I32 {
		return nil, fail(codeCompanionValue, t.Shard, t.Name, -1, fetchAgain, "%v of %s, want %d integers", t.Shape, t.DType, n)
	}
	b := make([]byte, n*size)
	if err := s.byShard[t.Shard].readAt(t, b, 0); err != nil {
		return nil, fail(codeIORead, t.Shard, t.Name, -1, "check the disk", "%v", err)
	}
	out := make([]int, n)
	for i := range out {
		v := int64(int32(binary.LittleEndian.Uint32(b[size*i:])))
		if size == 8 {
			v = int64(binary.LittleEndian.Uint64(b[8*i:]))
		}
		if v < -1<<31 || v > 1<<31-1 {
			return nil, fail(codeCompanionValue, t.Shard, t.Name, -1, fetchAgain, "value %d", v)
		}
		out[i] = int(v)
	}
	return out, nil
}

// awqOrder is the output that each nibble of an AWQ word holds.
var awqOrder = [8]int{0, 2, 4, 6, 1, 3, 5, 7}

// columnPacked reads GPTQ (codes packed along the inputs) and AWQ gemm (along the outputs).
func (s *Source) columnPacked(module string, p parts) (*logicalTensor, *Error) {
	w := p["qweight"]
	for _, need := range []string{"scales", "qzeros"} {
		if !p.has(need) {
			return nil, s.missing(module, "qweight", need, p)
		}
	}
	sc, zp := p["scales"], p["qzeros"]
	if len(w.Shape) != 2 || len(sc.Shape) != 2 || len(zp.Shape) != 2 || w.DType != I32 || zp.DType != I32 {
		return nil, fail(codeScaleShape, w.Shard, w.Name, -1, fetchAgain, "qweight %v, scales %v, qzeros %v", w.Shape, sc.Shape, zp.Shape)
	}
	groups, out := sc.Shape[0], sc.Shape[1]
	awq := s.quant.Method == "awq"
	bits, in := 4, w.Shape[0]
	if awq {
		if w.Shape[1]*8 != out || zp.Shape[1]*8 != out {
			return nil, fail(codeScaleShape, w.Shard, w.Name, -1, "check config.json", "qweight %v does not hold %d outputs of 4 bits", w.Shape, out)
		}
	} else {
		bits = 0
		for _, b := range append(s.groupBits(), 2, 3, 4, 8) {
			if zp.Shape[1]*32 == out*b && w.Shape[0]*32%b == 0 {
				bits = b
				break
			}
		}
		if bits == 0 || w.Shape[1] != out {
			return nil, fail(codeScaleShape, w.Shard, w.Name, -1, "check bits in config.json", "qweight %v, scales %v, qzeros %v fit no width", w.Shape, sc.Shape, zp.Shape)
		}
		in = w.Shape[0] * 32 / bits
	}
	if zp.Shape[0] != groups {
		return nil, fail(codeScaleShape, zp.Shard, zp.Name, -1, fetchAgain, "%d groups of zeros, %d of scales", zp.Shape[0], groups)
	}
	size := s.quant.GroupSize
	if size <= 0 || (in+size-1)/size != groups {
		size = (in + groups - 1) / groups
	}
	var gIdx []int
	if p.has("g_idx") && !awq {
		var err *Error
		if gIdx, err = s.integers(p["g_idx"], in); err != nil {
			return nil, err
		}
		for c, g := range gIdx {
			if g < 0 {
				gIdx[c] += groups
			}
			if gIdx[c] < 0 || gIdx[c] >= groups {
				return nil, fail(codeCompanionValue, w.Shard, module+".g_idx", -1, fetchAgain, "column %d has group %d of %d", c, g, groups)
			}
		}
	}
	plus := 1
	if s.quant.CheckpointFormat == "gptq_v2" || awq {
		plus = 0
	}
	l := &logicalTensor{Logical: Logical{Name: module + ".weight", DType: w.DType, Shape: []int{out, in}, Decoded: true, Stored: p.stored()}}
	l.decode = func(ctx context.Context, s *Source, dst []float32, off int64) error {
		codes, zeros := make([]byte, w.Bytes()), make([]byte, zp.Bytes())
		scales := make([]float32, groups*out)
		if err := s.ReadAt(ctx, w.Name, codes, 0); err != nil {
			return err
		}
		if err := s.ReadAt(ctx, zp.Name, zeros, 0); err != nil {
			return err
		}
		if err := s.plainF32(ctx, sc.Name, scales, 0); err != nil {
			return err
		}
		zeroLine := 4 * zp.Shape[1]
		zero := func(g, o int) int { return field(zeros[g*zeroLine:(g+1)*zeroLine], o, bits) + plus }
		code := func(o, c int) int { // a stream down the inputs, one word column an output
			bit := c * bits
			at := bit / 32
			v := uint64(binary.LittleEndian.Uint32(codes[4*(at*out+o):]))
			if next := 4 * ((at+1)*out + o); next+4 <= len(codes) {
				v |= uint64(binary.LittleEndian.Uint32(codes[next:])) << 32
			}
			return int(v>>(bit%32)) & (1<<bits - 1)
		}
		if awq {
			nibble := func(line []byte, o int) int {
				w := binary.LittleEndian.Uint32(line[o/8*4:])
				return int(w>>(4*slices.Index(awqOrder[:], o%8))) & 15
			}
			zero = func(g, o int) int { return nibble(zeros[g*zeroLine:], o) }
			code = func(o, c int) int { return nibble(codes[c*out/2:], o) }
		}
		return rowsOf(dst, off, in, func(o int, part []float32, from int) error {
			for i := range part {
				c := from + i
				g := c / size
				if gIdx != nil {
					g = gIdx[c]
				}
				part[i] = scales[g*out+o] * float32(code(o, c)-zero(g, o))
			}
			return nil
		})
	}
	return l, nil
}

// scaled reads codes of one byte, or plain floats, with a scale per tensor, channel or block. E4M3 and I8 are known.
func (s *Source) scaled(module string, p parts, suffix string) (*logicalTensor, *Error) {
	w, sc := p["weight"], p[suffix]
	if w.DType != F8E4M3 && w.DType != I8 || len(w.Shape) != 2 {
		return nil, fail(codeSourceFormat, w.Shard, w.Name, -1, "start from the unquantized model", "weight %v of %s beside a %s", w.Shape, w.DType, suffix)
	}
	out, in := w.Shape[0], w.Shape[1]
	rows, cols := out, in // elements that share a scale
	n := sc.Elements()
	switch {
	case n == 1:
	case n == int64(out) && (len(sc.Shape) == 1 || sc.Shape[len(sc.Shape)-1] == 1):
		rows = 1
	case len(sc.Shape) == 2:
		br, bc := 128, 128
		if b := s.quant.WeightBlockSize; len(b) == 2 && b[0] > 0 && b[1] > 0 {
			br, bc = b[0], b[1]
		}
		if sc.Shape[0] != (out+br-1)/br || sc.Shape[1] != (in+bc-1)/bc {
			return nil, fail(codeScaleShape, sc.Shard, sc.Name, -1, "check weight_block_size in config.json", "scale %v does not fit weight %v in blocks of %d × %d", sc.Shape, w.Shape, br, bc)
		}
		rows, cols = br, bc
	default:
		return nil, fail(codeScaleShape, sc.Shard, sc.Name, -1, "check config.json", "scale %v does not fit weight %v", sc.Shape, w.Shape)
	}
	l := &logicalTensor{Logical: Logical{Name: w.Name, DType: w.DType, Shape: w.Shape, Decoded: true, Stored: p.stored()}}
	perRow := (in + cols - 1) / cols
	l.decode = func(ctx context.Context, s *Source, dst []float32, off int64) error {
		scale := make([]float32, perRow)
		raw := make([]byte, in)
		return rowsOf(dst, off, in, func(row int, part []float32, from int) error {
			if err := s.plainF32(ctx, sc.Name, scale, int64(row/rows)*int64(perRow)); err != nil {
				return err
			}
			b := raw[:len(part)]
			if err := s.ReadAt(ctx, w.Name, b, int64(row)*int64(in)+int64(from)); err != nil {
				return err
			}
			if w.DType == I8 {
				for i, v := range b {
					part[i] = float32(int8(v))
				}
			} else {
				toF32(F8E4M3, part, b)
			}
			for i := range part {
				part[i] = float32(part[i] * scale[(from+i)/cols])
			}
			return nil
		})
	}
	return l, nil
}
