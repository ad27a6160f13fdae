package lint_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"quire/engine/lint"
)

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

// TestPublishedCheckpoints: what other tools wrote, with exactly the findings that are true of it.
func TestPublishedCheckpoints(t *testing.T) {
	for _, c := range []struct {
		dir  string
		want []string // above a note
		note []string
	}{
		{"gptqmodel-gptq-w4g32", []string{"E_MODEL_DTYPE sglang"}, []string{"E_TP_LIMIT"}},
		{"gptqmodel-gptaq-w4g32-bypass", []string{"E_MODEL_DTYPE sglang"}, []string{"E_TP_LIMIT"}},
		{"gptqmodel-awq-gemm-w4g32", []string{"E_ZERO_POINT vllm"}, []string{"E_TP_LIMIT"}}, // symmetric, zero_point false
		{"llmcompressor-gptq-w4a16-g32", nil, []string{"E_SIDE_FILE", "E_TP_LIMIT"}},
		{"llmcompressor-awq-w4a16-g32", []string{"E_SYM sglang", "E_SYM transformers", "E_SYM vllm"}, []string{"E_SIDE_FILE", "E_TP_LIMIT"}},
		{"llmcompressor-w8a8", nil, []string{"E_SIDE_FILE"}},
		{"llmcompressor-fp8-dynamic", nil, []string{"E_FORMAT", "E_SIDE_FILE"}},
		{"llmcompressor-nvfp4", nil, []string{"E_FORMAT", "E_SIDE_FILE"}},
		{"modelopt-nvfp4", nil, []string{"E_FORMAT", "E_SIDE_FILE"}},
	} {
		t.Run(c.dir, func(t *testing.T) {
			t.Parallel()
			r := run(t, shared(t, "fixtures", "quant", "checkpoints", c.dir), lint.Options{})
			if got := codes(r); !slices.Equal(got, c.want) {
				t.Errorf("findings %v, want %v", got, c.want)
			}
			var notes []string
			for _, f := range r.Findings {
				if f.Severity == lint.Note && !slices.Contains(notes, f.Code) {
					notes = append(notes, f.Code)
				}
			}
			slices.Sort(notes)
			if !slices.Equal(notes, c.note) {
				t.Errorf("notes %v, want %v", notes, c.note)
			}
			if r.Quantized != 112 || r.Left != 5 {
				t.Errorf("%d modules quantized and %d left, want 112 and 5", r.Quantized, r.Left)
			}
		})
	}
}

// TestAgainst: the errors that the fixtures recorded, and what smoothing folded is told from what was damaged.
func TestAgainst(t *testing.T) {
	original := shared(t, "models", "tiny-qwen3moe-stories")
	for _, c := range []struct {
		dir    string
		lo, hi float64 // median relative error
		folded bool
	}{
		// fixture.json records the squared ratio: 0.0139, 0.0143, 0.0001 (median), so the roots lie at 0.118, 0.120, 0.0085.
		{"gptqmodel-gptq-w4g32", 0.115, 0.121, false},
		{"llmcompressor-gptq-w4a16-g32", 0.117, 0.122, false},
		{"llmcompressor-w8a8", 0.007, 0.010, false},
		{"gptqmodel-awq-gemm-w4g32", 0.08, 0.15, true},
		{"llmcompressor-awq-w4a16-g32", 0.08, 0.14, true},
	} {
		t.Run(c.dir, func(t *testing.T) {
			t.Parallel()
			r := run(t, shared(t, "fixtures", "quant", "checkpoints", c.dir), lint.Options{Against: original, Limit: -1})
			a := r.Against
			if len(a.Modules) != 112 || len(a.Unread) != 0 {
				t.Fatalf("%d modules compared, %d not", len(a.Modules), len(a.Unread))
			}
			if a.Median < c.lo || a.Median > c.hi {
				t.Errorf("median relative error %g, want %g to %g", a.Median, c.lo, c.hi)
			}
			folded := slices.ContainsFunc(r.Findings, func(f lint.Finding) bool { return f.Code == "E_AGAINST_FOLDED" })
			if folded != c.folded {
				t.Errorf("folded is %v", folded)
			}
			for _, f := range r.Findings {
				if strings.HasPrefix(f.Code, "E_AGAINST") && f.Code != "E_AGAINST_FOLDED" {
					t.Errorf("%s %s: %s", f.Code, f.Subject, f.Message)
				}
			}
		})
	}
}
