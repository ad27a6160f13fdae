//go:build unix

package engine_test

import (
	"context"
	"encoding/json"
	"math/rand"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"quire/capture"
	"quire/capture/checkpoint"
	"quire/capture/model"
	"quire/engine"
	"quire/engine/lint"
	"quire/kernels"
)

// later names the fixtures whose families come with recurrent or sparse mixers.
var later = map[string]bool{"glm_moe_dsa": true, "granitemoehybrid": true, "jamba": true, "lfm2_moe": true, "nemotron_h": true, "qwen3_5_moe": true, "qwen3_next": true}

// TestEveryFamilyRuns takes every family from the published layout to a checkpoint that reads, lints and predicts as the
// original does.
func TestEveryFamilyRuns(t *testing.T) {
	if !long {
		t.Skip("set QUIRE_LONG=1")
	}
	arch := filepath.Join(os.Getenv("QUIRE_SHARED"), "fixtures", "arch")
	entries, err := os.ReadDir(arch)
	require.NoError(t, err, "QUIRE_SHARED names the directory with fixtures/arch")
	rng := rand.New(rand.NewSource(1))
	var seqs [][]int32
	ids := filepath.Join(t.TempDir(), "ids.jsonl")
	f, err := os.Create(ids)
	require.NoError(t, err)
	for range 12 {
		seq := make([]int32, 12+rng.Intn(48))
		for i := range seq {
			seq[i] = int32(rng.Intn(60))
		}
		seqs = append(seqs, seq)
		require.NoError(t, json.NewEncoder(f).Encode(map[string]any{"input_ids": seq}))
	}
	require.NoError(t, f.Close())
	pool := kernels.NewPool(2)
	defer pool.Close()
	ran := 0
	for _, e := range entries {
		if !e.IsDir() || later[e.Name()] {
			continue
		}
		ran++
		t.Run(e.Name(), func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			r := &engine.Recipe{Model: ptr(filepath.Join(arch, e.Name())), Output: &out, Bits: ptr(4), GroupSize: ptr(-1), Calibration: []string{ids}, Precheck: ptr(false)}
			p, err := engine.BuildPlan(context.Background(), r)
			require.NoError(t, err)
			_, err = engine.Run(context.Background(), p, engine.RunOptions{})
			require.NoError(t, err)

			report, err := lint.Run(context.Background(), out, lint.Options{Profiles: []string{"transformers"}})
			require.NoError(t, err)
			require.False(t, report.Failed(), report.Findings)

			res, err := capture.Evaluate(context.Background(), runnerOf(t, *r.Model, pool), runnerOf(t, out, pool), seqs, capture.EvalOptions{Window: 64, BOS: -1})
			require.NoError(t, err)
			require.Less(t, res.KLMean, 0.25, "4 bits a row, no groups: hundredths of a nat are seen")
			require.Positive(t, res.KLMean)
		})
	}
	require.GreaterOrEqual(t, ran, 30)
}

func runnerOf(t *testing.T, dir string, pool *kernels.Pool) *model.Runner {
	t.Helper()
	ck, err := checkpoint.Open(context.Background(), dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ck.Close()) })
	m, err := model.Open(context.Background(), model.FromCheckpoint(ck), model.Options{Compute: model.F32})
	require.NoError(t, err)
	return m.NewRunner(model.RunnerOptions{Pool: pool})
}
