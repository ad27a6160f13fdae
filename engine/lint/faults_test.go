package lint_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"quire/engine/format"
	"quire/engine/lint"
)

var (
	sym4  = format.Scheme{Bits: 4, GroupSize: 32, Sym: true}
	asym4 = format.Scheme{Bits: 4, GroupSize: 32}
)

// bases are checkpoints without a fault.
var bases = map[string]buildOptions{
	"ct":        {format: "compressed-tensors", scheme: sym4},
	"w8a8":      {format: "compressed-tensors-w8a8", scheme: format.Scheme{Bits: 8, GroupSize: -1, Sym: true}},
	"gptq":      {format: "gptq", scheme: sym4},
	"gptq_v2":   {format: "gptq_v2", scheme: sym4},
	"awq":       {format: "awq", scheme: asym4},
	"ct-row":    {format: "compressed-tensors", scheme: format.Scheme{Bits: 8, GroupSize: -1, Sym: true}},
	"ct-asym":   {format: "compressed-tensors", scheme: asym4},
	"gptq-act":  {format: "gptq", scheme: sym4, gidx: true},
	"gptq-left": {format: "gptq", scheme: sym4, left: experts0},
	"awq-left":  {format: "awq", scheme: asym4, left: attention0},
	"ct-left":   {format: "compressed-tensors", scheme: sym4, left: append(slices.Clone(experts0), attention0...)},
	"ct-mixed":  {format: "compressed-tensors", scheme: sym4, mixed: attention8},
	"gptq-mix":  {format: "gptq", scheme: sym4, mixed: attention8},
	"ct-w123":   {format: "compressed-tensors", scheme: sym4, leaves: []string{"w1", "w3", "w2"}},
}

var (
	attention0 = []string{"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.v_proj"}
	experts0   = func() []string {
		var l []string
		for e := range experts {
			for _, n := range []string{"gate_proj", "up_proj", "down_proj"} {
				l = append(l, fmt.Sprintf("model.layers.0.mlp.experts.%d.%s", e, n))
			}
		}
		return l
	}()
	attention8 = map[string]format.Scheme{
		"model.layers.1.self_attn.q_proj": {Bits: 8, GroupSize: 32, Sym: true},
		"model.layers.1.self_attn.k_proj": {Bits: 8, GroupSize: 32, Sym: true},
		"model.layers.1.self_attn.v_proj": {Bits: 8, GroupSize: 32, Sym: true},
	}
)

// expected are the findings above a note that a faultless base still has, because a loader really cannot run it.
var expected = map[string][]string{
	"ct-asym":   {"E_SYM sglang", "E_SYM transformers", "E_SYM vllm"},
	"gptq-left": {"E_IGNORE_MISSING sglang"}, // SGLang's fused gptq experts read no rule
}

func run(t testing.TB, dir string, o lint.Options) *lint.Report {
	t.Helper()
	r, err := lint.Run(context.Background(), dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// codes gives "CODE profile" of all findings above a note.
func codes(r *lint.Report) []string {
	seen := map[string]bool{}
	for _, f := range r.Findings {
		if f.Severity != lint.Note {
			seen[strings.TrimSpace(f.Code+" "+f.Profile)] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// TestLoaderProfiles is the conformance of every format with every loader: what our writers write is clean.
func TestLoaderProfiles(t *testing.T) {
	for name, o := range bases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := run(t, newBuild(t, o).write(t), lint.Options{})
			if got := codes(r); !slices.Equal(got, expected[name]) {
				t.Errorf("findings %v, want %v", got, expected[name])
				for _, f := range r.Findings {
					t.Logf("%s %s %s %s: %s", f.Severity, f.Code, f.Profile, f.Subject, f.Message)
				}
			}
			if want := len(r.Findings) > 0 && len(expected[name]) > 0; r.Failed() != want {
				t.Errorf("failed is %v", r.Failed())
			}
		})
	}
}

const (
	q0     = "model.layers.0.self_attn.q_proj"
	k0     = "model.layers.0.self_attn.k_proj"
	o0     = "model.layers.0.self_attn.o_proj"
	e0gate = "model.layers.0.mlp.experts.0.gate_proj"
	e1up   = "model.layers.1.mlp.experts.1.up_proj"
	e1down = "model.layers.1.mlp.experts.1.down_proj"
)

func put16(d *format.TensorData, i int, v uint16) { binary.LittleEndian.PutUint16(d.Data[2*i:], v) }
func put32(d *format.TensorData, i int, v uint32) { binary.LittleEndian.PutUint32(d.Data[4*i:], v) }

func weights(b *build) map[string]any {
	return b.quant["config_groups"].(map[string]any)["group_0"].(map[string]any)["weights"].(map[string]any)
}

func group0(b *build) map[string]any {
	return b.quant["config_groups"].(map[string]any)["group_0"].(map[string]any)
}

func drop(list any, entry string) []any {
	return slices.DeleteFunc(list.([]any), func(e any) bool { return e == entry })
}

// faults are planted one at a time; each must be found under its code. docs/lint.md lists them.
var faults = []struct {
	name, base, code string
	plant            func(b *build)
}{
	// Files and index.
	{"a shard is missing", "ct", "E_INDEX", func(b *build) {
		b.raw = func(dir string) { os.Remove(filepath.Join(dir, "model-00002-of-00002.safetensors")) }
	}},
	{"a shard is cut short", "ct", "E_FILE", func(b *build) { b.raw = truncate("model-00001-of-00002.safetensors", -1) }},
	{"a shard has bytes after its last tensor", "ct", "E_FILE", func(b *build) { b.raw = truncate("model-00001-of-00002.safetensors", 1) }},
	{"a shard is empty", "ct", "E_FILE", func(b *build) { b.files["model-00002-of-00002.safetensors"] = []byte{} }},
	{"a header length points past the file", "ct", "E_FILE", func(b *build) {
		b.raw = patch("model-00001-of-00002.safetensors", 3, 0x7F)
	}},
	{"the index names a tensor that is not there", "ct", "E_INDEX_GHOST", func(b *build) {
		b.index = func(i map[string]any) {
			i["weight_map"].(map[string]any)["model.ghost.weight"] = "model-00001-of-00002.safetensors"
		}
	}},
	{"the index names the wrong shard", "ct", "E_INDEX_GHOST", func(b *build) {
		b.index = func(i map[string]any) {
			i["weight_map"].(map[string]any)[q0+".weight_packed"] = "model-00002-of-00002.safetensors"
		}
	}},
	{"the index forgets a tensor", "ct", "E_INDEX_MISSING", func(b *build) {
		b.index = func(i map[string]any) { delete(i["weight_map"].(map[string]any), q0+".weight_scale") }
	}},
	{"total_size counts headers", "ct", "E_INDEX_SIZE", func(b *build) {
		b.index = func(i map[string]any) { i["metadata"].(map[string]any)["total_size"] = 1 }
	}},
	{"the index is not JSON", "ct", "E_INDEX", func(b *build) { b.files["model.safetensors.index.json"] = []byte("{") }},
	{"shards without an index", "ct", "E_INDEX_NONE", func(b *build) { b.files["model.safetensors.index.json"] = nil }},
	{"a stale shard repeats a tensor", "ct", "E_INDEX_TWICE", func(b *build) {
		b.files["model-00003-of-00003.safetensors"] = safetensorsOf(b, q0+".weight_scale")
	}},
	{"shard names count to three", "ct", "E_SHARD_COUNT", func(b *build) {
		b.files["model-00003-of-00003.safetensors"] = safetensorsOf(b, q0+".weight_scale")
	}},
	{"no metadata format=pt", "ct", "E_METADATA", func(b *build) { b.meta = nil }},
	{"pickle weights beside the shards", "ct", "E_CODE_FILES", func(b *build) { b.files["pytorch_model.bin"] = []byte("x") }},
	// Config.
	{"config.json is missing", "ct", "E_CONFIG", func(b *build) { b.files["config.json"] = nil }},
	{"config.json is not JSON", "ct", "E_CONFIG", func(b *build) { b.files["config.json"] = []byte("{\"a\":") }},
	{"no quantization_config", "gptq", "E_CONFIG_NONE", func(b *build) { b.quant = nil }},
	{"an unknown quant_method", "gptq", "E_METHOD", func(b *build) { b.quant["quant_method"] = "magic" }},
	{"awq tensors labelled gptq", "awq", "E_SHAPE", func(b *build) {
		b.quant = map[string]any{"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": false, "sym": true}
	}},
	{"gptq tensors labelled compressed-tensors", "gptq", "E_METHOD", func(b *build) {
		b.quant = newQuant("ct")
	}},
	{"sym is missing", "gptq", "E_CONFIG_KEY", func(b *build) { delete(b.quant, "sym") }},
	{"bits is a string", "gptq", "E_CONFIG_KEY", func(b *build) { b.quant["bits"] = "four" }},
	{"status is not compressed", "ct", "E_CONFIG_KEY", func(b *build) { b.quant["quantization_status"] = "frozen" }},
	{"weights arguments with an unknown key", "ct", "E_CONFIG_ARGS", func(b *build) { weights(b)["clip"] = true }},
	{"group size zero", "gptq", "E_CONFIG_VALUE", func(b *build) { b.quant["group_size"] = 0 }},
	{"a strategy that does not exist", "ct", "E_CONFIG_VALUE", func(b *build) { weights(b)["strategy"] = "column" }},
	{"quantize_config.json says something else", "gptq", "E_CONFIG_COPY", func(b *build) { b.files["quantize_config.json"] = []byte(`{"bits":8}`) }},
	{"a path of the writer's machine", "gptq", "E_CONFIG_PATH", func(b *build) { b.quant["meta"].(map[string]any)["offload"] = "/home/me/tmp" }},
	{"a rule that is no pattern", "gptq", "E_PATTERN", func(b *build) { b.quant["dynamic"].(map[string]any)["-:("] = map[string]any{} }},
	{"wrong bits", "gptq", "E_SHAPE", func(b *build) { b.quant["bits"] = 8 }},
	{"wrong bits in a group", "ct", "E_SHAPE", func(b *build) { weights(b)["num_bits"] = 8 }},
	{"wrong group size", "ct", "E_SHAPE", func(b *build) { weights(b)["group_size"] = 64 }},
	{"group size does not divide", "ct", "E_GROUP", func(b *build) { weights(b)["group_size"] = 48 }},
	{"v2 zeros labelled v1", "gptq_v2", "E_LABEL", func(b *build) { b.quant["checkpoint_format"] = "gptq" }},
	{"v1 zeros labelled v2", "gptq", "E_LABEL", func(b *build) { b.quant["checkpoint_format"] = "gptq_v2" }},
	// Tensors of a module.
	{"scales are missing", "gptq", "E_TENSOR_MISSING", func(b *build) { delete(b.tensors, q0+".scales") }},
	{"codes are missing", "gptq", "E_TENSOR_MISSING", func(b *build) { delete(b.tensors, q0+".qweight") }},
	{"zero points are missing", "ct-asym", "E_TENSOR_MISSING", func(b *build) { delete(b.tensors, q0+".weight_zero_point") }},
	{"a plain weight beside packed tensors", "gptq", "E_TENSOR_EXTRA", func(b *build) {
		b.tensors[o0+".weight"] = b.tensors["model.layers.0.mlp.gate.weight"]
	}},
	{"scales as integers", "ct", "E_DTYPE", func(b *build) {
		b.edit(q0+".weight_scale", func(d *format.TensorData) { d.DType = "I16" })
	}},
	{"scales transposed", "ct", "E_SHAPE", func(b *build) {
		b.edit(q0+".weight_scale", func(d *format.TensorData) { d.Shape[0], d.Shape[1] = d.Shape[1], d.Shape[0] })
	}},
	{"weight_shape lies", "ct", "E_SHAPE", func(b *build) {
		b.edit(q0+".weight_shape", func(d *format.TensorData) { d.Data[0]++ })
	}},
	{"config of another model", "ct", "E_WIDTH", func(b *build) { b.config["hidden_size"] = 96 }},
	{"experts of another width", "ct", "E_WIDTH", func(b *build) { b.config["moe_intermediate_size"] = 96 }},
	{"scale companions of an fp8 source", "ct", "E_SOURCE_SCALE", func(b *build) {
		b.tensors["model.layers.0.mlp.gate.weight_scale_inv"] = b.tensors["model.norm.weight"]
	}},
	{"a router left in fp8", "ct", "E_SOURCE_DTYPE", func(b *build) {
		b.edit("model.layers.0.mlp.gate.weight", func(d *format.TensorData) {
			d.DType, d.Data = "F8_E4M3", d.Data[:len(d.Data)/2]
		})
	}},
	// Contents.
	{"a NaN scale", "gptq", "E_SCALE_NAN", func(b *build) { b.edit(q0+".scales", func(d *format.TensorData) { put16(d, 5, 0x7E00) }) }},
	{"an infinite scale", "ct", "E_SCALE_NAN", func(b *build) {
		b.edit(q0+".weight_scale", func(d *format.TensorData) { put16(d, 5, 0x7F80) })
	}},
	{"a zero scale", "gptq", "E_SCALE_ZERO", func(b *build) { b.edit(q0+".scales", func(d *format.TensorData) { put16(d, 5, 0) }) }},
	{"a negative scale", "awq", "E_SCALE_NEGATIVE", func(b *build) { b.edit(q0+".scales", func(d *format.TensorData) { put16(d, 5, 0xA000) }) }},
	{"a subnormal scale", "gptq", "E_SCALE_TINY", func(b *build) { b.edit(q0+".scales", func(d *format.TensorData) { put16(d, 5, 3) }) }},
	{"a huge scale", "gptq", "E_SCALE_HUGE", func(b *build) { b.edit(q0+".scales", func(d *format.TensorData) { put16(d, 5, 0x7BFF) }) }},
	{"a v1 zero that wrapped", "gptq", "E_ZERO_RANGE", func(b *build) {
		b.quant["sym"] = false
		b.edit(q0+".qzeros", func(d *format.TensorData) { d.Data[0] |= 0x0F })
	}},
	{"asymmetric zeros declared symmetric", "gptq", "E_ZERO_SYM", func(b *build) { b.edit(q0+".qzeros", func(d *format.TensorData) { d.Data[0] = 0x31 }) }},
	{"zero points stored though symmetric", "ct-asym", "E_ZERO_SYM", func(b *build) { weights(b)["symmetric"] = true }},
	{"a group number out of range", "gptq", "E_GIDX_RANGE", func(b *build) { b.edit(q0+".g_idx", func(d *format.TensorData) { put32(d, 0, 77) }) }},
	{"act order not declared", "gptq-act", "E_GIDX_ORDER", func(b *build) { b.quant["desc_act"] = false }},
	{"act order declared for nothing", "gptq", "E_GIDX_NATURAL", func(b *build) { b.quant["desc_act"] = true }},
	{"groups of unequal size", "gptq-act", "E_GIDX_COUNT", func(b *build) { b.edit(o0+".g_idx", func(d *format.TensorData) { put32(d, 0, 1); put32(d, 1, 1) }) }},
	{"a module of zero codes", "gptq", "E_CODE_CONST", func(b *build) { b.edit(q0+".qweight", func(d *format.TensorData) { clear(d.Data) }) }},
	{"codes outside a 4-bit grid in int8", "w8a8", "E_CODE_RANGE", func(b *build) { weights(b)["num_bits"] = 4 }},
	{"a NaN norm", "ct", "E_WEIGHT_NAN", func(b *build) { b.edit("model.norm.weight", func(d *format.TensorData) { put16(d, 3, 0x7FC0) }) }},
	// Siblings and experts.
	{"one of q, k, v left alone", "gptq", "E_FUSED_PARTIAL", func(b *build) { leaveAlone(b, k0) }},
	{"gate and up with other scale dtypes", "ct", "E_FUSED_SCHEME", func(b *build) {
		b.edit(e1up+".weight_scale", func(d *format.TensorData) { d.DType = format.F16 })
	}},
	{"one expert in 8 bits", "gptq", "E_FUSED_SCHEME", func(b *build) { reencode(b, e1down, "gptq", 8) }},
	{"gate and up in other column orders", "gptq-act", "E_FUSED_GIDX", func(b *build) {
		b.edit(e1up+".g_idx", func(d *format.TensorData) {
			for i := range hidden {
				put32(d, i, uint32(i/32))
			}
		})
	}},
	{"an expert is missing", "ct", "E_EXPERT_COUNT", func(b *build) {
		for n := range maps.Clone(b.tensors) {
			if strings.HasPrefix(n, "model.layers.1.mlp.experts.1.") {
				delete(b.tensors, n)
			}
		}
	}},
	{"config names fewer experts", "ct", "E_EXPERT_COUNT", func(b *build) { b.config["num_experts"] = 1 }},
	{"an expert of another shape", "ct-row", "E_EXPERT_SHAPE", func(b *build) { reshape(b, e1down) }},
	{"experts in one 3-D tensor", "gptq", "E_EXPERT_FUSED", func(b *build) {
		b.tensors["model.layers.0.mlp.experts.gate_up_proj"] = format.TensorData{TensorSpec: format.TensorSpec{DType: format.BF16, Shape: []int{1, 2, 2}}, Data: make([]byte, 8)}
	}},
	{"a layer is missing", "ct", "E_LAYER_COUNT", func(b *build) { b.config["num_hidden_layers"] = 3 }},
	{"a quantized router", "gptq", "E_ROUTER", func(b *build) {
		for _, s := range []string{"qweight", "qzeros", "scales", "g_idx"} {
			b.tensors["model.layers.0.mlp.gate."+s] = b.tensors[o0+"."+s]
		}
		delete(b.tensors, "model.layers.0.mlp.gate.weight")
	}},
	{"a tied head that is quantized", "gptq", "E_TIED", func(b *build) { quantizeHead(b); b.config["tie_word_embeddings"] = true }},
	{"a quantized head not declared", "gptq", "E_LM_HEAD", func(b *build) { quantizeHead(b) }},
	// Exclusions and targets.
	{"a router not excluded", "ct", "E_IGNORE_MISSING", func(b *build) { b.quant["ignore"] = drop(b.quant["ignore"], "model.layers.0.mlp.gate") }},
	{"experts left alone, not excluded", "ct-left", "E_IGNORE_MISSING", func(b *build) {
		b.quant["ignore"] = slices.DeleteFunc(b.quant["ignore"].([]any), func(e any) bool { return strings.Contains(e.(string), "experts") })
	}},
	{"experts excluded one by one, parent forgotten", "ct-left", "E_IGNORE_MISSING", func(b *build) {
		b.quant["ignore"] = slices.DeleteFunc(b.quant["ignore"].([]any), func(e any) bool { return strings.Contains(e.(string), "experts") })
		for _, n := range experts0 {
			b.quant["ignore"] = append(b.quant["ignore"].([]any), n)
		}
	}},
	{"attention left alone, no rule", "gptq-left", "E_IGNORE_MISSING", func(b *build) { b.quant["dynamic"] = map[string]any{}; delete(b.quant, "modules_in_block_to_quantize") }},
	{"an exclusion that hits only its fused parts", "awq-left", "E_IGNORE_MISSING", func(b *build) {
		b.quant["modules_to_not_convert"] = drop(b.quant["modules_to_not_convert"], "model.layers.0.self_attn.qkv_proj")
	}},
	{"a quantized module excluded", "ct", "E_IGNORE_EXTRA", func(b *build) { b.quant["ignore"] = append(b.quant["ignore"].([]any), o0) }},
	{"an exclusion that is part of another name", "awq", "E_IGNORE_EXTRA", func(b *build) {
		b.quant["modules_to_not_convert"] = append(b.quant["modules_to_not_convert"].([]any), "o_proj")
	}},
	{"a rule without an end", "gptq", "E_IGNORE_EXTRA", func(b *build) {
		b.quant["dynamic"].(map[string]any)[`-:.*\.o_`] = map[string]any{}
	}},
	{"an exclusion of one of q, k, v", "ct", "E_IGNORE_SPLIT", func(b *build) { b.quant["ignore"] = append(b.quant["ignore"].([]any), k0) }},
	{"modules listed without attention", "gptq", "E_IGNORE_EXTRA", func(b *build) {
		b.quant["modules_in_block_to_quantize"] = [][]string{{"self_attn.o_proj"}}
	}},
	{"targets that miss a module", "ct", "E_TARGET", func(b *build) { group0(b)["targets"] = []any{"re:.*self_attn.*"} }},
	{"experts under a pattern target", "ct", "E_TARGET_LINEAR", func(b *build) { group0(b)["targets"] = []any{"re:.*"} }},
	{"w1, w2, w3 experts under a pattern of their names", "ct-w123", "E_EXPERT_LOOKUP", func(b *build) {
		group0(b)["targets"] = []any{`re:.*self_attn.*`, `re:.*\.w[123]$`}
	}},
	// What loaders can run.
	{"awq without zero_point", "awq", "E_ZERO_POINT", func(b *build) { b.quant["zero_point"] = false }},
	{"bfloat16 model with gptq experts", "gptq", "E_MODEL_DTYPE", func(b *build) { b.config["torch_dtype"] = "bfloat16" }},
	{"float32 model", "ct", "E_MODEL_DTYPE", func(b *build) { b.config["torch_dtype"] = "float32" }},
	{"GELU experts", "ct", "E_ACTIVATION", func(b *build) { b.config["hidden_act"] = "gelu" }},
	{"W8A8 without activations", "w8a8", "E_SCHEME", func(b *build) { group0(b)["input_activations"] = nil }},
}

// TestPlantedFaults finds every fault of the list under its code.
func TestPlantedFaults(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			b := newBuild(t, bases[f.base])
			f.plant(b)
			r := run(t, b.write(t), lint.Options{})
			if !slices.ContainsFunc(r.Findings, func(x lint.Finding) bool { return x.Code == f.code }) {
				t.Errorf("%s was not found, only %v", f.code, codes(r))
			}
			if !r.Failed() {
				t.Error("the check passed")
			}
			for _, x := range r.Findings {
				if x.Message == "" || x.Remedy == "" || x.Subject == "" {
					t.Errorf("a finding without words: %+v", x)
				}
			}
		})
	}
}

// TestSchemesLoadersCannotRun: whole checkpoints whose scheme is at fault.
func TestSchemesLoadersCannotRun(t *testing.T) {
	for _, c := range []struct {
		name string
		o    buildOptions
		want []string
	}{
		{"3-bit gptq", buildOptions{format: "gptq", scheme: format.Scheme{Bits: 3, GroupSize: 32, Sym: true}}, []string{"E_BITS sglang", "E_BITS vllm"}},
		{"asymmetric gptq_v2", buildOptions{format: "gptq_v2", scheme: asym4}, []string{"E_SYM sglang", "E_SYM vllm"}},
		{"asymmetric v1 gptq", buildOptions{format: "gptq", scheme: asym4}, []string{"E_SYM sglang", "E_SYM transformers", "E_SYM vllm"}},
		{"5-bit compressed-tensors", buildOptions{format: "compressed-tensors", scheme: format.Scheme{Bits: 5, GroupSize: 32, Sym: true}}, []string{"E_BITS sglang", "E_BITS vllm"}},
		{"groups of 16", buildOptions{format: "compressed-tensors", scheme: format.Scheme{Bits: 4, GroupSize: 16, Sym: true}}, []string{"E_GROUP_SIZE sglang", "E_GROUP_SIZE vllm"}},
		{"act order of gptq experts in float16", buildOptions{format: "gptq", scheme: sym4, gidx: true}, nil},
		{"groups that end inside a row", buildOptions{format: "gptq", scheme: format.Scheme{Bits: 4, GroupSize: 128, Sym: true}, tail: true}, []string{"E_GROUP sglang", "E_GROUP vllm", "E_GROUP_TP sglang", "E_GROUP_TP vllm"}},
		{"asymmetric W8A8", buildOptions{format: "compressed-tensors-w8a8", scheme: format.Scheme{Bits: 8, GroupSize: -1}}, []string{"E_SYM sglang", "E_SYM vllm"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := codes(run(t, newBuild(t, c.o).write(t), lint.Options{})); !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

func TestTensorParallel(t *testing.T) {
	// GLM-4.5-Air: experts 1408 = 11 × 128 wide load at 1 but not at 2 or more.
	ok, bad := lint.TPTable(1408, 128, []int{1, 2, 4, 8, 11})
	if !slices.Equal(ok, []int{1, 11}) || !slices.Equal(bad, []int{2, 4, 8}) {
		t.Errorf("1408 in groups of 128: ok %v, bad %v", ok, bad)
	}
	ok, _ = lint.TPTable(768, -1, []int{1, 2, 3, 4, 5, 8})
	if !slices.Equal(ok, []int{1, 2, 3, 4, 8}) {
		t.Errorf("768 without groups: ok %v", ok)
	}
	b := newBuild(t, bases["ct"])
	dir := b.write(t)
	if got := codes(run(t, dir, lint.Options{TP: []int{2, 4}})); !slices.Equal(got, []string{"E_GROUP_TP sglang", "E_GROUP_TP vllm"}) {
		t.Errorf("attention of 64 inputs in groups of 32 at 4: %v", got)
	}
	if got := codes(run(t, dir, lint.Options{TP: []int{2}})); len(got) != 0 {
		t.Errorf("at 2: %v", got)
	}
	r := run(t, dir, lint.Options{})
	want := map[string]string{"experts": "[1 2 4]", "attention": "[1 2]"}
	for _, row := range r.TP {
		if fmt.Sprint(row.OK) != want[row.Width] {
			t.Errorf("%s: %v, want %s", row.Width, row.OK, want[row.Width])
		}
	}
	if len(r.TP) != 2 {
		t.Errorf("%d rows, want 2", len(r.TP))
	}
}

// TestDocsListFaults keeps docs/lint.md in step: every code of the table and every planted fault is there.
func TestDocsListFaults(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "lint.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range lint.Codes() {
		if !strings.Contains(string(raw), "`"+c.ID+"`") {
			t.Errorf("docs/lint.md has no %s", c.ID)
		}
		if lint.Catalogue()[c.ID] == "" || c.Text == "" || c.Remedy == "" {
			t.Errorf("%s has no words", c.ID)
		}
	}
	for _, f := range faults {
		if !strings.Contains(string(raw), f.name) {
			t.Errorf("docs/lint.md does not list %q", f.name)
		}
	}
	for _, id := range regexp.MustCompile("`(E_[A-Z_]+)`").FindAllStringSubmatch(string(raw), -1) {
		if lint.Catalogue()[id[1]] == "" {
			t.Errorf("docs/lint.md has %s, the table does not", id[1])
		}
	}
}

// Helpers of the faults.

func truncate(name string, by int64) func(dir string) {
	return func(dir string) {
		p := filepath.Join(dir, name)
		info, err := os.Stat(p)
		if err != nil {
			panic(err)
		}
		if err := os.Truncate(p, info.Size()+by); err != nil {
			panic(err)
		}
	}
}

func patch(name string, at int, v byte) func(dir string) {
	return func(dir string) {
		p := filepath.Join(dir, name)
		raw, err := os.ReadFile(p)
		if err != nil {
			panic(err)
		}
		raw[at] = v
		if err := os.WriteFile(p, raw, 0o644); err != nil {
			panic(err)
		}
	}
}

func safetensorsOf(b *build, name string) []byte {
	d := b.tensors[name]
	d.Name = name
	return safetensors(nopTB{}, []format.TensorData{d}, b.meta)
}

// nopTB lets the builder run outside a test; it never fails there.
type nopTB struct{ testing.TB }

func (nopTB) Helper()      {}
func (nopTB) Fatal(...any) { panic("fatal") }

func newQuant(base string) map[string]any { return newBuild(nopTB{}, bases[base]).quant }

func leaveAlone(b *build, module string) {
	for n := range maps.Clone(b.tensors) {
		if strings.HasPrefix(n, module+".") {
			delete(b.tensors, n)
		}
	}
	m := b.modules[module]
	b.tensors[module+".weight"] = format.TensorData{TensorSpec: format.TensorSpec{DType: format.BF16, Shape: []int{m.Out, m.In}}, Data: make([]byte, 2*m.Out*m.In)}
}

func reencode(b *build, module, name string, bits int) {
	f, _ := format.Lookup(name)
	m := *b.modules[module]
	m.Bits = bits
	tensors, err := f.Encode(&m)
	if err != nil {
		panic(err)
	}
	for _, d := range tensors {
		b.tensors[d.Name] = d
	}
	b.quant["dynamic"].(map[string]any)["+:^"+regexp.QuoteMeta(module)+"$"] = map[string]any{"bits": bits}
}

func reshape(b *build, module string) {
	f, _ := format.Lookup("compressed-tensors")
	m := *b.modules[module]
	m.In /= 2
	m.Codes = m.Codes[:m.Out*m.In]
	tensors, err := f.Encode(&m)
	if err != nil {
		panic(err)
	}
	for _, d := range tensors {
		b.tensors[d.Name] = d
	}
}

func quantizeHead(b *build) {
	f, _ := format.Lookup("gptq")
	m := *b.modules[q0]
	m.Name = "lm_head"
	tensors, err := f.Encode(&m)
	if err != nil {
		panic(err)
	}
	for _, d := range tensors {
		b.tensors[d.Name] = d
	}
	delete(b.tensors, "lm_head.weight")
}
