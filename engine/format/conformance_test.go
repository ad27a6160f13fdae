package format_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"quire/engine/format"
)

// drawModule draws a module that the format can write.
func drawModule(t *rapid.T, f format.Format) *format.Module {
	m := &format.Module{Name: "model.layers.0.mlp.experts.3.up_proj"}
	m.Sym = rapid.Bool().Draw(t, "sym")
	m.ScaleDType = rapid.SampledFrom([]format.DType{"", format.F16, format.BF16, format.F32}).Draw(t, "scale dtype")
	unit := 1
	switch f.Name() {
	case "compressed-tensors":
		m.Bits = rapid.IntRange(2, 8).Draw(t, "bits")
	case "compressed-tensors-w8a8":
		m.Bits = 8
	case "awq":
		m.Bits, unit = 4, 8
	default:
		m.Bits, unit = rapid.SampledFrom([]int{2, 3, 4, 8}).Draw(t, "bits"), 32
	}
	m.GroupSize = rapid.SampledFrom([]int{-1, 16, 32, 40, 64}).Draw(t, "group size")
	if f.Name() == "compressed-tensors-w8a8" {
		m.GroupSize = -1
	}
	m.Out = unit * rapid.IntRange(1, 100/unit+1).Draw(t, "out")
	if m.In = unit * rapid.IntRange(1, 100/unit+1).Draw(t, "in"); m.GroupSize > 0 && unit != 32 {
		m.In = m.GroupSize * rapid.IntRange(1, 5).Draw(t, "groups")
	}
	g := m.Groups()
	src := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	m.Codes = make([]uint8, m.Out*m.In)
	for i := range m.Codes {
		m.Codes[i] = uint8(src.IntN(m.MaxQ() + 1))
	}
	m.Scales = make([]float32, m.Out*g)
	for i := range m.Scales {
		m.Scales[i] = float32(src.Float64()*2 + 1e-3)
	}
	stored := f.StoredScale(m.ScaleDType)
	m.Scales = rounded(m.Scales, m.ScaleDType)
	if m.ScaleDType != stored {
		m.Scales = rounded(m.Scales, stored)
		m.ScaleDType = stored
	}
	if !m.Sym {
		lowest := 0
		if f.Name() == "gptq" {
			lowest = 1
		}
		m.Zeros = make([]uint8, m.Out*g)
		for i := range m.Zeros {
			m.Zeros[i] = uint8(lowest + src.IntN(m.MaxQ()+1-lowest))
		}
	}
	if unit == 32 && rapid.Bool().Draw(t, "act order") {
		m.GIdx = make([]int32, m.In)
		for i, p := range src.Perm(m.In) {
			if m.GroupSize > 0 {
				m.GIdx[i] = int32(p / m.GroupSize)
			}
		}
	}
	if rapid.Bool().Draw(t, "bias") {
		b := make([]byte, 2*m.Out)
		for i := range b {
			b[i] = byte(src.Uint32())
		}
		m.Bias = &format.TensorData{TensorSpec: format.TensorSpec{Name: m.Name + ".bias", DType: format.BF16, Shape: []int{m.Out}}, Data: b}
	}
	return m
}

// TestRoundTrip: what is written is what was planned, and reads back as what was given, for every format.
func TestRoundTrip(t *testing.T) {
	for _, f := range format.All() {
		t.Run(f.Name(), func(t *testing.T) { rapid.Check(t, func(t *rapid.T) { roundTrip(t, f) }) })
	}
}

// FuzzRoundTrip is TestRoundTrip with formats, bits, shapes and contents drawn by the fuzzer.
func FuzzRoundTrip(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) { roundTrip(t, rapid.SampledFrom(format.All()).Draw(t, "format")) }))
}

func roundTrip(t *rapid.T, f format.Format) {
	m := drawModule(t, f)
	dims := *m
	dims.Codes, dims.Scales, dims.Zeros = nil, nil, nil // a plan needs no content
	specs, err := f.Plan(&dims)
	if err != nil {
		t.Fatal(err)
	}
	got, err := f.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range specs {
		if got[i].Name != s.Name || got[i].DType != s.DType || !slices.Equal(got[i].Shape, s.Shape) || int64(len(got[i].Data)) != s.Bytes() {
			t.Fatalf("wrote %v of %d bytes, planned %v of %d", got[i].TensorSpec, len(got[i].Data), s, s.Bytes())
		}
	}
	if !slices.IsSortedFunc(specs, func(a, b format.TensorSpec) int { return strings.Compare(a.Name, b.Name) }) {
		t.Fatal("tensors are not in order of name")
	}
	rand.Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
	back, err := f.Decode(m.Name, m.Scheme(), got)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(back.Codes, m.Codes) || !slices.Equal(back.Scales, m.Scales) || back.ScaleDType != m.ScaleDType {
		t.Fatal("codes or scales differ")
	}
	a, b := make([]float32, m.Out*m.In), make([]float32, m.Out*m.In)
	m.Dequantize(a)
	back.Dequantize(b)
	if !slices.Equal(a, b) {
		t.Fatal("weights differ")
	}
	if (back.Bias == nil) != (m.Bias == nil) || m.Bias != nil && !bytes.Equal(back.Bias.Data, m.Bias.Data) {
		t.Fatal("bias differs")
	}
}

// TestDequantizeDefinition: w = scale·(code − zero), written out.
func TestDequantizeDefinition(t *testing.T) {
	m := &format.Module{Name: "m", Out: 2, In: 4, Bits: 4, GroupSize: 2, Codes: []uint8{0, 15, 7, 8, 1, 2, 3, 4}, Scales: []float32{0.5, 2, 1, 0.25}, Zeros: []uint8{8, 0, 15, 4}}
	want := []float32{-4, 3.5, 14, 16, -14, -13, -0.25, 0}
	got := make([]float32, 8)
	m.Dequantize(got)
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	m.GIdx = []int32{1, 0, 1, 0}
	want = []float32{0, 3.5, 14, 0, -0.75, -13, -0.25, -11}
	m.Dequantize(got)
	if !slices.Equal(got, want) {
		t.Errorf("with g_idx %v, want %v", got, want)
	}
}

// base is a valid module for a format, to be spoiled.
func base(f format.Format) *format.Module {
	s := schemeFor(f.Name())
	if s.GroupSize > 0 {
		s.GroupSize = 32
	}
	m := &format.Module{Name: "m", Out: 32, In: 64, Bits: s.Bits, GroupSize: s.GroupSize, Sym: false, Codes: make([]uint8, 32*64), ScaleDType: ""}
	m.Scales = slices.Repeat([]float32{0.5}, 32*m.Groups())
	m.Zeros = slices.Repeat([]uint8{3}, 32*m.Groups())
	return m
}

// TestRefusals: what no server could use never becomes bytes.
func TestRefusals(t *testing.T) {
	for _, f := range format.All() {
		for _, c := range []struct {
			name, code string
			only       string
			spoil      func(*format.Module)
		}{
			{"code off the grid", "E1506", "gptq gptq_v2 awq compressed-tensors", func(m *format.Module) { m.Codes[70] = 16 }},
			{"last code off the grid", "E1506", "gptq gptq_v2 awq compressed-tensors", func(m *format.Module) { m.Codes[len(m.Codes)-1] = 255 }},
			{"zero off the grid", "E1507", "gptq gptq_v2 awq compressed-tensors", func(m *format.Module) { m.Zeros[1] = 16 }},
			{"zero of 0 in v1", "E1507", "gptq", func(m *format.Module) { m.Zeros[1] = 0 }},
			{"symmetric with another zero", "E1507", "", func(m *format.Module) { m.Sym = true }},
			{"scale zero", "E1508", "", func(m *format.Module) { m.Scales[3] = 0 }},
			{"scale negative", "E1508", "", func(m *format.Module) { m.Scales[3] = -1 }},
			{"scale NaN", "E1508", "", func(m *format.Module) { m.Scales[3] = float32(math.NaN()) }},
			{"scale infinite", "E1508", "", func(m *format.Module) { m.Scales[3] = float32(math.Inf(1)) }},
			{"scale underflows in float16", "E1508", "gptq gptq_v2 awq", func(m *format.Module) { m.Scales[3] = 1e-9 }},
			{"scale overflows in float16", "E1508", "gptq gptq_v2 awq", func(m *format.Module) { m.Scales[3] = 1e6 }},
			{"rounded scale changed by the cast", "E1508", "gptq gptq_v2", func(m *format.Module) { m.ScaleDType, m.Scales[3] = format.BF16, 0x1.02p-20 }},
			{"short codes", "E1505", "", func(m *format.Module) { m.Codes = m.Codes[1:] }},
			{"short zeros", "E1505", "", func(m *format.Module) { m.Zeros = m.Zeros[1:] }},
			{"group out of range", "E1505", "gptq gptq_v2", func(m *format.Module) { m.GIdx = slices.Repeat([]int32{9}, 64) }},
			{"act order", "E1510", "awq compressed-tensors compressed-tensors-w8a8", func(m *format.Module) { m.GIdx = slices.Repeat([]int32{1, 0}, 32) }},
			{"group does not divide", "E1503", "awq compressed-tensors", func(m *format.Module) { m.GroupSize = 48 }},
			{"group size zero", "E1503", "", func(m *format.Module) { m.GroupSize = 0 }},
			{"nine bits", "E1502", "", func(m *format.Module) { m.Bits = 9 }},
			{"five bits", "E1502", "gptq gptq_v2 awq compressed-tensors-w8a8", func(m *format.Module) { m.Bits = 5 }},
			{"outputs do not fill a word", "E1509", "gptq gptq_v2 awq", func(m *format.Module) { m.Out = 31 }},
			{"empty", "E1501", "", func(m *format.Module) { m.Out = 0 }},
			{"scales of float32", "E1504", "gptq gptq_v2 awq", func(m *format.Module) { m.ScaleDType = format.F32 }},
			{"scale dtype", "E1504", "", func(m *format.Module) { m.ScaleDType = format.I8 }},
		} {
			if c.only != "" && !slices.Contains(strings.Fields(c.only), f.Name()) {
				continue
			}
			m := base(f)
			if _, err := f.Encode(m); err != nil {
				t.Fatalf("%s: the unspoiled module: %v", f.Name(), err)
			}
			c.spoil(m)
			var e *format.Error
			if _, err := f.Encode(m); !errors.As(err, &e) || e.Code != c.code || !errors.Is(err, format.ErrModule) || e.Remedy() == "" {
				t.Errorf("%s, %s: %v, want %s", f.Name(), c.name, err, c.code)
			}
			if format.Catalogue()[c.code] == "" {
				t.Errorf("%s is not in the catalogue", c.code)
			}
		}
	}
}

// TestDecodeDamaged: tensors of another shape, dtype or length are errors, never panics.
func TestDecodeDamaged(t *testing.T) {
	for _, f := range format.All() {
		m := base(f)
		whole, err := f.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		for i := range whole {
			for what, spoil := range map[string]func(*format.TensorData){
				"missing":        func(d *format.TensorData) { d.Name = "m.other" },
				"other dtype":    func(d *format.TensorData) { d.DType = "F8_E4M3" },
				"one more row":   func(d *format.TensorData) { d.Shape = append([]int{d.Shape[0] + 1}, d.Shape[1:]...) },
				"one dimension":  func(d *format.TensorData) { d.Shape = []int{d.Shape[0], 1, 1, 1} },
				"negative shape": func(d *format.TensorData) { d.Shape = append([]int{-d.Shape[0]}, d.Shape[1:]...) },
				"short data":     func(d *format.TensorData) { d.Data = d.Data[:len(d.Data)-1] },
				"no data":        func(d *format.TensorData) { d.Data = nil },
			} {
				spoiled := slices.Clone(whole)
				spoil(&spoiled[i])
				if what == "missing" && strings.HasSuffix(whole[i].Name, "g_idx") {
					continue // natural groups
				}
				if _, err := f.Decode("m", m.Scheme(), spoiled); !errors.Is(err, format.ErrModule) {
					t.Errorf("%s, %s %s: %v", f.Name(), whole[i].Name, what, err)
				}
			}
		}
		for _, s := range []format.Scheme{{}, {Bits: -1}, {Bits: 33, GroupSize: 32}, {Bits: 4, GroupSize: -7}, {Bits: 3, GroupSize: 5}} {
			if _, err := f.Decode("m", s, whole); err == nil {
				t.Errorf("%s: scheme %v is accepted", f.Name(), s)
			}
		}
	}
}

// TestGIdxWraps: negative groups count from the end, as the kernels index.
func TestGIdxWraps(t *testing.T) {
	f, err := format.Lookup("gptq_v2")
	if err != nil {
		t.Fatal(err)
	}
	m := base(f)
	got, err := f.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if strings.HasSuffix(got[i].Name, "g_idx") {
			minus := int32(-2)
			binary.LittleEndian.PutUint32(got[i].Data[4*63:], uint32(minus))
		}
	}
	back, err := f.Decode("m", m.Scheme(), got)
	if err != nil {
		t.Fatal(err)
	}
	if back.GIdx[63] != 0 {
		t.Errorf("group −2 of 2 is %d, want 0", back.GIdx[63])
	}
}

// TestReadsCompressedTensorsGIdx: weight_g_idx is read though never written, and says the group of each column.
func TestReadsCompressedTensorsGIdx(t *testing.T) {
	f, err := format.Lookup("compressed-tensors")
	if err != nil {
		t.Fatal(err)
	}
	m := base(f)
	for i := range m.Scales {
		m.Scales[i] = float32(1 + i%2) // group 0: 1, group 1: 2
	}
	tensors, err := f.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	gidx := format.TensorData{TensorSpec: format.TensorSpec{Name: "m.weight_g_idx", DType: format.I32, Shape: []int{64}}, Data: make([]byte, 4*64)}
	for i := range 64 {
		binary.LittleEndian.PutUint32(gidx.Data[4*i:], uint32(i%2))
	}
	back, err := f.Decode("m", m.Scheme(), append(tensors, gidx))
	if err != nil {
		t.Fatal(err)
	}
	w := make([]float32, 32*64)
	back.Dequantize(w)
	for i, v := range w[:64] {
		if want := float32(-3 * (1 + i%2)); v != want { // code 0, zero 3
			t.Fatalf("column %d is %g, want %g", i, v, want)
		}
	}
	binary.LittleEndian.PutUint32(gidx.Data, 2)
	if _, err := f.Decode("m", m.Scheme(), append(tensors, gidx)); !errors.Is(err, format.ErrModule) {
		t.Errorf("group 2 of 2: %v", err)
	}
}

// FuzzDecode: no tensors make a reader panic.
func FuzzDecode(f *testing.F) {
	for i, fm := range format.All() {
		m := base(fm)
		tensors, err := fm.Encode(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(i), byte(m.Bits), int16(m.GroupSize), uint8(0), int8(0), tensors[len(tensors)-1].Data)
	}
	f.Fuzz(func(_ *testing.T, which, bits byte, group int16, tensor uint8, grow int8, data []byte) {
		all := format.All()
		fm := all[int(which)%len(all)]
		m := base(fm)
		tensors, err := fm.Encode(m)
		if err != nil {
			panic(err)
		}
		d := &tensors[int(tensor)%len(tensors)]
		d.Shape = slices.Clone(d.Shape)
		d.Shape[0] += int(grow)
		if len(data) > 0 {
			d.Data = data
		}
		_, _ = fm.Decode("m", format.Scheme{Bits: int(bits), GroupSize: int(group)}, tensors)
	})
}

// naive packs codes one at a time, the way the layouts are defined: the alternative that Encode is measured against.
func naive(codes []uint8, bits int) []uint32 {
	out := make([]uint32, (len(codes)*bits+31)/32)
	for i, c := range codes {
		at := i * bits
		out[at/32] |= uint32(c) << (at % 32)
		if at%32+bits > 32 {
			out[at/32+1] |= uint32(c) >> (32 - at%32)
		}
	}
	return out
}

// BenchmarkEncode counts bytes of bf16 source weights: packing must not hold up a run that reads them at 1 GB/s a core.
// ×naive is the time of packing code by code over that of Encode, in the same process, taken in turns.
func BenchmarkEncode(b *testing.B) {
	for _, f := range format.All() {
		for _, bits := range []int{4, 8, 3} {
			m := &format.Module{Name: "m", Out: 2048, In: 2048, Bits: bits, GroupSize: 128, Sym: true}
			if f.Name() == "compressed-tensors-w8a8" {
				m.GroupSize = -1
			}
			if f.Check(m, true) != nil {
				continue
			}
			m.Codes = make([]uint8, m.Out*m.In)
			for i := range m.Codes {
				m.Codes[i] = uint8(i*7) & uint8(m.MaxQ())
			}
			m.Scales = slices.Repeat([]float32{0.5}, m.Out*m.Groups())
			b.Run(fmt.Sprintf("%s/w%d", f.Name(), bits), func(b *testing.B) {
				b.SetBytes(int64(2 * m.Out * m.In))
				var ours, theirs time.Duration
				for b.Loop() {
					start := time.Now()
					if _, err := f.Encode(m); err != nil {
						b.Fatal(err)
					}
					ours += time.Since(start)
					b.StopTimer()
					start = time.Now()
					naive(m.Codes, bits)
					theirs += time.Since(start)
					b.StartTimer()
				}
				b.ReportMetric(float64(theirs)/float64(ours), "×naive")
			})
		}
	}
}
