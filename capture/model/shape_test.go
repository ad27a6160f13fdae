package model_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sort"
	"sync"
	"testing"
	"time"

	"quire/capture/model"
	"quire/kernels"
)

// synthetic is a Source of random bf16 weights: values depend on name and offset only, nothing is stored.
type synthetic struct {
	config string
	shapes map[string][]int
}

// qwen30B is one layer of Qwen3-30B-A3B's shape.
func qwen30B(experts int) *synthetic {
	const h, inter, heads, kv, dim, vocab = 2048, 768, 32, 4, 128, 64
	s := &synthetic{shapes: map[string][]int{}, config: fmt.Sprintf(`{"model_type":"qwen3_moe","hidden_act":"silu","hidden_size":%d,"vocab_size":%d,"num_hidden_layers":1,
		"num_attention_heads":%d,"num_key_value_heads":%d,"head_dim":%d,"moe_intermediate_size":%d,"num_experts":%d,"num_experts_per_tok":8,
		"norm_topk_prob":true,"rms_norm_eps":1e-6,"rope_theta":1000000,"tie_word_embeddings":false}`, h, vocab, heads, kv, dim, inter, experts)}
	l := "model.layers.0."
	s.shapes["model.embed_tokens.weight"], s.shapes["lm_head.weight"], s.shapes["model.norm.weight"] = []int{vocab, h}, []int{vocab, h}, []int{h}
	s.shapes[l+"input_layernorm.weight"], s.shapes[l+"post_attention_layernorm.weight"] = []int{h}, []int{h}
	s.shapes[l+"self_attn.q_proj.weight"], s.shapes[l+"self_attn.o_proj.weight"] = []int{heads * dim, h}, []int{h, heads * dim}
	s.shapes[l+"self_attn.k_proj.weight"], s.shapes[l+"self_attn.v_proj.weight"] = []int{kv * dim, h}, []int{kv * dim, h}
	s.shapes[l+"self_attn.q_norm.weight"], s.shapes[l+"self_attn.k_norm.weight"] = []int{dim}, []int{dim}
	s.shapes[l+"mlp.gate.weight"] = []int{experts, h}
	for e := range experts {
		p := fmt.Sprintf("%smlp.experts.%d.", l, e)
		s.shapes[p+"gate_proj.weight"], s.shapes[p+"up_proj.weight"], s.shapes[p+"down_proj.weight"] = []int{inter, h}, []int{inter, h}, []int{h, inter}
	}
	return s
}

func (s *synthetic) ConfigJSON() []byte { return []byte(s.config) }

func (s *synthetic) Logical() []model.Tensor {
	var out []model.Tensor
	for n, sh := range s.shapes {
		out = append(out, model.Tensor{Name: n, DType: "BF16", Shape: sh})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

// ReadBF16 gives values of magnitude 1/64..1/32 with random sign and mantissa.
func (s *synthetic) ReadBF16(_ context.Context, name string, dst []uint16, off int64) error {
	x := uint64(14695981039346656037)
	for _, c := range []byte(name) {
		x = (x ^ uint64(c)) * 1099511628211
	}
	x += uint64(off)
	for i := range dst {
		x = x*6364136223846793005 + 1442695040888963407
		dst[i] = 0x3c80 | uint16(x>>48)&0x807f
	}
	return nil
}

func (s *synthetic) ReadF32(ctx context.Context, name string, dst []float32, off int64) error {
	raw := make([]uint16, len(dst))
	if err := s.ReadBF16(ctx, name, raw, off); err != nil {
		return err
	}
	model.CopyF32(dst, kernels.RowsBF16(raw, 1, len(raw)))
	return nil
}

// ragged gives 16 sequence lengths that add up to rows.
func ragged(rows int) []int {
	var out []int
	left := rows
	for i := range 15 {
		n := rows/16 + (i%5-2)*rows/64
		out = append(out, n)
		left -= n
	}
	return append(out, left)
}

// randomRows gives bf16 rows of about unit size.
func randomRows(rows, k int) kernels.Rows {
	x := make([]uint16, rows*k)
	seed := uint64(1)
	for i := range x {
		seed = seed*6364136223846793005 + 1442695040888963407
		x[i] = 0x3f00 | uint16(seed>>48)&0x807f
	}
	return kernels.RowsBF16(x, rows, k)
}

// peak samples the heap in use until stop is called.
func peak() (stop func() uint64) {
	var most uint64
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var m runtime.MemStats
		for {
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapAlloc)
			select {
			case <-quit:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	var once sync.Once
	return func() uint64 {
		once.Do(func() { close(quit); <-done })
		return most
	}
}

// TestMemoryPrediction compares the heap's peak over a layer of Qwen3-30B-A3B's shape with what the size functions said from
// headers alone. Collection is made eager, so the peak is what is held, not what waits to be collected.
func TestMemoryPrediction(t *testing.T) {
	experts, rows := 32, 2048
	if os.Getenv("QUIRE_LONG") != "" {
		experts, rows = 128, 4096
	}
	ctx := context.Background()
	m, err := model.Open(ctx, qwen30B(experts), model.Options{Compute: model.BF16})
	if err != nil {
		t.Fatal(err)
	}
	lengths := ragged(rows)
	const scratch = 16 << 20
	pool := kernels.NewPool(2)
	defer pool.Close()
	x := randomRows(rows, m.Hidden)
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	defer debug.SetGCPercent(debug.SetGCPercent(2))
	stop := peak()
	defer stop()
	run, err := m.NewRunner(model.RunnerOptions{Pool: pool, ScratchBytes: scratch}).OpenLayer(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := run.LoadExperts(ctx, 0, experts); err != nil {
		t.Fatal(err)
	}
	s, err := run.NewSpan(lengths, x)
	for err == nil && !s.Done() {
		err = s.Advance(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	got := float64(stop() - before.HeapAlloc)
	want := float64(m.LayerBytes(0) + int64(experts)*m.ExpertBytes(0) + m.LoadBytes(0) + m.SpanBytes(0, rows) + m.ScratchNeeded(0, slicesMax(lengths), scratch))
	t.Logf("peak %.1f MiB, predicted %.1f MiB (ratio %.3f)", got/(1<<20), want/(1<<20), got/want)
	if got > 1.1*want || got < 0.9*want {
		t.Errorf("peak %.1f MiB, predicted %.1f MiB", got/(1<<20), want/(1<<20))
	}
}

func slicesMax(v []int) int {
	n := 0
	for _, x := range v {
		n = max(n, x)
	}
	return n
}

// BenchmarkLayer30B is the forward pass of a layer of Qwen3-30B-A3B's shape over 4,096 rows in 16 ragged sequences: the rate
// of its counted flops over that of one large bf16 GEMM, measured in turn in one process ("of-gemm"), and the same for
// attention alone on sequences of 2,048 ("attention-of-gemm").
func BenchmarkLayer30B(b *testing.B) {
	ctx := context.Background()
	const rows, h, inter, heads, kv, dim, topK = 4096, 2048, 768, 32, 4, 128, 8
	m, err := model.Open(ctx, qwen30B(128), model.Options{Compute: model.BF16})
	if err != nil {
		b.Fatal(err)
	}
	pool := kernels.NewPool(0)
	defer pool.Close()
	run, err := m.NewRunner(model.RunnerOptions{Pool: pool}).OpenLayer(ctx, 0)
	if err != nil {
		b.Fatal(err)
	}
	if err := run.LoadExperts(ctx, 0, 128); err != nil {
		b.Fatal(err)
	}
	x, lengths := randomRows(rows, h), ragged(rows)
	flops := 2.0 * rows * (h*(heads+2*kv)*dim + heads*dim*h + h*128 + topK*3*h*inter)
	for _, n := range lengths {
		flops += 2 * float64(n) * float64(n+1) / 2 * heads * dim * 2
	}
	w := run.Weight(m.Linear("model.layers.0.self_attn.q_proj"))
	y := make([]float32, rows*heads*dim)
	gemmFlops := 2.0 * rows * h * heads * dim
	q := make([]float32, rows*(heads+2*kv)*dim)
	for i := range q {
		q[i] = float32(i%17)/16 - 0.5
	}
	ld := (heads + 2*kv) * dim
	seqs := []kernels.Seq{{Start: 0, Len: 2048}, {Start: 2048, Len: 2048}}
	attFlops := 2 * 2048.0 * 2049 / 2 * heads * dim * 2 * 2
	var layer, gemm, att time.Duration
	for b.Loop() {
		t0 := time.Now()
		kernels.GEMM(pool, kernels.GEMMJob{X: x, W: w, Y: y})
		t1 := time.Now()
		s, err := run.NewSpan(lengths, x)
		for err == nil && !s.Done() {
			err = s.Advance(ctx)
		}
		if err != nil {
			b.Fatal(err)
		}
		t2 := time.Now()
		kernels.Attention(pool, y, q, q[heads*dim:], q[(heads+kv)*dim:], ld, ld, ld, heads*dim, seqs,
			kernels.AttentionSpec{Heads: heads, KVHeads: kv, QKDim: dim, VDim: dim, Scale: 0.088})
		t3 := time.Now()
		gemm, layer, att = gemm+t1.Sub(t0), layer+t2.Sub(t1), att+t3.Sub(t2)
	}
	n := float64(b.N)
	rate := n * gemmFlops / gemm.Seconds()
	b.ReportMetric(rate/1e9, "gemm-GF/s")
	b.ReportMetric(n*flops/layer.Seconds()/rate, "of-gemm")
	b.ReportMetric(n*attFlops/att.Seconds()/rate, "attention-of-gemm")
}
