package main

import (
	"bytes"
	"encoding/json"
	"os"
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

// TestSamplesAddUp takes every fate in one set and adds the lines up to the counts, with masks, joined samples and stdin.
func TestSamplesAddUp(t *testing.T) {
	t.Parallel()
	dir := bed(t)
	data := filepath.Join(dir, "c.jsonl")
	write("c.jsonl", `{"id":"x","input_ids":[1,2,3,4,5],"mask":[0,1,1,1,1]}
{"input_ids":[1,2]}
{"text":"Once upon a time there was a little girl who had a cat and a dog.","mask":[]}
{"input_ids":[5,6,7,8,9,10,11,12,13,14,15,16],"mask":[0,0,0,0,0,0,0,1,1,1,1,1]}
not json
{"input_ids":[9,9,9,9]}
{"input_ids":[9,9,9,9]}
`)(t, dir)
	run := func(args ...string) []map[string]any {
		var out, errw bytes.Buffer
		require.Equal(t, 0, Main(append([]string{"samples", filepath.Join(dir, "demo"), "--json", "--min-len", "3", "--seq-len", "8"}, args...), strings.NewReader(`{"input_ids":[1,2,3,4]}`+"\n"), &out, &errw), out.String()+errw.String())
		got := lines(t, out.String())
		addUp(t, got)
		return got
	}
	got := run("--calibration", data, "--samples", "4")
	require.Equal(t, []any{data + ":4"}, got[2]["origin"])
	require.Equal(t, []any{"clipped", 12., 8.}, []any{got[2]["fate"], got[2]["tokens"], got[2]["length"]})
	var reasons []string
	for _, l := range got {
		if l["type"] == "sample" {
			reasons = append(reasons, l["reason"].(string))
		}
	}
	require.Equal(t, []string{"too-short", "bad-record", "beyond-samples"}, reasons)
	got = run("--calibration", data, "--count", "mask")
	require.Equal(t, []any{0., 1., 1., 1., 1.}, got[0]["mask"])
	require.Equal(t, []any{0., 0., 0., 0., 0., 0., 0., 1.}, got[1]["mask"])
	require.Equal(t, "merged", run("--calibration", data, "--concat")[0]["fate"])
	require.Equal(t, []any{"-:1"}, run("--calibration", "-")[0]["origin"])
}

// addUp checks that every record has one fate and that the counts are those of the lines.
func addUp(t *testing.T, got []map[string]any) {
	t.Helper()
	counts := got[len(got)-1]["counts"].(map[string]any)
	fates, seen := map[string]float64{}, map[float64]int{}
	batches, tokens, rows := 0., 0., 0.
	concat := false
	for _, l := range got[:len(got)-1] {
		concat = concat || l["fate"] == "merged"
	}
	for _, l := range got[:len(got)-1] {
		if l["type"] == "batch" {
			require.Equal(t, batches, l["batch"])
			require.Len(t, l["mask"], len(l["ids"].([]any)))
			require.Len(t, l["ids"], int(l["length"].(float64)))
			for _, m := range l["mask"].([]any) {
				rows += m.(float64)
			}
			batches, tokens = batches+1, tokens+l["length"].(float64)
		}
		if l["type"] == "sample" || !concat {
			require.Len(t, l["samples"], 1)
			seen[l["samples"].([]any)[0].(float64)]++
			fates[l["fate"].(string)]++
			require.Equal(t, l["fate"] == "dropped", l["reason"] != nil)
		}
	}
	require.EqualValues(t, len(seen), counts["samples"])
	for s, n := range seen {
		require.Equal(t, 1, n, "sample %v", s)
	}
	for _, f := range []string{"used", "clipped", "merged", "dropped"} {
		require.Equal(t, fates[f], counts[f], f)
	}
	require.Equal(t, []any{batches, tokens, rows}, []any{counts["batches"], counts["tokens"], counts["rows"]})
}

// TestSamplesWithoutTokenizer reads token ids of a model that has no tokenizer, and names the tokenizer where text needs one.
func TestSamplesWithoutTokenizer(t *testing.T) {
	t.Parallel()
	dir := bed(t)
	require.NoError(t, os.Remove(filepath.Join(dir, "demo", "tokenizer.json")))
	write("c.jsonl", `{"meta":"`+strings.Repeat("x", 300)+`","input_ids":[1,2,3]}`+"\n")(t, dir)
	args := []string{"samples", filepath.Join(dir, "demo"), "--calibration", filepath.Join(dir, "c.jsonl"), "--min-len", "1"}
	exit, stdout, stderr := quire(append(args, "--json")...)
	require.Equal(t, 0, exit, stdout+stderr)
	addUp(t, lines(t, stdout))
	write("c.jsonl", `{"input_ids":[1,2,3]}`+"\n"+`{"text":"hello"}`+"\n")(t, dir)
	exit, _, stderr = quire(args...)
	require.Equal(t, 64, exit)
	require.Contains(t, stderr, "E1201")
	require.Contains(t, stderr, "c.jsonl:2")
}

// TestLinesSplitNowhereElse: characters at which readers of other languages end a line are escaped in every NDJSON line.
func TestLinesSplitNowhereElse(t *testing.T) {
	dir := t.TempDir()
	write("t.jinja", `{{ messages[0].content }}`)(t, dir)
	write("in.jsonl", `{"messages":[{"role":"user","content":"a\u0085b\u2028c\u2029d"}]}`+"\n")(t, dir)
	exit, stdout, stderr := quire("render", "--template", filepath.Join(dir, "t.jinja"), filepath.Join(dir, "in.jsonl"))
	require.Equal(t, 0, exit, stderr)
	require.Equal(t, `{"text":"a\u0085b\u2028c\u2029d"}`+"\n", stdout)
}
