//go:build unix

package engine_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quire/capture/model"
	"quire/engine"
)

// planOf plans with 4 bits a row unless the recipe says more.
func planOf(t *testing.T, dir, tokens string, more *engine.Recipe) (*engine.Plan, error) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	r := &engine.Recipe{Model: &dir, Output: &out, GroupSize: ptr(-1), Calibration: []string{tokens}}
	r.Overlay(more)
	return engine.BuildPlan(context.Background(), r)
}

func codes(fs []engine.Finding) (out []string) {
	for _, f := range fs {
		out = append(out, f.Code)
	}
	return out
}

// TestPlanJudgesTargets: what a loader cannot run is known before any weight is read.
func TestPlanJudgesTargets(t *testing.T) {
	dir, tokens := tiny(t)
	group := &engine.Recipe{GroupSize: ptr(32)}
	p, err := planOf(t, dir, tokens, group)
	require.NoError(t, err)
	require.Empty(t, p.Advice.Findings, "4 bits symmetric in groups of 32 load everywhere")
	require.Len(t, p.Advice.TP, 2)
	require.Equal(t, []int{1, 2, 4}, p.Advice.TP[0].OK, "128 columns in groups of 32")

	three := &engine.Recipe{GroupSize: ptr(32), Bits: ptr(3)}
	p, err = planOf(t, dir, tokens, three)
	require.NoError(t, err)
	require.Contains(t, codes(p.Advice.Findings), "E_BITS", "vllm has no 3-bit kernels for gptq")

	three.Target = []string{"transformers"}
	p, err = planOf(t, dir, tokens, three)
	require.NoError(t, err)
	require.Empty(t, p.Advice.Findings, "transformers loads 3 bits through GPTQModel")

	three.Target, three.StrictTarget = []string{"vllm"}, ptr(true)
	_, err = planOf(t, dir, tokens, three)
	var e *engine.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "E0134", e.Code)
	require.Equal(t, engine.ExitUsage, e.Exit)
}

// TestPlanLeavesLatentProjections: sglang reads q_a, q_b and kv_a its own way; a rule that names one opts in.
func TestPlanLeavesLatentProjections(t *testing.T) {
	dir := filepath.Join("..", "testdata", "model", "arch", "deepseek_v3")
	ids := filepath.Join(t.TempDir(), "ids.jsonl")
	require.NoError(t, os.WriteFile(ids, []byte(`{"input_ids":[1,2,3,4,5,6,7,8,9,10,11,12]}`+"\n"), 0o644))
	count := func(p *engine.Plan) (quantized, copied int) {
		for _, m := range p.Advice.Modules {
			switch m.Role {
			case model.RoleQA, model.RoleQB, model.RoleKVA:
				if m.Scheme != nil {
					quantized++
				} else {
					copied++
				}
			}
		}
		return quantized, copied
	}
	p, err := planOf(t, dir, ids, &engine.Recipe{})
	require.NoError(t, err)
	q, c := count(p)
	require.Zero(t, q)
	require.Positive(t, c)
	all := c

	p, err = planOf(t, dir, ids, &engine.Recipe{Target: []string{"vllm"}})
	require.NoError(t, err)
	q, _ = count(p)
	require.Equal(t, all, q)

	p, err = planOf(t, dir, ids, &engine.Recipe{Dynamic: engine.Rules{{Pattern: `q_b_proj$`}}})
	require.NoError(t, err)
	q, c = count(p)
	require.Equal(t, all/3, q)
	require.Equal(t, all-all/3, c)
}

// TestPlanForecasts: what is stored, how rows spread and how long it takes is said before the run.
func TestPlanForecasts(t *testing.T) {
	dir, tokens := tiny(t)
	p, err := planOf(t, dir, tokens, &engine.Recipe{Samples: ptr(8), SeqLen: ptr(100), MinRows: ptr("50"), StorePartials: ptr("never")})
	require.NoError(t, err)
	require.Len(t, p.Advice.Coverage, 1)
	c := p.Advice.Coverage[0]
	require.Equal(t, 4, c.Layers)
	require.InDelta(t, 800.0*2/8, c.Even, 1e-9, "8 samples of 100 rows, 2 of 8 experts a row")
	require.InDelta(t, 50/200.0, c.Share, 1e-9)

	partials := 0
	for _, s := range p.Advice.Stored {
		if strings.HasPrefix(s.What, "partials") {
			partials++
			require.Zero(t, s.Bytes)
			require.Contains(t, s.Kept, "--store-partials never")
		}
	}
	require.Equal(t, 1, partials, "all sites have 128 columns")

	t1, err := p.EstimateTime(context.Background())
	require.NoError(t, err)
	require.Positive(t, t1.Forward)
	require.Positive(t, t1.Statistics)
	require.Positive(t, t1.Solving)
	require.InDelta(t, t1.Seconds, t1.Forward+t1.Statistics+t1.Solving+t1.Hashing, 1e-9*t1.Seconds+1e-12)

	twice, err := planOf(t, dir, tokens, &engine.Recipe{Samples: ptr(16), SeqLen: ptr(100), MinRows: ptr("50")})
	require.NoError(t, err)
	require.InDelta(t, 2, twice.Advice.Work.Forward/p.Advice.Work.Forward, 1e-9, "twice the sequences, twice the work")
	require.Equal(t, p.Advice.Work.Solving, twice.Advice.Work.Solving)
}
