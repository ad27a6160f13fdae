package lint

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
	"strings"

	"quire/engine/format"
)

// kind is how a module is stored.
type kind int

const (
	plain     kind = iota
	packed         // qweight or weight_packed
	int8Plain      // int8 weight with scales
	float8         // fp8 or fp4 weight with scales: not checked beyond scales
)

// module is a linear with all its tensors.
type module struct {
	name   string
	kind   kind
	parts  map[string]*tensor
	scheme format.Scheme // what the config says of it
	group  *ctGroup      // compressed-tensors: the group it matched, nil if none
	out    int
	in     int
	sound  bool // names, dtypes and shapes agree, so contents can be read

	// Filled by contents.go.
	gidx      []int32 // nil: natural
	anyGIdx   bool    // a g_idx tensor exists
	readError bool
}

func (m *module) quantized() bool { return m.kind != plain }

// packedParts are the tensors that make a module a quantized one.
var packedParts = []string{"qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx",
	"weight_global_scale", "input_global_scale", "weight_scale_2", "input_scale", "input_zero_point"}

// subject is the checkpoint as lint sees it.
type subject struct {
	*modelConfig
	files   *checkpointFiles
	modules []*module // in natural order of names
	byName  map[string]*module
	c       *collector
}

// groupModules sorts tensors into modules.
func groupModules(f *checkpointFiles, cfg *modelConfig, c *collector) *subject {
	m := &subject{modelConfig: cfg, files: f, byName: map[string]*module{}, c: c}
	parts := map[string]map[string]*tensor{}
	for name, t := range f.tensors {
		i := strings.LastIndexByte(name, '.')
		if i < 0 {
			continue
		}
		leaf := name[i+1:]
		if leaf != "weight" && leaf != "bias" && leaf != "weight_scale_inv" && !slices.Contains(packedParts, leaf) {
			continue
		}
		if parts[name[:i]] == nil {
			parts[name[:i]] = map[string]*tensor{}
		}
		parts[name[:i]][leaf] = t
	}
	for name, p := range parts {
		mod := &module{name: name, parts: p}
		w := p["weight"]
		switch {
		case p["qweight"] != nil || p["weight_packed"] != nil && p["weight_packed"].DType == "I32":
			mod.kind = packed
		case p["weight_packed"] != nil || w != nil && (strings.HasPrefix(w.DType, "F8") || w.DType == "U8"):
			mod.kind = float8
		case w != nil && w.DType == "I8":
			mod.kind = int8Plain
		case w != nil && p["weight_scale"] != nil && !plainFloat(w.DType):
			mod.kind = float8
		case w == nil && slices.ContainsFunc([]string{"qzeros", "scales", "g_idx", "weight_shape", "weight_zero_point", "weight_scale"}, func(s string) bool { return p[s] != nil }):
			mod.kind = packed // its codes are lost
		case w == nil || len(w.Shape) != 2 || !linearName(name):
			continue
		}
		if mod.kind == plain {
			mod.out, mod.in = w.Shape[0], w.Shape[1]
		}
		m.modules = append(m.modules, mod)
		m.byName[name] = mod
	}
	slices.SortFunc(m.modules, func(a, b *module) int {
		return cmp.Or(format.CompareNames(a.name, b.name), cmp.Compare(a.name, b.name))
	})
	return m
}

// linearName says whether a matrix of this name is one that loaders build as a linear.
func linearName(name string) bool {
	leaf := name[strings.LastIndexByte(name, '.')+1:]
	for _, no := range []string{"embed", "norm", "conv", "wte", "wpe", "rotary", "position", "class_token"} {
		if strings.Contains(leaf, no) {
			return false
		}
	}
	return leaf != "shared" // tied embedding of encoder-decoders
}

// router says whether the module is one that loaders never quantize: a router or a shared-expert gate.
func router(name string) bool {
	leaf := name[strings.LastIndexByte(name, '.')+1:]
	return leaf == "gate" || leaf == "router" || leaf == "shared_expert_gate" || leaf == "wg" || strings.HasSuffix(name, ".router.classifier") || strings.HasSuffix(name, ".router.layer")
}

// head says whether the module is the output head.
func head(name string) bool {
	return name == "lm_head" || strings.HasSuffix(name, ".lm_head") || name == "output" || name == "embed_out"
}

// checkModules holds every module's tensors against the config.
func (m *subject) checkModules() {
	q := &m.quant
	quantized := 0
	for _, mod := range m.modules {
		if !mod.quantized() {
			continue
		}
		quantized++
		m.assignScheme(mod)
		m.checkParts(mod)
		if router(mod.name) && mod.kind == packed {
			m.c.add("E_ROUTER", mod.name, "it has packed tensors")
		}
	}
	switch {
	case quantized == 0 && m.quantBlock && q.known:
		m.c.add("E_METHOD", quantBlock, "the config says %s, but no module has packed tensors", q.method)
	case quantized > 0 && m.present && !m.quantBlock:
		m.c.add("E_CONFIG_NONE", "config.json", "%d modules have packed tensors", quantized)
	}
	for name, t := range m.files.tensors {
		if !strings.HasSuffix(name, ".weight") || !strings.Contains(name, ".") {
			continue
		}
		mod := m.byName[strings.TrimSuffix(name, ".weight")]
		if mod != nil && mod.kind == float8 && q.known {
			m.c.add("E_SOURCE_DTYPE", name, "%s, in a checkpoint of %s", t.DType, q.method)
		}
	}
	for name := range m.files.tensors {
		if strings.HasSuffix(name, "weight_scale_inv") && q.known {
			m.c.add("E_SOURCE_SCALE", name, "a checkpoint of %s has no such tensor", q.method)
		}
	}
}

// assignScheme finds what the config says of a module.
func (m *subject) assignScheme(mod *module) {
	q := &m.quant
	mod.scheme = q.base
	switch q.method {
	case methodGPTQ:
		mod.scheme = q.gptqScheme(mod.name)
	case methodCT:
		mod.group = q.ctMatch(mod.name)
		if mod.group != nil {
			mod.scheme = mod.group.scheme
		}
	}
}

// gptqScheme applies the first rule that matches.
func (q *quantConfig) gptqScheme(name string) format.Scheme {
	s := q.base
	for _, r := range q.rules {
		if !r.match.match(name) {
			continue
		}
		if r.bits != nil {
			s.Bits = *r.bits
		}
		if r.group != nil {
			s.GroupSize = *r.group
		}
		if r.sym != nil {
			s.Sym = *r.sym
		}
		break
	}
	return s
}

// ctMatch finds the group of a module: a target that is its name or matches it, else the class.
func (q *quantConfig) ctMatch(name string) *ctGroup {
	for i := range q.groups {
		if q.groups[i].match.hits(name) {
			return &q.groups[i]
		}
	}
	for i := range q.groups {
		if slices.Contains(q.groups[i].targets, "Linear") {
			return &q.groups[i]
		}
	}
	return nil
}

// checkParts compares names, dtypes and shapes with what the scheme needs.
func (m *subject) checkParts(mod *module) {
	if mod.kind == packed && mod.parts["weight"] != nil {
		m.c.add("E_TENSOR_EXTRA", mod.name, "it has a plain weight as well")
	}
	q := &m.quant
	if !q.known || mod.kind == float8 {
		return
	}
	f := q.format
	if q.method == methodCT {
		if mod.group == nil {
			m.c.add("E_TARGET", mod.name, "no target of any group names it or \"Linear\"")
			return
		}
		if mod.kind == int8Plain {
			f, _ = format.Lookup("compressed-tensors-w8a8")
		} else {
			f, _ = format.Lookup("compressed-tensors")
		}
	} else if mod.kind == int8Plain {
		m.c.add("E_SOURCE_DTYPE", mod.name+".weight", "I8, in a checkpoint of %s", q.method)
		return
	}
	want := map[bool]string{true: "qweight", false: "weight_packed"}[q.method != methodCT]
	if mod.kind == packed && mod.parts[want] == nil {
		other := map[bool]string{true: "weight_packed", false: "qweight"}[q.method != methodCT]
		if mod.parts[other] != nil {
			m.c.add("E_METHOD", mod.name, "it has %s, but the config says %s", other, q.method)
		} else {
			m.c.add("E_TENSOR_MISSING", mod.name, "%s is missing", want)
		}
		return
	}
	if !m.dimensions(mod) {
		return
	}
	s := mod.scheme
	if mod.kind == int8Plain {
		s.Bits = 8 // the storage; the grid may be narrower and is checked with the codes
	}
	fm := &format.Module{Name: mod.name, Out: mod.out, In: mod.in, Bits: s.Bits, GroupSize: s.GroupSize, Sym: s.Sym}
	specs, err := f.Plan(fm)
	if err != nil {
		var e *format.Error
		code := "E_SHAPE"
		if errors.As(err, &e) && e.Code == "E1503" {
			code = "E_GROUP"
		}
		m.c.add(code, mod.name, "%v", err)
		return
	}
	mod.sound = true
	for _, spec := range specs {
		suffix := strings.TrimPrefix(spec.Name, mod.name+".")
		t := mod.parts[suffix]
		switch {
		case t == nil && suffix == "g_idx" && !q.descAct:
			continue // natural order is understood
		case t == nil:
			m.c.add("E_TENSOR_MISSING", mod.name, "%s is missing", suffix)
			mod.sound = false
			continue
		case !dtypeFits(suffix, t.DType, string(spec.DType)):
			m.c.add("E_DTYPE", t.Name, "%s, not %s", t.DType, spec.DType)
			mod.sound = false
		}
		perTensor := mod.kind == int8Plain && len(t.Shape) <= 1 && suffix != "weight"
		if !slices.Equal(t.Shape, spec.Shape) && !perTensor {
			m.c.add("E_SHAPE", t.Name, "%v, but %s of a [%d, %d] module needs %v", t.Shape, s, mod.out, mod.in, spec.Shape)
			mod.sound = false
		}
	}
	if s.Sym && q.method == methodCT && mod.parts["weight_zero_point"] != nil {
		m.c.add("E_ZERO_SYM", mod.name, "the config says symmetric, but weight_zero_point is stored")
	}
	if b := mod.parts["bias"]; b != nil && (len(b.Shape) != 1 || b.Shape[0] != mod.out) {
		m.c.add("E_SHAPE", b.Name, "%v, the module has %d outputs", b.Shape, mod.out)
	}
}

// dtypeFits says whether loaders take the dtype of a part: scales in any float, shapes in either integer.
func dtypeFits(suffix, have, want string) bool {
	switch suffix {
	case "scales", "weight_scale":
		return plainFloat(have) && have != "F64"
	case "weight_shape":
		return have == "I64" || have == "I32"
	case "bias":
		return plainFloat(have)
	}
	return have == want
}

// dimensions derives out and in from the codes.
func (m *subject) dimensions(mod *module) bool {
	q := &m.quant
	codes := mod.parts["qweight"]
	if q.method == methodCT {
		codes = mod.parts["weight_packed"]
	}
	if mod.kind == int8Plain {
		codes = mod.parts["weight"]
	}
	if len(codes.Shape) != 2 {
		m.c.add("E_SHAPE", codes.Name, "%v is not a matrix", codes.Shape)
		return false
	}
	rows, cols, bits := codes.Shape[0], codes.Shape[1], mod.scheme.Bits
	if bits < 1 || bits > 8 {
		m.c.add("E_CONFIG_VALUE", quantBlock, "%d bits for %s", bits, mod.name)
		return false
	}
	switch {
	case mod.kind == int8Plain:
		mod.out, mod.in = rows, cols
	case q.method == methodAWQ:
		mod.out, mod.in = cols*8, rows
	case q.method == methodGPTQ:
		if rows*32%bits != 0 {
			m.c.add("E_SHAPE", codes.Name, "%v holds no whole number of %d-bit codes", codes.Shape, bits)
			return false
		}
		mod.out, mod.in = cols, rows*32/bits
	default:
		shape := mod.parts["weight_shape"]
		if shape == nil {
			m.c.add("E_TENSOR_MISSING", mod.name, "weight_shape is missing")
			return false
		}
		data, err := shape.read()
		if err != nil || len(data) != 16 && len(data) != 8 {
			m.c.add("E_SHAPE", shape.Name, "%v, two numbers are needed", shape.Shape)
			return false
		}
		var d [2]int64
		for i := range d {
			if len(data) == 16 {
				d[i] = int64(binary.LittleEndian.Uint64(data[8*i:]))
			} else {
				d[i] = int64(int32(binary.LittleEndian.Uint32(data[4*i:])))
			}
		}
		if d[0] != int64(rows) || d[1] <= 0 || d[1] > int64(cols)*32 {
			m.c.add("E_SHAPE", shape.Name, "it says [%d, %d], the codes are %v words", d[0], d[1], codes.Shape)
			return false
		}
		mod.out, mod.in = int(d[0]), int(d[1])
	}
	if mod.out == 0 || mod.in == 0 {
		m.c.add("E_SHAPE", codes.Name, "%v is empty", codes.Shape)
		return false
	}
	return true
}

// checkWidths compares modules with the widths that config.json states.
func (m *subject) checkWidths() {
	if m.hidden == 0 {
		return
	}
	for _, mod := range m.modules {
		if mod.out == 0 || !strings.Contains(mod.name, "layers.") || tower(mod.name) {
			continue
		}
		leaf := mod.name[strings.LastIndexByte(mod.name, '.')+1:]
		_, _, _, expert := format.SplitExpert(mod.name)
		switch leaf {
		case "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj":
			if mod.in != m.hidden {
				m.c.add("E_WIDTH", mod.name, "%d inputs, hidden_size is %d", mod.in, m.hidden)
			}
			if expert && leaf != "q_proj" && m.moeWidth > 0 && mod.out != m.moeWidth {
				m.c.add("E_WIDTH", mod.name, "%d outputs, an expert is %d wide", mod.out, m.moeWidth)
			}
		case "o_proj", "down_proj":
			if mod.out != m.hidden {
				m.c.add("E_WIDTH", mod.name, "%d outputs, hidden_size is %d", mod.out, m.hidden)
			}
			if expert && m.moeWidth > 0 && mod.in != m.moeWidth {
				m.c.add("E_WIDTH", mod.name, "%d inputs, an expert is %d wide", mod.in, m.moeWidth)
			}
		}
	}
}
