package format_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"quire/engine/format"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// moeSummary is a two-layer Qwen3-MoE-like checkpoint: routers, head and an MTP block left alone.
func moeSummary(s format.Scheme) *format.Summary {
	sum := &format.Summary{Producer: "quire", Version: "test", Left: []string{"lm_head", "mtp.fc", "mtp.layers.0.self_attn.q_proj"}}
	for l := range 2 {
		p := fmt.Sprintf("model.layers.%d.", l)
		for _, n := range []string{"q_proj", "k_proj", "v_proj", "o_proj"} {
			sum.Modules = append(sum.Modules, format.Written{Name: p + "self_attn." + n, Scheme: s})
		}
		for e := range 2 {
			for _, n := range []string{"gate_proj", "up_proj", "down_proj"} {
				sum.Modules = append(sum.Modules, format.Written{Name: fmt.Sprintf("%smlp.experts.%d.%s", p, e, n), Scheme: s})
			}
		}
		sum.Left = append(sum.Left, p+"mlp.gate")
	}
	return sum
}

func schemeFor(name string) format.Scheme {
	switch name {
	case "compressed-tensors-w8a8":
		return format.Scheme{Bits: 8, GroupSize: -1, Sym: true}
	case "awq":
		return format.Scheme{Bits: 4, GroupSize: 128}
	}
	return format.Scheme{Bits: 4, GroupSize: 128, Sym: true}
}

// TestConfigGolden pins the config block of each format; run with -update after a wanted change.
func TestConfigGolden(t *testing.T) {
	for _, f := range format.All() {
		c, err := f.Config(moeSummary(schemeFor(f.Name())))
		if err != nil {
			t.Fatal(f.Name(), err)
		}
		var v any
		if err := json.Unmarshal(c.QuantizationConfig, &v); err != nil {
			t.Fatal(err)
		}
		got := string(c.QuantizationConfig) + "\n"
		path := testdata("config", f.Name()+".json")
		if *update {
			if err := os.MkdirAll(testdata("config"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s: config is\n%s\nwant\n%s", f.Name(), got, want)
		}
	}
}

// TestConfigOrder: the order in which modules are given never shows.
func TestConfigOrder(t *testing.T) {
	for _, f := range format.All() {
		a := moeSummary(schemeFor(f.Name()))
		b := moeSummary(schemeFor(f.Name()))
		slices.Reverse(b.Modules)
		slices.Reverse(b.Left)
		ca, err := f.Config(a)
		if err != nil {
			t.Fatal(err)
		}
		cb, err := f.Config(b)
		if err != nil {
			t.Fatal(err)
		}
		if string(ca.QuantizationConfig) != string(cb.QuantizationConfig) {
			t.Errorf("%s: config depends on the order of modules", f.Name())
		}
	}
}

// dynamicOf evaluates GPTQModel's rules as vLLM does: first match wins, patterns anchored at the start.
func dynamicOf(t *testing.T, raw json.RawMessage, module string) (skip bool, over map[string]any) {
	t.Helper()
	var cfg struct {
		Dynamic json.RawMessage `json:"dynamic"`
	}
	if err := json.Unmarshal(raw, &cfg); err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(strings.NewReader(string(cfg.Dynamic)))
	if _, err := dec.Token(); err != nil {
		t.Fatal(err)
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			t.Fatal(err)
		}
		var v map[string]any
		if err := dec.Decode(&v); err != nil {
			t.Fatal(err)
		}
		pattern := key.(string)
		re := regexp.MustCompile("^(?:" + pattern[2:] + ")")
		if re.MatchString(module) {
			return strings.HasPrefix(pattern, "-:"), v
		}
	}
	return false, nil
}

func TestGPTQDynamic(t *testing.T) {
	s := moeSummary(format.Scheme{Bits: 4, GroupSize: 128, Sym: true})
	for i, m := range s.Modules { // attention of layer 1 in 8 bits, experts of layer 0 left alone
		if strings.HasPrefix(m.Name, "model.layers.1.self_attn") {
			s.Modules[i].Scheme.Bits = 8
		}
	}
	s.Modules = slices.DeleteFunc(s.Modules, func(m format.Written) bool {
		if strings.HasPrefix(m.Name, "model.layers.0.mlp.experts") {
			s.Left = append(s.Left, m.Name)
			return true
		}
		return false
	})
	f, err := format.Lookup("gptq_v2")
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.Config(s)
	if err != nil {
		t.Fatal(err)
	}
	for module, want := range map[string]string{
		"model.layers.0.self_attn.q_proj": "base", "model.layers.0.self_attn.qkv_proj": "base", "model.layers.1.self_attn.qkv_proj": "8",
		"model.layers.1.self_attn.o_proj": "8", "model.layers.1.self_attn.k_proj": "8",
		"model.layers.0.mlp.gate": "skip", "model.layers.1.mlp.gate": "skip", "model.layers.1.mlp.gate_up_proj": "base",
		"model.layers.0.mlp.experts": "skip", "model.layers.0.mlp.experts.1.up_proj": "skip", "model.layers.1.mlp.experts": "base",
		"model.layers.1.mlp.experts.0.up_proj": "base", "lm_head": "skip", "mtp.fc": "skip", "mtp.layers.0.self_attn.q_proj": "skip",
	} {
		skip, over := dynamicOf(t, c.QuantizationConfig, module)
		got := "base"
		switch {
		case skip:
			got = "skip"
		case over != nil:
			got = fmt.Sprint(over["bits"])
		}
		if got != want {
			t.Errorf("%s is %s, want %s\n%s", module, got, want, c.QuantizationConfig)
		}
	}
	var cfg struct {
		Blocks [][]string `json:"modules_in_block_to_quantize"`
	}
	if err := json.Unmarshal(c.QuantizationConfig, &cfg); err != nil {
		t.Fatal(err)
	}
	listed := slices.Concat(cfg.Blocks...)
	for _, n := range append(s.Left, "mtp.layers.0.self_attn.q_proj") {
		for _, l := range listed {
			if strings.Contains(n, l) {
				t.Errorf("%s was left alone but is hit by %s", n, l)
			}
		}
	}
	for _, m := range s.Modules {
		if !slices.ContainsFunc(listed, func(l string) bool { return strings.HasSuffix(m.Name, l) }) {
			t.Errorf("%s was quantized but is not listed", m.Name)
		}
	}
}

func TestFusedSetsShareAScheme(t *testing.T) {
	base := format.Scheme{Bits: 4, GroupSize: 128, Sym: true}
	other := format.Scheme{Bits: 8, GroupSize: 128, Sym: true}
	for name, spoil := range map[string]func(*format.Summary){
		"k_proj left alone":     func(s *format.Summary) { leave(s, "model.layers.0.self_attn.k_proj") },
		"k_proj in 8 bits":      func(s *format.Summary) { set(s, "model.layers.0.self_attn.k_proj", other) },
		"one expert in 8 bits":  func(s *format.Summary) { set(s, "model.layers.1.mlp.experts.1.down_proj", other) },
		"one expert left alone": func(s *format.Summary) { leave(s, "model.layers.1.mlp.experts.1.down_proj") },
	} {
		s := moeSummary(base)
		spoil(s)
		for _, f := range []string{"gptq_v2", "compressed-tensors"} {
			fm, err := format.Lookup(f)
			if err != nil {
				t.Fatal(err)
			}
			var e *format.Error
			if _, err := fm.Config(s); !errors.As(err, &e) || e.Code != "E1511" {
				t.Errorf("%s, %s: %v, want E1511", name, f, err)
			}
		}
	}
}

func leave(s *format.Summary, name string) {
	s.Modules = slices.DeleteFunc(s.Modules, func(m format.Written) bool { return m.Name == name })
	s.Left = append(s.Left, name)
}

func set(s *format.Summary, name string, scheme format.Scheme) {
	for i := range s.Modules {
		if s.Modules[i].Name == name {
			s.Modules[i].Scheme = scheme
		}
	}
}

func TestAWQSubstringConflict(t *testing.T) {
	s := &format.Summary{Modules: []format.Written{{Name: "model.layers.0.mlp.gate_proj", Scheme: schemeFor("awq")}, {Name: "model.layers.0.mlp.up_proj", Scheme: schemeFor("awq")}},
		Left: []string{"model.layers.0.mlp.gate"}}
	f, err := format.Lookup("awq")
	if err != nil {
		t.Fatal(err)
	}
	var e *format.Error
	if _, err := f.Config(s); !errors.As(err, &e) || e.Code != "E1513" {
		t.Errorf("%v, want E1513", err)
	}
}

// TestConfigLarge: the config of a model of Kimi-K2's size, 70,000 linears, takes no time worth mentioning and stays a
// size that loaders read.
func TestConfigLarge(t *testing.T) {
	for _, f := range format.All() {
		sum := &format.Summary{Producer: "quire", Version: "test", Left: []string{"lm_head"}}
		scheme := schemeFor(f.Name())
		for l := range 61 {
			p := fmt.Sprintf("model.layers.%d.", l)
			for _, n := range []string{"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"} {
				sum.Modules = append(sum.Modules, format.Written{Name: p + "self_attn." + n, Scheme: scheme})
			}
			sum.Left = append(sum.Left, p+"self_attn.kv_b_proj", p+"mlp.gate")
			for e := range 384 {
				for _, n := range []string{"gate_proj", "up_proj", "down_proj"} {
					sum.Modules = append(sum.Modules, format.Written{Name: fmt.Sprintf("%smlp.experts.%d.%s", p, e, n), Scheme: scheme})
				}
			}
		}
		c, err := f.Config(sum)
		if err != nil {
			t.Fatal(err)
		}
		if len(c.QuantizationConfig) > 100_000 {
			t.Errorf("%s: the config has %d bytes", f.Name(), len(c.QuantizationConfig))
		}
	}
}

// TestIgnoredExpertsOfOneLayer: leaving the experts of one layer alone excludes those of no other layer.
func TestIgnoredExpertsOfOneLayer(t *testing.T) {
	for _, name := range []string{"compressed-tensors", "compressed-tensors-w8a8"} {
		f, err := format.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		s := moeSummary(schemeFor(name))
		var kept []format.Written
		for _, m := range s.Modules {
			if strings.HasPrefix(m.Name, "model.layers.0.mlp.experts.") {
				s.Left = append(s.Left, m.Name)
			} else {
				kept = append(kept, m)
			}
		}
		s.Modules = kept
		c, err := f.Config(s)
		if err != nil {
			t.Fatal(err)
		}
		var q struct {
			Ignore []string `json:"ignore"`
		}
		if err := json.Unmarshal(c.QuantizationConfig, &q); err != nil {
			t.Fatal(err)
		}
		ignored := func(module string) bool {
			return slices.ContainsFunc(q.Ignore, func(entry string) bool {
				re, isPattern := strings.CutPrefix(entry, "re:")
				return entry == module || isPattern && regexp.MustCompile(re).MatchString(module)
			})
		}
		for l, want := range []bool{true, false} {
			if m := fmt.Sprintf("model.layers.%d.mlp.experts.1.up_proj", l); ignored(m) != want {
				t.Errorf("%s: %s ignored: %v; the list is %q", name, m, !want, q.Ignore)
			}
		}
	}
}
