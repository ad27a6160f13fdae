package model_test

import (
	"bytes"
	"context"
	"slices"
	"testing"

	"quire/capture/model"
	"quire/kernels"
)

// identityFamilies cover every mixer, router and block shape that could break identity.
var identityFamilies = []string{"qwen3_moe", "gpt_oss", "deepseek_v3", "llama4", "cohere2_moe", "phimoe", "gemma3_text", "qwen2_moe"}

// prompts gives ragged token sequences.
func prompts(vocab int) [][]int32 {
	var out [][]int32
	seed := uint32(7)
	for _, n := range []int{1, 9, 37, 300, 2, 64, 17} {
		p := make([]int32, n)
		for i := range p {
			seed = seed*1664525 + 1013904223
			p[i] = int32(seed>>8) % int32(vocab)
		}
		out = append(out, p)
	}
	return out
}

// how says how a forward pass is driven; the result must not depend on it.
type how struct {
	threads, together int // sequences per span
	outer             bool
	saved             bool
	scratch           int64
}

// final runs all layers and gives the last hidden states.
func final(t *testing.T, m *model.Model, ps [][]int32, h how) []float32 {
	t.Helper()
	ctx := context.Background()
	pool := kernels.NewPool(h.threads)
	defer pool.Close()
	r := m.NewRunner(model.RunnerOptions{Pool: pool, ScratchBytes: h.scratch})
	fatal := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var xs []kernels.Rows
	var lens [][]int
	for a := 0; a < len(ps); a += h.together {
		var ids []int32
		var ns []int
		for _, p := range ps[a:min(a+h.together, len(ps))] {
			ids, ns = append(ids, p...), append(ns, len(p))
		}
		x, err := r.Embed(ctx, ids)
		fatal(err)
		xs, lens = append(xs, x), append(lens, ns)
	}
	for i := range m.Layers {
		run, err := r.OpenLayer(ctx, i)
		fatal(err)
		spans := make([]*model.Span, len(xs))
		for k, x := range xs {
			spans[k], err = run.NewSpan(lens[k], x)
			fatal(err)
		}
		for st := range run.Layer.Stages {
			if b := run.Layer.Stages[st].Block; b != nil && h.outer {
				for e := range b.Experts { // expert-outer, one expert in memory
					fatal(run.LoadExperts(ctx, e, e+1))
					for _, s := range spans {
						var in, mid model.RowBuf
						ids, _ := s.Routing().Native(e)
						rows, err := s.ExpertRows(&in, e, ids)
						fatal(err)
						y, err := s.ExpertMid(&mid, e, rows)
						fatal(err)
						fatal(s.AddExpert(e, y))
					}
					run.UnloadExperts(e, e+1)
				}
			}
			for k, s := range spans {
				if h.saved {
					var buf bytes.Buffer
					fatal(s.Save(&buf))
					s, err = run.LoadSpan(&buf)
					fatal(err)
					spans[k] = s
				}
				fatal(s.Advance(ctx))
			}
		}
		for k, s := range spans {
			xs[k], err = s.Output()
			fatal(err)
		}
		run.Close()
	}
	var out []float32
	for _, x := range xs {
		out = append(out, widen(x)...)
	}
	return out
}

// TestSameBits drives one model in many ways.
func TestSameBits(t *testing.T) {
	ways := map[string]how{
		"three together":         {threads: 1, together: 3},
		"all together":           {threads: 1, together: 99},
		"four threads":           {threads: 4, together: 3},
		"expert-outer":           {threads: 2, together: 2, outer: true},
		"saved and loaded":       {threads: 1, together: 99, saved: true},
		"saved, expert-outer":    {threads: 4, together: 3, outer: true, saved: true},
		"one byte of scratch":    {threads: 2, together: 99, scratch: 1},
		"one byte, expert-outer": {threads: 1, together: 99, scratch: 1, outer: true},
	}
	for _, name := range identityFamilies {
		for _, c := range []model.Compute{model.F32, model.BF16} {
			t.Run(name+"/"+c.String(), func(t *testing.T) {
				src, _ := fixture(t, name)
				m, err := model.Open(context.Background(), src, model.Options{Compute: c})
				if err != nil {
					t.Fatal(err)
				}
				ps := prompts(m.Vocab)
				want := final(t, m, ps, how{threads: 1, together: 1})
				for label, h := range ways {
					if got := final(t, m, ps, h); !slices.Equal(got, want) {
						t.Errorf("%s: other bits than one sequence at a time on one thread", label)
					}
				}
			})
		}
	}
}

// TestSameBitsLevels forces every CPU level the machine has.
func TestSameBitsLevels(t *testing.T) {
	for _, name := range identityFamilies[:4] {
		for _, c := range []model.Compute{model.F32, model.BF16} {
			src, _ := fixture(t, name)
			m, err := model.Open(context.Background(), src, model.Options{Compute: c})
			if err != nil {
				t.Fatal(err)
			}
			ps := prompts(m.Vocab)[:3]
			var want []float32
			for _, l := range kernels.Levels() {
				restore := kernels.ForceLevel(l)
				got := final(t, m, ps, how{threads: 2, together: 3})
				restore()
				if want == nil {
					want = got
				} else if !slices.Equal(got, want) {
					t.Errorf("%s %s: level %s has other bits", name, c, l)
				}
			}
		}
	}
}
