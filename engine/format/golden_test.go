package format_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"quire/engine/format"
	"quire/kernels/dtype"
)

// cases lists the golden cases of a pattern: those copied into the repository, and all of them where the shared fixtures
// are. Each case is the path without extension.
func cases(t *testing.T, pattern string) []string {
	t.Helper()
	var all []string
	seen := map[string]bool{}
	add := func(dir string) {
		found, err := filepath.Glob(filepath.Join(dir, pattern+".safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if base := filepath.Base(f); !seen[base] {
				seen[base] = true
				all = append(all, strings.TrimSuffix(f, ".safetensors"))
			}
		}
	}
	add(testdata("pack"))
	t.Run("shared", func(t *testing.T) { add(shared(t, "fixtures", "quant", "pack")) })
	if len(all) == 0 {
		t.Fatalf("no case matches %s", pattern)
	}
	return all
}

type packOptions struct {
	Options struct {
		Bits      int  `json:"bits"`
		GroupSize int  `json:"group_size"`
		Sym       bool `json:"sym"`
	} `json:"options"`
	Weights struct {
		Bits      int    `json:"num_bits"`
		Symmetric bool   `json:"symmetric"`
		GroupSize *int   `json:"group_size"`
		Strategy  string `json:"strategy"`
	} `json:"weights_args"`
}

func floats(t testing.TB, d format.TensorData) []float32 {
	t.Helper()
	n := len(d.Data) / d.DType.Size()
	out := make([]float32, n)
	for i := range out {
		switch d.DType {
		case format.F32:
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(d.Data[4*i:]))
		case format.F16:
			out[i] = dtype.F16ToF32(binary.LittleEndian.Uint16(d.Data[2*i:]))
		case format.BF16:
			out[i] = dtype.BF16ToF32(binary.LittleEndian.Uint16(d.Data[2*i:]))
		default:
			t.Fatalf("%s is %s", d.Name, d.DType)
		}
	}
	return out
}

func int32s(d format.TensorData) []int32 {
	out := make([]int32, len(d.Data)/4)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(d.Data[4*i:]))
	}
	return out
}

func zerosOf(d format.TensorData) []uint8 {
	out := make([]uint8, 0, len(d.Data)/4)
	for _, z := range int32s(d) {
		out = append(out, uint8(z))
	}
	return out
}

// halfBias is a bias as the peers store it.
func halfBias(t testing.TB, d format.TensorData) *format.TensorData {
	b := &format.TensorData{TensorSpec: format.TensorSpec{DType: format.F16, Shape: d.Shape}}
	for _, v := range floats(t, d) {
		b.Data = binary.LittleEndian.AppendUint16(b.Data, dtype.F32ToF16(v))
	}
	return b
}

// wantTensors compares encoded tensors with golden ones, bytes, dtypes and shapes.
func wantTensors(t *testing.T, got []format.TensorData, want map[string]format.TensorData) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%d tensors, want %d", len(got), len(want))
	}
	for _, g := range got {
		suffix := strings.TrimPrefix(g.Name, "m.")
		w, ok := want[suffix]
		if !ok {
			t.Errorf("unexpected tensor %s", suffix)
			continue
		}
		if g.DType != w.DType || !slices.Equal(g.Shape, w.Shape) || !bytes.Equal(g.Data, w.Data) {
			t.Errorf("%s: %s %v differs from %s %v", suffix, g.DType, g.Shape, w.DType, w.Shape)
		}
	}
}

// wantModule compares what a module says with what another says.
func wantModule(t *testing.T, got, want *format.Module) {
	t.Helper()
	if got.Out != want.Out || got.In != want.In || got.Groups() != want.Groups() {
		t.Fatalf("shape [%d, %d] with %d groups, want [%d, %d] with %d", got.Out, got.In, got.Groups(), want.Out, want.In, want.Groups())
	}
	if !bytes.Equal(got.Codes, want.Codes) {
		t.Error("codes differ")
	}
	for o := range got.Out {
		for g := range got.Groups() {
			if got.Zero(o, g) != want.Zero(o, g) {
				t.Fatalf("zero of output %d, group %d is %d, want %d", o, g, got.Zero(o, g), want.Zero(o, g))
			}
		}
	}
	if !slices.Equal(got.Scales, want.Scales) {
		t.Error("scales differ")
	}
	for i := range got.In {
		if groupOf(got, i) != groupOf(want, i) {
			t.Fatalf("column %d is in group %d, want %d", i, groupOf(got, i), groupOf(want, i))
		}
	}
}

func groupOf(m *format.Module, i int) int {
	if m.GIdx != nil {
		return int(m.GIdx[i])
	}
	if m.Groups() == 1 {
		return 0
	}
	return i / m.GroupSize
}

// rounded gives the scales as a dtype stores them.
func rounded(s []float32, d format.DType) []float32 {
	out := slices.Clone(s)
	for i, v := range out {
		switch d {
		case format.F16:
			out[i] = dtype.F16ToF32(dtype.F32ToF16(v))
		case format.BF16:
			out[i] = dtype.BF16ToF32(dtype.F32ToBF16(v))
		}
	}
	return out
}

func TestGoldenGPTQ(t *testing.T) {
	for _, path := range cases(t, "gptq-w[2348]*") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			var opt packOptions
			readJSON(t, path+".json", &opt)
			f := readTensors(t, path+".safetensors")
			codes := f["codes"]
			m := &format.Module{Name: "m", Out: codes.Shape[0], In: codes.Shape[1], Bits: opt.Options.Bits, GroupSize: opt.Options.GroupSize,
				Sym: opt.Options.Sym, Codes: codes.Data, Scales: floats(t, f["scales_f32"]), Zeros: zerosOf(f["zeros"]),
				GIdx: int32s(f["v2.g_idx"]), Bias: halfBias(t, f["bias_f32"])}
			stored := *m
			stored.Scales = rounded(m.Scales, format.F16)
			for _, version := range []string{"gptq_v2", "gptq"} {
				fm, err := format.Lookup(version)
				if err != nil {
					t.Fatal(err)
				}
				want := map[string]format.TensorData{"qweight": f["v2.qweight"], "qzeros": f["v2.qzeros"], "scales": f["v2.scales"], "g_idx": f["v2.g_idx"], "bias": f["v2.bias"]}
				got, err := fm.Encode(m)
				if version == "gptq" {
					if strings.HasSuffix(path, "-zero0") {
						// The library subtracts from whole words and borrows; there is no right v1 spelling of a zero of 0.
						if e := new(format.Error); !errors.As(err, &e) || e.Code != "E1507" {
							t.Fatalf("v1 with a zero of 0: %v, want E1507", err)
						}
						continue
					}
					want["qzeros"] = f["v1.qzeros"]
				}
				if err != nil {
					t.Fatal(err)
				}
				wantTensors(t, got, want)
				back, err := fm.Decode("m", m.Scheme(), got)
				if err != nil {
					t.Fatal(err)
				}
				wantModule(t, back, &stored)
			}
		})
	}
}

func TestGoldenAWQ(t *testing.T) {
	fm, err := format.Lookup("awq")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range cases(t, "awq-gemm*") {
		t.Run(filepath.Base(path), func(t *testing.T) {
			var opt packOptions
			readJSON(t, path+".json", &opt)
			f := readTensors(t, path+".safetensors")
			codes := f["codes"]
			m := &format.Module{Name: "m", Out: codes.Shape[0], In: codes.Shape[1], Bits: opt.Options.Bits, GroupSize: opt.Options.GroupSize,
				Sym: opt.Options.Sym, Codes: codes.Data, Scales: floats(t, f["scales_f16"]), Zeros: zerosOf(f["zeros"]), ScaleDType: format.F16,
				Bias: halfBias(t, f["bias_f32"])}
			got, err := fm.Encode(m)
			if err != nil {
				t.Fatal(err)
			}
			wantTensors(t, got, map[string]format.TensorData{"qweight": f["packed.qweight"], "qzeros": f["packed.qzeros"], "scales": f["packed.scales"], "bias": f["packed.bias"]})
			back, err := fm.Decode("m", m.Scheme(), got)
			if err != nil {
				t.Fatal(err)
			}
			wantModule(t, back, m)
		})
	}
}

// TestGoldenCompressedTensors derives the module from the library's own parameters and weights, writes it and compares
// bytes; then reads the library's tensors and compares with the library's dequantized weights.
func TestGoldenCompressedTensors(t *testing.T) {
	for pattern, name := range map[string]string{"ct-pack-w*": "compressed-tensors", "ct-int-w*": "compressed-tensors-w8a8"} {
		fm, err := format.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range cases(t, pattern) {
			t.Run(filepath.Base(path), func(t *testing.T) {
				var opt packOptions
				readJSON(t, path+".json", &opt)
				f := readTensors(t, path+".safetensors")
				s := format.Scheme{Bits: opt.Weights.Bits, GroupSize: -1, Sym: opt.Weights.Symmetric}
				if opt.Weights.GroupSize != nil {
					s.GroupSize = *opt.Weights.GroupSize
				}
				var tensors []format.TensorData
				want := map[string]format.TensorData{}
				for k, d := range f {
					if suffix, ok := strings.CutPrefix(k, "out."); ok {
						want[suffix] = d
						d.Name = "m." + suffix
						tensors = append(tensors, d)
					}
				}
				m, err := fm.Decode("m", s, tensors)
				if err != nil {
					t.Fatal(err)
				}
				// Codes and zeros by the definition of the library: round(w/scale + zero point), clamped, in float32 of the
				// weights' dtype; here only their agreement with the dequantized weights is needed.
				checkLibraryWeights(t, m, f)
				if opt.Weights.Strategy == "tensor" {
					return // read, never written
				}
				got, err := fm.Encode(m)
				if err != nil {
					t.Fatal(err)
				}
				if shape, ok := want["weight_shape"]; ok { // the pack function gives int32, a checkpoint holds int64
					wide := format.TensorData{TensorSpec: format.TensorSpec{DType: format.I64, Shape: []int{2}}}
					for _, d := range int32s(shape) {
						wide.Data = binary.LittleEndian.AppendUint64(wide.Data, uint64(d))
					}
					want["weight_shape"] = wide
				}
				wantTensors(t, got, want)
			})
		}
	}
}

// checkLibraryWeights compares the decoded module with what the library says: zero points from its parameters, and
// weights from its decompression (or, without one, half a step from the original).
func checkLibraryWeights(t *testing.T, m *format.Module, f map[string]format.TensorData) {
	t.Helper()
	zp := f["param.weight_zero_point"].Data
	for o := range m.Out {
		for g := range m.Groups() {
			i := o*m.Groups() + g
			if len(zp) == 1 {
				i = 0
			}
			if i < len(zp) && m.Zero(o, g) != int(int8(zp[i]))+1<<(m.Bits-1) {
				t.Fatalf("zero of output %d, group %d is %d, the library has %d", o, g, m.Zero(o, g), int8(zp[i]))
			}
		}
	}
	w := make([]float32, m.Out*m.In)
	m.Dequantize(w)
	if d, ok := f["dequantized"]; ok {
		want := floats(t, d)
		for i := range w {
			if got := rounded(w[i:i+1], d.DType)[0]; got != want[i] {
				t.Fatalf("weight %d is %g, the library decompresses to %g", i, got, want[i])
			}
		}
	}
	in := floats(t, f["in.weight"])
	for o := range m.Out {
		for i := range m.In {
			step := float64(m.Scales[o*m.Groups()+groupOf(m, i)])
			if d := math.Abs(float64(w[o*m.In+i] - in[o*m.In+i])); d > 0.75*step+1e-6 {
				t.Fatalf("weight [%d, %d] is %g, the source has %g, step %g", o, i, w[o*m.In+i], in[o*m.In+i], step)
			}
		}
	}
}

// TestGoldenBitStream compares the bit stream itself, including lengths that do not fill a word.
func TestGoldenBitStream(t *testing.T) {
	for _, path := range cases(t, "ct-pack-to-int32") {
		f := readTensors(t, path+".safetensors")
		for bits := 2; bits <= 8; bits++ {
			for _, cols := range []string{"c32", "c45"} {
				key := "b" + string(rune('0'+bits)) + "." + cols
				v := f[key+".values"]
				m := &format.Module{Name: "m", Out: v.Shape[0], In: v.Shape[1], Bits: bits, GroupSize: -1, Sym: true,
					Codes: make([]uint8, len(v.Data)), Scales: slices.Repeat([]float32{1}, v.Shape[0])}
				for i, b := range v.Data {
					m.Codes[i] = b + 1<<(bits-1)
				}
				fm, _ := format.Lookup("compressed-tensors")
				got, err := fm.Encode(m)
				if err != nil {
					t.Fatal(key, err)
				}
				if !bytes.Equal(got[0].Data, f[key+".packed"].Data) {
					t.Errorf("%s differs", key)
				}
			}
		}
	}
}
