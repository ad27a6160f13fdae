package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"

	"quire/capture/text"
	"quire/engine"
)

// SamplesCmd shows the calibration samples as a run would see them.
type SamplesCmd struct {
	recipeFlags
	JSON bool `name:"json" help:"Print NDJSON: one batch a line with ids and mask, then the samples that are no batch of their own."`
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
	if r.Model == nil || *r.Model == "" {
		return &engine.Error{Code: "E0110", Exit: engine.ExitUsage, What: "no model", Try: "give the directory of the checkpoint, or of its tokenizer"}
	}
	dir, err := modelPath(*r.Model)
	if err != nil {
		return err
	}
	cal, err := engine.CalibrationOf(ctx, r, vocabSize(dir), o.in)
	if err != nil {
		return err
	}
	if c.JSON {
		samplesJSON(o, cal)
		return nil
	}
	samplesTable(o, cal)
	return nil
}

// vocabSize is the number of rows of the model's embedding, 0 if no config says.
func vocabSize(model string) int {
	data, err := os.ReadFile(filepath.Join(model, "config.json"))
	if err != nil {
		return 0
	}
	var c struct {
		Vocab int `json:"vocab_size"`
		Text  struct {
			Vocab int `json:"vocab_size"`
		} `json:"text_config"`
	}
	if json.Unmarshal(data, &c) != nil {
		return 0
	}
	return max(c.Vocab, c.Text.Vocab)
}

// sampleLine is a batch with its ids, or the fate of a sample that did not become a batch of its own.
type sampleLine struct {
	Type    string       `json:"type"`             // batch or sample
	Batch   int          `json:"batch"`            // -1: none
	Samples []int        `json:"samples"`          // numbers in reading order
	Fate    text.Outcome `json:"fate"`             // used, clipped, merged, dropped
	Reason  string       `json:"reason,omitempty"` // of a dropped sample
	Detail  string       `json:"detail,omitempty"` // of the reason
	Origin  []string     `json:"origin"`           // file:record of every sample
	Tokens  int          `json:"tokens"`           // of the samples before clipping
	Length  int          `json:"length"`           // tokens in the batch
	Rows    int          `json:"rows"`             // tokens that become rows
	IDs     []int32      `json:"ids,omitempty"`    // of a batch
	Mask    []int        `json:"mask,omitempty"`   // of a batch: 1 where a token becomes a row
}

func samplesJSON(o *output, cal *text.Calibration) {
	writeHello(o.out)
	fates := map[int]text.Fate{}
	for _, f := range cal.Fates {
		if f.Count == 1 {
			fates[f.Sample] = f
		}
	}
	alone := map[int]bool{} // samples that are a batch
	for i, b := range cal.Batches {
		l := sampleLine{Type: "batch", Batch: i, Samples: b.Samples, Length: len(b.IDs), Rows: b.Rows(), IDs: b.IDs, Mask: make([]int, len(b.IDs))}
		for _, s := range b.Samples {
			f := fates[s]
			l.Fate, l.Tokens, l.Origin = f.Outcome, l.Tokens+f.Tokens, append(l.Origin, origin(f, 0))
		}
		if len(b.Samples) == 1 && fates[b.Samples[0]].Outcome != text.Merged {
			alone[b.Samples[0]] = true
		}
		for j := range b.IDs {
			if b.Mask == nil || b.Mask[j] {
				l.Mask[j] = 1
			}
		}
		writeJSON(o.out, l)
	}
	for _, f := range cal.Fates {
		if f.Count == 1 && alone[f.Sample] {
			continue
		}
		for k := range f.Count {
			writeJSON(o.out, sampleLine{Type: "sample", Batch: f.Batch, Samples: []int{f.Sample + k}, Fate: f.Outcome, Reason: f.Reason, Detail: f.Detail, Origin: []string{origin(f, k)}, Tokens: f.Tokens, Length: f.Kept})
		}
	}
	writeJSON(o.out, map[string]any{"type": "result", "counts": cal.Counts, "digest": cal.Digest, "bos": cal.BOS, "files": cal.Files,
		"tokenizer_sha256": cal.Tokenizer, "template_sha256": cal.Template, "warnings": cal.Warnings})
}

func origin(f text.Fate, k int) string { return fmt.Sprintf("%s:%d", f.File, f.Record+k) }

func samplesTable(o *output, cal *text.Calibration) {
	w := tabwriter.NewWriter(o.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "sample\tfate\ttokens\tkept\tbatch\torigin\tids")
	for _, f := range cal.Fates {
		name := fmt.Sprint(f.Sample)
		if f.Count > 1 {
			name = fmt.Sprintf("%d-%d", f.Sample, f.Sample+f.Count-1)
		}
		fate, batch, begins := string(f.Outcome), "-", f.Detail
		if f.Reason != "" {
			fate += " (" + f.Reason + ")"
		}
		if f.Batch >= 0 {
			ids := cal.Batches[f.Batch].IDs
			batch, begins = fmt.Sprint(f.Batch), fmt.Sprintf("%v …", ids[:min(len(ids), 8)])
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\t%s\n", name, fate, f.Tokens, f.Kept, batch, origin(f, 0), begins)
	}
	_ = w.Flush() // what a terminal does not take is lost to it alone
	fmt.Fprintf(o.out, "\n%d samples: %d used, %d clipped, %d merged, %d dropped; %d batches, %d tokens, %d rows\ndigest %s\nBOS: %s\n", cal.Counts.Samples, cal.Counts.Used, cal.Counts.Clipped,
		cal.Counts.Merged, cal.Counts.Dropped, cal.Counts.Batches, cal.Counts.Tokens, cal.Counts.Rows, cal.Digest, cal.BOS.Policy)
	for _, w := range cal.Warnings {
		fmt.Fprintf(o.out, "warning: %s\n", w)
	}
}
