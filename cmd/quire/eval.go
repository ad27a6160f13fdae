package main

import (
	"context"
	"fmt"
	"strings"

	"quire/capture"
	"quire/capture/checkpoint"
	"quire/capture/model"
	"quire/capture/text"
	"quire/engine"
	"quire/kernels"
)

// EvalCmd measures perplexity, and the divergence of a quantized model from its original.
type EvalCmd struct {
	Model     string `arg:"" help:"Directory of the (original) checkpoint."`
	Quantized string `arg:"" optional:"" help:"Directory of the quantized checkpoint."`
	Text      string `help:"Text file; tokenized whole with the model's tokenizer."`
	Tokens    string `help:"Token ids: .jsonl of input_ids, .u16 or .u32."`
	Window    int    `default:"512" help:"Tokens that see each other."`
	Limit     int    `help:"Evaluate this many windows at most."`
	Skip      int    `help:"Leave out this many windows at the start."`
	BOS       bool   `name:"bos" help:"Put the tokenizer's beginning-of-sequence token before every window."`
	Compute   string `enum:"f32,bf16" default:"f32" help:"Arithmetic of both models: f32 or bf16."`
	MaxMemory string `help:"Memory limit for weights and hidden states."`
	Threads   int    `help:"Worker threads (default: all cores)."`
	JSON      bool   `name:"json" help:"Print NDJSON."`
}

// Run evaluates.
func (c *EvalCmd) Run(ctx context.Context, o *output) error {
	seqs, err := c.sequences(ctx, o)
	if err != nil {
		return err
	}
	if c.Window < 2 {
		return &engine.Error{Code: "E0151", Exit: engine.ExitUsage, What: fmt.Sprintf("a window of %d tokens predicts nothing", c.Window), Try: "give --window 2 or more"}
	}
	windows, dropped := capture.Windows(seqs, c.Window, strings.HasSuffix(c.Tokens, ".jsonl"))
	windows = windows[min(c.Skip, len(windows)):]
	if c.Limit > 0 {
		windows = windows[:min(c.Limit, len(windows))]
	}
	limit, err := engine.ParseBytes("max_memory", c.MaxMemory)
	if err != nil {
		return err
	}
	opts := capture.EvalOptions{Window: c.Window, BOS: -1, MemoryBytes: limit}
	if c.BOS {
		tok, err := text.LoadTokenizer(c.Model)
		if err != nil {
			return err
		}
		id, _, ok := tok.BOS()
		if !ok {
			return &engine.Error{Code: "E0150", Exit: engine.ExitUsage, What: "the tokenizer has no beginning-of-sequence token", Where: c.Model, Try: "leave --bos out"}
		}
		opts.BOS = id
	}
	bar := !c.JSON && isTerminal(o.err)
	if bar {
		opts.Progress = func(done, total int) { fmt.Fprintf(o.err, "\rlayer %d of %d", done, total) }
	}
	pool := kernels.NewPool(c.Threads)
	defer pool.Close()
	original, closeOriginal, err := openRunner(ctx, c.Model, c.Compute, pool)
	if err != nil {
		return err
	}
	defer closeOriginal()
	var quantized *model.Runner
	if c.Quantized != "" {
		r, closeQuantized, err := openRunner(ctx, c.Quantized, c.Compute, pool)
		if err != nil {
			return err
		}
		defer closeQuantized()
		quantized = r
	}
	res, err := capture.Evaluate(ctx, original, quantized, windows, opts)
	if err != nil {
		return err
	}
	if c.JSON {
		writeHello(o.out)
		m := map[string]any{"type": "result", "tokens": res.Tokens, "windows": res.Windows, "window": c.Window, "bos": opts.BOS, "dropped_tokens": dropped,
			"ppl": res.Perplexity, "nll": res.NLL, "compute": c.Compute}
		if quantized != nil {
			m["ppl_quantized"], m["nll_quantized"], m["kl_mean"], m["kl_p99"], m["top1_agreement"] = res.QuantizedPerplexity, res.QuantizedNLL, res.KLMean, res.KLP99, res.Top1
			layers := make([]float64, len(res.Layers))
			for i, l := range res.Layers {
				layers[i] = l.Relative
			}
			m["layer_rel_error"] = layers
		}
		writeJSON(o.out, m)
		return nil
	}
	if bar {
		fmt.Fprintln(o.err)
	}
	bos := "no BOS token added"
	if opts.BOS >= 0 {
		bos = fmt.Sprintf("BOS %d before each", opts.BOS)
	}
	fmt.Fprintf(o.out, "%d predicted tokens in %d windows of %d, %s, compute %s\n", res.Tokens, res.Windows, c.Window, bos, c.Compute)
	if dropped > 0 {
		fmt.Fprintf(o.out, "  %d tokens behind the last whole window were left out\n", dropped)
	}
	fmt.Fprintf(o.out, "  perplexity  %.6g\n", res.Perplexity)
	if quantized != nil {
		fmt.Fprintf(o.out, "  quantized   %.6g\n  KL          %.6g nats (99th percentile %.4g)\n  top-1       %.2f %%\n", res.QuantizedPerplexity, res.KLMean, res.KLP99, 100*res.Top1)
		for _, l := range res.Layers {
			fmt.Fprintf(o.out, "  layer %-4d  relative error of the hidden state %.4g\n", l.Layer, l.Relative)
		}
	}
	return nil
}

func (c *EvalCmd) sequences(ctx context.Context, o *output) ([][]int32, error) {
	switch {
	case (c.Text == "") == (c.Tokens == ""):
		return nil, &engine.Error{Code: "E0151", Exit: engine.ExitUsage, What: "nothing to evaluate on", Try: "give one of --text FILE and --tokens FILE"}
	case c.Tokens != "":
		return text.ReadTokens(ctx, c.Tokens)
	}
	tok, err := text.LoadTokenizer(c.Model)
	if err != nil {
		return nil, err
	}
	b, err := readInput(c.Text, o)
	if err != nil {
		return nil, &engine.Error{Code: "E0104", Exit: engine.ExitUsage, What: "the text cannot be read", Where: c.Text, Err: err, Try: "check the path"}
	}
	enc, err := tok.Encode(string(b), text.EncodeOptions{NoSpecialTokens: true, NoTruncation: true, NoPadding: true})
	if err != nil {
		return nil, err
	}
	return [][]int32{enc.IDs}, nil
}

// openRunner opens a checkpoint for a forward pass.
func openRunner(ctx context.Context, dir, compute string, pool *kernels.Pool) (*model.Runner, func(), error) {
	ck, err := checkpoint.Open(ctx, dir)
	if err != nil {
		return nil, nil, err
	}
	done := func() { _ = ck.Close() } // read-only files
	arithmetic, err := model.ParseCompute(compute)
	if err == nil {
		var m *model.Model
		if m, err = model.Open(ctx, model.FromCheckpoint(ck), model.Options{Compute: arithmetic}); err == nil {
			return m.NewRunner(model.RunnerOptions{Pool: pool}), done, nil
		}
	}
	done()
	return nil, nil, err
}
