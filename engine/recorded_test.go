//go:build unix

package engine_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quire/engine"
)

// TestResumeNeedsNoCalibrationFiles: once a run has begun its batches are in the ledger.
func TestResumeNeedsNoCalibrationFiles(t *testing.T) {
	dir, tokens := tiny(t)
	recipe := func(out string) *engine.Recipe {
		return &engine.Recipe{Model: &dir, Output: &out, GroupSize: ptr(32), Calibration: []string{tokens}, Samples: ptr(3), SeqLen: ptr(40)}
	}
	run := func(p *engine.Plan, err error) (*engine.Result, error) {
		require.NoError(t, err)
		return engine.Run(context.Background(), p, engine.RunOptions{})
	}
	whole := filepath.Join(t.TempDir(), "whole")
	want, err := run(engine.BuildPlan(context.Background(), recipe(whole)))
	require.NoError(t, err)

	for _, again := range []string{"resume", "run"} {
		t.Run(again, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			r := recipe(out)
			r.StopAfterLayer = ptr(0)
			_, err := run(engine.BuildPlan(context.Background(), r))
			require.ErrorIs(t, err, engine.ErrStopped)

			moved := tokens + ".moved"
			require.NoError(t, os.Rename(tokens, moved))
			defer func() { require.NoError(t, os.Rename(moved, tokens)) }()
			r = recipe(out)
			var p *engine.Plan
			if again == "resume" {
				p, err = engine.ResumePlan(context.Background(), r)
			} else {
				p, err = engine.BuildPlan(context.Background(), r)
				require.NoError(t, err)
				require.Contains(t, strings.Join(p.Advice.Warnings, "\n"), "the batches recorded in", "what is used instead of the file is said")
			}
			require.NoError(t, err)
			got, err := run(p, nil)
			require.NoError(t, err)
			require.Equal(t, want.SumsSHA256, got.SumsSHA256)
			require.Equal(t, want.DecisionRoot, got.DecisionRoot)
		})
	}

	_, err = engine.BuildPlan(context.Background(), func() *engine.Recipe {
		r := recipe(filepath.Join(t.TempDir(), "fresh"))
		r.Calibration = []string{tokens + ".moved"}
		return r
	}())
	require.Error(t, err, "a run that has not begun needs its files")
}
