package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sort"

	"quire/engine"
)

// PlanCmd resolves everything from headers.
type PlanCmd struct {
	recipeFlags
	JSON     bool   `name:"json" help:"Print NDJSON."`
	Out      string `name:"out" help:"Write the plan to this file."`
	Detailed bool   `help:"List every module and tensor."`
}

// Run prints the plan.
func (c *PlanCmd) Run(ctx context.Context, o *output) error {
	r, err := c.recipe(o)
	if err != nil {
		return err
	}
	if r.Output == nil {
		out := "quantized"
		r.Output = &out
	}
	if c.Detailed {
		return printDetails(ctx, r, c.Out, o)
	}
	return printPlan(ctx, r, c.JSON, c.Out, o)
}

func printPlan(ctx context.Context, r *engine.Recipe, asJSON bool, file string, o *output) error {
	p, err := engine.BuildPlan(ctx, r)
	if err != nil {
		return err
	}
	if err := savePlan(p, file); err != nil {
		return err
	}
	t, err := p.EstimateTime(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		writeHello(o.out)
		writeJSON(o.out, map[string]any{"type": "result", "plan_digest": p.Digest, "identity": p.Identity, "counts": p.Advice.Counts, "memory_bytes": p.Advice.Memory.Bytes,
			"memory": p.Advice.Memory, "disk_bytes": p.Advice.Disk.Bytes, "disk": p.Advice.Disk, "shards": len(p.Advice.Shards), "tensor_parallel": p.Advice.TP, "stored": p.Advice.Stored, "coverage": p.Advice.Coverage, "loop_order": p.Advice.Order, "work": p.Advice.Work, "time": t,
			"findings": p.Advice.Findings, "warnings": p.Advice.Warnings})
		return nil
	}
	describePlan(o.out, p)
	fmt.Fprintf(o.out, "  time      about %s\n            %s\n", roughly(t.Seconds), t.Basis)
	if p.Calibration != nil {
		fmt.Fprintf(o.out, "            forward %s, statistics %s, solving %s, hashing the sources %s; reading and writing come on top\n", roughly(t.Forward), roughly(t.Statistics), roughly(t.Solving), roughly(t.Hashing))
	}
	return nil
}

// roughly spells seconds with the precision of an estimate.
func roughly(seconds float64) string {
	switch {
	case seconds >= 7200:
		return fmt.Sprintf("%.1f h", seconds/3600)
	case seconds >= 120:
		return fmt.Sprintf("%.0f min", seconds/60)
	}
	return fmt.Sprintf("%.2g s", seconds)
}

func savePlan(p *engine.Plan, file string) error {
	if file == "" {
		return nil
	}
	b, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}

func describePlan(w io.Writer, p *engine.Plan) {
	s := p.Identity.Settings
	fmt.Fprintf(w, "plan %s\n", short(p.Digest))
	fmt.Fprintf(w, "  model     %s (%s)\n", p.Settings.Model, p.Identity.Family)
	fmt.Fprintf(w, "  method    %s, %d bits, group %d, %s, format %s, scales %s, compute %s\n", s.Method, s.Scheme.Bits, s.Scheme.GroupSize, symWord(s.Scheme.Sym), s.Format, s.ScaleDType, s.Compute)
	fmt.Fprintf(w, "  modules   %d quantized, %d left alone\n", p.Advice.Counts.Quantized, p.Advice.Counts.Copied)
	for _, line := range fateLines(p) {
		fmt.Fprintf(w, "            %s\n", line)
	}
	if c := p.Calibration; c != nil {
		fmt.Fprintf(w, "  calibration %d batches, %d tokens, %d rows; of %d samples %d used, %d clipped, %d merged, %d dropped\n",
			c.Counts.Batches, c.Counts.Tokens, c.Counts.Rows, c.Counts.Samples, c.Counts.Used, c.Counts.Clipped, c.Counts.Merged, c.Counts.Dropped)
	}
	for _, c := range p.Advice.Coverage {
		fmt.Fprintf(w, "  coverage  %d layers of %d experts, %d a row: %.0f rows each if routing is even; the few-row policy acts below %d rows (%.2g of that)\n",
			c.Layers, c.Experts, c.TopK, c.Even, c.MinRows, c.Share)
	}
	if p.Advice.Order != "" {
		fmt.Fprintf(w, "  order     %s\n", p.Advice.Order)
	}
	fmt.Fprintf(w, "  output    %d shards\n", len(p.Advice.Shards))
	printEstimate(w, "memory", p.Advice.Memory)
	printEstimate(w, "disk", p.Advice.Disk)
	for _, r := range p.Advice.Stored {
		if r.Bytes == 0 {
			fmt.Fprintf(w, "            not stored %s: %s, %s\n", r.Class, r.What, r.Kept)
		}
	}
	for _, row := range p.Advice.TP {
		fmt.Fprintf(w, "  tensor parallel, %s of %d inputs, groups of %d: %v\n", row.Width, row.Size, row.Group, row.OK)
	}
	for _, f := range p.Advice.Findings {
		fmt.Fprintf(w, "  finding   %s\n", f)
	}
	for _, t := range p.Advice.Warnings {
		fmt.Fprintf(w, "  warning   %s\n", t)
	}
}

func symWord(sym bool) string {
	if sym {
		return "symmetric"
	}
	return "asymmetric"
}

// fateLines counts modules by fate and reason.
func fateLines(p *engine.Plan) []string {
	n := map[string]int{}
	for _, m := range p.Advice.Modules {
		n[fmt.Sprintf("%s: %s", m.Fate, m.Reason)]++
	}
	lines := make([]string, 0, len(n))
	for k, v := range n {
		lines = append(lines, fmt.Sprintf("%6d %s", v, k))
	}
	sort.Strings(lines)
	return lines
}

func printEstimate(w io.Writer, what string, e engine.Estimate) {
	fmt.Fprintf(w, "  %-9s %s", what, amountOf(e.Bytes, "bytes"))
	if e.Limit > 0 {
		fmt.Fprintf(w, " of %s", amountOf(e.Limit, "bytes"))
	}
	if e.Floor != "" {
		fmt.Fprintf(w, ", set by %s", e.Floor)
	}
	fmt.Fprintln(w)
	for _, p := range e.Parts {
		fmt.Fprintf(w, "            %10s %s\n", amountOf(p.Bytes, "bytes"), p.What)
	}
}

func printDetails(ctx context.Context, r *engine.Recipe, file string, o *output) error {
	p, err := engine.BuildPlan(ctx, r)
	if err != nil {
		return err
	}
	if err := savePlan(p, file); err != nil {
		return err
	}
	describePlan(o.out, p)
	for _, m := range p.Advice.Modules {
		scheme := "-"
		if m.Scheme != nil {
			scheme = fmt.Sprintf("%s w%d g%d %s", m.Scheme.Method, m.Scheme.Bits, m.Scheme.GroupSize, symWord(m.Scheme.Sym))
		}
		fmt.Fprintf(o.out, "%s\t[%d, %d]\t%s\t%s\t%s\n", m.Module, m.Out, m.In, m.Fate, scheme, m.Reason)
	}
	for _, t := range p.Advice.Tensors {
		fmt.Fprintf(o.out, "%s\t%s\t%s\n", t.Tensor, t.Fate, t.Reason)
	}
	return nil
}
