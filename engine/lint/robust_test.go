package lint_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"quire/engine/lint"
)

func TestMain(m *testing.M) {
	// The regular-expression library keeps a clock of its own running for a while.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/dlclark/regexp2.runClock"))
}

// TestMutatedCheckpoints: bytes flipped, cut, copied and overwritten anywhere in any file never make the check panic or
// end early.
func TestMutatedCheckpoints(t *testing.T) {
	src := rand.New(rand.NewPCG(3, 9))
	rounds := 40
	if os.Getenv("QUIRE_LONG") != "" {
		rounds = 1000
	}
	for _, base := range []string{"ct", "gptq-act", "awq-left", "w8a8", "ct-mixed"} {
		clean := newBuild(t, bases[base]).write(t)
		entries, err := os.ReadDir(clean)
		if err != nil {
			t.Fatal(err)
		}
		files := map[string][]byte{}
		var names []string
		for _, e := range entries {
			raw, err := os.ReadFile(filepath.Join(clean, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			files[e.Name()] = raw
			names = append(names, e.Name())
		}
		for round := range rounds {
			name := names[src.IntN(len(names))]
			mutated := mutate(src, files[name])
			if err := os.WriteFile(filepath.Join(clean, name), mutated, 0o644); err != nil {
				t.Fatal(err)
			}
			if _, err := lint.Run(context.Background(), clean, lint.Options{}); err != nil {
				t.Fatalf("%s, round %d of %s: %v", base, round, name, err)
			}
			if err := os.WriteFile(filepath.Join(clean, name), files[name], 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// mutate changes a file in one of the ways that happen: flips and overwrites near the start where headers are, cuts,
// repeats, and JSON values exchanged for others.
func mutate(src *rand.Rand, raw []byte) []byte {
	out := slices.Clone(raw)
	if len(out) == 0 {
		return []byte("x")
	}
	at := src.IntN(len(out))
	if src.IntN(2) == 0 {
		at = src.IntN(min(len(out), 2000))
	}
	switch src.IntN(6) {
	case 0:
		out[at] ^= 1 << src.IntN(8)
	case 1:
		out[at] = byte(src.Uint32())
	case 2:
		return out[:at]
	case 3:
		return slices.Concat(out[:at], out[at/2:])
	case 4:
		for _, pair := range [][2]string{{"null", "1e99"}, {"true", "null"}, {"32", "-7"}, {"64", "99999999999999999999"}, {"\"I32\"", "\"F99\""}, {"[", "{"}, {"4", "\"4\""}, {"128", "0"}} {
			if src.IntN(3) == 0 {
				out = bytes.Replace(out, []byte(pair[0]), []byte(pair[1]), 1+src.IntN(3))
			}
		}
	default:
		n := min(src.IntN(64), len(out)-at)
		for i := range n {
			out[at+i] = byte(src.Uint32())
		}
	}
	return out
}

// FuzzConfig: no config.json makes the check panic.
func FuzzConfig(f *testing.F) {
	for _, base := range []string{"ct", "gptq", "awq", "w8a8", "ct-mixed"} {
		b := newBuild(f, bases[base])
		b.config["quantization_config"] = b.quant
		f.Add(mustJSON(f, b.config))
	}
	f.Add([]byte(`{"quantization_config":{"quant_method":"gptq","bits":1e3,"group_size":-5,"sym":null,"desc_act":"x","dynamic":{"-:(?<!a)b":{},"+:(":[]}}}`))
	f.Add([]byte(`{"quantization_config":{"quant_method":"compressed-tensors","format":7,"config_groups":{"g":{"targets":"Linear","weights":{"num_bits":64}}}}}`))
	dir := newBuild(f, bases["gptq-act"]).write(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		if err := os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := lint.Run(context.Background(), dir, lint.Options{}); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzShard: no shard makes the check panic.
func FuzzShard(f *testing.F) {
	b := newBuild(f, bases["awq"])
	f.Add(safetensorsOf(b, q0+".qweight")[:400])
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 255})
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), raw, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := lint.Run(context.Background(), dir, lint.Options{}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestOptions(t *testing.T) {
	dir := newBuild(t, bases["ct"]).write(t)
	for _, o := range []lint.Options{{Profiles: []string{"tgi"}}, {TP: []int{0}}} {
		if _, err := lint.Run(context.Background(), dir, o); !errors.Is(err, lint.ErrOptions) {
			t.Errorf("%+v: %v, want ErrOptions", o, err)
		}
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := lint.Run(ended, dir, lint.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want Canceled", err)
	}
	if got := codes(run(t, filepath.Join(dir, "nowhere"), lint.Options{})); !slices.Equal(got, []string{"E_DIR"}) {
		t.Errorf("a missing directory: %v, want E_DIR", got)
	}
	if got := codes(run(t, t.TempDir(), lint.Options{})); !slices.Equal(got, []string{"E_DIR"}) {
		t.Errorf("an empty directory: %v, want E_DIR", got)
	}
}

// TestDeterministic: however the work was spread, the report is the same.
func TestDeterministic(t *testing.T) {
	b := newBuild(t, bases["gptq-act"])
	for _, n := range []string{"a", "b"} {
		b.tensors["model.layers.0."+n+".weight"] = b.tensors["model.layers.0.mlp.gate.weight"]
	}
	b.quant["bits"], b.quant["desc_act"] = 8, false
	dir := b.write(t)
	first := mustJSON(t, run(t, dir, lint.Options{Limit: 2}))
	for range 5 {
		if again := mustJSON(t, run(t, dir, lint.Options{Limit: 2})); !bytes.Equal(again, first) {
			t.Fatal("two checks of one directory differ")
		}
	}
}

func TestLimit(t *testing.T) {
	b := newBuild(t, bases["gptq"])
	b.quant["bits"] = 8
	dir := b.write(t)
	all, some := run(t, dir, lint.Options{Limit: -1}), run(t, dir, lint.Options{Limit: 2})
	if len(some.More) == 0 || len(some.Findings) >= len(all.Findings) {
		t.Errorf("%d of %d findings listed", len(some.Findings), len(all.Findings))
	}
	if some.Count(lint.Error) != all.Count(lint.Error) {
		t.Errorf("%d errors counted with a limit, %d without", some.Count(lint.Error), all.Count(lint.Error))
	}
}

func TestSARIF(t *testing.T) {
	b := newBuild(t, bases["awq"])
	b.quant["zero_point"] = false
	r := run(t, b.write(t), lint.Options{})
	var buf bytes.Buffer
	if err := lint.WriteSARIF(&buf, r, "1.0"); err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Version string `json:"version"`
		Runs    []struct {
			Tool struct {
				Driver struct {
					Rules []struct {
						ID string `json:"id"`
					} `json:"rules"`
				} `json:"driver"`
			} `json:"tool"`
			Results []struct {
				RuleID    string `json:"ruleId"`
				RuleIndex int    `json:"ruleIndex"`
				Level     string `json:"level"`
			} `json:"results"`
		} `json:"runs"`
	}
	if err := json.Unmarshal(buf.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Version != "2.1.0" || len(doc.Runs) != 1 || len(doc.Runs[0].Results) != len(r.Findings) {
		t.Fatalf("%s", buf.String())
	}
	for _, res := range doc.Runs[0].Results {
		if rule := doc.Runs[0].Tool.Driver.Rules[res.RuleIndex]; rule.ID != res.RuleID || res.Level == "" {
			t.Errorf("result %+v points at rule %s", res, rule.ID)
		}
	}
}
