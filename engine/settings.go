package engine

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Settings is a recipe with every field decided. The part that can change a byte of the result is Identity; the rest
// says how the work is done.
type Settings struct {
	Model, Output, RunDir string
	Identity              Identity
	Target                []string
	StrictTarget          bool
	Calibration           []string
	MaxFallback           float64 // share, 1 = no limit
	FailOn                []string
	Precheck              bool
	Retain                string
	StorePartials         string
	MaxMemory             int64 // bytes, 0 = find out
	MaxDisk               int64 // bytes, 0 = no limit
	Threads               int
	LoopOrder             string
	ExpertBatch           int
	TimeLimit             time.Duration
	Grace                 time.Duration
	StopAfterLayer        int // -1 = do not
	CheckpointEvery       time.Duration
}

// Identity holds the settings that decide bytes. Its canonical JSON is part of the plan digest.
type Identity struct {
	Method         string   `json:"method"`
	Format         string   `json:"format"`
	Scheme         Scheme   `json:"scheme"`
	DampPercent    float64  `json:"damp_percent"`
	DampIncrement  float64  `json:"damp_increment"`
	BlockSize      int      `json:"block_size"`
	StaticGroups   bool     `json:"static_groups"`
	ScaleDType     string   `json:"scale_dtype"`
	Parity         string   `json:"parity,omitempty"`
	PropagateError bool     `json:"propagate_error"`
	LMHead         bool     `json:"lm_head"`
	Untie          bool     `json:"untie,omitempty"`
	CopyLatent     bool     `json:"copy_latent"` // q_a, q_b and kv_a stay as they are unless a rule names them: a target reads them its own way
	Ignore         []string `json:"ignore,omitempty"`
	Dynamic        Rules    `json:"dynamic,omitempty"`
	Samples        int      `json:"samples"`
	SeqLen         int      `json:"seq_len"`
	MinLen         int      `json:"min_len"`
	Seed           uint64   `json:"seed"`
	Shuffle        bool     `json:"shuffle"`
	Concat         bool     `json:"concat"`
	Sort           string   `json:"sort"`
	TemplateDate   string   `json:"template_date"`
	Count          string   `json:"count"`
	RowWeight      string   `json:"row_weight"`
	Lanes          int      `json:"lanes"`
	Routing        string   `json:"routing"` // native, all, top-k=N
	MinRows        string   `json:"min_rows"`
	Fallback       string   `json:"fallback"`
	FallbackGrid   string   `json:"fallback_grid"`
	OnNonFinite    string   `json:"on_nonfinite"`
	Compute        string   `json:"compute"`
	MaxShardSize   int64    `json:"max_shard_size"`
}

// Scheme is how a module's weight is coded.
type Scheme struct {
	Bits          int     `json:"bits"`
	GroupSize     int     `json:"group_size"` // -1 = one group a row
	Sym           bool    `json:"sym"`
	DescAct       bool    `json:"desc_act"`
	ActGroupAware bool    `json:"act_group_aware"`
	MSE           float64 `json:"mse"`
	Method        string  `json:"method"`
}

// natural tells whether column c belongs to group c/GroupSize, in whatever order columns are visited.
func (s Scheme) natural(staticGroups bool) bool {
	return !s.DescAct || staticGroups || s.GroupSize == -1
}

// Resolve decides every field and refuses what contradicts itself. modelDType is the checkpoint's dtype of linear
// weights ("BF16", "F16" or "F32"); it decides the defaults of compute and scale_dtype.
func (r *Recipe) Resolve(modelDType string) (*Settings, error) {
	s := &Settings{Model: deref(r.Model, ""), Output: deref(r.Output, "")}
	if s.Output == "" {
		return nil, usage("E0110", "--output", "give -o DIR", "no output directory")
	}
	s.RunDir = deref(r.RunDir, strings.TrimRight(s.Output, string(filepath.Separator))+".run")
	id := &s.Identity
	var err error
	if id.Method, err = oneOf("method", deref(r.Method, "gptq"), "gptq", "rtn"); err != nil {
		return nil, err
	}
	id.Scheme = Scheme{Bits: deref(r.Bits, 4), GroupSize: deref(r.GroupSize, 128), Method: id.Method}
	format := deref(r.Format, "")
	id.Scheme.Sym = deref(r.Sym, format != "awq")
	if id.Scheme.Bits < 2 || id.Scheme.Bits > 8 {
		return nil, usage("E0111", "--bits", "choose 4 or 8 for most loaders", "bits %d is outside 2..8", id.Scheme.Bits)
	}
	if g := id.Scheme.GroupSize; g != -1 && (g < 8 || g%8 != 0) {
		return nil, usage("E0112", "--group-size", "use 32, 64, 128 or -1", "group size %d is neither -1 nor a multiple of 8", g)
	}
	if format == "" {
		format = "gptq_v2"
		if id.Scheme.Sym && (id.Scheme.Bits == 4 || id.Scheme.Bits == 8) {
			format = "compressed-tensors"
		}
	}
	if id.Format, err = oneOf("format", format, "compressed-tensors", "gptq", "gptq_v2", "awq"); err != nil {
		return nil, err
	}
	if strings.HasPrefix(format, "gptq") && !slices.Contains([]int{2, 3, 4, 8}, id.Scheme.Bits) {
		return nil, usage("E0113", "--format", "use 2, 3, 4 or 8 bits, or --format compressed-tensors", "format %s has no %d-bit packing", format, id.Scheme.Bits)
	}
	if format == "awq" && id.Scheme.Bits != 4 {
		return nil, usage("E0113", "--format", "use --bits 4", "format awq holds 4 bits only")
	}
	id.Scheme.DescAct = deref(r.DescAct, false)
	id.StaticGroups = deref(r.StaticGroups, false)
	id.Scheme.ActGroupAware = deref(r.ActGroupAware, id.Scheme.GroupSize > 0 && !id.Scheme.DescAct && !id.StaticGroups && id.Method == "gptq")
	id.Scheme.MSE = deref(r.MSE, 0)
	switch {
	case id.Scheme.DescAct && id.Scheme.ActGroupAware:
		return nil, usage("E0114", "--desc-act", "give one of --desc-act and --act-group-aware", "desc_act and act_group_aware are two different column orders")
	case id.Scheme.ActGroupAware && id.Scheme.GroupSize <= 0:
		return nil, usage("E0114", "--act-group-aware", "give --group-size", "act_group_aware needs groups")
	case id.Scheme.ActGroupAware && id.StaticGroups:
		return nil, usage("E0114", "--static-groups", "drop one of the two", "static_groups and act_group_aware contradict each other")
	case id.Scheme.DescAct && id.Format == "awq" && !id.StaticGroups && id.Scheme.GroupSize > 0:
		return nil, usage("E0114", "--desc-act", "add --static-groups, or use --format gptq_v2", "desc_act without static_groups needs a g_idx, which the awq format cannot hold")
	case id.Scheme.DescAct && id.Format == "compressed-tensors" && !id.StaticGroups && id.Scheme.GroupSize > 0:
		return nil, usage("E0114", "--desc-act", "add --static-groups, or use --format gptq_v2",
			"desc_act without static_groups needs a g_idx, which quire does not write into compressed-tensors")
	case id.Scheme.MSE < 0 || math.IsNaN(id.Scheme.MSE):
		return nil, usage("E0115", "--mse", "use 0 (off) or about 2.4", "mse %v is not an exponent", id.Scheme.MSE)
	}
	id.DampPercent, id.DampIncrement = deref(r.DampPercent, 0.05), deref(r.DampIncrement, 0.01)
	if !(id.DampPercent > 0 && id.DampPercent < 1) || !(id.DampIncrement >= 0 && id.DampIncrement < 1) {
		return nil, usage("E0116", "--damp-percent", "use a share such as 0.05", "damping %v with step %v is outside 0..1", id.DampPercent, id.DampIncrement)
	}
	id.BlockSize = deref(r.BlockSize, 128)
	if id.BlockSize < 1 {
		return nil, usage("E0116", "--block-size", "use 128", "block size %d", id.BlockSize)
	}
	if id.Compute, err = oneOf("compute", deref(r.Compute, defaultCompute(modelDType)), "bf16", "f32"); err != nil {
		return nil, err
	}
	if id.ScaleDType, err = oneOf("scale_dtype", deref(r.ScaleDType, defaultScaleDType(modelDType, id.Format)), "bf16", "f16", "f32"); err != nil {
		return nil, err
	}
	if p := deref(r.Parity, ""); p != "" {
		if id.Parity, err = oneOf("parity", p, "gptqmodel", "compressed-tensors"); err != nil {
			return nil, err
		}
	}
	id.PropagateError = deref(r.PropagateError, true)
	id.LMHead, id.Untie = deref(r.QuantizeLMHead, false), deref(r.Untie, false)
	id.Ignore = append([]string(nil), r.Ignore...)
	for _, p := range id.Ignore {
		if re, ok := strings.CutPrefix(p, "re:"); ok {
			if _, err := regexp.Compile(re); err != nil {
				return nil, &Error{Code: "E0117", Exit: ExitUsage, What: fmt.Sprintf("ignore pattern %q does not compile", p), Err: err, Try: "escape dots as \\."}
			}
		}
	}
	id.Dynamic = append(Rules(nil), r.Dynamic...)
	for _, f := range r.DynamicFlag {
		rule, err := parseRule(f)
		if err != nil {
			return nil, err
		}
		id.Dynamic = append(id.Dynamic, rule)
	}
	for _, rule := range id.Dynamic {
		if err := rule.check(); err != nil {
			return nil, err
		}
	}
	s.Calibration = r.Calibration
	id.Samples, id.SeqLen, id.MinLen, id.Seed = deref(r.Samples, 512), deref(r.SeqLen, 2048), deref(r.MinLen, 11), deref(r.Seed, 42)
	if id.Samples < 1 || id.SeqLen < 1 || id.MinLen < 1 || id.MinLen > id.SeqLen {
		return nil, usage("E0118", "--samples/--seq-len/--min-len", "use for example --samples 512 --seq-len 2048 --min-len 11",
			"samples %d, seq_len %d and min_len %d cannot all hold", id.Samples, id.SeqLen, id.MinLen)
	}
	id.Shuffle, id.Concat, id.TemplateDate = deref(r.Shuffle, false), deref(r.Concat, false), deref(r.TemplateDate, "2024-07-26")
	if _, err := time.Parse("2006-01-02", id.TemplateDate); err != nil {
		return nil, usage("E0118", "--template-date", "use for example 2024-07-26", "%q is not a date", id.TemplateDate)
	}
	if id.Sort, err = oneOf("sort", deref(r.Sort, "none"), "none", "asc", "desc"); err != nil {
		return nil, err
	}
	if id.Count, err = oneOf("count", deref(r.Count, "all"), "all", "assistant", "mask"); err != nil {
		return nil, err
	}
	if id.RowWeight, err = oneOf("row_weight", deref(r.RowWeight, "none"), "none", "gate"); err != nil {
		return nil, err
	}
	id.Lanes = deref(r.Lanes, 8)
	if id.Lanes < 1 || id.Lanes > 4096 {
		return nil, usage("E0119", "--lanes", "use 8", "lanes %d is outside 1..4096", id.Lanes)
	}
	id.Routing = deref(r.Routing, "native")
	if k, ok := strings.CutPrefix(id.Routing, "top-k="); ok {
		if n, err := strconv.Atoi(k); err != nil || n < 1 {
			return nil, usage("E0119", "--routing", "use for example --routing top-k=16", "%q is not a number of experts", k)
		}
	} else if _, err = oneOf("routing", id.Routing, "native", "all"); err != nil {
		return nil, err
	}
	id.MinRows = deref(r.MinRows, "")
	if id.MinRows != "" {
		if _, err := parseAmount(id.MinRows); err != nil {
			return nil, usage("E0119", "--min-rows", "use a number of rows or a share such as 0.5%", "%q is neither", id.MinRows)
		}
	}
	if id.Fallback, err = oneOf("fallback", deref(r.Fallback, "blend"), "blend", "all-rows", "rtn", "copy", "fail"); err != nil {
		return nil, err
	}
	if id.FallbackGrid, err = oneOf("fallback_grid", deref(r.FallbackGrid, "rtn"), "rtn", "midpoint", "mean", "median", "stdclip"); err != nil {
		return nil, err
	}
	if id.FallbackGrid != "rtn" && id.Scheme.Sym {
		return nil, usage("E0120", "--fallback-grid", "add --no-sym, or use --fallback-grid rtn", "grid %s makes free zero points, which a symmetric format cannot hold", id.FallbackGrid)
	}
	if id.OnNonFinite, err = oneOf("on_nonfinite", deref(r.OnNonFinite, "fail"), "fail", "drop-row"); err != nil {
		return nil, err
	}
	s.MaxFallback = 1
	if r.MaxFallback != nil {
		a, err := parseAmount(*r.MaxFallback)
		if err != nil || !a.share && a.value > 1 {
			return nil, usage("E0121", "--max-fallback", "use for example 10%", "%q is not a share", *r.MaxFallback)
		}
		s.MaxFallback = a.value
	}
	for _, f := range r.FailOn {
		if _, err := oneOf("fail_on", f, "undercalibrated", "fallback", "target"); err != nil {
			return nil, err
		}
	}
	s.FailOn = r.FailOn
	s.Target = r.Target
	if s.Target == nil {
		s.Target = []string{"vllm", "sglang"}
	}
	for _, t := range s.Target {
		if _, err := oneOf("target", t, "vllm", "sglang", "transformers"); err != nil {
			return nil, err
		}
		id.CopyLatent = id.CopyLatent || t == "sglang"
	}
	s.StrictTarget, s.Precheck = deref(r.StrictTarget, false), deref(r.Precheck, true)
	s.Retain = deref(r.Retain, "none")
	if n, ok := strings.CutPrefix(s.Retain, "every="); ok {
		if v, err := strconv.Atoi(n); err != nil || v < 1 {
			return nil, usage("E0122", "--retain", "use for example every=4", "%q is not a number of layers", n)
		}
	} else if _, err = oneOf("retain", s.Retain, "none", "statistics", "sites", "all"); err != nil {
		return nil, err
	}
	if s.StorePartials, err = oneOf("store_partials", deref(r.StorePartials, "auto"), "auto", "always", "never"); err != nil {
		return nil, err
	}
	if s.LoopOrder, err = oneOf("loop_order", deref(r.LoopOrder, "auto"), "auto", "expert-outer", "lane-outer"); err != nil {
		return nil, err
	}
	s.ExpertBatch = deref(r.ExpertBatch, 0)
	if id.MaxShardSize, err = ParseBytes("max_shard_size", deref(r.MaxShardSize, "5GB")); err != nil {
		return nil, err
	}
	if s.MaxMemory, err = ParseBytes("max_memory", deref(r.MaxMemory, "0")); err != nil {
		return nil, err
	}
	if s.MaxDisk, err = ParseBytes("max_disk", deref(r.MaxDisk, "0")); err != nil {
		return nil, err
	}
	if s.Threads = deref(r.Threads, runtime.GOMAXPROCS(0)); s.Threads < 1 {
		return nil, usage("E0123", "--threads", "use a positive number", "threads %d", s.Threads)
	}
	if s.TimeLimit, err = parseDuration("time_limit", deref(r.TimeLimit, "0s")); err != nil {
		return nil, err
	}
	if s.Grace, err = parseDuration("grace", deref(r.Grace, "10s")); err != nil {
		return nil, err
	}
	if s.CheckpointEvery, err = parseDuration("checkpoint_interval", deref(r.CheckpointEvery, "15m")); err != nil {
		return nil, err
	}
	s.StopAfterLayer = deref(r.StopAfterLayer, -1)
	return s, nil
}

// defaultCompute follows the checkpoint: bf16 arithmetic borders for a bf16 model, float32 else.
func defaultCompute(modelDType string) string {
	if modelDType == "BF16" {
		return "bf16"
	}
	return "f32"
}

// defaultScaleDType is the coarser of what the format stores and what servers hold. GPTQ and AWQ loaders read float16
// scales and cast them to the model's dtype; compressed-tensors stores the model's dtype.
func defaultScaleDType(modelDType, format string) string {
	switch modelDType {
	case "BF16":
		return "bf16"
	case "F16":
		return "f16"
	}
	if format == "compressed-tensors" {
		return "f32"
	}
	return "f16"
}

func deref[T any](p *T, def T) T {
	if p == nil {
		return def
	}
	return *p
}

func oneOf(key, v string, allowed ...string) (string, error) {
	if slices.Contains(allowed, v) {
		return v, nil
	}
	return "", usage("E0124", "--"+strings.ReplaceAll(key, "_", "-"), "use one of "+strings.Join(allowed, ", "), "%s %q is not known", key, v)
}

type amount struct {
	value float64
	share bool // value is a share of 1
}

func parseAmount(s string) (amount, error) {
	num, isShare := strings.CutSuffix(s, "%")
	v, err := strconv.ParseFloat(num, 64)
	if err != nil || v < 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return amount{}, fmt.Errorf("%q is neither a number nor a share", s)
	}
	if isShare {
		return amount{v / 100, true}, nil
	}
	return amount{v, false}, nil
}

// ParseBytes reads an amount such as 24GiB or 5GB; "" is 0. key names the setting in errors.
func ParseBytes(key, s string) (int64, error) {
	units := []struct {
		suffix string
		factor float64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
		{"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {"T", 1 << 40}, {"B", 1}, {"", 1}}
	t := strings.TrimSpace(s)
	if t == "" {
		return 0, nil
	}
	for _, u := range units {
		if num, ok := strings.CutSuffix(t, u.suffix); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(num), 64)
			if err != nil || v < 0 || v*u.factor > 1<<60 {
				break
			}
			return int64(v * u.factor), nil
		}
	}
	return 0, usage("E0125", "--"+strings.ReplaceAll(key, "_", "-"), "use for example 24GiB or 5GB", "%q is not an amount of bytes", s)
}

func parseDuration(key, s string) (time.Duration, error) {
	if d, err := time.ParseDuration(s); err == nil && d >= 0 {
		return d, nil
	}
	if v, err := strconv.ParseFloat(s, 64); err == nil && v >= 0 {
		return time.Duration(v * float64(time.Second)), nil
	}
	return 0, usage("E0125", "--"+strings.ReplaceAll(key, "_", "-"), "use for example 90s or 3h50m", "%q is not a time", s)
}

// parseRule reads "+:pattern=key:value,key:value" or "-:pattern".
func parseRule(s string) (Rule, error) {
	if p, ok := strings.CutPrefix(s, "-:"); ok {
		return Rule{Pattern: p, Skip: true}, nil
	}
	body := strings.TrimPrefix(s, "+:")
	pat, sets, ok := cutLast(body, "=")
	if !ok {
		return Rule{}, usage("E0126", "--dynamic", `write '+:down_proj=bits:8' or '-:layers\.0\.'`, "rule %q has no settings", s)
	}
	rule := Rule{Pattern: pat, Set: map[string]any{}}
	for _, kv := range strings.Split(sets, ",") {
		k, v, ok := strings.Cut(kv, ":")
		if !ok {
			return Rule{}, usage("E0126", "--dynamic", "write key:value", "%q in rule %q is not a setting", kv, s)
		}
		switch n, err := strconv.ParseFloat(v, 64); {
		case err == nil:
			rule.Set[k] = n
		case v == "true" || v == "false":
			rule.Set[k] = v == "true"
		default:
			rule.Set[k] = v
		}
	}
	return rule, nil
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func (r Rule) check() error {
	if _, err := regexp.Compile(r.Pattern); err != nil {
		return &Error{Code: "E0126", Exit: ExitUsage, What: fmt.Sprintf("dynamic pattern %q does not compile", r.Pattern), Err: err, Try: "escape dots as \\."}
	}
	_, err := r.apply(Scheme{})
	return err
}

// apply lays a rule over a scheme.
func (r Rule) apply(s Scheme) (Scheme, error) {
	for k, v := range r.Set {
		if a, ok := aliases[k]; ok {
			k = a
		}
		ok := true
		num := func() float64 {
			switch n := v.(type) {
			case int:
				return float64(n)
			case float64:
				return n
			}
			ok = false
			return 0
		}
		flag := func() bool {
			b, isBool := v.(bool)
			ok = ok && isBool
			return b
		}
		switch k {
		case "bits":
			s.Bits = int(num())
			ok = ok && s.Bits >= 2 && s.Bits <= 8
		case "group_size":
			s.GroupSize = int(num())
			ok = ok && (s.GroupSize == -1 || s.GroupSize >= 8 && s.GroupSize%8 == 0)
		case "mse":
			s.MSE = num()
			ok = ok && s.MSE >= 0
		case "sym":
			s.Sym = flag()
		case "desc_act":
			if s.DescAct = flag(); s.DescAct {
				s.ActGroupAware = false
			}
		case "act_group_aware":
			if s.ActGroupAware = flag(); s.ActGroupAware {
				s.DescAct = false
			}
		case "method":
			m, isString := v.(string)
			ok = isString && (m == "gptq" || m == "rtn")
			s.Method = m
		default:
			return s, usage("E0126", "dynamic rule "+r.Pattern, "use bits, group_size, sym, desc_act, act_group_aware, mse or method", "unknown setting %q", k)
		}
		if !ok {
			return s, usage("E0126", "dynamic rule "+r.Pattern, "see the README's table of settings", "%v is no value for %s", v, k)
		}
	}
	return s, nil
}

// checkPaths refuses an output that something else owns.
func checkPaths(s *Settings) error {
	if st, err := os.Stat(s.Output); err == nil && !st.IsDir() {
		return usage("E0127", s.Output, "choose another -o", "the output exists and is a file")
	}
	if same(s.Output, s.Model) || same(s.RunDir, s.Model) || same(s.Output, s.RunDir) {
		return usage("E0127", s.Output, "give three different directories", "model, output and run directory must differ")
	}
	return nil
}

func same(a, b string) bool {
	x, err1 := filepath.Abs(a)
	y, err2 := filepath.Abs(b)
	return err1 == nil && err2 == nil && x == y
}
