package format_test

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"quire/engine/format"
)

// testdata gives the path of a fixture copied into the repository.
func testdata(elem ...string) string {
	return filepath.Join(append([]string{"..", "..", "testdata", "format"}, elem...)...)
}

// shared gives the path of the shared fixtures, or skips naming what is missing.
func shared(t testing.TB, elem ...string) string {
	t.Helper()
	root := os.Getenv("QUIRE_SHARED")
	if root == "" {
		dir, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		for {
			if _, err := os.Stat(filepath.Join(dir, "shared", "fixtures")); err == nil {
				root = filepath.Join(dir, "shared")
				break
			}
			up := filepath.Dir(dir)
			if up == dir {
				t.Skip("shared/fixtures is not here and QUIRE_SHARED does not name it")
			}
			dir = up
		}
	}
	p := filepath.Join(append([]string{root}, elem...)...)
	if _, err := os.Stat(p); err != nil {
		t.Skipf("%s is missing", filepath.Join(elem...))
	}
	return p
}

// readTensors reads a whole safetensors file. An own reader: the format package has none, and the one of the product is
// tested elsewhere.
func readTensors(t testing.TB, path string) map[string]format.TensorData {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(raw)
	var header map[string]struct {
		DType   string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets [2]int `json:"data_offsets"`
	}
	head := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw[8:8+n], &head); err != nil {
		t.Fatal(err)
	}
	delete(head, "__metadata__")
	clean, err := json.Marshal(head)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(clean, &header); err != nil {
		t.Fatal(err)
	}
	out := map[string]format.TensorData{}
	for name, h := range header {
		out[name] = format.TensorData{
			TensorSpec: format.TensorSpec{Name: name, DType: format.DType(h.DType), Shape: h.Shape},
			Data:       raw[8+int(n)+h.Offsets[0] : 8+int(n)+h.Offsets[1]],
		}
	}
	return out
}

func readJSON(t testing.TB, path string, v any) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, v); err != nil {
		t.Fatal(err)
	}
}
