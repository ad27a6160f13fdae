package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	"quire/engine"
	"quire/resume/audit"
)

// AuditCmd explains a scale, or lists the modules of a run.
type AuditCmd struct {
	RunDir  string `arg:"" name:"run" help:"Run directory."`
	Module  string `arg:"" optional:"" help:"Module, e.g. model.layers.0.mlp.experts.3.down_proj."`
	Channel int    `help:"Output channel."`
	Group   int    `help:"Group of input columns."`
	Worst   int    `help:"List this many modules with the largest error (default all, in order)."`
	JSON    bool   `name:"json" help:"Print NDJSON."`
}

// Run audits.
func (c *AuditCmd) Run(ctx context.Context, o *output) error {
	v, err := engine.OpenRun(c.RunDir)
	if err != nil {
		return err
	}
	defer v.Close()
	if c.Module == "" {
		return c.list(v, o)
	}
	layer, known := 0, false
	for _, m := range v.Modules {
		if m.Module == c.Module {
			layer, known = m.Layer, true
			if m.Scheme == nil {
				return &engine.Error{Code: "E0715", Exit: engine.ExitUsage, What: "this module was not quantized", Where: c.Module, Why: m.Reason, Try: "list modules with `quire audit RUN`"}
			}
		}
	}
	if !known {
		return &engine.Error{Code: "E0713", Exit: engine.ExitUsage, What: "the model has no module of this name", Where: c.Module, Try: "list modules with `quire audit RUN`"}
	}
	t, err := audit.Of(ctx, v, engine.KeyDecision(layer, c.Module), c.Channel, c.Group)
	if err != nil {
		return err
	}
	if c.JSON {
		writeHello(o.out)
		writeJSON(o.out, struct {
			Type string `json:"type"`
			*audit.Trail
		}{"result", t})
		return nil
	}
	describeTrail(o, t)
	return nil
}

func describeTrail(o *output, t *audit.Trail) {
	p := func(format string, args ...any) { fmt.Fprintf(o.out, format+"\n", args...) }
	s := t.Record.Solver
	p("%s, channel %d, group %d (columns %d..%d)", t.Module, t.Channel, t.Group, t.Scale.FirstCol, t.Scale.LastCol)
	p("  stored    scale %g (float32 %s, %s), zero %d", t.Scale.Value, t.Scale.Bits, t.Scale.DType, t.Scale.Zero)
	p("  ← range   %s", t.Scale.Formula)
	when := "at the start of their block of columns, after the feedback of every block before"
	if t.Record.Method == "rtn" {
		when = "of the source"
	}
	p("            weights %s: %g .. %g", when, t.Scale.Lo, t.Scale.Hi)
	p("  ← solver  %s, %d bits, group %d, order %s, relative output error %.4g", t.Record.Method, s.Bits, s.GroupSize, s.Order, t.Record.RelError)
	if d := s.Damping; d != nil {
		p("            damping %.4g of the mean diagonal %.6g (%s), %d failed tries, %d dead columns", d.Share, d.Mean, d.Precision, len(d.Tries), len(s.Dead))
	}
	if t.Record.Fallback != "" || t.Record.Reason != "" {
		p("            fallback %s %s", t.Record.Fallback, t.Record.Reason)
	}
	p("            event %d %s", t.Decision.Seq, t.Decision.Key)
	for _, st := range t.Statistic {
		p("  ← rows    %d rows (%d native) of %s from %d lanes, event %d", st.Record.Rows, st.Record.NativeRows, st.Key, len(st.Partials), st.Seq)
		bs := append([]audit.Batch(nil), st.Batches...)
		sort.SliceStable(bs, func(i, j int) bool { return bs[i].SumSq > bs[j].SumSq })
		for i, b := range bs {
			if i == 3 {
				p("            … and %d more batches", len(bs)-3)
				break
			}
			p("            batch %d: %d rows, Σ‖x‖² %.6g, samples %v, event %d", b.Batch, b.Rows, b.SumSq, b.Samples, b.Seq)
		}
	}
	for i, sm := range t.Samples {
		if i == 3 {
			p("            … and %d more samples", len(t.Samples)-3)
			break
		}
		p("  ← sample  %d: %s record %d, %d tokens, %s", sm.Sample, sm.File, sm.Record, sm.Tokens, sm.Fate)
	}
	for _, l := range t.Sources {
		p("  ← weights %s, event %d", l.Key, l.Seq)
	}
}

func (c *AuditCmd) list(v *engine.RunView, o *output) error {
	var recs []engine.DecisionRecord
	for e, err := range v.Scan("decision/") {
		if err != nil {
			return err
		}
		var r engine.DecisionRecord
		if err := json.Unmarshal(e.Record, &r); err != nil {
			return err
		}
		recs = append(recs, r)
	}
	if c.Worst > 0 {
		sort.SliceStable(recs, func(i, j int) bool { return recs[i].RelError > recs[j].RelError })
		recs = recs[:min(c.Worst, len(recs))]
	}
	if c.JSON {
		writeHello(o.out)
		for _, r := range recs {
			writeJSON(o.out, struct {
				Type string `json:"type"`
				engine.DecisionRecord
			}{"module", r})
		}
		writeJSON(o.out, map[string]any{"type": "result", "modules": len(recs)})
		return nil
	}
	for _, r := range recs {
		fmt.Fprintf(o.out, "%s\n", strings.TrimRight(fmt.Sprintf("%-60s %-5s rel error %-10.4g rows %-8d native %-8d damp %-6.4g %s %s", r.Module, r.Method, r.RelError, r.Rows, r.NativeRows, r.Damp, r.Fallback, r.Reason), " "))
	}
	return nil
}
