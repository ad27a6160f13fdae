package main

import (
	"context"
	"fmt"

	"quire/engine"
	"quire/resume/replay"
)

// ReplayCmd recomputes a layer from captures, sources and codes, and compares every digest.
type ReplayCmd struct {
	progressFlags
	RunDir  string `arg:"" name:"run" help:"Run directory."`
	Layer   int    `required:"" help:"Layer."`
	Module  string `help:"Only this module's statistic and solve."`
	Threads *int   `help:"Worker threads."`
}

// Run replays.
func (c *ReplayCmd) Run(ctx context.Context, o *output) error {
	r, err := savedRecipe(c.RunDir)
	if err != nil {
		return err
	}
	r.Overlay(&engine.Recipe{RunDir: &c.RunDir, Threads: c.Threads})
	plan, err := engine.ResumePlan(ctx, r)
	if err != nil {
		return err
	}
	v, err := engine.OpenRun(c.RunDir)
	if err != nil {
		return err
	}
	defer v.Close()
	if v.Genesis.PlanDigest != plan.Digest {
		return &engine.Error{Code: "E0703", Exit: engine.ExitIdentity, What: "model or calibration have changed since the run", Where: c.RunDir, Try: "put back the files that the run began with"}
	}
	if !c.JSON && !c.Quiet {
		fmt.Fprintf(o.err, "one layer's forward pass over %d rows and its solves; nothing is written\n", plan.Calibration.Tokens())
	}
	p := c.open(o)
	rep, err := replay.Layer(ctx, plan, v, c.Layer, c.Module, engine.RunOptions{Observer: p})
	p.Close()
	if err != nil {
		return err
	}
	if c.JSON {
		writeHello(o.out)
		writeJSON(o.out, struct {
			Type string `json:"type"`
			*replay.Report
		}{"result", rep})
		return nil
	}
	fmt.Fprintf(o.out, "layer %d: MATCH", rep.Layer)
	for _, t := range []string{engine.TypeRouting, engine.TypePartial, engine.TypeHessian, engine.TypeDecision, engine.TypeCapture} {
		if n := rep.Compared[t]; n > 0 {
			fmt.Fprintf(o.out, ", %d %s", n, t)
		}
	}
	fmt.Fprintln(o.out)
	return nil
}
