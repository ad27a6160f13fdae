package checkpoint_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"quire/capture/checkpoint"
)

// TestRoundTrip writes what was read and reads it again: the same tensors, whatever their dtype and the header's length.
func TestRoundTrip(t *testing.T) {
	var want []stored
	for i, d := range []checkpoint.DType{"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL", "F4", "C64"} {
		n := d.Bits() * 6 / 8
		data := make([]byte, n)
		for k := range data {
			data[k] = byte(k + i)
		}
		want = append(want, tensor(strings.Repeat("n", i+1)+`."weird" é`, d, data, 2, 3), tensor(strings.Repeat("e", i+1), d, nil, 0))
	}
	want = append(want, tensor("scalar", "F32", []byte{1, 2, 3, 4}))
	for pad := range 9 { // header lengths around every multiple of 8
		dir := t.TempDir()
		all := append(append([]stored(nil), want...), tensor(strings.Repeat("p", pad+1), "U8", nil, 0))
		shard(t, dir, "x.safetensors", all...)
		got := load(t, filepath.Join(dir, "x.safetensors"))
		if len(got) != len(all) {
			t.Fatalf("%d tensors, want %d", len(got), len(all))
		}
		for _, w := range all {
			g := got[w.Name]
			if g.DType != w.DType || fmt.Sprint(g.Shape) != fmt.Sprint(w.Shape) || !bytes.Equal(g.data, w.data) {
				t.Fatalf("%s: %v %v %x, want %v %v %x", w.Name, g.DType, g.Shape, g.data, w.DType, w.Shape, w.data)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "*.tmp")); len(left) > 0 {
			t.Fatalf("temporary files left: %v", left)
		}
	}
}

// TestWriterKeepsToItsPlan refuses what was not planned and leaves no file behind.
func TestWriterKeepsToItsPlan(t *testing.T) {
	specs := []checkpoint.TensorSpec{{Name: "a", DType: "U8", Shape: []int{2}}, {Name: "b", DType: "U8", Shape: []int{1}}}
	for name, use := range map[string]func(w *checkpoint.ShardWriter) error{
		"out of order": func(w *checkpoint.ShardWriter) error { return w.Write("b", []byte{1}) },
		"wrong size":   func(w *checkpoint.ShardWriter) error { return w.Write("a", []byte{1}) },
		"unfinished": func(w *checkpoint.ShardWriter) error {
			if err := w.Write("a", []byte{1, 2}); err != nil {
				return err
			}
			_, err := w.Close()
			return err
		},
	} {
		dir := t.TempDir()
		w, err := checkpoint.CreateShard(dir, "x.safetensors", specs)
		if err != nil {
			t.Fatal(err)
		}
		if err := use(w); !errors.Is(err, checkpoint.ErrRange) {
			t.Errorf("%s: %v", name, err)
		}
		_ = w.Abort() // an unfinished Close has done so already
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("%s: %v left", name, left)
		}
	}
}

// TestSourceIsReadByRange opens a sparse checkpoint of 2 GiB and reads a few elements from its end.
func TestSourceIsReadByRange(t *testing.T) {
	dir := t.TempDir()
	const n = 1 << 30
	raw(t, dir, "model.safetensors", "{"+entry("w", "BF16", fmt.Sprintf("[64,%d]", n/64), 0, 2*n)+"}", 0)
	st, err := os.Stat(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, "model.safetensors"), st.Size()+2*n); err != nil {
		t.Skipf("sparse files are missing here: %v", err)
	}
	file(t, dir, "config.json", "{}")
	src := open(t, dir)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	dst := make([]float32, 1000)
	if err := src.DecodeF32(t.Context(), "w", dst, n-1000); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
		t.Fatalf("%d bytes allocated for 4,000", used)
	}
	for _, off := range []int64{-1, n - 999} {
		if err := src.DecodeF32(t.Context(), "w", dst, off); !errors.Is(err, checkpoint.ErrRange) {
			t.Errorf("offset %d: %v", off, err)
		}
	}
}

// TestCacheEntry follows refs, revisions and owner/name.
func TestCacheEntry(t *testing.T) {
	home := t.TempDir()
	repo := filepath.Join(home, "models--me--tiny")
	for _, rev := range []string{"aaa", "bbb"} {
		dir := filepath.Join(repo, "snapshots", rev)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, dir, `{"rev":"`+rev+`"}`, tensor("w", "U8", []byte{1}, 1))
	}
	if err := os.MkdirAll(filepath.Join(repo, "refs"), 0o755); err != nil {
		t.Fatal(err)
	}
	file(t, filepath.Join(repo, "refs"), "main", "bbb\n")
	t.Setenv("HF_HUB_CACHE", home)
	for path, want := range map[string]string{repo: "bbb", "me/tiny": "bbb", "me/tiny@aaa": "aaa", "me/tiny@main": "bbb", filepath.Join(repo, "snapshots", "aaa"): "aaa"} {
		if got := string(open(t, path).ConfigJSON()); got != `{"rev":"`+want+`"}` {
			t.Errorf("%s: %s", path, got)
		}
	}
	for _, path := range []string{"me/tiny@ccc", "me/other", "me/tiny@../aaa"} {
		if _, err := checkpoint.Open(t.Context(), path); !errors.Is(err, checkpoint.ErrNotFound) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestParameterMap opens a map without bytes; what needs bytes says so.
func TestParameterMap(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.json.gz")
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	fmt.Fprint(z, `{"b.weight":{"shape":[256,128],"dtype":"F8_E4M3","file":"one"},"b.weight_scale_inv":{"shape":[2,1],"dtype":"F32","file":"two"},"a":{"dtype":"BF16","file":"one","shape":[]}}`)
	z.Close()
	file(t, dir, "m.json.gz", b.String())
	src := open(t, path)
	if !src.HeaderOnly() || !src.ConfigInferred() || len(src.Tensors()) != 3 || len(src.Logical()) != 2 {
		t.Fatalf("%+v", src.Logical())
	}
	if l := src.Logical()[1]; l.Format != "fp8 128x128" || l.Name != "b.weight" {
		t.Fatalf("%+v", l)
	}
	if err := src.DecodeF32(t.Context(), "b.weight", make([]float32, 1), 0); !errors.Is(err, checkpoint.ErrNoData) {
		t.Fatal(err)
	}
	for content, code := range map[string]string{`{"a":{"shape":[1],"dtype":"X"}}`: "E1107", `{"a":{},"a":{}}`: "E1107", `[`: "E1118", `{"a":{"shape":[1],"dtype":"F32"},"a":{"shape":[1],"dtype":"F32"}}`: "E1113"} {
		file(t, dir, "bad.json", content)
		_, err := checkpoint.Open(t.Context(), filepath.Join(dir, "bad.json"))
		var one *checkpoint.Error
		var many checkpoint.Errors
		if errors.As(err, &many) {
			one = many[0]
		} else if !errors.As(err, &one) {
			t.Fatalf("%s: %v", content, err)
		}
		if one.Code != code {
			t.Errorf("%s: %s, want %s", content, one.Code, code)
		}
	}
}

func TestConfigEdit(t *testing.T) {
	const q = `{"bits":4}`
	for in, want := range map[string]string{
		`{}`:                                   `{"quantization_config": {"bits":4}}`,
		"{\n  \"a\": 1.50,\n  \"b\": NaN\n}\n": "{\n  \"a\": 1.50,\n  \"b\": NaN,\n  \"quantization_config\": {\"bits\":4}\n}\n",
		`{"quantization_config":{"x":[1,{"y":2}]},"z":"\u00e9"}`:                                `{"quantization_config":{"bits":4},"z":"\u00e9"}`,
		`{"a":1,"compression_config":{},"z":2}`:                                                 `{"a":1,"z":2,"quantization_config": {"bits":4}}`,
		`{"text_config":{"h":1,"quantization_config":{"quant_method":"fp8"}},"model_type":"m"}`: `{"text_config":{"h":1},"model_type":"m","quantization_config": {"bits":4}}`,
		`{"text_config":null}`: `{"text_config":null,"quantization_config": {"bits":4}}`,
	} {
		got, err := checkpoint.ReplaceQuantization([]byte(in), []byte(q))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s\n got %s\nwant %s", in, got, want)
		}
	}
	got, err := checkpoint.ReplaceQuantization([]byte(`{"quantization_config":1,"a":2}`), nil)
	if err != nil || string(got) != `{"a":2}` {
		t.Errorf("%s %v", got, err)
	}
}

func TestDigestCache(t *testing.T) {
	dir := t.TempDir()
	file(t, dir, "x", "abc")
	p := filepath.Join(dir, "x")
	const abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	for range 2 { // computed, then remembered in a file
		c := checkpoint.LoadDigestCache(filepath.Join(dir, "cache.json"))
		done := int64(0)
		if got, err := c.Digest(t.Context(), p, false, func(n int64) { done = n }); err != nil || got != abc || done != 3 {
			t.Fatalf("%s %v %d", got, err, done)
		}
	}
	file(t, dir, "x", "abcd")
	if got, err := checkpoint.LoadDigestCache(filepath.Join(dir, "cache.json")).Digest(t.Context(), p, false, func(int64) {}); err != nil || got == abc {
		t.Fatalf("a changed file kept its digest: %v", err)
	}
}

// TestShardThatCannotTakeItsNameLeavesNothing: a failed close says why and leaves no half-written file.
func TestShardThatCannotTakeItsNameLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "x.safetensors", "in the way"), 0o755); err != nil {
		t.Fatal(err)
	}
	w, err := checkpoint.CreateShard(dir, "x.safetensors", []checkpoint.TensorSpec{{Name: "a", DType: "U8", Shape: []int{2}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write("a", []byte{1, 2}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Close(); err == nil || !strings.Contains(err.Error(), "x.safetensors") {
		t.Fatalf("closed with %v, want an error that names the file", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.tmp")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
