package checkpoint_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"quire/capture/checkpoint"
	"quire/kernels/dtype"
)

// shared finds the folder of large fixtures: env QUIRE_SHARED, else ../shared beside the repository.
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

// stored is one tensor with its bytes.
type stored struct {
	checkpoint.TensorSpec
	data []byte
}

// load reads every tensor of one file.
func load(t *testing.T, path string) map[string]stored {
	t.Helper()
	f, err := checkpoint.OpenShard(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string]stored{}
	for _, x := range f.Tensors() {
		b := make([]byte, x.Bytes())
		if err := f.ReadAt(x, b, 0); err != nil {
			t.Fatal(err)
		}
		out[x.Name] = stored{checkpoint.TensorSpec{Name: x.Name, DType: x.DType, Shape: x.Shape}, b}
	}
	return out
}

// write makes a one-file checkpoint of tensors and a config.
func write(t *testing.T, dir, config string, tensors ...stored) string {
	t.Helper()
	shard(t, dir, "model.safetensors", tensors...)
	file(t, dir, "config.json", config)
	return dir
}

func shard(t *testing.T, dir, name string, tensors ...stored) {
	t.Helper()
	specs := make([]checkpoint.TensorSpec, len(tensors))
	for i, x := range tensors {
		specs[i] = x.TensorSpec
	}
	w, err := checkpoint.CreateShard(dir, name, specs)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range tensors {
		if err := w.Write(x.Name, x.data); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func file(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func tensor(name string, d checkpoint.DType, data []byte, shape ...int) stored {
	return stored{checkpoint.TensorSpec{Name: name, DType: d, Shape: shape}, data}
}

// named gives a tensor another name.
func (s stored) named(name string) stored { s.Name = name; return s }

func open(t *testing.T, dir string) *checkpoint.Source {
	t.Helper()
	src, err := checkpoint.Open(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { src.Close() })
	return src
}

// values are a plain stored tensor's numbers, by the scalar definitions of kernels/dtype.
func (s stored) values() []float32 {
	var out []float32
	switch s.DType {
	case checkpoint.F32:
		for i := 0; i < len(s.data); i += 4 {
			out = append(out, math.Float32frombits(binary.LittleEndian.Uint32(s.data[i:])))
		}
	case checkpoint.BF16:
		for i := 0; i < len(s.data); i += 2 {
			out = append(out, dtype.BF16ToF32(binary.LittleEndian.Uint16(s.data[i:])))
		}
	case checkpoint.F16:
		for i := 0; i < len(s.data); i += 2 {
			out = append(out, dtype.F16ToF32(binary.LittleEndian.Uint16(s.data[i:])))
		}
	case checkpoint.F8E4M3:
		for _, b := range s.data {
			out = append(out, dtype.E4M3ToF32(b))
		}
	case checkpoint.U8:
		for _, b := range s.data {
			out = append(out, float32(b))
		}
	case checkpoint.I8:
		for _, b := range s.data {
			out = append(out, float32(int8(b)))
		}
	case checkpoint.I32:
		for i := 0; i < len(s.data); i += 4 {
			out = append(out, float32(int32(binary.LittleEndian.Uint32(s.data[i:]))))
		}
	}
	return out
}

// bits compares floats by their bits, NaN equal to NaN.
func bits(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] && !(got[i] != got[i] && want[i] != want[i]) {
			t.Fatalf("%s: element %d is %v (%08x), want %v (%08x)", what, i, got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
		}
	}
}

// decodeAll reads a logical tensor whole, then in odd pieces and as bf16, and compares the three.
func decodeAll(t *testing.T, src *checkpoint.Source, name string) []float32 {
	t.Helper()
	ctx := context.Background()
	n := -1
	for _, l := range src.Logical() {
		if l.Name == name {
			n = 1
			for _, d := range l.Shape {
				n *= d
			}
		}
	}
	if n < 0 {
		t.Fatalf("no logical tensor %s", name)
	}
	all := make([]float32, n)
	if err := src.DecodeF32(ctx, name, all, 0); err != nil {
		t.Fatal(err)
	}
	pieces := make([]float32, n)
	for at, k := 0, 1; at < n; at, k = at+k, k*3+5 {
		k = min(k, n-at)
		if err := src.DecodeF32(ctx, name, pieces[at:at+k], int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	bits(t, name+" in pieces", pieces, all)
	half := make([]uint16, n)
	if err := src.DecodeBF16(ctx, name, half, 0); err != nil {
		t.Fatal(err)
	}
	for i := range half {
		if want := dtype.F32ToBF16(all[i]); half[i] != want && all[i] == all[i] {
			t.Fatalf("%s: bf16 element %d is %04x, want %04x", name, i, half[i], want)
		}
	}
	return all
}

func readJSON(t *testing.T, path string, v any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}
