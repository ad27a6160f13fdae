package model_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"quire/capture/model"
	"quire/kernels/dtype"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// entry is a tensor of a safetensors file, read with this file's own few lines.
type entry struct {
	dtype string
	shape []int
	data  []byte
}

func (e entry) elements() int {
	n := 1
	for _, d := range e.shape {
		n *= d
	}
	return n
}

// f32 decodes F32, BF16 and I32 entries.
func (e entry) f32() []float32 {
	out := make([]float32, e.elements())
	for i := range out {
		switch e.dtype {
		case "F32":
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(e.data[4*i:]))
		case "BF16":
			out[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(e.data[2*i:])) << 16)
		case "I32":
			out[i] = float32(int32(binary.LittleEndian.Uint32(e.data[4*i:])))
		default:
			panic("dtype " + e.dtype)
		}
	}
	return out
}

func (e entry) i32() []int32 {
	out := make([]int32, e.elements())
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(e.data[4*i:]))
	}
	return out
}

func readShard(t testing.TB, path string, into map[string]entry) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(b)
	var h map[string]json.RawMessage
	if err := json.Unmarshal(b[8:8+n], &h); err != nil {
		t.Fatal(err)
	}
	for name, raw := range h {
		if name == "__metadata__" {
			continue
		}
		var d struct {
			DType   string `json:"dtype"`
			Shape   []int  `json:"shape"`
			Offsets [2]int `json:"data_offsets"`
		}
		if err := json.Unmarshal(raw, &d); err != nil {
			t.Fatal(err)
		}
		into[name] = entry{d.DType, d.Shape, b[8+int(n)+d.Offsets[0] : 8+int(n)+d.Offsets[1]]}
	}
}

// memory is a model.Source in memory; tests bend it.
type memory struct {
	config  []byte
	tensors map[string]entry
}

func (m *memory) ConfigJSON() []byte { return m.config }

func (m *memory) Logical() []model.Tensor {
	var out []model.Tensor
	for n, e := range m.tensors {
		out = append(out, model.Tensor{Name: n, DType: e.dtype, Shape: e.shape})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

func (m *memory) ReadF32(_ context.Context, name string, dst []float32, off int64) error {
	e, ok := m.tensors[name]
	if !ok {
		return fmt.Errorf("no tensor %s", name)
	}
	copy(dst, e.f32()[off:off+int64(len(dst))])
	return nil
}

func (m *memory) ReadBF16(ctx context.Context, name string, dst []uint16, off int64) error {
	f := make([]float32, len(dst))
	if err := m.ReadF32(ctx, name, f, off); err != nil {
		return err
	}
	dtype.EncodeBF16(dst, f)
	return nil
}

// set puts a float32 tensor.
func (m *memory) set(name string, shape []int, v []float32) {
	b := make([]byte, 4*len(v))
	for i, x := range v {
		binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(x))
	}
	m.tensors[name] = entry{"F32", shape, b}
}

func (m *memory) clone() *memory {
	c := &memory{config: slices.Clone(m.config), tensors: map[string]entry{}}
	for n, e := range m.tensors {
		c.tensors[n] = entry{e.dtype, slices.Clone(e.shape), slices.Clone(e.data)}
	}
	return c
}

// edit changes one config key.
func (m *memory) edit(t testing.TB, key string, v any) {
	t.Helper()
	var c map[string]any
	if err := json.Unmarshal(m.config, &c); err != nil {
		t.Fatal(err)
	}
	if v == nil {
		delete(c, key)
	} else {
		c[key] = v
	}
	m.config, _ = json.Marshal(c)
}

// archDir is the fixture tree: the shared one, else the small copy in testdata.
func archDir(t testing.TB) (dir string, whole bool) {
	t.Helper()
	if d := sharedDir(t); d != "" {
		return filepath.Join(d, "fixtures", "arch"), true
	}
	return filepath.Join("..", "..", "testdata", "model", "arch"), false
}

func sharedDir(t testing.TB) string {
	t.Helper()
	if d := os.Getenv("QUIRE_SHARED"); d != "" {
		return d
	}
	d, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	for range 6 {
		if s, err := os.Stat(filepath.Join(d, "shared", "fixtures", "arch")); err == nil && s.IsDir() {
			return filepath.Join(d, "shared")
		}
		d = filepath.Dir(d)
	}
	return ""
}

// fixture loads a family's checkpoint and expected values; it skips when only the small copy is there and lacks it.
func fixture(t testing.TB, name string) (*memory, map[string]entry) {
	t.Helper()
	root, whole := archDir(t)
	dir := filepath.Join(root, name)
	if _, err := os.Stat(dir); err != nil {
		if whole {
			t.Fatal(err)
		}
		t.Skipf("fixture %s is not in testdata/model/arch; set QUIRE_SHARED to the shared folder for all families", name)
	}
	m := &memory{tensors: map[string]entry{}}
	var err error
	if m.config, err = os.ReadFile(filepath.Join(dir, "config.json")); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	want := map[string]entry{}
	for _, f := range files {
		if strings.HasSuffix(f, "expected.safetensors") {
			readShard(t, f, want)
		} else {
			readShard(t, f, m.tensors)
		}
	}
	return m, want
}
