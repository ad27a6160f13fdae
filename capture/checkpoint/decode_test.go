package checkpoint_test

import (
	"encoding/json"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"quire/capture/checkpoint"
	"quire/kernels/dtype"
)

// TestPublishedCheckpoints decodes whole checkpoints of other tools and compares the values recorded with them, which were
// dequantized by independent code.
func TestPublishedCheckpoints(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join(shared(t, "fixtures", "quant", "checkpoints"), "*"))
	if err != nil || len(dirs) != 9 {
		t.Fatalf("%d checkpoints, want 9 (%v)", len(dirs), err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			src := open(t, dir)
			want := load(t, filepath.Join(dir, "logits.safetensors"))
			checked := 0
			for name, w := range want {
				rest, ok := strings.CutPrefix(name, "dequantized.")
				if !ok {
					continue
				}
				rest = strings.TrimSuffix(rest, "[:32]")
				got := decodeAll(t, src, rest)
				bits(t, rest, got[:len(w.values())], w.values())
				checked++
			}
			if checked != 2 {
				t.Fatalf("%d recorded tensors, want 2", checked)
			}
			for _, f := range src.SideFiles() {
				if strings.Contains(f.Name, "quant") && strings.HasSuffix(f.Name, ".json") {
					t.Errorf("%s would stand beside new codes", f.Name)
				}
			}
			decoded := 0
			for _, l := range src.Logical() {
				if l.Decoded {
					decoded++
				}
			}
			if decoded != 112 {
				t.Fatalf("%d decoded weights, want 112", decoded)
			}
		})
	}
}

// packConfig is the config of a compressed-tensors case.
func packConfig(t *testing.T, path string) string {
	var c struct {
		Format string          `json:"format"`
		Args   json.RawMessage `json:"weights_args"`
	}
	readJSON(t, path, &c)
	b, err := json.Marshal(map[string]any{"model_type": "x", "quantization_config": map[string]any{"quant_method": "compressed-tensors", "format": c.Format,
		"config_groups": map[string]any{"group_0": map[string]any{"weights": c.Args, "targets": []string{"Linear"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestCompressedTensors decodes tensors as the library wrote them and compares its own decompression: bit for bit where it
// computed in float32, after rounding to the weights' dtype where it computed in that.
func TestCompressedTensors(t *testing.T) {
	small, _ := filepath.Glob(filepath.Join("..", "..", "testdata", "format", "pack", "ct-*.json"))
	more, _ := filepath.Glob(filepath.Join("..", "..", "testdata", "checkpoint", "pack", "ct-*.json"))
	files := append(small, more...)
	if len(files) == 0 {
		t.Fatal("testdata is missing")
	}
	compare := func(t *testing.T, path string) {
		ts := load(t, strings.TrimSuffix(path, ".json")+".safetensors")
		var parts []stored
		for name, x := range ts {
			if rest, ok := strings.CutPrefix(name, "out."); ok {
				parts = append(parts, x.named("m."+rest))
			}
		}
		want, ok := ts["dequantized"]
		if !ok || len(parts) == 0 {
			want = stored{}
			if ts["out.weight"].DType != checkpoint.F8E4M3 && ts["out.weight"].DType != checkpoint.I8 {
				return // a table, no weight
			}
		}
		got := decodeAll(t, open(t, write(t, t.TempDir(), packConfig(t, path), parts...)), "m.weight")
		if want.Name == "" { // no decompression recorded: the definition, element by element
			bits(t, path, got, slowScaled(ts["out.weight"], ts["out.weight_scale"], ts["out.weight_zero_point"]))
			return
		}
		if want.DType != checkpoint.F32 {
			round := dtype.F32ToBF16
			back := dtype.BF16ToF32
			if want.DType == checkpoint.F16 {
				round, back = dtype.F32ToF16, dtype.F16ToF32
			}
			for i := range got {
				got[i] = back(round(got[i]))
			}
		}
		ref := want.values()
		for i := range got {
			// The library multiplies in the weights' dtype, in steps of its own: one unit in the last place of that dtype.
			if tol := math.Abs(float64(ref[i])) * map[checkpoint.DType]float64{checkpoint.F32: 0, checkpoint.BF16: 1.0 / 128, checkpoint.F16: 1.0 / 1024}[want.DType]; math.Abs(float64(got[i]-ref[i])) > tol {
				t.Fatalf("element %d is %v, want %v", i, got[i], ref[i])
			}
		}
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) { compare(t, f) })
	}
	t.Run("all", func(t *testing.T) {
		all, _ := filepath.Glob(filepath.Join(shared(t, "fixtures", "quant", "pack"), "ct-*.json"))
		for _, f := range all {
			t.Run(filepath.Base(f), func(t *testing.T) { compare(t, f) })
		}
	})
}

// slowScaled is code × scale by definition: the scale of an element is found by dividing its index by ⌈n/k⌉ blocks of 128.
func slowScaled(w, sc, zero stored) []float32 {
	q, s, z := w.values(), sc.values(), zero.values()
	out, in := w.Shape[0], w.Shape[1]
	rows, cols := 1, 1
	if len(sc.Shape) == 2 {
		rows, cols = sc.Shape[0], sc.Shape[1]
	}
	pick := func(i, n, k int) int {
		switch k {
		case 1:
			return 0
		case n:
			return i
		}
		return i / 128
	}
	v := make([]float32, len(q))
	for r := range out {
		for c := range in {
			k := pick(r, out, rows)*cols + pick(c, in, cols)
			x := q[r*in+c]
			if z != nil {
				x -= z[k]
			}
			v[r*in+c] = x * s[k]
		}
	}
	return v
}

// TestColumnPacked decodes GPTQ v1, v2 and AWQ tensors of the public packers and compares scale·(code − zero) of the codes
// that went in, zero points of 0 included.
func TestColumnPacked(t *testing.T) {
	compare := func(t *testing.T, path string) {
		var c struct {
			Options struct {
				Bits  int  `json:"bits"`
				Group int  `json:"group_size"`
				Desc  bool `json:"desc_act"`
			} `json:"options"`
		}
		readJSON(t, path, &c)
		ts := load(t, strings.TrimSuffix(path, ".json")+".safetensors")
		codes, zeros := ts["codes"].values(), ts["zeros"].values()
		out, in := ts["codes"].Shape[0], ts["codes"].Shape[1]
		groups := ts["zeros"].Shape[1]
		_, awq := ts["packed.qweight"]
		prefix := "v2."
		if awq {
			prefix = "packed."
		}
		scales := ts[prefix+"scales"].values() // [groups, out]
		group := func(c int) int { return c * groups / in }
		if g, ok := ts["v2.g_idx"]; ok {
			idx := g.values()
			group = func(c int) int { return int(idx[c]) }
		}
		want := make([]float32, out*in)
		for o := range out {
			for c := range in {
				g := group(c)
				want[o*in+c] = scales[g*out+o] * (codes[o*in+c] - zeros[o*groups+g])
			}
		}
		for _, version := range []string{"gptq", "gptq_v2"} {
			method := "gptq"
			if awq {
				method, version = "awq", "gemm"
			}
			config, err := json.Marshal(map[string]any{"quantization_config": map[string]any{"quant_method": method, "checkpoint_format": version, "bits": c.Options.Bits, "group_size": c.Options.Group}})
			if err != nil {
				t.Fatal(err)
			}
			var parts []stored
			for name, x := range ts {
				if rest, ok := strings.CutPrefix(name, prefix); ok {
					if z, ok := ts["v1.qzeros"]; ok && rest == "qzeros" && version == "gptq" {
						x = z
					}
					parts = append(parts, x.named("m."+rest))
				}
			}
			src, err := checkpoint.Open(t.Context(), write(t, t.TempDir(), string(config), parts...))
			if b := c.Options.Bits; b > 4 && b < 8 { // stored in planes
				if err == nil {
					t.Fatalf("%d bits: no error", b)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			bits(t, version, decodeAll(t, src, "m.weight"), want)
			if _, ok := src.Lookup("m.bias"); ok && len(src.Logical()) != 2 {
				t.Fatalf("%d logical tensors, want weight and bias", len(src.Logical()))
			}
			src.Close()
		}
	}
	small, _ := filepath.Glob(filepath.Join("..", "..", "testdata", "format", "pack", "*q-*.json"))
	if len(small) == 0 {
		t.Fatal("testdata is missing")
	}
	for _, f := range small {
		t.Run(filepath.Base(f), func(t *testing.T) { compare(t, f) })
	}
	t.Run("all", func(t *testing.T) {
		dir := shared(t, "fixtures", "quant", "pack")
		for _, pattern := range []string{"gptq-*.json", "awq-gemm-*.json"} {
			all, _ := filepath.Glob(filepath.Join(dir, pattern))
			for _, f := range all {
				t.Run(filepath.Base(f), func(t *testing.T) { compare(t, f) })
			}
		}
	})
}
