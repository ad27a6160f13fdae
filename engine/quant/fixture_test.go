package quant_test

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"quire/engine/quant"
	"quire/kernels/dtype"
)

// fixtureDirs are the places where oracle cases are looked for: the small set in the repository, and the whole set of
// the shared directory when it is there.
func fixtureDirs(t testing.TB) (repository, shared string) {
	t.Helper()
	repository = filepath.Join("..", "..", "testdata", "quant")
	if _, err := os.Stat(repository); err != nil {
		t.Fatalf("testdata/quant is missing: %v", err)
	}
	root := os.Getenv("QUIRE_SHARED")
	if root == "" {
		root = filepath.Join("..", "..", "..", "shared")
	}
	shared = filepath.Join(root, "fixtures", "quant")
	if _, err := os.Stat(shared); err != nil {
		shared = ""
	}
	return repository, shared
}

// caseFiles lists the JSON files of cases in kind (gptq, rtn): those of the repository, plus all shared ones.
func caseFiles(t testing.TB, kind string) []string {
	t.Helper()
	repository, shared := fixtureDirs(t)
	seen := map[string]bool{}
	var files []string
	for _, dir := range []string{shared, repository} {
		if dir == "" {
			t.Logf("shared fixtures are missing (QUIRE_SHARED or ../shared): only the cases in testdata/quant run")
			continue
		}
		m, _ := filepath.Glob(filepath.Join(dir, kind, "case-*.json"))
		for _, f := range m {
			if b := filepath.Base(f); !seen[b] {
				seen[b] = true
				files = append(files, f)
			}
		}
	}
	if len(files) == 0 {
		t.Fatalf("no %s cases found", kind)
	}
	return files
}

type tensor struct {
	dtype string
	shape []int
	data  []byte
}

// readTensors reads a safetensors file with this test's own few lines.
func readTensors(t testing.TB, file string) map[string]tensor {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(b)
	var head map[string]json.RawMessage
	if err := json.Unmarshal(b[8:8+n], &head); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	out := map[string]tensor{}
	for name, raw := range head {
		if name == "__metadata__" {
			continue
		}
		var e struct {
			DType   string `json:"dtype"`
			Shape   []int  `json:"shape"`
			Offsets [2]int `json:"data_offsets"`
		}
		if err := json.Unmarshal(raw, &e); err != nil {
			t.Fatalf("%s: %s: %v", file, name, err)
		}
		out[name] = tensor{e.DType, e.Shape, b[8+int(n)+e.Offsets[0] : 8+int(n)+e.Offsets[1]]}
	}
	return out
}

func (x tensor) f32() []float32 {
	switch x.dtype {
	case "F32":
		v := make([]float32, len(x.data)/4)
		for i := range v {
			v[i] = math.Float32frombits(binary.LittleEndian.Uint32(x.data[4*i:]))
		}
		return v
	case "F16", "BF16":
		v := make([]float32, len(x.data)/2)
		for i := range v {
			u := binary.LittleEndian.Uint16(x.data[2*i:])
			if x.dtype == "F16" {
				v[i] = dtype.F16ToF32(u)
			} else {
				v[i] = dtype.BF16ToF32(u)
			}
		}
		return v
	}
	panic("not a float tensor: " + x.dtype)
}

func (x tensor) i32() []int32 {
	v := make([]int32, len(x.data)/4)
	for i := range v {
		v[i] = int32(binary.LittleEndian.Uint32(x.data[4*i:]))
	}
	return v
}

// quantCase is the JSON beside a case.
type quantCase struct {
	Name    string
	Layer   string  `json:"layer"`
	NRows   int64   `json:"N_rows"`
	AvgLoss float64 `json:"avg_loss"`
	Error   float64 `json:"output_error"`
	Options struct {
		Bits      int     `json:"bits"`
		Sym       bool    `json:"sym"`
		GroupSize int     `json:"group_size"`
		DescAct   bool    `json:"desc_act"`
		GAR       bool    `json:"gar"`
		Static    bool    `json:"static_groups"`
		MSE       float64 `json:"mse"`
		Damp      float64 `json:"damp"`
		DampUsed  float64 `json:"damp_used"`
		WDType    string  `json:"w_dtype"`
		XDType    string  `json:"x_dtype"`
	} `json:"options"`
	Strategy  string `json:"strategy"`
	Tolerance struct {
		MinEqual  float64 `json:"min_equal_codes_pct"`
		MaxStep   int     `json:"max_code_step"`
		Tie       float64 `json:"tie_distance"`
		ScaleRel  float64 `json:"scale_rel"`
		ErrorRel  float64 `json:"output_error_rel"`
		LossRel   float64 `json:"avg_loss_rel"`
		DeqAbs    float64 `json:"dequantized_abs"`
		CodesRule any     `json:"codes"`
	} `json:"tolerance"`

	out, in, rows int
	w, x          []float32
	h             []float32
	tensors       map[string]tensor
}

func readCase(t testing.TB, file string) *quantCase {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c := &quantCase{Name: filepath.Base(file[:len(file)-len(".json")])}
	if err := json.Unmarshal(b, c); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	c.tensors = readTensors(t, file[:len(file)-len(".json")]+".safetensors")
	layer := readTensors(t, filepath.Join(filepath.Dir(file), c.Layer+".safetensors"))
	c.w, c.x = layer["W"].f32(), layer["X"].f32()
	c.out, c.in, c.rows = layer["W"].shape[0], layer["W"].shape[1], layer["X"].shape[0]
	roundTo(c.w, c.Options.WDType)
	roundTo(c.x, c.Options.XDType)
	c.h = gram(c.x, c.rows, c.in)
	return c
}

func roundTo(x []float32, kind string) {
	switch kind {
	case "float16":
		for i, v := range x {
			x[i] = dtype.F16ToF32(dtype.F32ToF16(v))
		}
	case "bfloat16":
		for i, v := range x {
			x[i] = dtype.BF16ToF32(dtype.F32ToBF16(v))
		}
	}
}

// gram is (2/rows)·XᵀX in float64, rounded once.
func gram(x []float32, rows, n int) []float32 {
	s := make([]float64, n*n)
	for r := range rows {
		v := x[r*n : (r+1)*n]
		for i, a := range v {
			for j := i; j < n; j++ {
				s[i*n+j] += float64(a) * float64(v[j])
			}
		}
	}
	h := make([]float32, n*n)
	for i := range n {
		for j := i; j < n; j++ {
			h[i*n+j] = float32(2 * s[i*n+j] / float64(rows))
			h[j*n+i] = h[i*n+j]
		}
	}
	return h
}

// options are the case's settings under parity with gptqmodel.
func (c *quantCase) options() quant.Options {
	o := quant.DefaultOptions()
	o.Bits, o.Sym, o.GroupSize = c.Options.Bits, c.Options.Sym, c.Options.GroupSize
	o.DescAct, o.ActGroupAware, o.StaticGroups = c.Options.DescAct, c.Options.GAR, c.Options.Static
	o.MSE, o.DampPercent, o.ScaleDType, o.Parity = c.Options.MSE, c.Options.Damp, quant.ScaleF32, quant.ParityGPTQModel
	if c.Strategy != "" {
		o.FallbackGrid = c.Strategy
	}
	return o
}

// outputError is ‖(W−Q)Xᵀ‖² in float64 from the rows themselves.
func outputError(w, q, x []float32, out, in, rows int) float64 {
	var sum float64
	e := make([]float64, in)
	for o := range out {
		for i := range e {
			e[i] = float64(w[o*in+i]) - float64(q[o*in+i])
		}
		for r := range rows {
			var y float64
			for i, v := range x[r*in : (r+1)*in] {
				y += e[i] * float64(v)
			}
			sum += y * y
		}
	}
	return sum
}

func relative(a, b float64) float64 {
	if a == b {
		return 0
	}
	return math.Abs(a-b) / math.Max(math.Abs(a), math.Abs(b))
}
