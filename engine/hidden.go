package engine

import (
	"context"
	"fmt"

	"quire/capture/model"
	"quire/kernels"
	"quire/ledger"
	"quire/ledger/codec"
)

// hiddenStates are the inputs of a layer by batch: in memory, or read from the ledger's captures when a span asks.
type hiddenStates struct {
	ctx    context.Context
	store  Store
	layer  int
	cols   int
	bf16   bool
	memory []kernels.Rows // by batch; M is 0 where it must be read
}

// rows gives the rows of consecutive batches, flattened.
func (h *hiddenStates) rows(batches []int) (kernels.Rows, error) {
	out := kernels.Rows{K: h.cols, Stride: h.cols}
	for _, b := range batches {
		x := h.memory[b]
		if x.M == 0 {
			var err error
			if x, err = h.read(b); err != nil {
				return out, err
			}
		}
		if h.bf16 {
			out.BF16 = append(out.BF16, x.BF16...)
		} else {
			out.F32 = append(out.F32, x.F32...)
		}
		out.M += x.M
		h.memory[b] = kernels.Rows{} // a span has it now
	}
	return out, nil
}

// peek gives the rows of one batch and keeps them.
func (h *hiddenStates) peek(b int) (kernels.Rows, error) {
	if x := h.memory[b]; x.M > 0 {
		return x, nil
	}
	return h.read(b)
}

func (h *hiddenStates) read(b int) (kernels.Rows, error) {
	key := keyLayerInput(h.layer, b)
	e, ok, err := h.store.Get(key)
	if err == nil && !ok {
		err = &Error{Code: "E0902", Exit: ExitLedgerDamaged, What: "the input of a layer is not in the ledger", Where: key, Try: "run `quire ledger fsck RUN`"}
	}
	if err != nil {
		return kernels.Rows{}, err
	}
	var rec CaptureRecord
	if err := readRecord(e, &rec); err != nil {
		return kernels.Rows{}, err
	}
	if rec.Cols != h.cols || (rec.DType == "BF16") != h.bf16 {
		return kernels.Rows{}, fmt.Errorf("%s holds %d columns of %s", key, rec.Cols, rec.DType)
	}
	raw, err := h.store.ReadPayload(h.ctx, e, "rows")
	if err != nil {
		return kernels.Rows{}, err
	}
	if h.bf16 {
		return kernels.RowsBF16(valuesOf[uint16](raw), rec.Rows, rec.Cols), nil
	}
	return kernels.RowsF32(valuesOf[float32](raw), rec.Rows, rec.Cols), nil
}

// layerInput gives the input of layer l: embeddings for the first, else what the layer before left in the ledger.
func (rs *runState) layerInput(ctx context.Context, runner *model.Runner, l int) (*hiddenStates, error) {
	h := &hiddenStates{ctx: ctx, store: rs.store, layer: l, cols: rs.model.Hidden, bf16: rs.model.Compute == model.BF16, memory: make([]kernels.Rows, len(rs.batches))}
	if l > 0 {
		return h, nil
	}
	for b, batch := range rs.batches {
		x, err := runner.Embed(ctx, batch.IDs)
		if err != nil {
			return nil, err
		}
		h.memory[b] = x
	}
	return h, nil
}

// outputs computes the last stage and captures the layer's output of every batch: the next layer's input. Each is durable
// before the layer counts as done.
func (lr *layerRun) outputs(ctx context.Context) (*hiddenStates, error) {
	l := lr.layer.Index + 1
	next := &hiddenStates{ctx: ctx, store: lr.store, layer: l, cols: lr.model.Hidden, bf16: lr.model.Compute == model.BF16, memory: make([]kernels.Rows, len(lr.batches))}
	err := lr.eachSpan(func(sp *laneSpan) error {
		for !sp.span.Done() {
			if err := sp.span.Advance(ctx); err != nil {
				return err
			}
		}
		x, err := sp.span.Output()
		if err != nil {
			return err
		}
		for i, b := range sp.batches {
			rows := part(x, sp.starts[i], sp.starts[i+1])
			e, x := captureEvent(l, b, rows)
			lr.futures.put(ctx, lr.store, e, x)
			if lr.budget.Resident {
				next.memory[b] = clip(rows)
			}
		}
		sp.span = nil
		return nil
	})
	if err != nil {
		return nil, err
	}
	return next, lr.futures.wait(ctx)
}

// clip cuts the backing slices of dense rows to the rows themselves.
func clip(x kernels.Rows) kernels.Rows {
	if x.BF16 != nil {
		x.BF16 = x.BF16[:x.M*x.K]
	} else {
		x.F32 = x.F32[:x.M*x.K]
	}
	return x
}

func captureEvent(l, b int, x kernels.Rows) (ledger.Event, blob) {
	x = clip(x)
	rec, raw, id := CaptureRecord{Rows: x.M, Cols: x.K, DType: "F32"}, bytesOf(x.F32), codec.Planes4
	if x.BF16 != nil {
		rec.DType, raw, id = "BF16", bytesOf(x.BF16), codec.Planes2
	}
	return ledger.Event{Type: TypeCapture, Schema: 1, Key: keyLayerInput(l, b), Record: record(rec)},
		blob{role: "rows", class: ledger.ClassLayer, segment: segmentOf(l), codec: id, bytes: raw}
}

// routingRecord describes the router's choices of one batch: payload "experts" is uint16 [rows,k], "weights" float32
// [rows,k] is known by digest only.
type routingRecord struct {
	Rows    int `json:"rows"`
	Experts int `json:"experts"`
	TopK    int `json:"top_k"`
}

func routingEvent(l, b int, r *model.Routing, from, to int) (ledger.Event, []blob) {
	ids := make([]uint16, (to-from)*r.TopK)
	for i, e := range r.Choice[from*r.TopK : to*r.TopK] {
		ids[i] = uint16(e)
	}
	segment := segmentOf(l)
	return ledger.Event{Type: TypeRouting, Schema: 1, Key: keyRouting(l, b), Record: record(routingRecord{Rows: to - from, Experts: r.Experts, TopK: r.TopK})}, []blob{
		{role: "experts", class: ledger.ClassPermanent, segment: segment, codec: codec.Planes2, bytes: bytesOf(ids)},
		{role: "weights", class: ledger.ClassOpen, segment: segment, codec: codec.Planes4, bytes: bytesOf(r.Weight[from*r.TopK : to*r.TopK]), discard: true},
	}
}
