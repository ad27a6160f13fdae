package lint

import (
	"encoding/json"
	"slices"
	"strings"

	"quire/engine/format"
)

// Quantization methods that are checked in full.
const (
	methodGPTQ = "gptq"
	methodAWQ  = "awq"
	methodCT   = "compressed-tensors"
)

// rule is one entry of GPTQModel's "dynamic".
type rule struct {
	key     string // as written
	skip    bool
	match   pattern
	bits    *int
	group   *int
	sym     *bool
	descAct *bool
}

// ctGroup is one entry of "config_groups".
type ctGroup struct {
	name        string
	targets     []string
	match       nameList
	scheme      format.Scheme
	strategy    string
	actorder    string
	float       bool // type float: checked for files, names and scales only
	activations object
	hasActs     bool
	format      string
}

// quantConfig is the quantization block in one vocabulary.
type quantConfig struct {
	method  string
	storage string // format of compressed-tensors, checkpoint_format of gptq, version of awq
	known   bool   // tensors of this method and storage are checked in full
	base    format.Scheme
	descAct bool
	lmHead  bool
	zeroPt  bool

	rules   []rule   // gptq
	modules []string // gptq: modules_in_block_to_quantize, flattened
	maker   string   // gptq: first entry of meta.quantizer
	skip    []string // awq: modules_to_not_convert
	// skipPatterns are the same entries as transformers reads them: patterns from the start of a name.
	skipPatterns []pattern
	groups       []ctGroup
	ignore       []string // compressed-tensors
	ignores      nameList

	format format.Format // nil unless known
}

// parseQuant reads the block by its method.
func parseQuant(o object, c *collector) quantConfig {
	q := quantConfig{}
	method, key, err := first[string](o, "quant_method", "method")
	if key == "" || err != nil {
		c.add("E_CONFIG_KEY", "quantization_config.quant_method", "it is missing or not a string")
		switch {
		case o.raw["config_groups"] != nil:
			method = methodCT
		case o.raw["zero_point"] != nil:
			method = methodAWQ
		case o.raw["desc_act"] != nil:
			method = methodGPTQ
		}
	}
	q.method = strings.ToLower(method)
	switch q.method {
	case methodGPTQ:
		q.parseGPTQ(o, c)
	case methodAWQ:
		q.parseAWQ(o, c)
	case methodCT:
		q.parseCT(o, c)
	case "modelopt", "fp8", "mxfp4", "fbgemm_fp8", "bitsandbytes", "quark", "auto-round", "gptq_marlin", "awq_marlin", "modelopt_fp4", "mxfp8":
		c.add("E_FORMAT", "quantization_config.quant_method", "%s", q.method)
	default:
		c.add("E_METHOD", "quantization_config.quant_method", "%q", q.method)
	}
	return q
}

// need decodes a required member and reports its absence or wrong type.
func need[T any](o object, c *collector, where string, keys ...string) (T, bool) {
	v, key, err := first[T](o, keys...)
	switch {
	case key == "":
		c.add("E_CONFIG_KEY", where+"."+keys[0], "%s is missing", keys[0])
		return v, false
	case err != nil:
		c.add("E_CONFIG_KEY", where+"."+key, "%s does not have the right type", o.raw[key])
		return v, false
	}
	return v, true
}

const quantBlock = "quantization_config"

func (q *quantConfig) parseGPTQ(o object, c *collector) {
	bits, okBits := need[int](o, c, quantBlock, "bits", "wbits", "w_bit")
	group, okGroup := need[int](o, c, quantBlock, "group_size", "q_group_size")
	sym, okSym := need[bool](o, c, quantBlock, "sym")
	q.descAct, _ = need[bool](o, c, quantBlock, "desc_act")
	q.base = format.Scheme{Bits: bits, GroupSize: group, Sym: sym}
	q.lmHead, _, _ = get[bool](o, "lm_head")
	q.storage, _, _ = first[string](o, "checkpoint_format", "format")
	if q.storage == "" {
		q.storage = "gptq"
	}
	switch {
	case okBits && !slices.Contains([]int{2, 3, 4, 5, 6, 7, 8}, bits):
		c.add("E_CONFIG_VALUE", quantBlock+".bits", "%d", bits)
		okBits = false
	case okGroup && (group == 0 || group < -1):
		c.add("E_CONFIG_VALUE", quantBlock+".group_size", "%d", group)
		okGroup = false
	}
	if raw, ok := o.raw["dynamic"]; ok && string(raw) != "null" {
		d, err := parseObject(raw)
		if err != nil {
			c.add("E_CONFIG_KEY", quantBlock+".dynamic", "%v", err)
		}
		for _, k := range d.keys {
			q.addRule(k, d.raw[k], c)
		}
	}
	if meta, err := parseObject(o.raw["meta"]); err == nil {
		if makers, ok, err := get[[]string](meta, "quantizer"); ok && err == nil && len(makers) > 0 {
			q.maker = makers[0]
		}
	}
	if raw, ok := o.raw["modules_in_block_to_quantize"]; ok && string(raw) != "null" {
		var nested [][]string
		if json.Unmarshal(raw, &nested) == nil {
			q.modules = slices.Concat(nested...)
		} else if err := json.Unmarshal(raw, &q.modules); err != nil {
			c.add("E_CONFIG_KEY", quantBlock+".modules_in_block_to_quantize", "neither a list of names nor a list of lists")
		}
	}
	switch q.storage {
	case "gptq", "gptq_v2":
		q.format, _ = format.Lookup(q.storage)
		q.known = okBits && okGroup && okSym && slices.Contains([]int{2, 3, 4, 8}, bits)
		if !q.known && okBits {
			c.add("E_FORMAT", quantBlock, "%d-bit gptq", bits)
		}
	case "gptq_p", "marlin", "bitblas":
		c.add("E_FORMAT", quantBlock+".checkpoint_format", "%s", q.storage)
	default:
		c.add("E_CONFIG_VALUE", quantBlock+".checkpoint_format", "%q", q.storage)
	}
}

// addRule reads one entry of "dynamic".
func (q *quantConfig) addRule(key string, raw json.RawMessage, c *collector) {
	r := rule{key: key, skip: strings.HasPrefix(key, "-:")}
	expr := strings.TrimPrefix(strings.TrimPrefix(key, "-:"), "+:")
	var err error
	if r.match, err = compilePattern(expr); err != nil {
		c.add("E_PATTERN", quantBlock+".dynamic", "%s: %v", key, err)
		return
	}
	if o, err := parseObject(raw); err == nil {
		setInt := func(dst **int, keys ...string) {
			if v, k, err := first[int](o, keys...); k != "" && err == nil {
				*dst = &v
			}
		}
		setInt(&r.bits, "bits")
		setInt(&r.group, "group_size")
		if v, ok, err := get[bool](o, "sym"); ok && err == nil {
			r.sym = &v
		}
		if v, ok, err := get[bool](o, "desc_act"); ok && err == nil {
			r.descAct = &v
		}
	} else if string(raw) != "null" {
		c.add("E_CONFIG_KEY", quantBlock+".dynamic", "%s: %v", key, err)
	}
	q.rules = append(q.rules, r)
}

func (q *quantConfig) parseAWQ(o object, c *collector) {
	bits, okBits := need[int](o, c, quantBlock, "bits", "w_bit")
	group, okGroup := need[int](o, c, quantBlock, "group_size", "q_group_size")
	zero, _ := need[bool](o, c, quantBlock, "zero_point")
	q.zeroPt = zero
	q.base = format.Scheme{Bits: bits, GroupSize: group, Sym: !zero}
	q.lmHead, _, _ = get[bool](o, "lm_head")
	if q.storage, _, _ = first[string](o, "version", "checkpoint_format", "format"); q.storage == "" {
		q.storage = "gemm"
	}
	q.storage = strings.ToLower(q.storage)
	if raw, ok := o.raw["modules_to_not_convert"]; ok && string(raw) != "null" {
		if err := json.Unmarshal(raw, &q.skip); err != nil {
			c.add("E_CONFIG_KEY", quantBlock+".modules_to_not_convert", "not a list of names")
		}
		for _, e := range q.skip {
			if strings.ContainsAny(e, `*+?[](){}|^$\`) { // a plain name needs no engine
				if p, err := compilePattern(e); err == nil {
					q.skipPatterns = append(q.skipPatterns, p)
				}
			}
		}
	}
	if okBits && bits != 4 {
		c.add("E_CONFIG_VALUE", quantBlock+".bits", "awq has 4 bits, not %d", bits)
		okBits = false
	}
	if okGroup && (group == 0 || group < -1) {
		c.add("E_CONFIG_VALUE", quantBlock+".group_size", "%d", group)
		okGroup = false
	}
	switch q.storage {
	case "gemm":
		q.format, _ = format.Lookup("awq")
		q.known = okBits && okGroup
	case "gemv", "gemv_fast", "llm-awq", "exllama", "marlin":
		c.add("E_FORMAT", quantBlock+".version", "awq %s", q.storage)
	default:
		c.add("E_CONFIG_VALUE", quantBlock+".version", "%q", q.storage)
	}
}

// argKeys are the keys that QuantizationArgs takes; it refuses others.
var argKeys = []string{"num_bits", "type", "symmetric", "group_size", "strategy", "block_structure", "dynamic", "actorder",
	"scale_dtype", "zp_dtype", "observer", "observer_kwargs"}

func (q *quantConfig) parseCT(o object, c *collector) {
	q.storage, _ = need[string](o, c, quantBlock, "format")
	if s, ok, _ := get[string](o, "quantization_status"); !ok || s != "compressed" {
		c.add("E_CONFIG_KEY", quantBlock+".quantization_status", "loaders decompress only \"compressed\", here it is %q", s)
	}
	if raw, ok := o.raw["ignore"]; ok && string(raw) != "null" {
		if err := json.Unmarshal(raw, &q.ignore); err != nil {
			c.add("E_CONFIG_KEY", quantBlock+".ignore", "not a list of names")
		}
	}
	var bad map[string]error
	q.ignores, bad = compileList(q.ignore)
	for e, err := range bad {
		c.add("E_PATTERN", quantBlock+".ignore", "%s: %v", e, err)
	}
	raw, ok := o.raw["config_groups"]
	groups, err := parseObject(raw)
	if !ok || err != nil || len(groups.keys) == 0 {
		c.add("E_CONFIG_KEY", quantBlock+".config_groups", "missing, empty or not an object")
		return
	}
	known := true
	for _, name := range groups.keys {
		g, full := parseGroup(quantBlock+".config_groups."+name, groups.raw[name], q.storage, c)
		g.name = name
		known = known && full
		q.groups = append(q.groups, g)
	}
	q.base = q.groups[0].scheme
	switch q.storage {
	case "pack-quantized":
		q.format, _ = format.Lookup("compressed-tensors")
	case "int-quantized", "naive-quantized":
		q.format, _ = format.Lookup("compressed-tensors-w8a8")
	case "":
		known = false
	case "float-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized", "mixed-precision", "marlin-24", "dense", "sparse-24-bitmask":
		c.add("E_FORMAT", quantBlock+".format", "%s", q.storage)
		known = false
	default:
		c.add("E_CONFIG_VALUE", quantBlock+".format", "%q", q.storage)
		known = false
	}
	q.known = known && q.format != nil
}

// parseGroup reads a config group; full says whether its scheme can be checked.
func parseGroup(where string, raw json.RawMessage, storage string, c *collector) (g ctGroup, full bool) {
	o, err := parseObject(raw)
	if err != nil {
		c.add("E_CONFIG_KEY", where, "%v", err)
		return g, false
	}
	g.format = storage
	if f, ok, _ := get[string](o, "format"); ok {
		g.format = f
	}
	if g.format != storage && storage != "mixed-precision" {
		c.add("E_CONFIG_VALUE", where+".format", "%q differs from the %q of the whole", g.format, storage)
	}
	g.targets, _ = need[[]string](o, c, where, "targets")
	var bad map[string]error
	g.match, bad = compileList(g.targets)
	for t, err := range bad {
		c.add("E_PATTERN", where+".targets", "%s: %v", t, err)
	}
	if acts, ok := o.raw["input_activations"]; ok && string(acts) != "null" {
		if g.activations, err = parseObject(acts); err == nil {
			g.hasActs = true
			checkArgs(where+".input_activations", g.activations, c)
		}
	}
	wraw, ok := o.raw["weights"]
	w, err := parseObject(wraw)
	if !ok || err != nil {
		c.add("E_CONFIG_KEY", where+".weights", "missing or not an object")
		return g, false
	}
	checkArgs(where+".weights", w, c)
	bits, okBits := need[int](w, c, where+".weights", "num_bits")
	kind, _, _ := get[string](w, "type")
	g.float = kind == "float"
	sym, okSym, _ := get[bool](w, "symmetric")
	if !okSym {
		sym = true // the library's default
	}
	group, okGroup, _ := get[int](w, "group_size")
	g.strategy, _, _ = get[string](w, "strategy")
	if g.strategy == "" { // the library infers it
		switch {
		case okGroup && group > 0:
			g.strategy = "group"
		case okGroup && group == -1:
			g.strategy = "channel"
		default:
			g.strategy = "tensor"
		}
	}
	g.actorder, _, _ = get[string](w, "actorder")
	g.scheme = format.Scheme{Bits: bits, GroupSize: -1, Sym: sym}
	if g.float || !okBits {
		return g, false
	}
	if bits < 2 || bits > 8 {
		c.add("E_CONFIG_VALUE", where+".weights.num_bits", "%d", bits)
		return g, false
	}
	switch g.strategy {
	case "group":
		if !okGroup || group <= 0 {
			c.add("E_CONFIG_VALUE", where+".weights.group_size", "strategy group needs a group size above zero")
			return g, false
		}
		g.scheme.GroupSize = group
	case "channel", "tensor":
	default:
		c.add("E_CONFIG_VALUE", where+".weights.strategy", "%q", g.strategy)
		return g, false
	}
	return g, true
}

func checkArgs(where string, o object, c *collector) {
	for _, k := range o.keys {
		if !slices.Contains(argKeys, k) {
			c.add("E_CONFIG_ARGS", where+"."+k, "unknown key")
		}
	}
}
