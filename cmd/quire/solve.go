package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"quire/capture/checkpoint"
	"quire/engine"
	"quire/engine/quant"
	"quire/kernels"
	"quire/kernels/dtype"
)

// SolveCmd quantizes one matrix outside any run.
type SolveCmd struct {
	Input  string `arg:"" help:"Safetensors file with W [out,in] and X [rows,in] or H [in,in]."`
	Output string `short:"o" required:"" help:"Safetensors file to write: codes, scales, zeros, g_idx, perm, dequantized; the decision record goes beside it as JSON."`
	Method string `default:"gptq" help:"gptq or rtn."`
	Rows   *int64 `help:"Rows behind H; needed with H, refused with X."`

	Bits          int     `default:"4" help:"Bits of a code, 2 to 8."`
	GroupSize     int     `name:"group-size" default:"128" placeholder:"128" help:"Columns that share a scale, -1 for a whole row."`
	Sym           bool    `default:"true" negatable:"" help:"Symmetric grid (default on)."`
	DescAct       bool    `name:"desc-act" negatable:"" help:"Visit columns by descending activity."`
	ActGroupAware *bool   `name:"act-group-aware" negatable:"" help:"Visit groups and columns inside groups by activity (default on where it applies)."`
	StaticGroups  bool    `name:"static-groups" negatable:"" help:"Take group ranges from the original weights."`
	MSE           float64 `name:"mse" help:"Exponent of the clip search, 0 for none."`
	BlockSize     int     `name:"block-size" default:"128" help:"Most columns between two tail updates."`
	DampPercent   float64 `name:"damp-percent" default:"0.05" help:"Damping as a share of the mean diagonal."`
	DampIncrement float64 `name:"damp-increment" default:"0.01" help:"Step of the damping ladder."`
	ScaleDType    string  `name:"scale-dtype" help:"f32, f16 or bf16: what a scale is rounded to inside the solver (default: the type of W; f32 with --parity gptqmodel)."`
	ZeroMin       int     `name:"zero-min" help:"Smallest true zero point of an asymmetric grid, 0 or 1."`
	Fallback      string  `default:"rtn" help:"What a statistic that cannot be factorized leads to: rtn or fail."`
	FallbackGrid  string  `name:"fallback-grid" default:"rtn" help:"Grid of rtn: rtn, midpoint, mean, median or stdclip (all but rtn need --no-sym)."`
	Guard         bool    `default:"true" negatable:"" help:"Keep rounded codes where the solver's output error is larger (default on)."`
	Parity        string  `help:"gptqmodel or compressed-tensors: reproduce that implementation, quirks included."`
	Threads       int     `help:"Worker threads (default: all cores)."`
	JSON          bool    `name:"json" help:"Print NDJSON."`
}

// solveInput is what the file holds.
type solveInput struct {
	w       []float32 // [out,in]
	wdtype  checkpoint.DType
	out, in int
	h       *quant.Hessian // nil: neither X nor H
}

// Run solves.
func (c *SolveCmd) Run(ctx context.Context, o *output) error {
	if a, err := os.Stat(c.Input); err == nil {
		if b, err := os.Stat(c.Output); err == nil && os.SameFile(a, b) {
			return &engine.Error{Code: "E1601", Exit: engine.ExitUsage, What: "the output would replace the input", Where: c.Output, Why: "both are one file", Try: "give -o another name"}
		}
	}
	if c.Rows != nil && *c.Rows < 0 {
		return &engine.Error{Code: "E1601", Exit: engine.ExitUsage, What: fmt.Sprintf("--rows %d", *c.Rows), Why: "a statistic has no negative number of rows", Try: "give the number of rows behind H"}
	}
	pool := kernels.NewPool(c.Threads)
	defer pool.Close()
	in, err := c.read(pool)
	if err != nil {
		return err
	}
	opts := c.options(in.wdtype)
	var r *quant.Result
	switch c.Method {
	case quant.MethodRTN:
		r, err = quant.RTN(ctx, pool, in.w, in.out, in.in, opts, in.h)
	case quant.MethodGPTQ:
		if in.h == nil {
			return c.missing("X or H", "gptq needs the rows or their statistic", "add X [rows,in], or H [in,in] with --rows, or use --method rtn")
		}
		var p *quant.Prepared
		if p, err = quant.Prepare(pool, *in.h, opts); err == nil {
			r, err = p.Solve(ctx, pool, in.w, in.out)
		}
	default:
		_, err = quant.Lookup(c.Method)
	}
	if err != nil {
		return err
	}
	r.Record.WeightSHA256 = quant.Digest(in.w)
	digest, err := writeSolved(c.Output, r)
	if err != nil {
		return err
	}
	record, err := json.MarshalIndent(r.Record, "", "  ")
	if err != nil {
		return err
	}
	side := strings.TrimSuffix(c.Output, ".safetensors") + ".json"
	if err := checkpoint.WriteFile(side, append(record, '\n')); err != nil {
		return err
	}
	if c.JSON {
		writeHello(o.out)
		writeJSON(o.out, map[string]any{"type": "result", "output": c.Output, "record_file": side, "sha256": digest, "record": r.Record})
		return nil
	}
	printSolved(o.out, r, c.Output, side)
	return nil
}

// options are the solver's settings. W's own type decides the scale type where none is named.
func (c *SolveCmd) options(w checkpoint.DType) quant.Options {
	o := quant.Options{
		Bits: c.Bits, GroupSize: c.GroupSize, Sym: c.Sym, DescAct: c.DescAct, StaticGroups: c.StaticGroups, MSE: c.MSE,
		BlockSize: c.BlockSize, DampPercent: c.DampPercent, DampIncrement: c.DampIncrement, ScaleDType: c.ScaleDType, ZeroMin: c.ZeroMin,
		Fallback: c.Fallback, FallbackGrid: c.FallbackGrid, NoGuard: !c.Guard, Parity: c.Parity,
	}
	if c.ActGroupAware != nil {
		o.ActGroupAware = *c.ActGroupAware
	} else {
		o.ActGroupAware = o.GroupSize > 0 && !o.DescAct && !o.StaticGroups && o.Parity != quant.ParityCompressedTensors && c.Method == quant.MethodGPTQ
	}
	if o.ScaleDType == "" {
		o.ScaleDType = quant.ScaleF32
		if o.Parity != quant.ParityGPTQModel {
			switch w {
			case checkpoint.BF16:
				o.ScaleDType = quant.ScaleBF16
			case checkpoint.F16:
				o.ScaleDType = quant.ScaleF16
			}
		}
	}
	return o
}

func (c *SolveCmd) missing(tensor, why, try string) error {
	return &engine.Error{Code: "E1607", Exit: engine.ExitUsage, What: "the input has no usable " + tensor, Where: c.Input, Why: why, Try: try}
}

// read takes W and the statistic from the input file.
func (c *SolveCmd) read(pool *kernels.Pool) (*solveInput, error) {
	f, err := checkpoint.OpenShard(c.Input)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	tensors := map[string]checkpoint.Tensor{}
	for _, t := range f.Tensors() {
		tensors[t.Name] = t
	}
	matrix := func(name string) ([]float32, []uint16, checkpoint.Tensor, error) {
		t, ok := tensors[name]
		if !ok {
			return nil, nil, t, nil
		}
		if len(t.Shape) != 2 || !t.DType.PlainFloat() {
			return nil, nil, t, c.missing(name, fmt.Sprintf("it is %s of shape %v", t.DType, t.Shape), "store it as a matrix of F32, BF16, F16 or F64")
		}
		raw := make([]byte, t.Bytes())
		if err := f.ReadAt(t, raw, 0); err != nil {
			return nil, nil, t, err
		}
		v, half := decodePlain(t.DType, raw)
		return v, half, t, nil
	}
	w, _, tw, err := matrix("W")
	if err != nil {
		return nil, err
	}
	if w == nil {
		return nil, c.missing("W", "W is the weight [out,in]", "add it")
	}
	in := &solveInput{w: w, wdtype: tw.DType, out: tw.Shape[0], in: tw.Shape[1]}
	x, half, tx, err := matrix("X")
	if err != nil {
		return nil, err
	}
	_, hasH := tensors["H"]
	switch {
	case x != nil && c.Rows != nil:
		return nil, &engine.Error{Code: "E1601", Exit: engine.ExitUsage, What: "--rows together with X", Where: c.Input, Why: "the rows of X are counted", Try: "leave --rows out"}
	case x != nil:
		if tx.Shape[1] != in.in {
			return nil, c.missing("X", fmt.Sprintf("it has %d columns, W has %d", tx.Shape[1], in.in), "give X as [rows,in]")
		}
		if in.h, err = statistic(pool, x, half, tx.Shape[0], in.in); err != nil {
			return nil, err
		}
	case hasH:
		h, _, th, err := matrix("H")
		if err != nil {
			return nil, err
		}
		if th.Shape[0] != in.in || th.Shape[1] != in.in {
			return nil, c.missing("H", fmt.Sprintf("its shape is %v, W has %d columns", th.Shape, in.in), "give H as [in,in]")
		}
		if c.Rows == nil {
			return nil, &engine.Error{Code: "E1601", Exit: engine.ExitUsage, What: "H without --rows", Where: c.Input, Why: "H is normalised by 2/rows", Try: "add --rows N"}
		}
		in.h = &quant.Hessian{N: in.in, H: h, Rows: *c.Rows, NativeRows: *c.Rows, Site: "H"}
	}
	if in.h != nil {
		in.h.SHA256 = quant.Digest(in.h.H)
	}
	return in, nil
}

// decodePlain gives the values as float32, and for bf16 the stored halves too.
func decodePlain(t checkpoint.DType, raw []byte) ([]float32, []uint16) {
	switch t {
	case checkpoint.F64:
		v := make([]float32, len(raw)/8)
		for i := range v {
			v[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(raw[8*i:])))
		}
		return v, nil
	case checkpoint.F32:
		v := make([]float32, len(raw)/4)
		for i := range v {
			v[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		}
		return v, nil
	case checkpoint.F16:
		v := make([]float32, len(raw)/2)
		dtype.DecodeF16Bytes(v, raw)
		return v, nil
	}
	v, half := make([]float32, len(raw)/2), make([]uint16, len(raw)/2)
	dtype.DecodeBF16Bytes(v, raw)
	for i := range half {
		half[i] = binary.LittleEndian.Uint16(raw[2*i:])
	}
	return v, half
}

// statistic is (2/rows)·XᵀX by the numeric contract. bf16 rows enter as bf16, as in a run.
func statistic(pool *kernels.Pool, x []float32, half []uint16, rows, n int) (*quant.Hessian, error) {
	for i, v := range x {
		if v-v != 0 {
			return nil, &quant.ValueError{What: "X", Row: i / n, Col: i % n, Value: float64(v), Err: quant.ErrNonFinite, Try: "leave this row out"}
		}
	}
	h := &quant.Hessian{N: n, H: make([]float32, n*n), Rows: int64(rows), NativeRows: int64(rows), Site: "X"}
	if rows == 0 {
		return h, nil
	}
	g := kernels.NewGram(n)
	if half != nil {
		g.Add(pool, kernels.RowsBF16(half, rows, n))
	} else {
		g.Add(pool, kernels.RowsF32(x, rows, n))
	}
	g.PartialParallel(pool, h.H)
	for i, v := range h.H {
		h.H[i] = float32(float64(v) * 2 / float64(rows))
	}
	return h, nil
}

// writeSolved writes the result's tensors.
func writeSolved(path string, r *quant.Result) (sha string, err error) {
	groups := r.Groups()
	gidx := r.GIdx
	if gidx == nil {
		gidx = make([]int32, r.In)
		for c := range gidx {
			gidx[c] = int32(r.Group(c))
		}
	}
	zeros := make([]int32, len(r.Zeros))
	for i, z := range r.Zeros {
		zeros[i] = int32(z)
	}
	deq := make([]float32, r.Out*r.In)
	r.Dequantize(deq)
	weights, table, columns := []int{r.Out, r.In}, []int{r.Out, groups}, []int{r.In}
	type entry struct {
		spec checkpoint.TensorSpec
		data []byte
	}
	var list []entry
	add := func(name string, t checkpoint.DType, shape []int, data []byte) {
		list = append(list, entry{checkpoint.TensorSpec{Name: name, DType: t, Shape: shape}, data})
	}
	add("dequantized", checkpoint.F32, weights, littleF32(deq))
	add("g_idx", checkpoint.I32, columns, littleI32(gidx))
	add("group_hi", checkpoint.F32, table, littleF32(r.GroupHi))
	add("group_lo", checkpoint.F32, table, littleF32(r.GroupLo))
	if r.Perm != nil {
		add("perm", checkpoint.I32, columns, littleI32(r.Perm))
	}
	add("scales", checkpoint.F32, table, littleF32(r.Scales))
	add("zeros", checkpoint.I32, table, littleI32(zeros))
	if r.Candidate != nil {
		add("candidate", checkpoint.U8, table, r.Candidate)
	}
	add("codes", checkpoint.U8, weights, r.Codes)

	dir, name := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	specs := make([]checkpoint.TensorSpec, len(list))
	for i, e := range list {
		specs[i] = e.spec
	}
	w, err := checkpoint.CreateShard(dir, name, specs)
	if err != nil {
		return "", err
	}
	for _, e := range list {
		if err := w.Write(e.spec.Name, e.data); err != nil {
			_ = w.Abort() // the first error is the one to report
			return "", err
		}
	}
	done, err := w.Close()
	return done.SHA256, err
}

func littleF32(x []float32) []byte {
	b := make([]byte, 0, 4*len(x))
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func littleI32(x []int32) []byte {
	b := make([]byte, 0, 4*len(x))
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}

// printSolved says in a few lines what happened.
func printSolved(w io.Writer, r *quant.Result, path, side string) {
	rec := r.Record
	fmt.Fprintf(w, "%s  [%d,%d]  %d bits  group %d  order %s\n", rec.Method, r.Out, r.In, r.Bits, r.GroupSize, rec.Order)
	if rec.Reason != "" {
		fmt.Fprintf(w, "  not %s: %s\n", rec.Asked, rec.Reason)
	}
	if d := rec.Damping; d != nil && d.Share > 0 {
		fmt.Fprintf(w, "  damping      %g of mean diagonal %.6g (%s, %d failed tries)\n", d.Share, d.Mean, d.Precision, len(d.Tries))
	}
	if rec.OutputError != nil {
		fmt.Fprintf(w, "  output error %.6g  relative %.6g  over %d rows\n", *rec.OutputError, *rec.OutputErrorRel, rec.Rows)
	}
	if g := rec.Guard; g != nil {
		more := ""
		if !g.RTNComplete {
			more = "more than "
		}
		fmt.Fprintf(w, "  rounding     %s%.6g\n", more, g.RTNError)
	}
	if len(rec.Dead) > 0 {
		fmt.Fprintf(w, "  dead columns %d\n", len(rec.Dead))
	}
	fmt.Fprintf(w, "  written      %s, %s\n", path, side)
}
