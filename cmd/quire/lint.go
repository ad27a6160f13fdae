package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"quire/engine"
	"quire/engine/lint"
)

// LintCmd checks a published quantized checkpoint.
type LintCmd struct {
	Dir     string   `arg:"" help:"Directory of the checkpoint."`
	Profile []string `name:"profile" help:"Loaders whose rules are checked: vllm, sglang, transformers (default all)."`
	Against string   `name:"against" placeholder:"ORIGINAL" help:"Directory of the original: adds the error of every module."`
	TP      []int    `name:"tp" help:"Tensor-parallel sizes that must work, e.g. 2,4."`
	Headers bool     `name:"headers" help:"Look at headers and config only; read no tensor."`
	All     bool     `name:"all" help:"List every finding, not the first 20 of a code."`
	JSON    bool     `name:"json" help:"Print NDJSON."`
	SARIF   bool     `name:"sarif" help:"Print SARIF 2.1.0."`
}

// Run checks and prints; findings above a note end with exit code 3.
func (c *LintCmd) Run(ctx context.Context, o *output) error {
	opts := lint.Options{Profiles: c.Profile, Against: c.Against, TP: c.TP, Headers: c.Headers}
	if c.All {
		opts.Limit = -1
	}
	r, err := lint.Run(ctx, c.Dir, opts)
	if err != nil {
		return err
	}
	switch {
	case c.SARIF:
		if err := lint.WriteSARIF(o.out, r, buildVersion()); err != nil {
			return err
		}
	case c.JSON:
		writeHello(o.out)
		for _, f := range r.Findings {
			writeJSON(o.out, struct {
				Type string `json:"type"`
				lint.Finding
			}{"finding", f})
		}
	default:
		printLint(o.out, r)
	}
	failed := lintError(r)
	if c.JSON {
		exit := engine.ExitOK
		if failed != nil {
			exit = engine.ExitFindings
		}
		writeJSON(o.out, struct {
			Type     string `json:"type"`
			Exit     int    `json:"exit"`
			Errors   int    `json:"errors"`
			Warnings int    `json:"warnings"`
			Notes    int    `json:"notes"`
			*lint.Report
			Findings *struct{} `json:"findings,omitempty"` // each had its own line
		}{"result", exit, r.Count(lint.Error), r.Count(lint.Warning), r.Count(lint.Note), r, nil})
	}
	return failed
}

// findings is the outcome of a check that found something: what it says has been printed, only the exit code is left.
type findings struct{ text string }

func (f *findings) Error() string   { return f.text }
func (*findings) ErrorCode() string { return "E_LINT" }
func (*findings) ExitCode() int     { return engine.ExitFindings }
func (*findings) Remedy() string {
	return "`quire explain CODE` tells more about one; docs/lint.md lists all"
}

// Silent says that everything was printed already.
func (*findings) Silent() bool { return true }

func lintError(r *lint.Report) error {
	if !r.Failed() {
		return nil
	}
	return &findings{fmt.Sprintf("%s: %d errors, %d warnings", r.Dir, r.Count(lint.Error), r.Count(lint.Warning))}
}

func printLint(w io.Writer, r *lint.Report) {
	fmt.Fprintf(w, "%s\n", r.Dir)
	if r.Method != "" {
		fmt.Fprintf(w, "  %s", r.Method)
		if r.Scheme != "" {
			fmt.Fprintf(w, ", %s", r.Scheme)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "  %d shards, %d tensors, %d modules quantized, %d left alone\n", r.Shards, r.Tensors, r.Quantized, r.Left)
	remedy := ""
	for i, f := range r.Findings {
		if i > 0 && r.Findings[i-1].Code != f.Code && remedy != "" {
			fmt.Fprintf(w, "    try: %s\n", remedy)
		}
		remedy = f.Remedy
		who := ""
		if f.Profile != "" {
			who = " [" + f.Profile + "]"
		}
		fmt.Fprintf(w, "%s %s%s %s: %s\n", f.Severity, f.Code, who, f.Subject, f.Message)
	}
	if remedy != "" {
		fmt.Fprintf(w, "    try: %s\n", remedy)
	}
	for _, m := range r.More {
		fmt.Fprintf(w, "  … and %d more of %s (--all lists them)\n", m.Count, strings.TrimSpace(m.Code+" "+m.Profile))
	}
	if len(r.TP) > 0 {
		fmt.Fprintln(w, "tensor-parallel sizes that cut no group:")
		for _, t := range r.TP {
			fmt.Fprintf(w, "  %-15s %6d inputs, group %4d: %s\n", t.Width, t.Size, t.Group, strings.Trim(fmt.Sprint(t.OK), "[]"))
		}
	}
	if a := r.Against; a != nil && len(a.Modules) > 0 {
		fmt.Fprintf(w, "against %s: median relative error %.4f over %d modules, %d tensors copied unchanged; worst:\n", a.Original, a.Median, len(a.Modules), a.Copied)
		for i, m := range a.Modules {
			if i == 10 {
				break
			}
			note := ""
			if m.Rescaled {
				note = "  (after smoothing factors)"
			}
			fmt.Fprintf(w, "  %.4f  %.4g  %s%s\n", m.Relative, m.Largest, m.Name, note)
		}
	}
	if n := r.Count(lint.Error) + r.Count(lint.Warning); n == 0 {
		fmt.Fprintf(w, "no finding for %s\n", strings.Join(r.Profiles, ", "))
	} else {
		fmt.Fprintf(w, "%d errors, %d warnings, %d notes\n", r.Count(lint.Error), r.Count(lint.Warning), r.Count(lint.Note))
	}
}
