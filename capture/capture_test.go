package capture_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"quire/capture"
	"quire/capture/checkpoint"
	"quire/capture/model"
	"quire/kernels"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestLanes checks lane(b) = ⌊lanes·rowsBefore(b)/rows⌋ by its own words, batch by batch.
func TestLanes(t *testing.T) {
	for _, c := range []struct {
		lengths []int
		lanes   int
	}{
		{[]int{1, 9, 37, 300, 2, 64, 17}, 8}, {[]int{5}, 8}, {[]int{3, 3, 3, 3}, 4}, {[]int{100, 1, 1, 1}, 3}, {[]int{0, 4, 0, 4, 0}, 2}, {nil, 3}, {[]int{0, 0}, 2},
	} {
		ls := capture.Lanes(c.lengths, c.lanes)
		if len(ls) != c.lanes {
			t.Fatalf("%v: %d lanes", c.lengths, len(ls))
		}
		var total, before int64
		for _, n := range c.lengths {
			total += int64(n)
		}
		at := 0
		for i, l := range ls {
			if l.Index != i || l.First != at {
				t.Errorf("%v: lane %d begins at batch %d, want %d", c.lengths, i, l.First, at)
			}
			at = l.Last
			var rows int64
			for b := l.First; b < l.Last; b++ {
				if total > 0 && before < total && int64(c.lanes)*before/total != int64(i) {
					t.Errorf("%v: batch %d lies in lane %d", c.lengths, b, i)
				}
				before += int64(c.lengths[b])
				rows += int64(c.lengths[b])
			}
			if rows != l.Rows {
				t.Errorf("%v: lane %d counts %d rows of %d", c.lengths, i, l.Rows, rows)
			}
		}
		if at != len(c.lengths) {
			t.Errorf("%v: %d batches in lanes", c.lengths, at)
		}
	}
	if got := capture.Spans([]int{5, 5, 5, 30, 1}, 0, 5, 10); !slices.Equal(got, []capture.Range{{First: 0, Last: 2}, {First: 2, Last: 3}, {First: 3, Last: 4}, {First: 4, Last: 5}}) {
		t.Errorf("spans %v", got)
	}
}

func TestFold(t *testing.T) {
	f := capture.NewFold(2)
	for lane, p := range [][]float32{{1, 2, 0, 4}, nil, {1e8, -2, 0, 0.25}} {
		rows := int64(2)
		if p == nil {
			rows = 0
		}
		if err := f.Add(lane, p, rows); err != nil {
			t.Fatal(err)
		}
	}
	h := make([]float32, 4)
	f.Hessian(h)
	if want := []float32{float32((1 + 1e8) / 2.0), 0, 0, 2.125}; !slices.Equal(h, want) {
		t.Errorf("got %v, want %v", h, want)
	}
	if err := f.Add(1, []float32{0, 0, 0, 0}, 1); err == nil {
		t.Error("a lane out of order was taken")
	}
}

// TestHiddenSpills puts the same rows into memory and into a file.
func TestHiddenSpills(t *testing.T) {
	lengths := []int{3, 1, 7}
	for _, c := range []model.Compute{model.F32, model.BF16} {
		for _, budget := range []int64{-1, 0, 40 * c.ElemBytes()} {
			dir := t.TempDir()
			h, err := capture.NewHidden(lengths, 10, c, budget, dir)
			if err != nil {
				t.Fatal(err)
			}
			if (budget >= 0) != (h.SpilledBytes() > 0) || h.SpilledBytes()+h.HeldBytes() != 110*c.ElemBytes() {
				t.Errorf("budget %d: %d spilled, %d held", budget, h.SpilledBytes(), h.HeldBytes())
			}
			rows := func(b int) kernels.Rows {
				x := kernels.Rows{M: lengths[b], K: 10, Stride: 10}
				for i := range x.M * 10 {
					if c == model.BF16 {
						x.BF16 = append(x.BF16, uint16(b<<12|i))
					} else {
						x.F32 = append(x.F32, float32(b)+float32(i)/64)
					}
				}
				return x
			}
			ctx := context.Background()
			for _, b := range []int{2, 0} {
				if err := h.Put(ctx, b, rows(b)); err != nil {
					t.Fatal(err)
				}
			}
			for _, b := range []int{0, 2} {
				got, want := rows(1), rows(b)
				got.M, got.BF16, got.F32 = want.M, slices.Clone(want.BF16), slices.Clone(want.F32)
				clear(got.BF16)
				clear(got.F32)
				if err := h.Get(ctx, b, got); err != nil || !slices.Equal(got.BF16, want.BF16) || !slices.Equal(got.F32, want.F32) {
					t.Errorf("budget %d: batch %d came back changed (%v)", budget, b, err)
				}
			}
			if err := h.Get(ctx, 1, rows(1)); !errors.Is(err, capture.ErrAbsent) {
				t.Errorf("absent batch: %v", err)
			}
			if err := h.Put(ctx, 1, rows(2)); !errors.Is(err, capture.ErrBatch) {
				t.Errorf("wrong shape: %v", err)
			}
			if err := h.Close(); err != nil {
				t.Error(err)
			}
			if left, _ := os.ReadDir(dir); len(left) != 0 {
				t.Errorf("left behind: %v", left)
			}
		}
	}
}

func runner(t *testing.T, dir string, c model.Compute) *model.Runner {
	t.Helper()
	ck, err := checkpoint.Open(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ck.Close() })
	m, err := model.Open(context.Background(), model.FromCheckpoint(ck), model.Options{Compute: c})
	if err != nil {
		t.Fatal(err)
	}
	pool := kernels.NewPool(2)
	t.Cleanup(pool.Close)
	return m.NewRunner(model.RunnerOptions{Pool: pool, ScratchBytes: 1 << 20})
}

// arch copies a fixture's checkpoint into a directory of its own: expected.safetensors beside it is no shard.
func arch(t *testing.T, name string) string {
	t.Helper()
	dir, from := t.TempDir(), filepath.Join("..", "testdata", "model", "arch", name)
	for _, f := range []string{"config.json", "model.safetensors"} {
		b, err := os.ReadFile(filepath.Join(from, f))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, f), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func ragged(vocab int) [][]int32 {
	var out [][]int32
	seed := uint32(3)
	for _, n := range []int{12, 1, 40, 3, 25, 7} {
		p := make([]int32, n)
		for i := range p {
			seed = seed*1664525 + 1013904223
			p[i] = int32(seed>>8) % int32(vocab)
		}
		out = append(out, p)
	}
	return out
}

// TestMemoryLimitsGiveTheSameBits evaluates under limits so small that every layer spills and experts come in batches.
func TestMemoryLimitsGiveTheSameBits(t *testing.T) {
	ctx := context.Background()
	for _, name := range []string{"qwen3_moe", "deepseek_v3", "gpt_oss"} {
		for _, c := range []model.Compute{model.F32, model.BF16} {
			dir := arch(t, name)
			r := runner(t, dir, c)
			var want *capture.EvalResult
			for _, limit := range []int64{0, 1 << 30, 400 << 10, 100 << 10, 1} {
				got, err := capture.Evaluate(ctx, r, nil, ragged(r.Model().Vocab), capture.EvalOptions{BOS: -1, MemoryBytes: limit, Dir: t.TempDir()})
				if err != nil {
					t.Fatal(err)
				}
				if limit == 1 && got.SpilledBytes == 0 {
					t.Error("nothing spilled")
				}
				if want == nil {
					want = got
				} else if math.Float64bits(got.NLL) != math.Float64bits(want.NLL) {
					t.Errorf("%s %s: limit %d gives %v, not %v", name, c, limit, got.NLL, want.NLL)
				}
			}
		}
	}
}

// TestForwardWays runs one layer with experts loaded once, in batches over all spans, and by every span.
func TestForwardWays(t *testing.T) {
	ctx := context.Background()
	r := runner(t, arch(t, "qwen3_moe"), model.BF16)
	m := r.Model()
	ps := ragged(m.Vocab)
	var lengths []int
	rows := 0
	for _, p := range ps {
		lengths = append(lengths, len(p))
		rows += len(p)
	}
	fits := m.LayerBytes(0) + m.SpanBytes(0, rows) + 2*m.ExpertBytes(0)
	var want [][]uint16
	for _, limit := range []int64{0, fits, 1} {
		h, err := capture.NewHidden(lengths, m.Hidden, m.Compute, -1, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := capture.Embed(ctx, r, ps, h); err != nil {
			t.Fatal(err)
		}
		run, err := r.OpenLayer(ctx, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := capture.Forward(ctx, run, lengths, h, h, capture.ForwardOptions{SpanRows: 30, MemoryBytes: limit}); err != nil {
			t.Fatal(err)
		}
		run.Close()
		var got [][]uint16
		for b, n := range lengths {
			x := kernels.RowsBF16(make([]uint16, n*m.Hidden), n, m.Hidden)
			if err := h.Get(ctx, b, x); err != nil {
				t.Fatal(err)
			}
			got = append(got, x.BF16)
		}
		if want == nil {
			want = got
		}
		for b := range got {
			if !slices.Equal(got[b], want[b]) {
				t.Errorf("limit %d: batch %d has other bits", limit, b)
			}
		}
	}
}

// TestEvaluateItself: a model does not diverge from itself, and not at all where nothing can be predicted.
func TestEvaluateItself(t *testing.T) {
	ctx := context.Background()
	dir := arch(t, "llama")
	a, b := runner(t, dir, model.F32), runner(t, dir, model.F32)
	res, err := capture.Evaluate(ctx, a, b, ragged(96), capture.EvalOptions{BOS: -1})
	if err != nil {
		t.Fatal(err)
	}
	if res.Tokens != 82 || res.KLMean != 0 || res.KLP99 != 0 || res.Top1 != 1 || res.Perplexity != res.QuantizedPerplexity || len(res.Layers) != 3 || res.Layers[2].Relative != 0 {
		t.Errorf("%+v", res)
	}
	if _, err := capture.Evaluate(ctx, a, nil, [][]int32{{5}}, capture.EvalOptions{BOS: -1}); !errors.Is(err, capture.ErrTokens) {
		t.Errorf("one token: %v", err)
	}
	if with, err := capture.Evaluate(ctx, a, nil, [][]int32{{5}}, capture.EvalOptions{BOS: 1}); err != nil || with.Tokens != 1 {
		t.Errorf("one token behind a BOS: %+v %v", with, err)
	}
	if _, err := capture.Evaluate(ctx, a, runner(t, arch(t, "qwen3_moe"), model.F32), ragged(90), capture.EvalOptions{BOS: -1}); !errors.Is(err, capture.ErrPair) {
		t.Errorf("two different models: %v", err)
	}
}

// TestPerplexity compares with the reference implementation's figure (reference/baselines.md, section 1): 6.679 on the second
// half of ts_valid512 in windows of 256.
func TestPerplexity(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "testdata", "tokens", "ts_valid512.u16"))
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]int32, len(raw)/2)
	for i := range ids {
		ids[i] = int32(binary.LittleEndian.Uint16(raw[2*i:]))
	}
	half := ids[len(ids)/2:]
	windows, dropped := capture.Windows([][]int32{half}, 256, false)
	if int64(len(windows)*256)+dropped != int64(len(half)) {
		t.Fatal("tokens lost")
	}
	r := runner(t, filepath.Join("..", "testdata", "demo"), model.F32)
	res, err := capture.Evaluate(context.Background(), r, nil, windows, capture.EvalOptions{BOS: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("perplexity %.5f over %d positions", res.Perplexity, res.Tokens)
	if math.Abs(res.Perplexity/6.679-1) > 1e-3 {
		t.Errorf("perplexity %v, the reference gives 6.679", res.Perplexity)
	}
}

// TestTraceAgainstFixture compares what trace emits with the reference implementation's recording, key by key. Integers are
// equal, floats within 5e-5 of the largest value (tolerances of single families: package model).
func TestTraceAgainstFixture(t *testing.T) {
	for _, name := range []string{"qwen3_moe", "gpt_oss", "deepseek_v3"} {
		s, err := checkpoint.OpenShard(filepath.Join("..", "testdata", "model", "arch", name, "expected.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		want := map[string][]byte{}
		var prompts [3][]int32
		for _, x := range s.Tensors() {
			b := make([]byte, x.End-x.Begin)
			if err := s.ReadAt(x, b, 0); err != nil {
				t.Fatal(err)
			}
			want[x.Name] = b
			for p := range prompts {
				if x.Name == fmt.Sprintf("p%d.input_ids", p) {
					for i := 0; i < len(b); i += 4 {
						prompts[p] = append(prompts[p], int32(binary.LittleEndian.Uint32(b[i:])))
					}
				}
			}
		}
		r := runner(t, arch(t, name), model.F32)
		var all []int
		for i := range r.Model().Layers {
			all = append(all, i)
		}
		seen := map[string]bool{}
		err = capture.Trace(context.Background(), r, prompts[:], capture.TraceOptions{Sites: all, Emit: func(x capture.TraceTensor) error {
			if seen[x.Name] {
				t.Errorf("%s twice", x.Name)
			}
			seen[x.Name] = true
			w, ok := want[x.Name]
			if !ok {
				return nil // inputs of layers that the fixture did not record
			}
			if x.I32 != nil || strings.Contains(x.Name, "topk") {
				if !bytes.Equal(x.Bytes(), w) {
					t.Errorf("%s: %s differs", name, x.Name)
				}
				return nil
			}
			if d := relative(x.F32, w); !(d <= 5e-5) {
				t.Errorf("%s: %s differs by %.2g", name, x.Name, d)
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		for k := range want {
			if !seen[k] {
				t.Errorf("%s: trace lacks %s", name, k)
			}
		}
	}
}

// relative is max|got-want| / max|want| against little-endian float32.
func relative(got []float32, want []byte) float64 {
	if len(want) != 4*len(got) {
		return math.Inf(1)
	}
	var d, m float64
	for i, v := range got {
		w := float64(math.Float32frombits(binary.LittleEndian.Uint32(want[4*i:])))
		d, m = max(d, math.Abs(float64(v)-w)), max(m, math.Abs(w))
	}
	return d / max(m, 1e-30)
}
