package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// lines parses NDJSON after its hello.
func lines(t *testing.T, stdout string) (out []map[string]any) {
	t.Helper()
	for i, l := range strings.Split(strings.TrimSpace(stdout), "\n") {
		var m map[string]any
		require.NoError(t, json.Unmarshal([]byte(l), &m), l)
		if i == 0 {
			require.Equal(t, "hello", m["type"])
			continue
		}
		out = append(out, m)
	}
	return out
}

// TestSamplesTellEveryFate: every record of a file is in the output once, as a batch or with the reason why not, and the
// counts add up.
func TestSamplesTellEveryFate(t *testing.T) {
	dir := bed(t)
	write("cal.jsonl", `{"input_ids":[1,2,3,4,5,6,7,8,9,10,11,12]}
{"input_ids":[1,2,3]}
{"other":1}
{"input_ids":[20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37]}
`)(t, dir)
	file := filepath.Join(dir, "cal.jsonl")
	args := []string{"samples", filepath.Join(dir, "demo"), "--calibration", file, "--seq-len", "15", "--json"}
	exit, stdout, stderr := quire(args...)
	require.Equal(t, 0, exit, stderr)
	got := lines(t, stdout)
	require.Len(t, got, 5)
	require.Equal(t, map[string]any{"type": "batch", "batch": 0., "samples": []any{0.}, "fate": "used", "origin": []any{file + ":1"}, "tokens": 12., "length": 12., "rows": 12.,
		"ids": []any{1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12.}, "mask": []any{1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1., 1.}}, got[0])
	require.Equal(t, "clipped", got[1]["fate"])
	require.Equal(t, 18., got[1]["tokens"])
	require.Equal(t, 15., got[1]["length"])
	require.Equal(t, []any{"sample", "too-short"}, []any{got[2]["type"], got[2]["reason"]})
	require.Equal(t, []any{"dropped", "no-known-column"}, []any{got[3]["fate"], got[3]["reason"]})
	counts := got[4]["counts"].(map[string]any)
	require.Equal(t, 4., counts["samples"])
	require.Equal(t, counts["samples"], counts["used"].(float64)+counts["clipped"].(float64)+counts["merged"].(float64)+counts["dropped"].(float64))

	exit, stdout, stderr = quire(append(args, "--concat", "--min-len", "1")...)
	require.Equal(t, 0, exit, stderr)
	got = lines(t, stdout)
	require.Equal(t, []any{0., 1.}, got[0]["samples"], "12 tokens of the first and 3 of the second")
	require.Equal(t, []any{file + ":1", file + ":2"}, got[0]["origin"])
	require.Equal(t, "merged", got[0]["fate"])
	require.Equal(t, 15., got[0]["length"])
}

// TestRenderCountsCodePoints: spans are where Python would count them, behind text of more than one byte a character.
func TestRenderCountsCodePoints(t *testing.T) {
	dir := t.TempDir()
	write("t.jinja", `{% for m in messages %}{% if m.role == "assistant" %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}`)(t, dir)
	write("in.jsonl", `{"messages":[{"role":"user","content":"äöü€"},{"role":"assistant","content":"né"}]}`+"\n")(t, dir)
	exit, stdout, stderr := quire("render", "--template", filepath.Join(dir, "t.jinja"), filepath.Join(dir, "in.jsonl"))
	require.Equal(t, 0, exit, stderr)
	require.JSONEq(t, `{"text":"äöü€né","generation_spans":[[4,6]]}`, stdout)
}
