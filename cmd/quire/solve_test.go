package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quire/capture/checkpoint"
	"quire/kernels/dtype"
)

// solveCases are the oracle cases of the repository, and all of the shared ones where they are there.
func solveCases(t *testing.T, kind string) []string {
	shared := os.Getenv("QUIRE_SHARED")
	if shared == "" {
		shared = filepath.Join("..", "..", "..", "shared")
	}
	seen := map[string]bool{}
	var all []string
	for _, root := range []string{filepath.Join(shared, "fixtures", "quant"), filepath.Join("..", "..", "testdata", "quant")} {
		files, err := filepath.Glob(filepath.Join(root, kind, "case-*.json"))
		require.NoError(t, err)
		for _, f := range files {
			if !seen[filepath.Base(f)] {
				seen[filepath.Base(f)] = true
				all = append(all, f)
			}
		}
	}
	require.NotEmpty(t, all)
	return all
}

type oracleCase struct {
	Layer    string `json:"layer"`
	Strategy string `json:"strategy"`
	Options  struct {
		Bits      int     `json:"bits"`
		Sym       bool    `json:"sym"`
		GroupSize int     `json:"group_size"`
		DescAct   bool    `json:"desc_act"`
		GAR       bool    `json:"gar"`
		Static    bool    `json:"static_groups"`
		MSE       float64 `json:"mse"`
		Damp      float64 `json:"damp"`
		WDType    string  `json:"w_dtype"`
		XDType    string  `json:"x_dtype"`
	} `json:"options"`
	Tolerance struct {
		MinEqual float64 `json:"min_equal_codes_pct"`
	} `json:"tolerance"`
}

func bytesOfTensor(t *testing.T, file, name string) []byte {
	t.Helper()
	s, err := checkpoint.OpenShard(file)
	require.NoError(t, err)
	defer s.Close()
	for _, x := range s.Tensors() {
		if x.Name == name {
			b := make([]byte, x.Bytes())
			require.NoError(t, s.ReadAt(x, b, 0))
			return b
		}
	}
	t.Fatalf("%s has no %s", file, name)
	return nil
}

// layerAs is a layer file with W and X in the types of a case; the file itself where they are float32.
func layerAs(t *testing.T, file, w, x string) string {
	types := map[string]checkpoint.DType{"float16": checkpoint.F16, "bfloat16": checkpoint.BF16}
	want := map[string]checkpoint.DType{"W": types[w], "X": types[x]}
	if want["W"] == want["X"] && want["W"] == types[""] {
		return file
	}
	s, err := checkpoint.OpenShard(file)
	require.NoError(t, err)
	defer s.Close()
	var specs []checkpoint.TensorSpec
	data := map[string][]byte{}
	for _, tensor := range s.Tensors() {
		if tensor.Name != "W" && tensor.Name != "X" {
			continue
		}
		raw := bytesOfTensor(t, file, tensor.Name)
		require.Equal(t, checkpoint.F32, tensor.DType)
		spec := checkpoint.TensorSpec{Name: tensor.Name, DType: tensor.DType, Shape: tensor.Shape}
		if half := want[tensor.Name]; half != types[""] {
			spec.DType = half
			var b []byte
			for i := 0; i < len(raw); i += 4 {
				v := math.Float32frombits(binary.LittleEndian.Uint32(raw[i:]))
				if half == checkpoint.F16 {
					b = binary.LittleEndian.AppendUint16(b, dtype.F32ToF16(v))
				} else {
					b = binary.LittleEndian.AppendUint16(b, dtype.F32ToBF16(v))
				}
			}
			raw = b
		}
		specs = append(specs, spec)
		data[tensor.Name] = raw
	}
	dir := t.TempDir()
	out, err := checkpoint.CreateShard(dir, "layer.safetensors", specs)
	require.NoError(t, err)
	for _, spec := range specs {
		require.NoError(t, out.Write(spec.Name, data[spec.Name]))
	}
	_, err = out.Close()
	require.NoError(t, err)
	return filepath.Join(dir, "layer.safetensors")
}

// TestSolveReproducesGPTQModel runs the verb from X on every case, in the case's types: codes, zeros and g_idx by
// the cases' tolerance, the codes of rtn exactly.
func TestSolveReproducesGPTQModel(t *testing.T) {
	for _, kind := range []string{"gptq", "rtn"} {
		for _, file := range solveCases(t, kind) {
			raw, err := os.ReadFile(file)
			require.NoError(t, err)
			var c oracleCase
			require.NoError(t, json.Unmarshal(raw, &c))
			t.Run(filepath.Base(strings.TrimSuffix(file, ".json")), func(t *testing.T) {
				out := filepath.Join(t.TempDir(), "out.safetensors")
				method := "gptq"
				args := []string{"solve", layerAs(t, filepath.Join(filepath.Dir(file), c.Layer+".safetensors"), c.Options.WDType, c.Options.XDType), "-o", out, "--parity", "gptqmodel", "--json",
					"--bits", fmt.Sprint(c.Options.Bits), "--group-size", fmt.Sprint(c.Options.GroupSize), "--mse", fmt.Sprint(c.Options.MSE),
					"--damp-percent", fmt.Sprint(c.Options.Damp)}
				onOff := func(name string, on bool) {
					if !on {
						name = "no-" + name
					}
					args = append(args, "--"+name)
				}
				onOff("sym", c.Options.Sym)
				onOff("desc-act", c.Options.DescAct)
				onOff("act-group-aware", c.Options.GAR)
				onOff("static-groups", c.Options.Static)
				if c.Strategy != "" {
					method = "rtn"
					args = append(args, "--fallback-grid", c.Strategy)
				}
				args = append(args, "--method", method)
				var stdout, stderr bytes.Buffer
				require.Equal(t, 0, Main(args, nil, &stdout, &stderr), stderr.String())
				oracle := strings.TrimSuffix(file, ".json") + ".safetensors"
				want, got := bytesOfTensor(t, oracle, "codes"), bytesOfTensor(t, out, "codes")
				require.Len(t, got, len(want))
				equal := 0
				for i := range want {
					if want[i] == got[i] {
						equal++
					}
				}
				if method == "rtn" {
					require.Equal(t, len(want), equal)
				} else {
					require.GreaterOrEqual(t, 100*float64(equal)/float64(len(want)), c.Tolerance.MinEqual)
					require.Equal(t, bytesOfTensor(t, oracle, "g_idx"), bytesOfTensor(t, out, "g_idx"))
				}
				record, err := os.ReadFile(strings.TrimSuffix(out, ".safetensors") + ".json")
				require.NoError(t, err)
				var rec map[string]any
				require.NoError(t, json.Unmarshal(record, &rec))
				require.Equal(t, method, rec["method"])
			})
		}
	}
}

// TestSolveFromHessian: H with --rows gives what X gives, to the tolerance of two ways of summing H.
func TestSolveFromHessian(t *testing.T) {
	dir := t.TempDir()
	layer := filepath.Join("..", "..", "testdata", "quant", "gptq", "layer-small.safetensors")
	s, err := checkpoint.OpenShard(layer)
	require.NoError(t, err)
	defer s.Close()
	write := func(name string, tensors ...string) string {
		var specs []checkpoint.TensorSpec
		for _, x := range s.Tensors() {
			for _, want := range tensors {
				if x.Name == want {
					specs = append(specs, checkpoint.TensorSpec{Name: x.Name, DType: x.DType, Shape: x.Shape})
				}
			}
		}
		w, err := checkpoint.CreateShard(dir, name, specs)
		require.NoError(t, err)
		for _, spec := range specs {
			require.NoError(t, w.Write(spec.Name, bytesOfTensor(t, layer, spec.Name)))
		}
		_, err = w.Close()
		require.NoError(t, err)
		return filepath.Join(dir, name)
	}
	h := write("h.safetensors", "W", "H")
	run := func(code int, args ...string) string {
		var stdout, stderr bytes.Buffer
		require.Equal(t, code, Main(append([]string{"solve"}, args...), nil, &stdout, &stderr), stderr.String())
		return stdout.String() + stderr.String()
	}
	a, b := filepath.Join(dir, "a.safetensors"), filepath.Join(dir, "b.safetensors")
	run(0, h, "-o", a, "--rows", "256", "--group-size", "32", "--threads", "1")
	run(0, layer, "-o", b, "--group-size", "32", "--threads", "2")
	x, y := bytesOfTensor(t, a, "codes"), bytesOfTensor(t, b, "codes")
	same := 0
	for i := range x {
		if x[i] == y[i] {
			same++
		}
	}
	require.Greater(t, same, len(x)*97/100)

	run(0, layer, "-o", a, "--group-size", "-1") // the value is no flag
	require.Contains(t, run(64, h, "-o", a), "--rows")
	require.Contains(t, run(64, h, "-o", a, "--rows", "-3"), "--rows -3")
	require.Contains(t, run(64, h, "-o", h, "--rows", "5"), "replace the input")
	require.Equal(t, 1, strings.Count(run(64, layer, "-o", a, "--bits", "9"), "choose 2..8"))
	require.Contains(t, run(64, layer, "-o", a, "--rows", "5"), "rows")
	require.Contains(t, run(64, write("w.safetensors", "W"), "-o", a), "X or H")
	require.Contains(t, run(64, write("x.safetensors", "X"), "-o", a), "no usable W")
	require.Contains(t, run(64, layer, "-o", a, "--fallback-grid", "mean"), "E1601")
	require.Contains(t, run(64, layer, "-o", a, "--method", "awq"), "method")
	run(0, write("w2.safetensors", "W"), "-o", a, "--method", "rtn")
}
