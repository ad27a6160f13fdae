package dtype_test

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"quire/kernels/dtype"
)

// table reads the tensors of a small safetensors file as bytes.
func table(t *testing.T, path string) map[string][]byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(b)
	var header map[string]struct {
		Offsets [2]int `json:"data_offsets"`
	}
	if err := json.Unmarshal(b[8:8+n], &header); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	tensors := map[string][]byte{}
	for name, h := range header {
		tensors[name] = b[8+n:][h.Offsets[0]:h.Offsets[1]]
	}
	return tensors
}

func float32sOf(b []byte) []float32 {
	x := make([]float32, len(b)/4)
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return x
}

// tableDirs are the part of the published tables kept in the repository, and all of them where
// the shared directory is there.
func tableDirs(t *testing.T) []string {
	dirs := []string{filepath.Join("..", "..", "testdata", "dtype")}
	root := os.Getenv("QUIRE_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared")
	}
	whole := filepath.Join(root, "fixtures", "quant", "tables")
	if _, err := os.Stat(whole); err != nil {
		t.Log("without the whole tables: shared/fixtures/quant is not here and QUIRE_SHARED does not name it")
		return dirs
	}
	return append(dirs, whole)
}

// The code tables of torch and compressed-tensors.
func TestPublishedCodes(t *testing.T) {
	for _, dir := range tableDirs(t) {
		codes := table(t, filepath.Join(dir, "codes.safetensors"))
		for name, decode := range map[string]func(byte) float32{
			"e4m3_value": dtype.E4M3ToF32, "e5m2_value": dtype.E5M2ToF32, "e2m1_value": dtype.E2M1ToF32, "e8m0_value_torch": dtype.E8M0ToF32,
		} {
			values := float32sOf(codes[name])
			want := 256
			if name == "e2m1_value" {
				want = 16
			}
			if len(values) != want {
				t.Fatalf("%s has %d values", name, len(values))
			}
			for c, v := range values {
				if got := decode(byte(c)); !same(got, float64(v)) {
					t.Errorf("%s of code %#x: %g, published %g", name, c, got, v)
				}
			}
		}
	}
}

// The rounding vectors of torch, ModelOpt and compressed-tensors. The last two write -0 as code 0, which
// their callers here do before encoding (doc.go).
func TestPublishedRounding(t *testing.T) {
	for _, dir := range tableDirs(t) {
		for _, c := range []struct {
			file, codes string
			encode      func(float32) byte
			clearsZero  bool
		}{
			{"round-e4m3", "torch_cast", dtype.F32ToE4M3, false},
			{"round-e2m1-modelopt", "nvfp4_code", dtype.F32ToE2M1, true},
			{"round-e2m1-ct", "ct_code", dtype.F32ToE2M1, true},
		} {
			tensors := table(t, filepath.Join(dir, c.file+".safetensors"))
			x, codes := float32sOf(tensors["x"]), tensors[c.codes]
			if len(x) == 0 || len(x) != len(codes) {
				t.Fatalf("%s: %d values, %d codes", c.file, len(x), len(codes))
			}
			for i, v := range x {
				if c.clearsZero && v == 0 {
					v = float32(math.Abs(float64(v)))
				}
				if got := c.encode(v); got != codes[i] {
					t.Errorf("%s/%s: %g (%#08x): code %#x, published %#x", filepath.Base(dir), c.file, v, math.Float32bits(v), got, codes[i])
				}
			}
		}
	}
}
