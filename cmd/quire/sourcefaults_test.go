package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quire/capture/checkpoint"
)

const (
	shardOne = "model-00001-of-00002.safetensors"
	shardTwo = "model-00002-of-00002.safetensors"
	indexed  = "model.safetensors.index.json"
)

// tensorData is a tensor of the model that a test bends.
type tensorData struct {
	checkpoint.TensorSpec
	data []byte
}

// sharded rewrites the demo model of a bed as two shards with their index; change may alter what goes into them.
func sharded(t *testing.T, dir string, change func([]tensorData) []tensorData) {
	t.Helper()
	model := filepath.Join(dir, "demo")
	src, err := checkpoint.OpenShard(filepath.Join(model, "model.safetensors"))
	require.NoError(t, err)
	var all []tensorData
	for _, x := range src.Tensors() {
		d := tensorData{checkpoint.TensorSpec{Name: x.Name, DType: x.DType, Shape: x.Shape}, make([]byte, x.Bytes())}
		require.NoError(t, src.ReadAt(x, d.data, 0))
		all = append(all, d)
	}
	require.NoError(t, src.Close())
	require.NoError(t, os.Remove(filepath.Join(model, "model.safetensors")))
	if change != nil {
		all = change(all)
	}
	where, total := map[string]string{}, int64(0)
	for i, part := range [][]tensorData{all[:len(all)/2], all[len(all)/2:]} {
		name := []string{shardOne, shardTwo}[i]
		total += writeShard(t, model, name, part)
		for _, x := range part {
			where[x.Name] = name
		}
	}
	b, err := checkpoint.IndexJSON(where, total)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(model, indexed), b, 0o644))
}

func writeShard(t *testing.T, dir, name string, part []tensorData) (total int64) {
	t.Helper()
	specs := make([]checkpoint.TensorSpec, len(part))
	for i, x := range part {
		specs[i] = x.TensorSpec
	}
	w, err := checkpoint.CreateShard(dir, name, specs)
	require.NoError(t, err)
	for _, x := range part {
		require.NoError(t, w.Write(x.Name, x.data))
		total += int64(len(x.data))
	}
	_, err = w.Close()
	require.NoError(t, err)
	return total
}

// without drops the tensors whose name contains a part.
func without(part string) func([]tensorData) []tensorData {
	return func(all []tensorData) (out []tensorData) {
		for _, x := range all {
			if !strings.Contains(x.Name, part) {
				out = append(out, x)
			}
		}
		return out
	}
}

func with(name string, dtype checkpoint.DType, shape ...int) func([]tensorData) []tensorData {
	return func(all []tensorData) []tensorData {
		x := tensorData{TensorSpec: checkpoint.TensorSpec{Name: name, DType: dtype, Shape: shape}}
		n, _ := x.Bytes()
		x.data = make([]byte, n)
		return append(without(name)(all), x)
	}
}

// header rewrites the JSON header of a shard of a bed; the data part stays.
func header(t *testing.T, dir, shard string, change func(string) string) {
	t.Helper()
	path := filepath.Join(dir, "demo", shard)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	n := binary.LittleEndian.Uint64(b)
	was := string(b[8 : 8+n])
	now := change(was)
	require.NotEqual(t, was, now, "the fault was not planted")
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(now)))
	require.NoError(t, os.WriteFile(path, append(append(out, now...), b[8+n:]...), 0o644))
}

// reindex changes the map of the index.
func reindex(t *testing.T, dir string, change func(m map[string]string)) {
	t.Helper()
	path := filepath.Join(dir, "demo", indexed)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	var x struct {
		Metadata json.RawMessage   `json:"metadata"`
		Map      map[string]string `json:"weight_map"`
	}
	require.NoError(t, json.Unmarshal(b, &x))
	change(x.Map)
	b, err = json.Marshal(x)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, b, 0o644))
}

const (
	qProj    = "model.layers.0.self_attn.q_proj.weight"
	lastNorm = "model.norm.weight"
)

// sourceFault is a fault of a source checkpoint. says must all occur in the message or the hint.
type sourceFault struct {
	name string // with the reports it stands for
	bend func(t *testing.T, dir string)
	code string
	says []string
}

// sourceFaults are those of public reports about reading checkpoints. inspect, plan and run must refuse each alike, before anything else.
var sourceFaults = []sourceFault{
	{"missing shard", func(t *testing.T, dir string) {
		sharded(t, dir, nil)
		remove("demo/"+shardTwo)(t, dir)
	}, "E1109", []string{shardTwo, "tensor model.", "fetch"}},
	{"index of another split, files complete", func(t *testing.T, dir string) {
		sharded(t, dir, nil)
		reindex(t, dir, func(m map[string]string) {
			for k, v := range m {
				m[k] = strings.Replace(v, "of-00002", "of-00004", 1)
			}
		})
	}, "E1136", []string{indexed, "2 files", "remove"}},
	{"stale index: renamed shard", func(t *testing.T, dir string) {
		sharded(t, dir, nil)
		require.NoError(t, os.Rename(filepath.Join(dir, "demo", shardTwo), filepath.Join(dir, "demo", "model-00002-of-00003.safetensors")))
	}, "E1109", []string{shardTwo, "model-00002-of-00003.safetensors"}},
	{"stale index: tensor in the other shard", func(t *testing.T, dir string) {
		sharded(t, dir, nil)
		reindex(t, dir, func(m map[string]string) {
			for k, v := range m {
				if k == qProj {
					m[k] = map[string]string{shardOne: shardTwo, shardTwo: shardOne}[v]
				}
			}
		})
	}, "E1110", []string{qProj, "rebuild"}},
	{"ghost entry in the index", func(t *testing.T, dir string) {
		sharded(t, dir, nil)
		reindex(t, dir, func(m map[string]string) { m["model.layers.4.eh_proj.weight"] = shardTwo })
	}, "E1110", []string{shardTwo, "model.layers.4.eh_proj.weight"}},
	{"tensor on disk that the index leaves out", func(t *testing.T, dir string) {
		sharded(t, dir, nil)
		reindex(t, dir, func(m map[string]string) { delete(m, qProj) })
	}, "E1111", []string{qProj}},
	{"index that is no JSON", func(t *testing.T, dir string) {
		sharded(t, dir, nil)
		write("demo/"+indexed, `{"weight_map":{"a":`)(t, dir)
	}, "E1117", []string{indexed, "byte"}},
	{"truncated shard", func(t *testing.T, dir string) {
		sharded(t, dir, nil)
		path := filepath.Join(dir, "demo", shardTwo)
		st, err := os.Stat(path)
		require.NoError(t, err)
		require.NoError(t, os.Truncate(path, st.Size()-1))
	}, "E1105", []string{shardTwo, "tensor model.", "SHA-256"}},
	{"overlapping tensors", func(t *testing.T, dir string) {
		sharded(t, dir, nil)
		header(t, dir, shardTwo, func(h string) string {
			var first, second [2]int64
			parts := strings.Split(h, `"data_offsets":[`)
			_, err := fmt.Sscanf(parts[1], "%d,%d]", &first[0], &first[1])
			require.NoError(t, err)
			_, err = fmt.Sscanf(parts[2], "%d,%d]", &second[0], &second[1])
			require.NoError(t, err)
			return strings.Replace(h, fmt.Sprintf("[%d,%d]", second[0], second[1]), fmt.Sprintf("[%d,%d]", second[0]-2, second[1]-2), 1)
		})
	}, "E1115", []string{shardTwo, "overlaps", "tensor model."}},
	{"dtype of the wrong size", func(t *testing.T, dir string) {
		sharded(t, dir, nil)
		header(t, dir, shardOne, func(h string) string { return strings.Replace(h, `"BF16"`, `"F32"`, 1) })
	}, "E1116", []string{shardOne, "needs", "tensor"}},
	{"dtype that nobody knows", func(t *testing.T, dir string) {
		sharded(t, dir, nil)
		header(t, dir, shardOne, func(h string) string { return strings.Replace(h, `"BF16"`, `"BF17"`, 1) })
	}, "E1107", []string{shardOne, "BF17"}},
	{"tensor twice in a header", func(t *testing.T, dir string) {
		sharded(t, dir, nil)
		header(t, dir, shardOne, func(h string) string {
			parts := strings.SplitN(h, `"model.`, 3)
			return parts[0] + `"model.` + parts[1] + `"model.` + parts[1] + `"model.` + parts[2]
		})
	}, "E1113", []string{shardOne, "comes twice"}},
	{"tensor in two shards", func(t *testing.T, dir string) {
		sharded(t, dir, func(all []tensorData) []tensorData { return append(all, all[0]) })
	}, "E1113", []string{shardOne, shardTwo}},
	{"header of 132 MB", func(t *testing.T, dir string) {
		sharded(t, dir, nil)
		path := filepath.Join(dir, "demo", shardOne)
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		binary.LittleEndian.PutUint64(b, 132_000_000)
		require.NoError(t, os.WriteFile(path, b, 0o644))
	}, "E1104", []string{shardOne, "132000000", "100000000"}},
	{"pickle only", func(t *testing.T, dir string) {
		remove("demo/model.safetensors")(t, dir)
		write("demo/pytorch_model-00001-of-00002.bin", "x")(t, dir)
	}, "E1103", []string{"pytorch_model-00001-of-00002.bin", "convert to safetensors"}},
	{"no weights at all", remove("demo/model.safetensors"), "E1102", []string{"demo"}},
	{"fp8 weight without its scale", func(t *testing.T, dir string) { sharded(t, dir, with(qProj, checkpoint.F8E4M3, 128, 128)) }, "E1123", []string{qProj, "weight_scale_inv", "unquantized"}},
	{"scale without its weight", func(t *testing.T, dir string) {
		sharded(t, dir, with("model.layers.0.self_attn.x_proj.weight_scale_inv", checkpoint.F32, 1, 1))
	}, "E1125", []string{"x_proj"}},
	{"bitsandbytes source", func(t *testing.T, dir string) {
		sharded(t, dir, with("model.layers.0.self_attn.q_proj.SCB", checkpoint.F32, 128))
	}, "E1122", []string{"bitsandbytes", "q_proj.SCB"}},
	{"config missing", remove("demo/config.json"), "E1121", []string{"config.json"}},
	{"config cut", edit("demo/config.json", "\n}", ""), "E1120", []string{"config.json", "byte"}},
	{"config repeats a key", edit("demo/config.json", `"model_type"`, `"hidden_size": 1, "model_type"`), "E1120", []string{"config.json", "hidden_size"}},
}

// modelFaults are refused by plan and run; inspect describes the model and says that a run would not take it.
var modelFaults = []sourceFault{
	{"unknown model_type", edit("demo/config.json", `"model_type": "qwen3_moe"`, `"model_type": "qwen9_moe"`), "E1301", []string{"qwen9_moe", "qwen3_moe"}},
	{"experts that never arrived", func(t *testing.T, dir string) { sharded(t, dir, without("layers.1.mlp.experts.3.")) }, "", []string{"layers.1.mlp.experts.3."}},
	{"tensor that no rule claims", func(t *testing.T, dir string) {
		sharded(t, dir, with("model.layers.0.mlp.experts.gate_up_proj_extra", checkpoint.BF16, 2, 2))
	}, "", []string{"gate_up_proj_extra"}},
	{"tensor of another shape", func(t *testing.T, dir string) { sharded(t, dir, with(lastNorm, checkpoint.BF16, 7)) }, "", []string{lastNorm, "7"}},
	{"activation that nobody knows", edit("demo/config.json", `"hidden_act": "silu"`, `"hidden_act": "swish9"`), "", []string{"swish9"}},
	{"number of experts under no known key", edit("demo/config.json", `"num_experts"`, `"experts_count"`), "", []string{"num_experts"}},
}

// TestSourceFaults plants every fault and asks the built verbs: code, exit code, file, tensor and remedy, and nothing written.
func TestSourceFaults(t *testing.T) {
	t.Parallel()
	verbs := map[string][]string{
		"inspect": {"inspect", "DIR/demo"},
		"plan":    {"plan", "DIR/demo", "-o", "DIR/out", "--group-size", "32", "--calibration", "DIR/tokens/self_generated512.u16", "--samples", "2"},
		"run":     {"run", "DIR/demo", "-o", "DIR/out", "--group-size", "32", "--calibration", "DIR/tokens/self_generated512.u16", "--samples", "2"},
	}
	check := func(t *testing.T, f sourceFault, names ...string) {
		t.Parallel()
		dir := bed(t)
		f.bend(t, dir)
		for _, verb := range names {
			var args []string
			for _, a := range append(verbs[verb], "--json") {
				args = append(args, strings.ReplaceAll(a, "DIR", dir))
			}
			var out, errw bytes.Buffer
			exit := Main(args, strings.NewReader(""), &out, &errw)
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			var e struct {
				Type, Code, Message, Hint string
				Exit                      int
			}
			require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &e), out.String())
			require.Equal(t, "error", e.Type, "%s: %s", verb, out.String())
			require.Equal(t, []int{64, 64}, []int{exit, e.Exit}, e.Message)
			if f.code != "" {
				require.Equal(t, f.code, e.Code, e.Message)
			}
			require.NotEmpty(t, e.Hint, e.Message)
			require.Contains(t, catalogue(), e.Code)
			for _, s := range f.says {
				require.Contains(t, e.Message+" "+e.Hint, s, verb)
			}
			for _, left := range []string{"out", "out.run", "out.partial"} {
				_, err := os.Stat(filepath.Join(dir, left))
				require.ErrorIs(t, err, os.ErrNotExist, "%s left %s", verb, left)
			}
		}
	}
	for _, f := range sourceFaults {
		t.Run(f.name, func(t *testing.T) { check(t, f, "inspect", "plan", "run") })
	}
	for _, f := range modelFaults {
		t.Run(f.name, func(t *testing.T) {
			check(t, f, "plan", "run")
		})
	}
}

// TestReadableOddities: what is unusual but sound is read.
func TestReadableOddities(t *testing.T) {
	t.Parallel()
	for name, bend := range map[string]func(t *testing.T, dir string){
		"two shards with an index":    func(t *testing.T, dir string) { sharded(t, dir, nil) },
		"two shards without an index": func(t *testing.T, dir string) { sharded(t, dir, nil); remove("demo/"+indexed)(t, dir) },
		"metadata null": func(t *testing.T, dir string) {
			sharded(t, dir, nil)
			header(t, dir, shardOne, func(h string) string { return strings.Replace(h, `{"format":"pt"}`, `null`, 1) })
		},
		"metadata empty": func(t *testing.T, dir string) {
			sharded(t, dir, nil)
			header(t, dir, shardOne, func(h string) string { return strings.Replace(h, `{"format":"pt"}`, `{}`, 1) })
		},
		"header of odd length": func(t *testing.T, dir string) {
			sharded(t, dir, nil)
			header(t, dir, shardOne, func(h string) string { return strings.TrimRight(h, " ") + "   " })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := bed(t)
			bend(t, dir)
			exit, stdout, stderr := quire("inspect", filepath.Join(dir, "demo"))
			require.Equal(t, 0, exit, stderr)
			require.Contains(t, stdout, "unclaimed tensors: none")
		})
	}
}

// TestForgottenShard: a weight file that the index does not name is never dropped in silence.
func TestForgottenShard(t *testing.T) {
	t.Parallel()
	dir := bed(t)
	sharded(t, dir, nil)
	writeShard(t, filepath.Join(dir, "demo"), "mtp.safetensors", with("model.layers.4.eh_proj.weight", checkpoint.BF16, 2, 2)(nil))
	exit, stdout, stderr := quire("inspect", filepath.Join(dir, "demo"))
	require.Equal(t, 0, exit, stderr)
	require.Contains(t, stdout, "mtp.safetensors: no part of the checkpoint")
	exit, stdout, stderr = quire("plan", filepath.Join(dir, "demo"), "-o", filepath.Join(dir, "out"), "--group-size", "32", "--method", "rtn")
	require.Equal(t, 0, exit, stderr)
	require.Contains(t, stdout+stderr, "mtp.safetensors is no part of the checkpoint")
}
