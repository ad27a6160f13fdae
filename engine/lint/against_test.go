package lint_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"quire/engine/format"
	"quire/engine/lint"
)

// originalOf writes the unquantized model that a build came from: dequantized weights in float32. With fused, the experts
// stand in 3-D tensors, as [experts, 2·width, hidden] or transposed.
func originalOf(t *testing.T, b *build, fused, transposed bool) string {
	t.Helper()
	o := *b
	o.tensors, o.quant, o.shards = map[string]format.TensorData{}, nil, 1
	o.config = map[string]any{"model_type": "qwen3_moe"}
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
			both := slices.Concat(deq[q+"gate_proj"], deq[q+"up_proj"])
			if transposed {
				both = transpose(both, 2*width, hidden)
			}
			gateUp = append(gateUp, both...)
			d := deq[q+"down_proj"]
			if transposed {
				d = transpose(d, hidden, width)
			}
			down = append(down, d...)
		}
		shape, dshape := []int{experts, 2 * width, hidden}, []int{experts, hidden, width}
		if transposed {
			shape, dshape = []int{experts, hidden, 2 * width}, []int{experts, width, hidden}
		}
		o.tensors[p+"gate_up_proj"] = format.TensorData{TensorSpec: format.TensorSpec{DType: format.F32, Shape: shape}, Data: floats(gateUp)}
		o.tensors[p+"down_proj"] = format.TensorData{TensorSpec: format.TensorSpec{DType: format.F32, Shape: dshape}, Data: floats(down)}
	}
	return o.write(t)
}

func transpose(w []float32, rows, cols int) []float32 {
	out := make([]float32, len(w))
	for r := range rows {
		for c := range cols {
			out[c*rows+r] = w[r*cols+c]
		}
	}
	return out
}

func TestAgainstOriginal(t *testing.T) {
	for _, layout := range []struct {
		name              string
		fused, transposed bool
	}{{"by expert", false, false}, {"fused", true, false}, {"fused and transposed", true, true}} {
		t.Run(layout.name, func(t *testing.T) {
			b := newBuild(t, bases["ct"])
			for _, m := range b.modules { // as stored: bf16 scales
				for i, s := range m.Scales {
					m.Scales[i] = math.Float32frombits((math.Float32bits(s) + 0x7FFF + math.Float32bits(s)>>16&1) &^ 0xFFFF)
				}
			}
			original := originalOf(t, b, layout.fused, layout.transposed)
			r := run(t, b.write(t), lint.Options{Against: original})
			if r.Failed() {
				t.Errorf("findings %v", codes(r))
			}
			if n := len(r.Against.Modules); n != len(b.modules) || r.Against.Modules[0].Relative != 0 {
				t.Errorf("%d modules, worst error %g; want %d and 0", n, r.Against.Modules[0].Relative, len(b.modules))
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
