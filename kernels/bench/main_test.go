package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every line of -json is one object; a measurement's share and ratio follow from its figures.
func TestJSON(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run([]string{"-json", "-quick"}, tiny, &out, &errs); code != 0 {
		t.Fatalf("exit code %d: %s", code, errs.String())
	}
	seen := map[string]bool{}
	lines := bufio.NewScanner(&out)
	for first := true; lines.Scan(); first = false {
		if first {
			var hello struct{ Type, Level string }
			if err := json.Unmarshal(lines.Bytes(), &hello); err != nil || hello.Type != "machine" || hello.Level == "" {
				t.Fatalf("first line %q: %v", lines.Text(), err)
			}
			continue
		}
		var r Result
		d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		d.DisallowUnknownFields()
		if err := d.Decode(&r); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		if r.Name == "" || r.Unit == "" || r.Threads < 1 || !(r.Ours > 0) || math.IsInf(r.Ours, 0) {
			t.Errorf("incomplete: %s", lines.Text())
		}
		if r.Peak > 0 && math.Abs(r.Share*r.Peak/r.Ours-1) > 1e-9 || r.Alternative > 0 && math.Abs(r.Ratio*r.Alternative/r.Ours-1) > 1e-9 {
			t.Errorf("share or ratio do not follow: %s", lines.Text())
		}
		for _, kind := range []string{"peak FMA", "peak scalar", "gemm f32", "gemm bf16", "gram f32", "gram bf16", "inverse factor", "gptq loop", "memory read", "cold weights", "element-wise"} {
			if strings.HasPrefix(r.Name, kind) {
				seen[kind] = true
			}
		}
	}
	for _, kind := range []string{"gemm f32", "gemm bf16", "gram f32", "gram bf16", "inverse factor", "gptq loop", "memory read", "cold weights", "element-wise"} {
		if !seen[kind] {
			t.Errorf("no measurement of %s", kind)
		}
	}
}

func TestFlags(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		code int
		want string // in the output
	}{
		{"one measurement", []string{"-match", "^gram f32"}, 0, "gram f32"},
		{"no match", []string{"-match", "^no such thing$"}, 0, "level "},
		{"bad expression", []string{"-match", "("}, 2, "-match"},
		{"unknown flag", []string{"-fast"}, 2, "-fast"},
		{"argument", []string{"fast"}, 2, "fast"},
	} {
		var out, errs bytes.Buffer
		if code := run(c.args, tiny, &out, &errs); code != c.code {
			t.Errorf("%s: exit code %d, want %d", c.name, code, c.code)
		}
		if !strings.Contains(out.String()+errs.String(), c.want) {
			t.Errorf("%s: %q is not in the output", c.name, c.want)
		}
	}
}

func TestTargets(t *testing.T) {
	r := Result{Ours: 90, Share: 0.9, Ratio: 0.5}
	r.want("share", 0.95)
	if r.Holds == nil || *r.Holds || r.Target != "share >= 0.95" || !strings.HasSuffix(r.row(), "share >= 0.95: below (busy machine: no sample passed the gate)") {
		t.Errorf("%+v\n%s", r, r.row())
	}
	r.want("ratio", 0.5)
	if !*r.Holds {
		t.Errorf("%+v", r)
	}
}
