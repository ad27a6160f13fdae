package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"quire/engine"
	"quire/engine/lint"
	"quire/ledger"
)

// VerifyCmd checks a run (ledger, payloads, output against ledger) or an output directory (sums and lint).
type VerifyCmd struct {
	Path  string `arg:"" name:"path" help:"Run directory or output directory."`
	Level string `enum:"quick,chain,structure,data,deep" default:"deep" help:"How much of the ledger is read: quick, chain, structure, data or deep."`
	JSON  bool   `name:"json" help:"Print NDJSON."`
}

// Run verifies.
func (c *VerifyCmd) Run(ctx context.Context, o *output) error {
	if c.JSON {
		writeHello(o.out)
	}
	if _, err := os.Stat(filepath.Join(c.Path, "ledger.db")); err == nil {
		return c.run(ctx, o)
	}
	checks, err := engine.VerifySums(ctx, c.Path)
	if err != nil {
		return err
	}
	rep, err := lint.Run(ctx, c.Path, lint.Options{})
	if err != nil {
		return err
	}
	findings := 0
	for _, f := range rep.Findings {
		if f.Severity == lint.Note {
			continue
		}
		findings++
		if c.JSON {
			writeJSON(o.out, map[string]any{"type": "finding", "finding": f})
		} else {
			fmt.Fprintf(o.out, "lint: %s %s: %s\n", f.Code, f.Subject, f.Message)
		}
	}
	return c.report(o, checks, findings)
}

func (c *VerifyCmd) run(ctx context.Context, o *output) error {
	level, err := ledger.ParseLevel(c.Level)
	if err != nil {
		return err
	}
	rep, err := ledger.Fsck(ctx, c.Path, ledger.FsckOptions{Level: level})
	if err != nil {
		return err
	}
	damaged := 0
	for _, f := range rep.Findings {
		if f.Severity == "damage" {
			damaged++
		}
		if c.JSON {
			writeJSON(o.out, f)
		} else {
			fmt.Fprintf(o.out, "ledger: %s: %s\n", f.Code, f.What)
		}
	}
	if damaged > 0 {
		return &engine.Error{Code: "E0813", Exit: engine.ExitLedgerDamaged, What: fmt.Sprintf("the ledger has %d damaged places", damaged), Where: c.Path, Try: "see the repairs above, or `quire ledger fsck`"}
	}
	v, err := engine.OpenRun(c.Path)
	if err != nil {
		return err
	}
	defer v.Close()
	checks, err := engine.VerifyRun(ctx, v)
	if err != nil {
		return err
	}
	return c.report(o, checks, 0)
}

func (c *VerifyCmd) report(o *output, checks []engine.FileCheck, findings int) error {
	bad := 0
	first := ""
	for _, f := range checks {
		if !f.OK {
			if bad++; first == "" {
				first = f.Name + ": " + f.What
			}
		}
		if c.JSON {
			writeJSON(o.out, map[string]any{"type": "file", "name": f.Name, "ok": f.OK, "what": f.What})
		} else if !f.OK {
			fmt.Fprintf(o.out, "%s: %s\n", f.Name, f.What)
		}
	}
	if bad > 0 {
		return &engine.Error{Code: "E0814", Exit: engine.ExitMismatch, What: fmt.Sprintf("%d of %d files differ from what was recorded", bad, len(checks)), Where: first,
			Try: "restore the files, or make them anew in another -o"}
	}
	if c.JSON {
		writeJSON(o.out, map[string]any{"type": "result", "files": len(checks), "findings": findings})
	} else {
		fmt.Fprintf(o.out, "%s: %d files as recorded, %d findings\n", c.Path, len(checks), findings)
	}
	if findings > 0 {
		return &engine.Error{Code: "E0815", Exit: engine.ExitFindings, What: fmt.Sprintf("%d findings", findings), Where: c.Path, Try: "see `quire lint`"}
	}
	return nil
}
