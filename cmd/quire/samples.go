package main

import (
	"context"
	"fmt"

	"quire/engine"
)

// SamplesCmd shows the calibration samples as a run would see them.
type SamplesCmd struct {
	recipeFlags
	JSON bool `name:"json" help:"Print NDJSON: one batch a line, then the fate of every sample."`
}

// Run loads the calibration and prints it.
func (c *SamplesCmd) Run(ctx context.Context, o *output) error {
	r, err := c.recipe(o)
	if err != nil {
		return err
	}
	if r.Output == nil {
		out := "quantized"
		r.Output = &out
	}
	p, err := engine.BuildPlan(ctx, r)
	if err != nil {
		return err
	}
	cal := p.Calibration
	if cal == nil {
		return &engine.Error{Code: "E0140", Exit: engine.ExitUsage, What: "this recipe uses no calibration", Try: "give --calibration FILE"}
	}
	if c.JSON {
		writeHello(o.out)
	}
	for i, b := range cal.Batches {
		if c.JSON {
			m := map[string]any{"type": "batch", "batch": i, "ids": b.IDs, "length": len(b.IDs), "rows": b.Rows(), "samples": b.Samples}
			if b.Mask != nil {
				m["mask"] = b.Mask
			}
			writeJSON(o.out, m)
			continue
		}
		head := b.IDs[:min(12, len(b.IDs))]
		fmt.Fprintf(o.out, "batch %d: %d tokens, %d rows, samples %v, ids %v …\n", i, len(b.IDs), b.Rows(), b.Samples, head)
	}
	for _, f := range cal.Fates {
		if c.JSON {
			writeJSON(o.out, struct {
				Type string `json:"type"`
				Fate any    `json:"fate"`
			}{"sample", f})
		} else if f.Reason != "" {
			fmt.Fprintf(o.out, "sample %d (%s record %d): %s, %s %s\n", f.Sample, f.File, f.Record, f.Outcome, f.Reason, f.Detail)
		}
	}
	if c.JSON {
		writeJSON(o.out, map[string]any{"type": "result", "counts": cal.Counts, "digest": cal.Digest, "bos": cal.BOS, "warnings": cal.Warnings})
		return nil
	}
	fmt.Fprintf(o.out, "%d samples: %d used, %d clipped, %d merged, %d dropped; %d batches, %d tokens, %d rows\ndigest %s\nBOS: %s\n", cal.Counts.Samples, cal.Counts.Used, cal.Counts.Clipped,
		cal.Counts.Merged, cal.Counts.Dropped, cal.Counts.Batches, cal.Counts.Tokens, cal.Counts.Rows, cal.Digest, cal.BOS.Policy)
	for _, w := range cal.Warnings {
		fmt.Fprintf(o.out, "warning: %s\n", w)
	}
	return nil
}
