package checkpoint_test

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"quire/capture/checkpoint"
)

// FuzzHeader opens arbitrary bytes as a shard: an error or a consistent list, never a panic.
func FuzzHeader(f *testing.F) {
	for _, h := range []string{`{}`, `{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, `{"__metadata__":null}`, `{"a":{"shape":[18446744073709551615]}}`, `{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}`} {
		f.Add([]byte(h), uint64(len(h)), 4)
	}
	f.Fuzz(func(t *testing.T, header []byte, n uint64, data int) {
		if data < 0 || data > 64 {
			return
		}
		p := filepath.Join(t.TempDir(), "x.safetensors")
		if err := os.WriteFile(p, append(append(binary.LittleEndian.AppendUint64(nil, n), header...), make([]byte, data)...), 0o644); err != nil {
			t.Fatal(err)
		}
		s, err := checkpoint.OpenShard(p)
		if err != nil {
			return
		}
		defer s.Close()
		at := int64(0)
		for _, x := range s.Tensors() {
			if x.Begin != at || x.End < x.Begin {
				t.Fatalf("accepted a hole or an overlap: %+v at %d", x, at)
			}
			at = x.End
			if err := s.ReadAt(x, make([]byte, x.Bytes()), 0); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// FuzzIndex opens a checkpoint with an arbitrary index.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"weight_map":{"a":"model-00001-of-00002.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../x"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		raw(t, dir, one, "{"+entry("a", "F32", "[2]", 0, 8)+"}", 8)
		file(t, dir, "config.json", "{}")
		file(t, dir, "model.safetensors.index.json", string(b))
		if src, err := checkpoint.Open(t.Context(), dir); err == nil {
			src.Close()
		}
	})
}

// FuzzConfig edits arbitrary JSON: what was valid stays valid, and the new member reads back.
func FuzzConfig(f *testing.F) {
	for _, c := range []string{`{}`, `{"a":1}`, `{ "quantization_config" : null , "b" : [ ] }`, "{\n\"text_config\":{\"quantization_config\":{}}}", `{"a":NaN}`, `{"a":"\ud800"}`} {
		f.Add([]byte(c))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		out, err := checkpoint.ReplaceQuantization(b, []byte(`{"bits":4}`))
		if err != nil || !json.Valid(b) {
			return
		}
		var got struct {
			Q struct{ Bits int } `json:"quantization_config"`
		}
		if err := json.Unmarshal(out, &got); err != nil || got.Q.Bits != 4 {
			t.Fatalf("%q became %q: %v", b, out, err)
		}
	})
}

// FuzzPacked opens arbitrary shapes of packed modules and decodes what is accepted: no panic, no read outside a tensor.
func FuzzPacked(f *testing.F) {
	f.Add("weight_packed", "I32", 2, 4, "weight_scale", "BF16", 2, 1, 4, 32)
	f.Add("qweight", "I32", 4, 8, "scales", "F16", 1, 8, 4, 32)
	f.Add("weight", "F8_E4M3", 8, 8, "weight_scale_inv", "F32", 1, 1, 8, 0)
	f.Add("weight", "U8", 4, 16, "weight_scale", "U8", 4, 1, 4, 32)
	f.Fuzz(func(t *testing.T, codes, d string, a, b int, scale, sd string, sa, sb, width, group int) {
		small := func(v int) bool { return v >= 0 && v <= 64 }
		if !small(a) || !small(b) || !small(sa) || !small(sb) || codes == scale {
			return
		}
		parts := []stored{}
		for _, p := range []checkpoint.TensorSpec{{Name: "m." + codes, DType: checkpoint.DType(d), Shape: []int{a, b}}, {Name: "m." + scale, DType: checkpoint.DType(sd), Shape: []int{sa, sb}},
			{Name: "m.qzeros", DType: "I32", Shape: []int{sa, (max(sb*width, 0) + 31) / 32}}} {
			n, ok := p.Bytes()
			if !ok || n > 1<<16 {
				return
			}
			if p.Name == "m.qzeros" && codes != "qweight" {
				continue
			}
			parts = append(parts, stored{p, make([]byte, n)})
		}
		for i := range parts {
			for j := range i {
				if parts[i].Name == parts[j].Name {
					return
				}
			}
		}
		config, err := json.Marshal(map[string]any{"quantization_config": map[string]any{"bits": width, "group_size": group}})
		if err != nil {
			t.Fatal(err)
		}
		src, err := checkpoint.Open(t.Context(), write(t, t.TempDir(), string(config), parts...))
		if err != nil {
			return
		}
		defer src.Close()
		for _, l := range src.Logical() {
			n := 1
			for _, k := range l.Shape {
				n *= k
			}
			if l.Decoded && n <= 1<<16 {
				if err := src.DecodeF32(t.Context(), l.Name, make([]float32, n), 0); err != nil {
					t.Fatalf("%+v: %v", l, err)
				}
			}
		}
	})
}
