package replay_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quire/engine"
	"quire/ledger"
	"quire/resume/audit"
	"quire/resume/replay"
	"quire/testdata"
)

// finished makes a run of the embedded model: layer 0 whole, the others passed through.
func finished(t *testing.T) (*engine.Plan, *engine.Result) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, fs.WalkDir(testdata.Demo, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return errors.Join(err, os.MkdirAll(filepath.Join(dir, path), 0o755))
		}
		b, err := testdata.Demo.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, path), b, 0o644)
	}))
	p := func(s string) *string { return &s }
	samples, seq, lanes, group, threads := 4, 60, 2, 32, 1
	r := &engine.Recipe{Model: p(filepath.Join(dir, "demo")), Output: p(filepath.Join(dir, "out")), Calibration: []string{filepath.Join(dir, "tokens", "self_generated512.u16")},
		Samples: &samples, SeqLen: &seq, Lanes: &lanes, GroupSize: &group, Threads: &threads, MinRows: p("40"), Dynamic: engine.Rules{{Pattern: `layers\.[12]\.`, Skip: true}}}
	plan, err := engine.BuildPlan(context.Background(), r)
	require.NoError(t, err)
	res, err := engine.Run(context.Background(), plan, engine.RunOptions{})
	require.NoError(t, err)
	return plan, res
}

// bfloat16 rounds to nearest even, for values that are finite.
func bfloat16(f float32) float32 {
	u := math.Float32bits(f)
	return math.Float32frombits((u + 0x7fff + u>>16&1) &^ 0xffff)
}

func TestReplayAndAudit(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	plan, res := finished(t)
	v, err := engine.OpenRun(res.RunDir)
	require.NoError(t, err)
	defer v.Close()

	// Every layer matches, those whose input was let go too.
	for l := range 4 {
		rep, err := replay.Layer(ctx, plan, v, l, "", engine.RunOptions{})
		require.NoError(t, err, "layer %d", l)
		require.Positive(t, rep.Compared[engine.TypeCapture])
		if l == 0 || l == 3 {
			require.Equal(t, 28, rep.Compared[engine.TypeDecision])
		}
	}
	rep, err := replay.Layer(ctx, plan, v, 0, "model.layers.3.mlp.experts.2.up_proj", engine.RunOptions{})
	require.NoError(t, err)
	require.Equal(t, 3, rep.Layer)
	require.Equal(t, 1, rep.Compared[engine.TypeDecision])

	// Every module leads from a stored scale to samples, and the printed range gives the stored bits.
	modules, fallbacks := 0, 0
	for e, err := range v.Scan("decision/") {
		require.NoError(t, err)
		var rec engine.DecisionRecord
		require.NoError(t, json.Unmarshal(e.Record, &rec))
		modules++
		for _, at := range [][2]int{{0, 0}, {rec.Solver.Out - 1, rec.Solver.In/rec.Solver.GroupSize - 1}} {
			trail, err := audit.Of(ctx, v, e.Key, at[0], at[1])
			require.NoError(t, err, rec.Module)
			want := bfloat16(2 * max(-trail.Scale.Lo, trail.Scale.Hi) / 15)
			require.Equal(t, math.Float32bits(want), math.Float32bits(trail.Scale.Value), "%s %v", rec.Module, at)
			require.NotEmpty(t, trail.Sources, rec.Module)
			require.NotEmpty(t, trail.Samples, rec.Module)
			require.NotEmpty(t, trail.Statistic, rec.Module)
			rows := 0
			for _, b := range trail.Statistic[0].Batches {
				rows += b.Rows
			}
			require.EqualValues(t, trail.Statistic[0].Record.Rows, rows)
		}
		if rec.Fallback != "" {
			fallbacks++
		}
	}
	require.Equal(t, 56, modules)
	require.Positive(t, fallbacks)
}

// TestReplayNamesADamagedCapture flips one bit of a captured layer input: the replay ends with the place.
func TestReplayNamesADamagedCapture(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	plan, res := finished(t)
	v, err := engine.OpenRun(res.RunDir)
	require.NoError(t, err)
	require.NoError(t, v.Close())
	segments, err := filepath.Glob(filepath.Join(res.RunDir, "segments", "layer-L0003*"))
	require.NoError(t, err)
	require.NotEmpty(t, segments)
	b, err := os.ReadFile(segments[0])
	require.NoError(t, err)
	// Payload is where the bytes are many and different; the rest of the file is pages and keys.
	var places []int
	for i := 0; i+256 <= len(b) && len(places) < 8; i += 256 {
		seen := map[byte]bool{}
		for _, c := range b[i : i+256] {
			seen[c] = true
		}
		if len(seen) > 80 {
			places = append(places, i+128)
		}
	}
	require.NotEmpty(t, places)
	flipped := false
	for _, i := range places {
		c := bytes.Clone(b)
		c[i] ^= 1
		require.NoError(t, os.WriteFile(segments[0], c, 0o644))
		v, err := engine.OpenRun(res.RunDir)
		require.NoError(t, err)
		_, err = replay.Layer(ctx, plan, v, 3, "", engine.RunOptions{})
		require.NoError(t, v.Close())
		if err == nil {
			continue // a byte that nothing uses
		}
		flipped = true
		require.True(t, errors.Is(err, ledger.ErrDamaged), err)
		require.True(t, strings.Contains(err.Error(), "layer-L0003") || strings.Contains(err.Error(), "capture/q/L0003"), err.Error())
		break
	}
	require.True(t, flipped, "no flip met payload")
}
