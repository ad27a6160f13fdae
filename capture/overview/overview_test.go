package overview_test

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"quire/capture/checkpoint"
	"quire/capture/overview"
)

func shared(t *testing.T, parts ...string) string {
	t.Helper()
	root := os.Getenv("QUIRE_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared")
	}
	p := filepath.Join(append([]string{root}, parts...)...)
	if _, err := os.Stat(p); err != nil {
		t.Skipf("shared fixture %s is missing (set QUIRE_SHARED)", filepath.Join(parts...))
	}
	return p
}

func of(t *testing.T, path string) *overview.Overview {
	t.Helper()
	src, err := checkpoint.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	o, err := overview.Of(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	var bytes, params int64
	tensors := 0
	for _, c := range o.Classes {
		bytes += c.Bytes
		params += c.Parameters
		if c.Class != "activation scales" {
			tensors += c.Tensors
		}
		if c.Class == "unclaimed" || c.Class == "other" {
			t.Errorf("%d tensors of class %q", c.Tensors, c.Class)
		}
	}
	if bytes != o.Bytes || params != o.Parameters || tensors != o.Logical {
		t.Errorf("classes add up to %d bytes, %d parameters, %d tensors; the whole is %d, %d, %d", bytes, params, tensors, o.Bytes, o.Parameters, o.Logical)
	}
	return o
}

// TestDemo knows the embedded model's figures from its config: 4 layers, 8 experts, 2 of them per token.
func TestDemo(t *testing.T) {
	o := of(t, filepath.Join("..", "..", "testdata", "demo"))
	if o.Family != "qwen3_moe" || o.Layers != 4 || o.BlockLayers != 4 || o.Experts != 8 || o.TopK != 2 || o.ExpertLayout != "per expert" || o.Attention != "grouped-query" || len(o.Unclaimed) != 0 {
		t.Errorf("%+v", o)
	}
}

// published is what fixtures/arch says of a directory: its layouts (README, "layouts") and what its config names.
type published struct {
	layers, experts, topK int
	layout                string
	shared                bool
}

const (
	perExpert  = "per expert"
	fusedHalf  = "fused [E,2I,H], gate half first"
	transposed = "fused [E,H,2I], gate half first"
	alternates = "fused [E,H,2I], gate and up interleaved"
)

// layouts of the fixtures whose families have a forward pass.
var layouts = map[string]published{
	"llama": {layers: 3}, "qwen2": {layers: 3}, "qwen3": {layers: 3}, "mistral": {layers: 2}, "phi3": {layers: 2}, "gemma3_text": {layers: 4},
	"mixtral": {2, 8, 2, perExpert, false}, "mixtral_bf16_sharded": {2, 8, 2, perExpert, false}, "qwen2_moe": {2, 8, 3, perExpert, true},
	"qwen3_moe": {3, 8, 2, perExpert, false}, "qwen3_moe_bf16_sharded": {3, 8, 2, perExpert, false}, "olmoe": {2, 8, 3, perExpert, false},
	"phimoe": {2, 6, 2, perExpert, false}, "granitemoe": {2, 8, 3, fusedHalf, false}, "dots1": {2, 8, 3, perExpert, true},
	"deepseek_v2": {3, 8, 3, perExpert, true}, "deepseek_v3": {3, 16, 4, perExpert, true}, "deepseek_v3_bf16_sharded": {3, 16, 4, perExpert, true},
	"kimi_k2": {2, 12, 4, perExpert, true}, "glm4_moe": {2, 8, 3, perExpert, true}, "glm4_moe_lite": {2, 8, 3, perExpert, true},
	"minimax_m2": {2, 8, 3, perExpert, false}, "ernie4_5_moe": {2, 8, 3, perExpert, true}, "hunyuan_v1_moe": {2, 8, 3, perExpert, true},
	"exaone_moe": {3, 8, 3, perExpert, true}, "afmoe": {3, 8, 3, perExpert, true}, "cohere2_moe": {4, 8, 3, perExpert, true},
	"gpt_oss": {2, 6, 2, alternates, false}, "gpt_oss_bf16_sharded": {2, 6, 2, alternates, false}, "llama4": {4, 4, 1, transposed, true},
}

// headers counts tensors and elements of the files in dir, read without this module's reader.
func headers(t *testing.T, dir string) (tensors int, elements int64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "model*.safetensors"))
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var h map[string]struct {
			Shape []int64 `json:"shape"`
			DType string  `json:"dtype"`
		}
		raw := map[string]json.RawMessage{}
		if err := json.Unmarshal(b[8:8+binary.LittleEndian.Uint64(b)], &raw); err != nil {
			t.Fatal(err)
		}
		delete(raw, "__metadata__")
		rest, err := json.Marshal(raw)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(rest, &h); err != nil {
			t.Fatal(err)
		}
		for _, x := range h {
			n := int64(1)
			for _, d := range x.Shape {
				n *= d
			}
			tensors, elements = tensors+1, elements+n
		}
	}
	return tensors, elements
}

// TestEveryFamily inspects every layout of the fixtures. Families without a forward pass are described by name and say so.
func TestEveryFamily(t *testing.T) {
	later := map[string]bool{"granitemoehybrid": true, "jamba": true, "lfm2_moe": true, "nemotron_h": true, "qwen3_5_moe": true, "qwen3_next": true, "glm_moe_dsa": true}
	dirs, err := filepath.Glob(filepath.Join(shared(t, "fixtures", "arch"), "*", "config.json"))
	if err != nil || len(dirs) < 37 {
		t.Fatalf("%d fixtures (%v)", len(dirs), err)
	}
	for _, d := range dirs {
		dir := filepath.Dir(d)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			o := of(t, dir)
			if len(o.Unclaimed) != 0 || len(o.Missing) != 0 {
				t.Errorf("unclaimed %v, missing %v", o.Unclaimed, o.Missing)
			}
			if n, elements := headers(t, dir); o.Tensors != n || o.Parameters != elements {
				t.Errorf("%d tensors, %d parameters; the files hold %d and %d", o.Tensors, o.Parameters, n, elements)
			}
			if later[filepath.Base(dir)] {
				if o.Family != "" || o.Code != "E1301" {
					t.Errorf("family %q, code %s", o.Family, o.Code)
				}
				return
			}
			got := published{o.Layers, o.Experts, o.TopK, o.ExpertLayout, o.SharedExperts}
			if want, ok := layouts[filepath.Base(dir)]; !ok || got != want {
				t.Errorf("%+v, want %+v (%s)", got, want, o.Unknown)
			}
		})
	}
}

// TestParameterMaps: counts that are published with the models, from names and shapes alone.
func TestParameterMaps(t *testing.T) {
	for name, want := range map[string]struct {
		tensors, layers, blocks, experts, shards int
		params                                   int64
	}{
		"deepseek-r1_hf_ckpt_params_map.json.gz": {91991, 61, 58, 256, 163, 684489845504}, // the hub says 685B with the MTP layer
		"kimi-k2_hf_ckpt_params_map.json.gz":     {139644, 61, 60, 384, 61, 1026408235864},
	} {
		t.Run(name, func(t *testing.T) {
			o := of(t, shared(t, "param_maps", name))
			if o.Family != "deepseek_v3" || o.Tensors != want.tensors || o.Layers != want.layers || o.BlockLayers != want.blocks || o.Experts != want.experts || o.Shards != want.shards || o.Parameters != want.params {
				t.Errorf("%+v", o)
			}
			if len(o.Unclaimed) != 0 || !o.ConfigInferred || len(o.Formats) != 1 || o.Formats[0].Format != "fp8 128x128" {
				t.Errorf("unclaimed %d, inferred %v, formats %v", len(o.Unclaimed), o.ConfigInferred, o.Formats)
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			if m.Sys > 500e6 {
				t.Errorf("%d bytes taken from the system", m.Sys)
			}
		})
	}
}
