package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"quire/engine"
)

// recipeFlags are the settings of run and plan: a recipe file, and flags laid over it.
type recipeFlags struct {
	engine.Recipe
	ModelArg string `arg:"" optional:"" name:"model" help:"Directory of the source checkpoint."`
	Config   string `short:"c" name:"config" help:"Recipe file (YAML), - for stdin."`
}

// recipe reads the file and lays the flags over it.
func (f *recipeFlags) recipe(o *output) (*engine.Recipe, error) {
	r := &engine.Recipe{}
	if f.Config != "" {
		b, err := readInput(f.Config, o)
		if err != nil {
			return nil, &engine.Error{Code: "E0104", Exit: engine.ExitUsage, What: "the recipe cannot be read", Where: f.Config, Err: err, Try: "check the path given with -c"}
		}
		if r, err = engine.ReadRecipe(f.Config, b); err != nil {
			return nil, err
		}
	}
	if f.ModelArg != "" {
		f.Recipe.Model = &f.ModelArg
	}
	r.Overlay(&f.Recipe)
	return r, nil
}

// progressFlags choose the form of progress.
type progressFlags struct {
	Progress string `enum:"auto,plain,json,none" default:"auto" help:"auto, plain, json or none."`
	Quiet    bool   `short:"q" help:"Print the result only."`
	JSON     bool   `name:"json" help:"Print NDJSON."`
}

func (f *progressFlags) open(o *output) progress {
	if f.JSON && f.Progress == "auto" {
		return silentProgress{}
	}
	return newProgress(f.Progress, f.Quiet, o.err, o.out)
}

// RunCmd quantizes.
type RunCmd struct {
	recipeFlags
	progressFlags
	Plan         string `name:"plan" help:"Run exactly the plan of this file (from quire plan --out)."`
	DryRun       bool   `help:"Plan only."`
	TakeOver     bool   `help:"Take the lock of a dead holder on another host."`
	VerifyInputs bool   `help:"Hash the sources again, whatever the cache says."`
}

// Run runs.
func (c *RunCmd) Run(ctx context.Context, o *output) error {
	r, err := c.recipe(o)
	if err != nil {
		return err
	}
	if c.DryRun {
		return printPlan(ctx, r, c.JSON, "", o)
	}
	plan, err := engine.BuildPlan(ctx, r)
	if err != nil {
		return err
	}
	if c.Plan != "" {
		if err := matchPlan(c.Plan, plan); err != nil {
			return err
		}
	}
	return execute(ctx, plan, engine.RunOptions{TakeOver: c.TakeOver, VerifyInputs: c.VerifyInputs}, &c.progressFlags, o)
}

// matchPlan refuses a run that is not the planned one.
func matchPlan(file string, plan *engine.Plan) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return &engine.Error{Code: "E0104", Exit: engine.ExitUsage, What: "the plan cannot be read", Where: file, Err: err, Try: "write one with `quire plan --out`"}
	}
	var want engine.Plan
	if err := json.Unmarshal(b, &want); err != nil {
		return &engine.Error{Code: "E0104", Exit: engine.ExitUsage, What: "the file is no plan", Where: file, Err: err, Try: "write one with `quire plan --out`"}
	}
	if want.Digest != plan.Digest {
		return &engine.Error{Code: "E0703", Exit: engine.ExitIdentity, What: "recipe, model or calibration differ from the plan", Where: file,
			Why: fmt.Sprintf("plan digest %s, now %s", want.Digest, plan.Digest), Try: "plan again, or give the settings of the plan"}
	}
	return nil
}

// execute runs a plan and prints its result.
func execute(ctx context.Context, plan *engine.Plan, ro engine.RunOptions, f *progressFlags, o *output) error {
	p := f.open(o)
	ro.Observer = p
	if f.JSON {
		writeHello(o.out)
	}
	logged, err := openLog(plan.Settings.RunDir, p)
	if err != nil {
		return err
	}
	ro.Observer = logged
	res, err := engine.Run(ctx, plan, ro)
	p.Close()
	logged.Close()
	if err != nil {
		return err
	}
	if f.JSON {
		writeJSON(o.out, struct {
			Type string `json:"type"`
			*engine.Result
		}{"result", res})
	} else if res.AlreadyDone {
		fmt.Fprintf(o.out, "%s is finished already (plan %s); `quire verify` checks its contents\n", res.Output, short(res.PlanDigest))
	} else {
		fmt.Fprintf(o.out, "%s\n", res.Output)
		fmt.Fprintf(o.out, "  modules   %d quantized (%d by fallback), %d left alone\n", res.Modules.Quantized, res.Modules.Fallback, res.Modules.Copied)
		fmt.Fprintf(o.out, "  plan      %s\n  sums      %s\n  decisions %s\n", short(res.PlanDigest), short(res.SumsSHA256), short(res.DecisionRoot))
		fmt.Fprintf(o.out, "  ledger    %s, %d events, root %s\n", res.RunDir, res.Events, short(res.LedgerRoot))
		if res.CalibPPL > 0 {
			fmt.Fprintf(o.out, "  quantized perplexity %.4g on the first calibration rows\n", res.CalibPPL)
		}
		fmt.Fprintf(o.out, "  took      %.1f s, peak memory %s\n", res.WallS, amountOf(res.PeakRSSBytes, "bytes"))
		for _, fd := range res.Findings {
			fmt.Fprintf(o.err, "finding: %s\n", fd)
		}
	}
	if plan.Settings.Fails(append(res.Findings, plan.Advice.Findings...)) {
		return &engine.Error{Code: "E0704", Exit: engine.ExitFindings, What: "the run finished with findings that --fail-on names", Where: res.Output,
			Try: "see the findings above, or `quire ledger ls RUN --type finding`"}
	}
	return nil
}

func short(digest string) string {
	if len(digest) > 16 {
		return digest[:16]
	}
	return digest
}

// ResumeCmd goes on with a run; it takes no setting that could change a byte.
type ResumeCmd struct {
	progressFlags
	RunDir    string  `arg:"" name:"run" help:"Run directory."`
	Threads   *int    `help:"Worker threads."`
	MaxMemory *string `help:"Memory limit."`
	TimeLimit *string `help:"Stop at a durable point after this time."`
	TakeOver  bool    `help:"Take the lock of a dead holder on another host."`
}

// Run reads the recipe that the run began with and goes on.
func (c *ResumeCmd) Run(ctx context.Context, o *output) error {
	r, err := savedRecipe(c.RunDir)
	if err != nil {
		return err
	}
	r.Overlay(&engine.Recipe{RunDir: &c.RunDir, Threads: c.Threads, MaxMemory: c.MaxMemory, TimeLimit: c.TimeLimit})
	plan, err := engine.ResumePlan(ctx, r)
	if err != nil {
		return err
	}
	return execute(ctx, plan, engine.RunOptions{TakeOver: c.TakeOver, Resume: true}, &c.progressFlags, o)
}

func savedRecipe(runDir string) (*engine.Recipe, error) {
	b, err := os.ReadFile(filepath.Join(runDir, engine.RecipeFile))
	if err != nil {
		return nil, &engine.Error{Code: "E0702", Exit: engine.ExitNoRun, What: "no run here", Where: runDir, Err: err, Try: "give the run directory, by default OUTPUT.run"}
	}
	return engine.ReadRecipe(filepath.Join(runDir, engine.RecipeFile), b)
}
