package model_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"quire/capture/model"
)

// forward runs one prompt through all layers.
func forward(m *model.Model, ids []int32) error {
	ctx := context.Background()
	r := m.NewRunner(model.RunnerOptions{})
	x, err := r.Embed(ctx, ids)
	if err != nil {
		return err
	}
	for l := range m.Layers {
		run, err := r.OpenLayer(ctx, l)
		if err != nil {
			return err
		}
		s, err := run.NewSpan([]int{len(ids)}, x)
		for err == nil && !s.Done() {
			err = s.Advance(ctx)
		}
		if err == nil {
			x, err = s.Output()
		}
		run.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// TestPlantedFaults bends a good checkpoint: each fault is refused or located, never a number that goes on.
func TestPlantedFaults(t *testing.T) {
	t.Parallel()
	const family, q = "qwen3_moe", "model.layers.1.self_attn.q_proj.weight"
	for _, c := range []struct {
		name string
		bend func(t *testing.T, m *memory)
		want error
		says string
	}{
		{"a NaN in a weight", func(_ *testing.T, m *memory) {
			v := m.tensors[q].f32()
			v[7] = float32(math.NaN())
			m.set(q, m.tensors[q].shape, v)
		}, model.ErrNonFinite, q},
		{"an infinity in a norm", func(_ *testing.T, m *memory) {
			const n = "model.layers.0.input_layernorm.weight"
			v := m.tensors[n].f32()
			v[3] = float32(math.Inf(1))
			m.set(n, m.tensors[n].shape, v)
		}, model.ErrNonFinite, "model.layers.0.input_layernorm.weight"},
		{"a router with fewer experts", func(t *testing.T, m *memory) { m.edit(t, "num_experts", 99) }, model.ErrMissing, "experts"},
		{"two spellings that disagree", func(t *testing.T, m *memory) { m.edit(t, "num_local_experts", 7) }, model.ErrConfig, "num_local_experts"},
		{"swapped axes", func(_ *testing.T, m *memory) {
			for n, e := range m.tensors {
				if strings.HasSuffix(n, ".experts.0.down_proj.weight") {
					m.set(n, []int{e.shape[1], e.shape[0]}, e.f32())
				}
			}
		}, model.ErrLayout, ".experts.0.down_proj.weight"},
		{"an unclaimed tensor", func(_ *testing.T, m *memory) { m.set("model.layers.0.adapter.weight", []int{2, 2}, make([]float32, 4)) },
			model.ErrUnclaimed, "model.layers.0.adapter.weight"},
		{"a missing tensor", func(_ *testing.T, m *memory) { delete(m.tensors, q) }, model.ErrMissing, q},
		{"an unknown family", func(t *testing.T, m *memory) { m.edit(t, "model_type", "nobody_knows") }, model.ErrUnknownFamily, "qwen3_moe"},
		{"a token outside the vocabulary", nil, model.ErrInput, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			good, _ := fixture(t, family)
			m := good.clone()
			ids := []int32{1, 2, 3, 4}
			if c.bend != nil {
				c.bend(t, m)
			} else {
				ids[2] = 1 << 30
			}
			opened, err := model.Open(context.Background(), m, model.Options{})
			if err == nil {
				err = forward(opened, ids)
			}
			if !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q does not name %q", err, c.says)
			}
		})
	}
}

// TestSquareExperts gives the experts of gpt_oss equal widths (H = I), as its 20B model has: the family states the layout,
// so nothing is guessed. The fixture is not square; a transposed copy of one tensor must be refused.
func TestSquareExperts(t *testing.T) {
	t.Parallel()
	good, _ := fixture(t, "gpt_oss")
	m := good.clone()
	const n = "model.layers.0.mlp.experts.down_proj"
	e := m.tensors[n]
	if e.shape[1] == e.shape[2] {
		// Square: the stated layout [E,I,H] decides. Reading expert 0 gives the transposed source.
		o, err := model.Open(context.Background(), m, model.Options{})
		if err != nil {
			t.Fatal(err)
		}
		l := o.Linear("model.layers.0.mlp.experts.0.down_proj")
		w := make([]float32, l.Out*l.In)
		if err := o.ReadLinear(context.Background(), l, w); err != nil {
			t.Fatal(err)
		}
		src := e.f32()
		for out := range l.Out {
			for in := range l.In {
				if w[out*l.In+in] != src[in*l.Out+out] {
					t.Fatalf("weight [%d,%d] is not source [%d,%d]", out, in, in, out)
				}
			}
		}
		return
	}
	m.set(n, []int{e.shape[0], e.shape[2], e.shape[1]}, e.f32())
	if _, err := model.Open(context.Background(), m, model.Options{}); !errors.Is(err, model.ErrLayout) {
		t.Fatalf("got %v, want %v", err, model.ErrLayout)
	}
}

// TestExpertCountSpellings: other tools rewrite configs with the key of their own library version.
func TestExpertCountSpellings(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"num_local_experts", "n_routed_experts", "moe_num_experts"} {
		good, _ := fixture(t, "qwen3_moe")
		m := good.clone()
		m.edit(t, "num_experts", nil)
		m.edit(t, key, 8)
		if _, err := model.Open(context.Background(), m, model.Options{}); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}
