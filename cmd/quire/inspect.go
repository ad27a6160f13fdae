package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"quire/capture/checkpoint"
	"quire/capture/overview"
)

// InspectCmd says what a checkpoint is, from headers and config alone.
type InspectCmd struct {
	Model string `arg:"" help:"Directory, .safetensors file, cache entry (owner/name) or parameter map (.json.gz)."`
	JSON  bool   `name:"json" help:"Print NDJSON."`
}

// Run prints the overview. A model that no family of the table reads is described all the same; the output says that a run
// would refuse it.
func (c *InspectCmd) Run(ctx context.Context, o *output) error {
	src, err := checkpoint.Open(ctx, c.Model)
	if err != nil {
		return err
	}
	defer src.Close()
	v, err := overview.Of(ctx, src)
	if err != nil {
		return err
	}
	if c.JSON {
		writeHello(o.out)
		writeJSON(o.out, struct {
			Type string `json:"type"`
			*overview.Overview
		}{"result", v})
		return nil
	}
	printOverview(o.out, v)
	return nil
}

func printOverview(w io.Writer, v *overview.Overview) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(key, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", key, fmt.Sprintf(format, args...)) }
	line("model", "%s", v.Path)
	if v.Architecture != "" {
		line("architecture", "%s (%s)", v.Architecture, v.ModelType)
	} else {
		line("architecture", "%s", v.ModelType)
	}
	if v.ConfigInferred {
		line("config", "none here; sizes are read from shapes (experts per token and rope are not known)")
	}
	if v.Family != "" {
		line("family", "%s", v.Family)
	} else {
		line("family", "none: %s [%s]", firstLine(v.Unknown), v.Code)
	}
	layers := fmt.Sprintf("%d", v.Layers)
	if v.Family != "" {
		layers += fmt.Sprintf(" (%d with experts)", v.BlockLayers)
	}
	line("layers", "%s, hidden %d, vocabulary %d", layers, v.Hidden, v.Vocab)
	if v.Experts > 0 {
		text := fmt.Sprintf("%d", v.Experts)
		if v.TopK > 0 {
			text += fmt.Sprintf(", %d per token", v.TopK)
		}
		if v.ExpertWidth > 0 {
			text += fmt.Sprintf(", width %d", v.ExpertWidth)
		}
		if v.ExpertLayout != "" {
			text += ", stored " + v.ExpertLayout
		}
		if v.SharedExperts {
			text += ", with shared experts"
		}
		line("experts", "%s", text)
	}
	line("attention", "%s", v.Attention)
	line("tied embeddings", "%v", v.Tied)
	params := fmt.Sprintf("%d", v.Parameters)
	if v.ActiveParams > 0 {
		params += fmt.Sprintf(", %d multiplied for one token", v.ActiveParams)
	}
	line("parameters", "%s", params)
	line("stored", "%d tensors, %d bytes in %d shards", v.Tensors, v.Bytes, v.Shards)
	if len(v.Formats) > 0 {
		var parts []string
		for _, f := range v.Formats {
			parts = append(parts, fmt.Sprintf("%s (%d)", f.Format, f.Tensors))
		}
		line("source quantization", "%s: %s; decoded on reading", or(v.Quantization, "no config"), strings.Join(parts, ", "))
	}
	line("side files", "%s", or(strings.Join(v.SideFiles, ", "), "none"))
	if len(v.Unused) > 0 {
		line("unused", "%s: no part of the checkpoint, never read", strings.Join(v.Unused, ", "))
	}
	t.Flush()
	fmt.Fprintln(w)
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "class\tfate\ttensors\tparameters\tbytes\t")
	for _, c := range v.Classes {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t\n", c.Class, or(c.Fate, "-"), c.Tensors, c.Parameters, c.Bytes)
	}
	t.Flush()
	fmt.Fprintln(w)
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "dtype\ttensors\tbytes\t")
	for _, d := range v.DTypes {
		fmt.Fprintf(t, "%s\t%d\t%d\t\n", d.DType, d.Tensors, d.Bytes)
	}
	t.Flush()
	fmt.Fprintln(w)
	if len(v.Unclaimed) == 0 {
		fmt.Fprintln(w, "unclaimed tensors: none")
	} else {
		fmt.Fprintf(w, "unclaimed tensors: %d\n  %s\n", len(v.Unclaimed), strings.Join(v.Unclaimed, "\n  "))
	}
	if len(v.Missing) > 0 {
		fmt.Fprintf(w, "missing tensors: %d\n  %s\n", len(v.Missing), strings.Join(v.Missing, "\n  "))
	}
	if v.Hint != "" {
		fmt.Fprintf(w, "a run would refuse this model; try: %s\n", v.Hint)
	}
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}
