package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quire/capture/checkpoint"
	"quire/engine"
	"quire/engine/quant"
)

// starve bends the router of layer 0 so that expert 7 is never picked: its row, and that of expert 3, become those of expert 1. The three
// have equal logits, ties go to the smaller number, and two are picked.
func starve(t *testing.T, dir string) {
	t.Helper()
	file := filepath.Join(dir, "demo", "model.safetensors")
	sh, err := checkpoint.OpenShard(file)
	require.NoError(t, err)
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, x := range sh.Tensors() {
		if x.Name == "model.layers.0.mlp.gate.weight" {
			w := b[8+int64(binary.LittleEndian.Uint64(b))+x.Begin:][:x.Bytes()]
			row := len(w) / 8
			copy(w[3*row:4*row], w[row:2*row])
			copy(w[7*row:], w[row:2*row])
		}
	}
	require.NoError(t, sh.Close())
	require.NoError(t, os.WriteFile(file, b, 0o644))
}

// TestExpertThatIsNeverPicked goes through every fallback and every mode with an expert that no row reaches.
func TestExpertThatIsNeverPicked(t *testing.T) {
	t.Parallel()
	dir := bed(t)
	starve(t, dir)
	const expert = "model.layers.0.mlp.experts.7."
	for _, c := range []struct {
		name, flags string
		use         string // treatment on record
		method      string
		all         bool // the statistic has rows of other experts
	}{
		{"blend", "--fallback blend", quant.UseBlend, "gptq", true},
		{"all-rows", "--fallback all-rows", quant.UseAllRows, "gptq", true},
		{"rtn", "--fallback rtn", quant.UseRTN, "rtn", false},
		{"copy", "--fallback copy", quant.UseCopy, "", false},
		{"fail", "--fallback fail", quant.UseFail, "", false},
		{"mode native", "--routing native", quant.UseBlend, "gptq", true},
		{"mode all", "--routing all", quant.UseAllRows, "gptq", true}, // the statistic has every row already; coverage is native all the same
		{"mode top-k", "--routing top-k=8", quant.UseBlend, "gptq", true},
		{"min rows as a share", "--min-rows 0.1%", quant.UseBlend, "gptq", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			out := filepath.Join(t.TempDir(), "out")
			args := append([]string{"run", filepath.Join(dir, "demo"), "-o", out, "--group-size", "32", "--calibration", filepath.Join(dir, "tokens", "self_generated512.u16"), "--samples", "6",
				"--seq-len", "60", "--min-rows", "8", "--fail-on", "undercalibrated", "--json", "--no-precheck", `--dynamic=-:layers\.[123]\.`}, strings.Fields(c.flags)...)
			exit, stdout, stderr := quire(args...)
			require.Equal(t, engine.ExitFindings, exit, stdout+stderr)
			if c.use == quant.UseFail {
				require.Contains(t, stdout, `"E0610"`)
				require.Contains(t, stdout, "E0007")
				return
			}
			v, err := engine.OpenRun(out + ".run")
			require.NoError(t, err)
			defer v.Close()

			// Counted and told.
			e, ok, err := v.Get("layer/L0000")
			require.NoError(t, err)
			require.True(t, ok)
			var layer engine.LayerRecord
			require.NoError(t, json.Unmarshal(e.Record, &layer))
			require.Equal(t, 1, layer.Coverage.Zero)
			require.Zero(t, layer.Coverage.Min)
			_, found, err := v.Get("finding/F_UNDERCALIBRATED/L0000/expert_in/E0007")
			require.NoError(t, err)
			require.True(t, found)

			// Nobody is left out: the output is whole, and a loader takes the layer's experts alike.
			exit, verified, _ := quire("verify", out)
			require.Equal(t, 0, exit, verified)
			if c.use == quant.UseCopy {
				require.True(t, layer.Copied)
				for e, err := range v.Scan("decision/") {
					require.NoError(t, err)
					require.NotContains(t, e.Key, "experts")
				}
				return
			}
			var siblings []engine.DecisionRecord
			for _, leaf := range []string{"gate_proj", "up_proj", "down_proj"} {
				d, ok, err := engine.ReadDecision(context.Background(), v, 0, expert+leaf, 128, 128, true)
				require.NoError(t, err)
				require.True(t, ok, leaf)
				rec := d.Record
				require.Zero(t, rec.NativeRows)
				require.Equal(t, c.use, rec.Fallback)
				if rec.Method != c.method { // rounding may have been better, never anything else
					require.Equal(t, quant.ReasonGuard, rec.Reason)
				}
				require.Equal(t, c.all, rec.Rows > 0)
				distinct := map[uint8]bool{}
				for _, q := range d.Codes {
					distinct[q] = true
				}
				require.Greater(t, len(distinct), 8, "%s has real codes", leaf)
				siblings = append(siblings, rec)
			}
			require.Equal(t, siblings[0].Treatment, siblings[1].Treatment, "gate and up are treated alike")
			require.Equal(t, siblings[0].HessianKey+siblings[0].HessianAll, siblings[1].HessianKey+siblings[1].HessianAll)
			require.Equal(t, siblings[0].Scheme, siblings[2].Scheme)
		})
	}
}
