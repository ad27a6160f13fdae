package lint_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"quire/engine/format"
	"quire/engine/lint"
)

// originalOf writes the unquantized model that a build came from: dequantized weights in float32. With fused, the experts
// stand in 3-D tensors [experts, 2·width, hidden] and [experts, hidden, width].
func originalOf(t *testing.T, b *build, fused bool, modelType string) string {
	t.Helper()
	o := *b
	o.tensors, o.quant, o.shards = map[string]format.TensorData{}, nil, 1
	o.config = maps.Clone(b.config)
	delete(o.config, "quantization_config")
	o.config["model_type"] = modelType
	o.files = map[string][]byte{}
	for n, d := range b.tensors {
		if d.DType == format.BF16 && !strings.HasSuffix(n, ".weight_scale") {
			o.tensors[n] = d
		}
	}
	floats := func(v []float32) []byte {
		var data []byte
		for _, x := range v {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
		}
		return data
	}
	deq := map[string][]float32{}
	for n, m := range b.modules {
		w := make([]float32, m.Out*m.In)
		m.Dequantize(w)
		deq[n] = w
		if _, _, _, expert := format.SplitExpert(n); !expert || !fused {
			o.tensors[n+".weight"] = format.TensorData{TensorSpec: format.TensorSpec{DType: format.F32, Shape: []int{m.Out, m.In}}, Data: floats(w)}
		}
	}
	for l := range layers {
		if !fused {
			break
		}
		p := fmt.Sprintf("model.layers.%d.mlp.experts.", l)
		var gateUp, down []float32
		for e := range experts {
			q := fmt.Sprintf("%s%d.", p, e)
			gateUp = append(append(gateUp, deq[q+"gate_proj"]...), deq[q+"up_proj"]...)
			down = append(down, deq[q+"down_proj"]...)
		}
		o.tensors[p+"gate_up_proj"] = format.TensorData{TensorSpec: format.TensorSpec{DType: format.F32, Shape: []int{experts, 2 * width, hidden}}, Data: floats(gateUp)}
		o.tensors[p+"down_proj"] = format.TensorData{TensorSpec: format.TensorSpec{DType: format.F32, Shape: []int{experts, hidden, width}}, Data: floats(down)}
	}
	return o.write(t)
}

func TestAgainstOriginal(t *testing.T) {
	for _, layout := range []struct {
		name      string
		fused     bool
		modelType string
		unread    int
	}{
		{"by expert", false, "qwen3_moe", 0},
		{"fused", true, "qwen3_moe", 0},
		{"by expert, unknown family", false, "nobody", 0},
		{"fused, unknown family", true, "nobody", layers * experts * 3}, // a layout nobody states is not guessed
	} {
		t.Run(layout.name, func(t *testing.T) {
			b := newBuild(t, bases["ct"])
			for _, m := range b.modules { // as stored: bf16 scales
				for i, s := range m.Scales {
					m.Scales[i] = math.Float32frombits((math.Float32bits(s) + 0x7FFF + math.Float32bits(s)>>16&1) &^ 0xFFFF)
				}
			}
			original := originalOf(t, b, layout.fused, layout.modelType)
			r := run(t, b.write(t), lint.Options{Against: original})
			if r.Failed() {
				t.Errorf("findings %v", codes(r))
			}
			if n := len(r.Against.Modules); n != len(b.modules)-layout.unread || r.Against.Modules[0].Relative != 0 || len(r.Against.Unread) != layout.unread {
				t.Errorf("%d modules, worst error %g, %d not read; want %d, 0 and %d", n, r.Against.Modules[0].Relative, len(r.Against.Unread), len(b.modules)-layout.unread, layout.unread)
			}
			// Spoil one module, one copy, and lose one tensor.
			b.edit(o0+".weight_packed", func(d *format.TensorData) {
				for i := range d.Data {
					d.Data[i] ^= 0x5A
				}
			})
			b.edit("model.norm.weight", func(d *format.TensorData) { d.Data[1] ^= 0x80 })
			delete(b.tensors, "model.embed_tokens.weight")
			r = run(t, b.write(t), lint.Options{Against: original})
			want := []string{"E_AGAINST_COPY", "E_AGAINST_ERROR", "E_AGAINST_MISSING"}
			if got := codes(r); !slices.Equal(got, want) {
				t.Errorf("findings %v, want %v", got, want)
			}
			if r.Against.Modules[0].Name != o0 {
				t.Errorf("worst is %s, want %s", r.Against.Modules[0].Name, o0)
			}
		})
	}
}

func TestAgainstNothing(t *testing.T) {
	b := newBuild(t, bases["gptq"])
	if got := codes(run(t, b.write(t), lint.Options{Against: t.TempDir()})); !slices.Equal(got, []string{"E_AGAINST"}) {
		t.Errorf("findings %v, want E_AGAINST", got)
	}
}
