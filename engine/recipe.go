package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"reflect"
	"sort"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Recipe is what a user asks for. A nil field was not given: recipe file and flags are laid over the defaults in that
// order, so that a default never overrides what was said. The yaml key and the flag of a field share one name (with _
// for -).
type Recipe struct {
	Model  *string `yaml:"model" kong:"-"`
	Output *string `yaml:"output" short:"o" help:"Output directory of the quantized checkpoint."`
	RunDir *string `yaml:"run_dir" help:"Run directory with the ledger (default OUTPUT.run)."`

	Method *string  `yaml:"method" help:"gptq or rtn."`
	Format *string  `yaml:"format" help:"compressed-tensors, gptq, gptq_v2 or awq (default: compressed-tensors for symmetric 4 and 8 bits, else gptq_v2)."`
	Target []string `yaml:"target" help:"Loaders that must be able to read the result: vllm, sglang, transformers (default vllm,sglang)."`

	StrictTarget *bool `yaml:"strict_target" negatable:"" help:"Make what a target cannot load an error."`

	Bits            *int     `yaml:"bits" help:"Bits of a code (default 4)."`
	GroupSize       *int     `yaml:"group_size" help:"Columns that share a scale, -1 for a whole row (default 128)."`
	Sym             *bool    `yaml:"sym" negatable:"" help:"Symmetric grid (default on)."`
	DescAct         *bool    `yaml:"desc_act" negatable:"" help:"Visit columns by descending activity."`
	ActGroupAware   *bool    `yaml:"act_group_aware" negatable:"" help:"Visit groups and columns inside groups by activity, keep the natural g_idx (default on where it applies)."`
	StaticGroups    *bool    `yaml:"static_groups" negatable:"" help:"Take group grids from the original weights."`
	MSE             *float64 `yaml:"mse" help:"Exponent of the clip search, 0 for none."`
	BlockSize       *int     `yaml:"block_size" help:"Columns between two tail updates (default 128)."`
	DampPercent     *float64 `yaml:"damp_percent" help:"Damping as a share of the mean diagonal (default 0.05)."`
	DampIncrement   *float64 `yaml:"damp_increment" help:"Step of the damping ladder (default 0.01)."`
	ScaleDType      *string  `yaml:"scale_dtype" name:"scale-dtype" help:"bf16, f16 or f32: what a stored scale is rounded to inside the solver."`
	Parity          *string  `yaml:"parity" help:"gptqmodel or compressed-tensors: reproduce that implementation, quirks included."`
	PropagateError  *bool    `yaml:"propagate_error" negatable:"" help:"Calibrate each layer on the outputs of the quantized layers before it (default on)."`
	QuantizeLMHead  *bool    `yaml:"lm_head" name:"lm-head" negatable:"" help:"Quantize the output head too."`
	Untie           *bool    `yaml:"untie" negatable:"" help:"Allow a tied output head to be quantized as a tensor of its own."`
	Ignore          []string `yaml:"ignore" help:"Modules to leave alone: exact name, or re: and a regular expression."`
	Dynamic         Rules    `yaml:"dynamic" kong:"-"`
	DynamicFlag     []string `yaml:"-" name:"dynamic" sep:"none" help:"Rule for some modules, e.g. '+:down_proj=bits:8' or '-:layers\\.0\\.'; may be repeated."`
	Calibration     []string `yaml:"calibration" sep:"none" help:"Calibration files: .jsonl, .jsonl.gz, .jsonl.zst, .txt, .parquet, .u16, .u32."`
	Samples         *int     `yaml:"samples" help:"Calibration samples to take (default 512)."`
	SeqLen          *int     `yaml:"seq_len" help:"Longest calibration sequence in tokens (default 2048)."`
	MinLen          *int     `yaml:"min_len" help:"Shortest calibration sequence in tokens (default 11)."`
	Seed            *uint64  `yaml:"seed" help:"Seed of --shuffle (default 42)."`
	Shuffle         *bool    `yaml:"shuffle" negatable:"" help:"Draw samples in a seeded random order."`
	Concat          *bool    `yaml:"concat" negatable:"" help:"Concatenate samples into sequences of --seq-len."`
	Sort            *string  `yaml:"sort" help:"none, asc or desc by length (default none)."`
	TemplateDate    *string  `yaml:"template_date" help:"Date that chat templates see (default 2024-07-26)."`
	Count           *string  `yaml:"count" help:"Which tokens become rows: all, assistant or mask (default all)."`
	RowWeight       *string  `yaml:"row_weight" help:"none, or gate to weigh an expert's rows by their combine weight."`
	Lanes           *int     `yaml:"lanes" help:"Fixed slices of the calibration rows (default 8)."`
	Routing         *string  `yaml:"routing" help:"Rows that feed an expert's statistics: native, all or top-k=N (default native)."`
	MinRows         *string  `yaml:"min_rows" help:"Rows below which --fallback applies, a number or a share such as 0.5% (default the larger of 32 and the input width)."`
	Fallback        *string  `yaml:"fallback" help:"blend, all-rows, rtn, copy or fail."`
	FallbackGrid    *string  `yaml:"fallback_grid" help:"rtn, midpoint, mean, median or stdclip: grid of an rtn fallback (all but rtn need --no-sym)."`
	MaxFallback     *string  `yaml:"max_fallback" help:"Largest share of a layer's modules that may fall back, e.g. 10%."`
	FailOn          []string `yaml:"fail_on" help:"Findings that make the run exit 3: undercalibrated, fallback, target."`
	OnNonFinite     *string  `yaml:"on_nonfinite" name:"on-nonfinite" help:"fail or drop-row: what to do with a calibration row that is not finite."`
	Precheck        *bool    `yaml:"precheck" negatable:"" help:"Measure the original model's loss on a few calibration rows first (default on)."`
	Compute         *string  `yaml:"compute" help:"bf16 or f32 (default: bf16 for a bf16 model, else f32)."`
	Retain          *string  `yaml:"retain" help:"Payload kept when a layer is done: none, statistics, sites, every=N or all (default none)."`
	StorePartials   *string  `yaml:"store_partials" help:"auto, always or never."`
	MaxMemory       *string  `yaml:"max_memory" help:"Memory limit, e.g. 24GiB (default: of the cgroup or the host)."`
	MaxDisk         *string  `yaml:"max_disk" help:"Disk limit of output and run directory."`
	MaxShardSize    *string  `yaml:"max_shard_size" help:"Largest output shard (default 5GB)."`
	Threads         *int     `yaml:"threads" help:"Worker threads (default: all cores)."`
	LoopOrder       *string  `yaml:"loop_order" help:"auto, expert-outer or lane-outer; never changes a byte of the result."`
	ExpertBatch     *int     `yaml:"expert_batch" help:"Experts in work at once, 0 for as many as memory allows; never changes a byte of the result."`
	TimeLimit       *string  `yaml:"time_limit" help:"Stop at a durable point after this time, e.g. 3h50m (exit 75)."`
	Grace           *string  `yaml:"grace" help:"Time to reach a durable point after a signal (default 10s)."`
	StopAfterLayer  *int     `yaml:"stop_after_layer" help:"Stop at a durable point after this layer (exit 75)."`
	CheckpointEvery *string  `yaml:"checkpoint_interval" name:"checkpoint-interval" help:"Longest work that a crash may cost (default 15m)."`
}

// Rules are per-module settings in order; the first rule whose pattern matches wins.
type Rules []Rule

// Rule changes settings of the modules whose name its pattern matches, or skips them.
type Rule struct {
	Pattern string         `json:"pattern"`
	Skip    bool           `json:"skip,omitempty"`
	Set     map[string]any `json:"set,omitempty"` // bits, group_size, sym, desc_act, mse, method …
}

// UnmarshalYAML reads GPTQModel's spelling: a mapping of "+:regex" or "-:regex" to settings, order kept.
func (r *Rules) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: dynamic is a mapping of '+:pattern' or '-:pattern' to settings", n.Line)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i].Value
		rule := Rule{Pattern: strings.TrimPrefix(strings.TrimPrefix(key, "+:"), "-:"), Skip: strings.HasPrefix(key, "-:")}
		if err := n.Content[i+1].Decode(&rule.Set); err != nil {
			return fmt.Errorf("line %d: settings of %q: %w", n.Content[i+1].Line, key, err)
		}
		if len(rule.Set) == 0 {
			rule.Set = nil
		}
		*r = append(*r, rule)
	}
	return nil
}

// MarshalYAML writes the spelling that UnmarshalYAML reads.
func (r Rules) MarshalYAML() (any, error) {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for _, rule := range r {
		key := "+:" + rule.Pattern
		if rule.Skip {
			key = "-:" + rule.Pattern
		}
		var v yaml.Node
		set := rule.Set
		if set == nil {
			set = map[string]any{}
		}
		if err := v.Encode(set); err != nil {
			return nil, err
		}
		n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, &v)
	}
	return n, nil
}

// RecipeFile is the file of the run directory that holds the recipe as given, with absolute paths.
const RecipeFile = "recipe.yaml"

// Save spells the recipe as YAML with absolute paths, so that a run can be resumed from anywhere.
func (r *Recipe) Save() ([]byte, error) {
	c := *r
	abs := func(p *string) *string {
		if p == nil {
			return nil
		}
		if a, err := filepath.Abs(*p); err == nil {
			return &a
		}
		return p
	}
	c.Model, c.Output, c.RunDir = abs(r.Model), abs(r.Output), abs(r.RunDir)
	c.Calibration = nil
	for _, f := range r.Calibration {
		c.Calibration = append(c.Calibration, *abs(&f))
	}
	for _, f := range r.DynamicFlag {
		rule, err := parseRule(f)
		if err != nil {
			return nil, err
		}
		c.Dynamic = append(c.Dynamic, rule)
	}
	m := yaml.Node{Kind: yaml.MappingNode}
	v := reflect.ValueOf(&c).Elem()
	for i := range v.NumField() {
		key := v.Type().Field(i).Tag.Get("yaml")
		if key == "" || key == "-" || v.Field(i).IsZero() {
			continue
		}
		var n yaml.Node
		if err := n.Encode(v.Field(i).Interface()); err != nil {
			return nil, err
		}
		m.Content = append(m.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, &n)
	}
	return yaml.Marshal(&m)
}

// aliases are the names that users of other tools type. reference/ux_ecosystem.md 2.3.
var aliases = map[string]string{
	"output_dir": "output", "num_bits": "bits", "wbits": "bits", "w_bit": "bits", "symmetric": "sym", "actorder": "desc_act",
	"q_group_size": "group_size", "groupsize": "group_size", "dampening_frac": "damp_percent", "damp_auto_increment": "damp_increment",
	"dataset": "calibration", "num_calibration_samples": "samples", "max_seq_length": "seq_len", "max_sequence_length": "seq_len",
	"concatenate_data": "concat", "shuffle_calibration_samples": "shuffle", "true_sequential": "propagate_error",
	"reduction_lanes": "lanes", "modules_to_not_convert": "ignore", "exclude_modules": "ignore",
	"limits.max_memory": "max_memory", "limits.max_disk": "max_disk", "limits.workers": "threads",
	"limits.checkpoint_interval": "checkpoint_interval", "moe.min_tokens_per_expert": "min_rows",
	"moe.fallback.strategy": "fallback", "moe.fallback.threshold": "min_rows",
}

// ReadRecipe parses YAML. An unknown key is an error with its line and column and the nearest known key.
func ReadRecipe(name string, data []byte) (*Recipe, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return &Recipe{}, nil
		}
		return nil, &Error{Code: "E0101", Exit: ExitUsage, What: "the recipe is not valid YAML", Where: name, Err: err,
			Try: "check indentation and quoting at the line named"}
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, usage("E0101", fmt.Sprintf("%s:%d:%d", name, root.Line, root.Column), "write one setting a line, as in `bits: 4`", "a recipe is a mapping of settings")
	}
	r := &Recipe{}
	fields := recipeFields(r)
	seen := map[string]bool{}
	if err := readMapping(name, "", root, fields, seen); err != nil {
		return nil, err
	}
	return r, nil
}

func readMapping(file, prefix string, m *yaml.Node, fields map[string]reflect.Value, seen map[string]bool) error {
	for i := 0; i+1 < len(m.Content); i += 2 {
		k, v := m.Content[i], m.Content[i+1]
		full := prefix + k.Value
		at := fmt.Sprintf("%s:%d:%d", file, k.Line, k.Column)
		if v.Kind == yaml.MappingNode && (full == "limits" || full == "moe" || full == "moe.fallback") {
			if err := readMapping(file, full+".", v, fields, seen); err != nil {
				return err
			}
			continue
		}
		if full == "moe.calibrate_all_experts" {
			var all bool
			if err := v.Decode(&all); err != nil {
				return usage("E0103", at, "use true or false", "setting %s has a value of the wrong kind", full)
			}
			if all {
				s := "all"
				fields["routing"].Set(reflect.ValueOf(&s))
			}
			continue
		}
		key := strings.ReplaceAll(full, "-", "_")
		if a, ok := aliases[key]; ok {
			key = a
		}
		f, ok := fields[key]
		if !ok {
			try := "see `quire run --help` for the settings"
			if near := nearest(key, fields); near != "" {
				try = fmt.Sprintf("did you mean %q?", near)
			}
			return usage("E0102", at, try, "unknown setting %q", full)
		}
		if seen[key] {
			return usage("E0102", at, "keep one of the two", "setting %q is given twice (once under an alias?)", key)
		}
		seen[key] = true
		if f.Kind() == reflect.Slice && v.Kind == yaml.ScalarNode && f.Type().Elem().Kind() == reflect.String {
			v = &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{v}}
		}
		if err := v.Decode(f.Addr().Interface()); err != nil {
			return &Error{Code: "E0103", Exit: ExitUsage, What: fmt.Sprintf("setting %q has a value of the wrong kind", full), Where: at, Err: err,
				Try: "compare with `quire run --help`"}
		}
	}
	return nil
}

// recipeFields indexes the fields of r by their yaml key.
func recipeFields(r *Recipe) map[string]reflect.Value {
	out := map[string]reflect.Value{}
	v := reflect.ValueOf(r).Elem()
	for i := range v.NumField() {
		if key := v.Type().Field(i).Tag.Get("yaml"); key != "" && key != "-" {
			out[key] = v.Field(i)
		}
	}
	return out
}

// Overlay lays what over gives on top of r.
func (r *Recipe) Overlay(over *Recipe) {
	base, top := reflect.ValueOf(r).Elem(), reflect.ValueOf(over).Elem()
	for i := range top.NumField() {
		if !top.Field(i).IsZero() {
			base.Field(i).Set(top.Field(i))
		}
	}
}

// nearest finds the known key with the smallest edit distance, if it is close enough to be a slip.
func nearest(key string, fields map[string]reflect.Value) string {
	names := make([]string, 0, len(fields))
	for n := range fields {
		names = append(names, n)
	}
	sort.Strings(names)
	best, bestDist := "", 1+len(key)/3
	for _, n := range names {
		if d := editDistance(key, n); d <= bestDist && (best == "" || d < bestDist) {
			best, bestDist = n, d
		}
	}
	return best
}

func editDistance(a, b string) int {
	prev := make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := range len(a) {
		cur := make([]int, len(b)+1)
		cur[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			cur[j+1] = min(prev[j]+cost, prev[j+1]+1, cur[j]+1)
		}
		prev = cur
	}
	return prev[len(b)]
}
