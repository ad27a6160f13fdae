package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"quire/capture"
	"quire/capture/checkpoint"
	"quire/capture/model"
	"quire/capture/text"
	"quire/engine"
	"quire/kernels"
	"quire/testdata"
)

// DemoCmd quantizes an embedded model, kills itself half-way, resumes, verifies, and explains one scale.
type DemoCmd struct {
	Dir  string `help:"Work in this directory and keep it (default: a temporary one that is removed)."`
	JSON bool   `name:"json" help:"Print NDJSON."`
}

const (
	demoModule  = "model.layers.1.mlp.experts.3.down_proj"
	demoSamples = 64
	demoWindow  = 256
	demoWindows = 32
)

type demoResult struct {
	Type         string  `json:"type"`
	KilledAfter  int     `json:"killed_after_layer"`
	Digest       string  `json:"sums_sha256"`
	Equal        bool    `json:"equal"`
	DecisionRoot string  `json:"decision_root"`
	PPL          float64 `json:"ppl"`
	PPLQuantized float64 `json:"ppl_quantized"`
	KL           float64 `json:"kl_mean"`
	Top1         float64 `json:"top1_agreement"`
	BytesBefore  int64   `json:"bytes_before"`
	BytesAfter   int64   `json:"bytes_after"`
	WallS        float64 `json:"wall_s"`
}

// Run plays the demo.
func (c *DemoCmd) Run(ctx context.Context, o *output) (err error) {
	began := time.Now()
	dir := c.Dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "quire-demo-"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	say := func(format string, args ...any) {
		if !c.JSON {
			fmt.Fprintf(o.out, format+"\n", args...)
		}
	}
	if c.JSON {
		writeHello(o.out)
	}
	src, err := unpackDemo(dir)
	if err != nil {
		return err
	}
	res := demoResult{Type: "result", KilledAfter: 1}
	say("1. A trained mixture-of-experts model (Qwen3-MoE form, 1.9 million parameters, 4 layers of 8 experts) is in %s.", src)
	plan := func(out string) (*engine.Plan, error) {
		return engine.BuildPlan(ctx, demoRecipe(src, filepath.Join(dir, out), filepath.Join(dir, "src", "tokens", "self_generated512.u16")))
	}
	p, err := plan("whole")
	if err != nil {
		return err
	}
	say("   Plan: %d linears to 4 bits in groups of 32 by GPTQ from %d calibration sequences (%d rows); %d left alone.",
		p.Advice.Counts.Quantized, len(p.Calibration.Batches), p.Advice.BatchRows, p.Advice.Counts.Copied)
	whole, err := engine.Run(ctx, p, engine.RunOptions{})
	if err != nil {
		return err
	}
	say("\n2. A run that nobody disturbs takes %.1f s and writes %d events.\n   SHA256SUMS %s", whole.WallS, whole.Events, whole.SumsSHA256)

	if err := c.killHalfway(ctx, dir, src); err != nil {
		return err
	}
	say("\n3. The same run in another process, killed with SIGKILL when layer %d was done.", res.KilledAfter)
	p, err = plan("killed")
	if err != nil {
		return err
	}
	resumed, err := engine.Run(ctx, p, engine.RunOptions{Resume: true})
	if err != nil {
		return err
	}
	res.Digest, res.DecisionRoot, res.Equal = resumed.SumsSHA256, resumed.DecisionRoot, resumed.SumsSHA256 == whole.SumsSHA256 && resumed.DecisionRoot == whole.DecisionRoot
	say("   Resumed with the same command, %.1f s.\n   SHA256SUMS %s: %s", resumed.WallS, resumed.SumsSHA256, map[bool]string{true: "equal, and so is every decision", false: "DIFFERENT"}[res.Equal])
	if !res.Equal {
		return &engine.Error{Code: "E0716", Exit: engine.ExitMismatch, What: "the resumed run ended with other bytes", Try: "please report this with the output of `quire version`"}
	}
	checks, err := engine.VerifySums(ctx, resumed.Output)
	if err != nil {
		return err
	}
	say("   Read back: %d files as recorded.", len(checks))

	if err := evaluateDemo(ctx, src, resumed.Output, filepath.Join(dir, "src", "tokens", "ts_valid512.u16"), &res); err != nil {
		return err
	}
	say("\n4. On %d windows of held-out text: perplexity %.4f before, %.4f after; KL %.5f nats, top-1 agreement %.1f %%.", demoWindows, res.PPL, res.PPLQuantized, res.KL, 100*res.Top1)
	res.BytesBefore, res.BytesAfter = weightBytes(src), weightBytes(resumed.Output)
	say("   Weights %s before, %s after.", amountOf(res.BytesBefore, "bytes"), amountOf(res.BytesAfter, "bytes"))

	say("\n5. Where does one scale come from?")
	if !c.JSON {
		if err := (&AuditCmd{RunDir: resumed.RunDir, Module: demoModule, Channel: 5, Group: 2}).Run(ctx, o); err != nil {
			return err
		}
	}
	res.WallS = time.Since(began).Seconds()
	if c.JSON {
		writeJSON(o.out, res)
	}
	if c.Dir != "" {
		say("\nEverything is in %s; try `quire status`, `quire replay --layer 2` or `quire ledger ls` on %s.", dir, resumed.RunDir)
	}
	return nil
}

func demoRecipe(src, out, tokens string) *engine.Recipe {
	bits, group, samples, seq := 4, 32, demoSamples, 128
	return &engine.Recipe{Model: &src, Output: &out, Bits: &bits, GroupSize: &group, Calibration: []string{tokens}, Samples: &samples, SeqLen: &seq}
}

// unpackDemo writes the embedded checkpoint and token files.
func unpackDemo(dir string) (string, error) {
	root := filepath.Join(dir, "src")
	err := fs.WalkDir(testdata.Demo, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(root, filepath.FromSlash(path))
		if d.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		b, err := testdata.Demo.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(to, b, 0o644)
	})
	return filepath.Join(root, "demo"), err
}

// killHalfway runs the demo's run in a child process and kills it once the second layer is done.
func (c *DemoCmd) killHalfway(ctx context.Context, dir, src string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	recipe, err := demoRecipe(src, filepath.Join(dir, "killed"), filepath.Join(dir, "src", "tokens", "self_generated512.u16")).Save()
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "recipe.yaml")
	if err := os.WriteFile(file, recipe, 0o644); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, exe, "run", "-c", file, "--progress", "json")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	killed := false
	sc := bufio.NewScanner(out)
	for sc.Scan() {
		var e struct {
			Kind  string `json:"kind"`
			Layer int    `json:"layer"`
		}
		if json.Unmarshal(sc.Bytes(), &e) == nil && e.Kind == "layer-done" && e.Layer == 1 && !killed {
			killed = true
			if err := cmd.Process.Kill(); err != nil {
				return err
			}
		}
	}
	err = cmd.Wait()
	if !killed {
		return errors.Join(fmt.Errorf("the second run ended before it could be killed: %s", stderr.String()), err)
	}
	return nil
}

// evaluateDemo compares original and quantized model on held-out tokens.
func evaluateDemo(ctx context.Context, src, out, tokens string, res *demoResult) error {
	seqs, err := text.ReadTokens(ctx, tokens)
	if err != nil {
		return err
	}
	windows, _ := capture.Windows(seqs, demoWindow, false)
	windows = windows[len(windows)-demoWindows:]
	pool := kernels.NewPool(0)
	defer pool.Close()
	var runners []*model.Runner
	for _, dir := range []string{src, out} {
		ck, err := checkpoint.Open(ctx, dir)
		if err != nil {
			return err
		}
		defer ck.Close()
		m, err := model.Open(ctx, model.FromCheckpoint(ck), model.Options{Compute: model.F32})
		if err != nil {
			return err
		}
		runners = append(runners, m.NewRunner(model.RunnerOptions{Pool: pool}))
	}
	e, err := capture.Evaluate(ctx, runners[0], runners[1], windows, capture.EvalOptions{Window: demoWindow, BOS: -1})
	if err != nil {
		return err
	}
	res.PPL, res.PPLQuantized, res.KL, res.Top1 = e.Perplexity, e.QuantizedPerplexity, e.KLMean, e.Top1
	return nil
}

func weightBytes(dir string) int64 {
	var n int64
	files, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil {
		return 0
	}
	for _, f := range files {
		if st, err := os.Stat(f); err == nil {
			n += st.Size()
		}
	}
	return n
}
