package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quire/testdata"
)

// bed is a directory with the demo model for a test to bend.
func bed(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, fs.WalkDir(testdata.Demo, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return errors.Join(err, os.MkdirAll(filepath.Join(dir, path), 0o755))
		}
		b, err := testdata.Demo.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, path), b, 0o644)
	}))
	return dir
}

// mistake is something a user gets wrong: it must be reported before layer 0, with code, exit code and a remedy.
type mistake struct {
	name string
	args string // DIR stands for the bed
	bend func(t *testing.T, dir string)
	code string
	exit int
	says string
}

func write(name, text string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
}

func edit(name, old, with string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Contains(t, string(b), old)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(strings.Replace(string(b), old, with, 1)), 0o644))
	}
}

func remove(name string) func(*testing.T, string) {
	return func(t *testing.T, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, name))) }
}

const good = "run DIR/demo -o DIR/out --group-size 32 --samples 2 --seq-len 32 --calibration DIR/tokens/self_generated512.u16 "

var mistakes = []mistake{
	{"no such verb", "quantise DIR/demo", nil, "E0100", 64, "quantise"},
	{"no such flag", good + "--bitz 4", nil, "E0100", 64, "bitz"},
	{"flag without its value", good + "--bits", nil, "E0100", 64, "bits"},
	{"no model", "run -o DIR/out", nil, "E0110", 64, "no model"},
	{"no output", "run DIR/demo --calibration DIR/tokens/self_generated512.u16", nil, "E0110", 64, "no output"},
	{"model directory does not exist", "run DIR/nowhere -o DIR/out", nil, "E1101", 64, "nowhere"},
	{"nine bits", good + "--bits 9", nil, "E0111", 64, "9"},
	{"odd group size", good + "--group-size 33", nil, "E0112", 64, "33"},
	{"five bits as gptq", good + "--bits 5 --format gptq", nil, "E0113", 64, "5-bit"},
	{"three bits as awq", good + "--bits 3 --format awq", nil, "E0113", 64, "4 bits only"},
	{"columns by activity as awq", good + "--desc-act --format awq", nil, "E0114", 64, "--static-groups"},
	{"unknown format", good + "--format gguf", nil, "E0124", 64, "gguf"},
	{"unknown method", good + "--method awk", nil, "E0124", 64, "awk"},
	{"two column orders", good + "--desc-act --act-group-aware", nil, "E0114", 64, "two different column orders"},
	{"static groups with group-aware order", good + "--static-groups --act-group-aware", nil, "E0114", 64, "contradict"},
	{"desc_act in compressed-tensors", good + "--desc-act --no-act-group-aware", nil, "E0114", 64, "g_idx"},
	{"negative mse", good + "--mse=-1", nil, "E0115", 64, "-1"},
	{"damping of five", good + "--damp-percent 5", nil, "E0116", 64, "5"},
	{"pattern that does not compile", good + "--ignore re:(", nil, "E0117", 64, "("},
	{"min_len above seq_len", good + "--min-len 99", nil, "E0118", 64, "99"},
	{"date that is none", good + "--template-date yesterday", nil, "E0118", 64, "yesterday"},
	{"no lanes", good + "--lanes 0", nil, "E0119", 64, "0"},
	{"routing nobody knows", good + "--routing some", nil, "E0124", 64, "some"},
	{"top-k of nothing", good + "--routing top-k=0", nil, "E0119", 64, "0"},
	{"free zero points in a symmetric format", good + "--fallback-grid mean", nil, "E0120", 64, "symmetric"},
	{"share that is none", good + "--max-fallback lots", nil, "E0121", 64, "lots"},
	{"retain that is none", good + "--retain every=0", nil, "E0122", 64, "0"},
	{"no threads", good + "--threads 0", nil, "E0123", 64, "0"},
	{"memory in words", good + "--max-memory plenty", nil, "E0125", 64, "plenty"},
	{"time in words", good + "--time-limit soon", nil, "E0125", 64, "soon"},
	{"rule without settings", good + "--dynamic +:down_proj", nil, "E0126", 64, "down_proj"},
	{"rule with an unknown setting", good + "--dynamic +:down_proj=bitz:8", nil, "E0126", 64, "bitz"},
	{"output is the model", "run DIR/demo -o DIR/demo --method rtn --group-size 32", nil, "E0127", 64, "differ"},
	{"foreign output", good, func(t *testing.T, dir string) {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "out"), 0o755))
		write("out/precious", "x")(t, dir)
	}, "E0128", 64, "out"},
	{"half of a fused set left out", good + "--ignore model.layers.0.self_attn.q_proj", nil, "E0131", 64, "qkv_proj"},
	{"one expert left out", good + "--ignore re:experts\\.3\\.", nil, "E0131", 64, "experts"},
	{"everything left out", good + "--ignore re:.*", nil, "E0133", 64, "no module"},
	{"no calibration", "run DIR/demo -o DIR/out --group-size 32", nil, "E0140", 64, "calibration"},
	{"every sample too short", "run DIR/demo -o DIR/out --group-size 32 --calibration DIR/short.jsonl", write("short.jsonl", `{"input_ids":[1,2,3]}`+"\n"), "", 64, "short"},
	{"calibration file that is not there", "run DIR/demo -o DIR/out --group-size 32 --calibration DIR/nothing.jsonl", nil, "", 64, "nothing.jsonl"},
	{"recipe that is not there", "run -c DIR/none.yaml", nil, "E0104", 64, "none.yaml"},
	{"unknown recipe key", "run -c DIR/r.yaml", write("r.yaml", "model: x\nbitz: 4\n"), "E0102", 64, "r.yaml:2:1"},
	{"recipe value of the wrong kind", "run -c DIR/r.yaml", write("r.yaml", "bits: four\n"), "E0103", 64, "r.yaml:1:1"},
	{"recipe that is a list", "run -c DIR/r.yaml", write("r.yaml", "- bits\n"), "E0101", 64, "r.yaml:1:1"},
	{"recipe key under two names", "run -c DIR/r.yaml", write("r.yaml", "bits: 4\nnum_bits: 4\n"), "E0102", 64, "twice"},
	{"config.json is missing", good, remove("demo/config.json"), "E1121", 64, "config.json"},
	{"config.json is cut", good, edit("demo/config.json", "\n}", ""), "E1120", 64, "config.json"},
	{"unknown architecture", good, edit("demo/config.json", `"model_type": "qwen3_moe"`, `"model_type": "qwen9_moe"`), "E1301", 64, "qwen9_moe"},
	{"config of another size", good, edit("demo/config.json", `"hidden_size": 128`, `"hidden_size": 256`), "E1306", 64, "256"},
	{"weights are cut", good, func(t *testing.T, dir string) {
		f := filepath.Join(dir, "demo", "model.safetensors")
		st, err := os.Stat(f)
		require.NoError(t, err)
		require.NoError(t, os.Truncate(f, st.Size()-100))
	}, "E1105", 64, "model.safetensors"},
	{"weights are pickle", good, func(t *testing.T, dir string) {
		require.NoError(t, os.Rename(filepath.Join(dir, "demo", "model.safetensors"), filepath.Join(dir, "demo", "pytorch_model.bin")))
	}, "E1103", 64, "pytorch_model.bin"},
	{"tokenizer is missing for text", "run DIR/demo -o DIR/out --group-size 32 --calibration DIR/t.txt", func(t *testing.T, dir string) {
		remove("demo/tokenizer.json")(t, dir)
		write("t.txt", strings.Repeat("once upon a time there was a cat\n\n", 20))(t, dir)
	}, "", 64, "tokenizer"},
	{"memory that cannot suffice", good + "--max-memory 40MiB", nil, "E0201", 20, "layer"},
	{"disk that cannot suffice", good + "--max-disk 1MiB", nil, "E0202", 21, "1"},
	{"resume of nothing", "resume DIR/out.run", nil, "E0702", 10, "out.run"},
	{"audit of nothing", "audit DIR/out.run", nil, "E0702", 10, "out.run"},
	{"verify of nothing", "verify DIR/demo", nil, "E0810", 64, "SHA256SUMS"},
	{"eval on nothing", "eval DIR/demo", nil, "E0151", 64, "--text"},
	{"unknown error code", "explain E9999", nil, "E0156", 64, "E9999"},
}

// TestUserMistakes plants every mistake: it is reported with its code, exit code and a remedy, and nothing is left behind.
func TestUserMistakes(t *testing.T) {
	t.Parallel()
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			dir := bed(t)
			if m.bend != nil {
				m.bend(t, dir)
			}
			args := strings.Fields(strings.ReplaceAll(m.args, "DIR", dir))
			var out, errw bytes.Buffer
			exit := Main(append(args, "--json"), strings.NewReader(""), &out, &errw)
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			var e struct {
				Type, Code, Message, Hint string
				Exit                      int
			}
			require.Contains(t, lines[0], `"type":"hello"`)
			require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &e), "%s\n%s", out.String(), errw.String())
			require.Equal(t, "error", e.Type)
			if m.code != "" {
				require.Equal(t, m.code, e.Code, e.Message)
			}
			require.Equal(t, m.exit, exit, e.Message)
			require.Equal(t, exit, e.Exit)
			require.NotEmpty(t, e.Hint, e.Message)
			require.Contains(t, e.Message+" "+e.Hint, m.says)
			require.Contains(t, catalogue(), e.Code, "quire explain does not know it")
			_, err := os.Stat(filepath.Join(dir, "out", "model-00001-of-00005.safetensors"))
			require.Error(t, err, "output was written")
		})
	}
}

// TestErrorsAreListed keeps docs/errors.md in step with the mistakes above.
func TestErrorsAreListed(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("# Mistakes that are reported before any work starts\n\nEach line is planted by `go test -run UserMistakes ./cmd/quire`. `quire explain CODE` tells more.\n\n| mistake | code | exit |\n|---|---|---|\n")
	for _, m := range mistakes {
		code := m.code
		if code == "" {
			code = "E12xx"
		}
		fmt.Fprintf(&b, "| %s | %s | %d |\n", m.name, code, m.exit)
	}
	b.WriteString("\n## Faults of a source checkpoint\n\nEach is planted by `go test -run SourceFaults ./cmd/quire` and refused by `inspect`, `plan` and `run` alike, with exit code 64, naming file and tensor; " +
		"those without a code here are found when the family's rules meet the tensors, by `plan` and `run`.\n\n| fault | code |\n|---|---|\n")
	for _, f := range append(slices.Clone(sourceFaults), modelFaults...) {
		code := f.code
		if code == "" {
			code = "E13xx"
		}
		fmt.Fprintf(&b, "| %s | %s |\n", f.name, code)
	}
	path := filepath.Join("..", "..", "docs", "errors.md")
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o644))
	}
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, b.String(), string(have), "run UPDATE=1 go test -run ErrorsAreListed ./cmd/quire")
}
