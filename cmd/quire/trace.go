package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"

	"quire/capture"
	"quire/capture/checkpoint"
	"quire/engine"
	"quire/kernels"
)

// TraceCmd writes what the forward pass saw.
type TraceCmd struct {
	Model    string `arg:"" help:"Directory of the checkpoint."`
	InputIDs string `name:"input-ids" required:"" help:"JSONL with one {\"input_ids\":[…]} a line, - for stdin."`
	Output   string `short:"o" required:"" help:"Safetensors file to write."`
	Sites    []int  `help:"Layers of which every linear's input is written too."`
	Compute  string `enum:"f32,bf16" default:"f32" help:"f32 or bf16."`
	Threads  int    `help:"Worker threads."`
	JSON     bool   `name:"json" help:"Print NDJSON."`
}

// Run traces.
func (c *TraceCmd) Run(ctx context.Context, o *output) error {
	prompts, err := readPrompts(c.InputIDs, o)
	if err != nil {
		return err
	}
	pool := kernels.NewPool(c.Threads)
	defer pool.Close()
	r, closeModel, err := openRunner(ctx, c.Model, c.Compute, pool)
	if err != nil {
		return err
	}
	defer closeModel()
	for _, l := range c.Sites {
		if n := len(r.Model().Layers); l < 0 || l >= n {
			return &engine.Error{Code: "E0152", Exit: engine.ExitUsage, What: fmt.Sprintf("there is no layer %d", l), Where: "--sites", Try: fmt.Sprintf("layers are 0 to %d", n-1)}
		}
	}
	if c.JSON {
		writeHello(o.out)
	}
	var tensors []capture.TraceTensor
	err = capture.Trace(ctx, r, prompts, capture.TraceOptions{Sites: c.Sites,
		Emit: func(t capture.TraceTensor) error {
			tensors = append(tensors, t)
			if c.JSON {
				writeJSON(o.out, map[string]any{"type": "tensor", "name": t.Name, "dtype": t.DType(), "shape": t.Shape, "sha256": t.SHA256()})
			} else {
				fmt.Fprintf(o.out, "%-40s %-4s %-16s %s\n", t.Name, t.DType(), fmt.Sprint(t.Shape), t.SHA256()[:16])
			}
			return nil
		},
		Routers: func(layer int, cov *capture.Coverage) {
			e, rows := cov.Min()
			if c.JSON {
				writeJSON(o.out, map[string]any{"type": "router", "layer": layer, "least_expert": e, "least_rows": rows})
			} else {
				fmt.Fprintf(o.out, "layer %d: expert %d has the fewest rows, %d\n", layer, e, rows)
			}
		}})
	if err != nil {
		return err
	}
	specs := make([]checkpoint.TensorSpec, len(tensors))
	for i, t := range tensors {
		specs[i] = checkpoint.TensorSpec{Name: t.Name, DType: checkpoint.DType(t.DType()), Shape: t.Shape}
	}
	w, err := checkpoint.CreateShard(filepath.Dir(c.Output), filepath.Base(c.Output), specs)
	if err != nil {
		return err
	}
	for _, t := range tensors {
		if err := w.Write(t.Name, t.Bytes()); err != nil {
			return err
		}
	}
	done, err := w.Close()
	if err != nil {
		return err
	}
	if c.JSON {
		writeJSON(o.out, map[string]any{"type": "result", "output": c.Output, "tensors": len(tensors), "size": done.Size, "sha256": done.SHA256})
	}
	return nil
}

// readPrompts reads one list of token ids a line.
func readPrompts(path string, o *output) ([][]int32, error) {
	b, err := readInput(path, o)
	if err != nil {
		return nil, &engine.Error{Code: "E0104", Exit: engine.ExitUsage, What: "the input ids cannot be read", Where: path, Err: err, Try: "check the path"}
	}
	var out [][]int32
	sc := bufio.NewScanner(bytes.NewReader(b))
	sc.Buffer(nil, 64<<20)
	for line := 1; sc.Scan(); line++ {
		if len(bytes.TrimSpace(sc.Bytes())) == 0 {
			continue
		}
		var p struct {
			IDs []int32 `json:"input_ids"`
		}
		if err := json.Unmarshal(sc.Bytes(), &p); err != nil || len(p.IDs) == 0 {
			return nil, &engine.Error{Code: "E0152", Exit: engine.ExitUsage, What: "a line holds no input_ids", Where: fmt.Sprintf("%s:%d", path, line), Err: err, Try: `write {"input_ids":[1,2,3]}`}
		}
		out = append(out, p.IDs)
	}
	if len(out) == 0 {
		return nil, &engine.Error{Code: "E0152", Exit: engine.ExitUsage, What: "no input_ids", Where: path, Try: `write {"input_ids":[1,2,3]}`}
	}
	return out, sc.Err()
}
