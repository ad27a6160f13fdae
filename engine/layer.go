package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"quire/capture/model"
	"quire/engine/quant"
	"quire/kernels"
	"quire/ledger"
)

// lane is a fixed slice of the calibration batches; it decides the order of addition and nothing else.
type lane struct {
	index int
	spans []*laneSpan
}

// laneSpan is some consecutive batches of a lane, run through a layer together.
type laneSpan struct {
	batches []int          // calibration indices
	starts  []int          // first row of each batch, and one past the last
	counted []bool         // rows that count; nil: all
	wider   [][]int32      // rows by expert under routing top-k=N
	mids    []kernels.Rows // middle rows of the experts in work, kept for their outputs; M 0: not kept
	parked  bool           // its rows are in a spill file
	span    *model.Span
}

// laneOf says which lane each batch belongs to: ⌊lanes·rowsBefore(b)/rows⌋. DESIGN section 2.
func laneOf(lengths []int, lanes int) []int {
	total, before := 0, 0
	for _, n := range lengths {
		total += n
	}
	out := make([]int, len(lengths))
	for b, n := range lengths {
		if total > 0 {
			out[b] = lanes * before / total
		}
		before += n
	}
	return out
}

// layerRun quantizes one layer.
type layerRun struct {
	*runState
	layer *model.Layer
	run   *model.LayerRun // nil where no forward pass is run
	// original reads a linear's source weight [out,in] as float32.
	original func(ctx context.Context, l *model.Linear, dst []float32) error
	lanes    []*lane
	native   []int64         // natively routed, counted rows by expert
	copied   bool            // the few-row policy leaves this layer's experts in their source form
	again    map[string]bool // modules whose decision is damaged: decided once more, with the same outcome
	futures  futures         // every event but decisions
	decided  futures         // decisions
	packed   *packing        // the layer's files on their way; nil before the last decision, and in a replay
	pack     func() ([]ledger.Event, error)
	buf      model.RowBuf
	account  LayerRecord
	mu       sync.Mutex // guards account
}

// stages walks the layer: statistics, decisions and outputs of each stage in turn. The last stage's output is left to
// outputs.
func (lr *layerRun) stages(ctx context.Context) error {
	for i, st := range lr.layer.Stages {
		lr.observeStage(st.Name)
		for _, site := range st.Sites {
			if err := lr.site(ctx, site); err != nil {
				return err
			}
		}
		if st.Block != nil {
			if err := lr.block(ctx, st.Block); err != nil {
				return err
			}
		}
		if i == len(lr.layer.Stages)-1 {
			if lr.stop.why() != "" {
				return lr.barrier(ctx)
			}
			lr.startPacking(ctx)
			return nil
		}
		if err := lr.eachSpan(func(sp *laneSpan) error { return sp.span.Advance(ctx) }); err != nil {
			return err
		}
		if err := lr.barrier(ctx); err != nil {
			return err
		}
	}
	return nil
}

// packing is the writing of a layer's files, beside the computation of its output.
type packing struct {
	done   chan struct{}
	events []ledger.Event
	err    error
}

// startPacking writes the layer's files as soon as its decisions are durable.
func (lr *layerRun) startPacking(ctx context.Context) {
	if lr.pack == nil {
		return
	}
	p := &packing{done: make(chan struct{})}
	lr.packed = p
	go func() {
		defer close(p.done)
		if p.err = lr.decided.wait(ctx); p.err == nil {
			p.events, p.err = lr.pack()
		}
	}()
}

// wait gives the events of the layer's files. It may be called again, and when there are none.
func (p *packing) wait() ([]ledger.Event, error) {
	if p == nil {
		return nil, nil
	}
	<-p.done
	return p.events, p.err
}

// eachSpan runs f on every span in calibration order, with the span's rows in memory.
func (lr *layerRun) eachSpan(f func(sp *laneSpan) error) error {
	for _, ln := range lr.lanes {
		if err := lr.laneSpans(ln, f); err != nil {
			return err
		}
	}
	return nil
}

// laneSpans is eachSpan for one lane.
func (lr *layerRun) laneSpans(ln *lane, f func(sp *laneSpan) error) error {
	for _, sp := range ln.spans {
		if err := lr.wake(sp); err != nil {
			return err
		}
		if err := f(sp); err != nil {
			return err
		}
		if err := lr.park(sp); err != nil {
			return err
		}
	}
	return nil
}

// barrier makes everything appended so far durable, then asks whether the run is to stop here.
func (lr *layerRun) barrier(ctx context.Context) error {
	if err := errors.Join(lr.futures.wait(ctx), lr.decided.wait(ctx)); err != nil {
		return err
	}
	return lr.stop.check()
}

// undecided lists the linears of a site that are quantized and have no decision yet.
func (lr *layerRun) undecided(linears []*model.Linear) ([]*ModulePlan, error) {
	var todo []*ModulePlan
	for _, l := range linears {
		m := lr.plan.module(l.Module)
		if m == nil || m.Scheme == nil {
			continue
		}
		e, ok, err := lr.store.Get(keyDecision(l.Layer, l.Module))
		if err != nil {
			return nil, err
		}
		if !ok || lr.again[m.Module] {
			todo = append(todo, m)
			continue
		}
		var rec DecisionRecord
		if err := readRecord(e, &rec); err != nil {
			return nil, err
		}
		lr.note(&rec)
	}
	return todo, nil
}

// override gives a linear the weight that was decided for it in an earlier stay.
func (lr *layerRun) override(ctx context.Context, l *model.Linear, dst []float32) (bool, error) {
	m := lr.plan.module(l.Module)
	if m == nil || m.Scheme == nil || !lr.settings.Identity.PropagateError || lr.again[l.Module] {
		return false, nil
	}
	d, ok, err := ReadDecision(ctx, lr.store, l.Layer, l.Module, l.Out, l.In, true)
	if err != nil || !ok {
		return false, err
	}
	d.module(m, lr.settings.Identity.ScaleDType).Dequantize(dst)
	return true, nil
}

// site takes the statistic of one site that all rows reach and decides about its linears.
func (lr *layerRun) site(ctx context.Context, site *model.Site) error {
	todo, err := lr.undecided(site.Linears)
	if err != nil || len(todo) == 0 {
		return err
	}
	var h *quant.Hessian
	var ref ledger.Ref
	if lr.needsGram(todo) {
		if h, ref, err = lr.siteStatistic(ctx, site); err != nil {
			return err
		}
	}
	return lr.decide(ctx, lr.pool, site.Name, todo, h, ref, nil)
}

func (lr *layerRun) needsGram(ms []*ModulePlan) bool {
	return slices.ContainsFunc(ms, func(m *ModulePlan) bool {
		method, err := quant.Lookup(m.Scheme.Method)
		return err == nil && method.Needs(lr.settings.Identity.solverOptions(*m.Scheme)).Gram
	})
}

// siteStatistic is XᵀX over all counted rows of a site.
func (lr *layerRun) siteStatistic(ctx context.Context, site *model.Site) (*quant.Hessian, ledger.Ref, error) {
	return lr.statistic(ctx, lr.pool, statID{layer: site.Layer, site: site.Name, expert: -1}, site.In, func(ln *lane, st *statistic) (int64, error) {
		var native int64
		err := lr.laneSpans(ln, func(sp *laneSpan) error {
			x, err := lr.rows(sp, site)
			if err != nil {
				return err
			}
			n, err := sp.addRows(st, x, nil)
			native += n
			return err
		})
		return native, err
	})
}

// rows gives the rows of a site that all tokens reach.
func (lr *layerRun) rows(sp *laneSpan, site *model.Site) (kernels.Rows, error) {
	if site.Name == model.SiteSharedMid {
		return sp.span.SharedMid(&lr.buf)
	}
	return sp.span.Rows(site)
}

// statistic gives a finished statistic: from the ledger, or lane by lane with feed adding the rows of a lane and telling
// how many of them are native.
func (lr *layerRun) statistic(ctx context.Context, pool *kernels.Pool, id statID, n int, feed func(*lane, *statistic) (int64, error)) (*quant.Hessian, ledger.Ref, error) {
	st, h, ref, err := lr.openStatistic(ctx, pool, id, n)
	if err != nil || h != nil {
		return h, ref, err
	}
	for _, ln := range lr.lanes {
		if err := lr.feedLane(st, ln, feed); err != nil {
			return nil, ref, err
		}
	}
	return lr.closeStatistic(st)
}

// openStatistic gives the stored statistic, or a new one to feed.
func (lr *layerRun) openStatistic(ctx context.Context, pool *kernels.Pool, id statID, n int) (*statistic, *quant.Hessian, ledger.Ref, error) {
	h, ok, err := storedHessian(ctx, lr.store, id, n)
	if err != nil {
		return nil, nil, ledger.Ref{}, err
	}
	if ok {
		e, _, err := lr.store.Get(id.key())
		return nil, h, e.Ref(), err
	}
	lr.hooks.ran("statistic", id.String())
	return &statistic{ctx: ctx, store: lr.store, pool: pool, id: id, n: n, keep: lr.plan.keepPartials(n), drop: lr.settings.Identity.OnNonFinite == "drop-row",
		futures: &lr.futures}, nil, ledger.Ref{}, nil
}

func (lr *layerRun) feedLane(st *statistic, ln *lane, feed func(*lane, *statistic) (int64, error)) error {
	wanted, err := st.begin(ln.index)
	if err != nil || !wanted {
		return err
	}
	native, err := feed(ln, st)
	if err != nil {
		return err
	}
	return st.end(native)
}

func (lr *layerRun) closeStatistic(st *statistic) (*quant.Hessian, ledger.Ref, error) {
	h, ref, err := st.finish()
	if err != nil {
		return nil, ref, err
	}
	for _, at := range st.dropped {
		lr.finding(Finding{Code: "F_NONFINITE", Where: at, Text: "a calibration row that is not finite was dropped"})
	}
	return h, ref, nil
}

// addRows gives rows to a statistic. x holds the span's rows, or with ids those rows in that order. It returns how many
// counted rows there were.
func (sp *laneSpan) addRows(st *statistic, x kernels.Rows, ids []int32) (int64, error) {
	if sp.counted != nil && ids == nil && x.M > 0 { // ids were chosen among counted rows
		ids = sp.countedIDs(firstIDs(x.M))
		x = sp.keepCounted(x, len(ids))
	}
	if x.M == 0 {
		return 0, nil
	}
	batches := make([]batchRows, len(sp.batches))
	at := 0
	for i, b := range sp.batches {
		from := at
		if ids == nil {
			at = sp.starts[i+1]
		} else {
			for at < len(ids) && int(ids[at]) < sp.starts[i+1] {
				at++
			}
		}
		batches[i] = batchRows{b, from, at}
	}
	return int64(x.M), st.add(x, batches)
}

func firstIDs(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(i)
	}
	return ids
}

// keepCounted copies the rows of the span that count; there are m.
func (sp *laneSpan) keepCounted(x kernels.Rows, m int) kernels.Rows {
	y := kernels.Rows{M: m, K: x.K, Stride: x.K}
	for r, counts := range sp.counted {
		if !counts {
			continue
		}
		if x.BF16 != nil {
			y.BF16 = append(y.BF16, x.BF16[r*x.Stride:][:x.K]...)
		} else {
			y.F32 = append(y.F32, x.F32[r*x.Stride:][:x.K]...)
		}
	}
	return y
}

// countedIDs keeps the ids of rows that count.
func (sp *laneSpan) countedIDs(ids []int32) []int32 {
	if sp.counted == nil {
		return ids
	}
	var out []int32
	for _, id := range ids {
		if sp.counted[id] {
			out = append(out, id)
		}
	}
	return out
}

// decide solves modules that share a statistic, appends their decisions and puts the quantized weights in place.
func (lr *layerRun) decide(ctx context.Context, pool *kernels.Pool, site string, todo []*ModulePlan, h *quant.Hessian, ref ledger.Ref, few *fewRows) error {
	in := &siteInputs{pool: pool, h: h}
	for _, m := range todo {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		w := make([]float32, m.Out*m.In)
		if err := lr.original(ctx, m.linear, w); err != nil {
			return err
		}
		lr.hooks.ran("decision", m.Module)
		weight := make(chan string, 1)
		go func() { weight <- weightDigest(w) }()
		r, err := solve(ctx, pool, m, &lr.settings.Identity, w, in)
		sum := <-weight // w is written to below
		if err != nil {
			return err
		}
		r.Record.WeightSHA256 = sum
		d := &decision{plan: m, site: site, result: r}
		if h != nil {
			d.rows, d.native, d.hessian = h.Rows, h.NativeRows, ref.Key
			d.inputs = append(d.inputs, ref)
		}
		if few != nil {
			d.native = few.treatment.Native
			if few.treatment.Fallback {
				d.treatment = &few.treatment
			}
			d.rows = few.rows
			d.hessian, d.common = few.own.Key, few.common.Key
			d.inputs = few.refs()
		}
		d.inputs = append(d.inputs, lr.plan.sourceRefs(m)...)
		lr.decided.tasks.Go(func() {
			rec := d.write(ctx, lr.store, &lr.decided)
			lr.note(&rec)
		})
		if lr.run != nil && lr.settings.Identity.PropagateError {
			r.Dequantize(w)
			lr.mu.Lock()
			err = lr.run.Replace(m.linear, w)
			lr.mu.Unlock()
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// note counts a decision in the layer's account.
func (lr *layerRun) note(rec *DecisionRecord) {
	lr.mu.Lock()
	defer lr.mu.Unlock()
	lr.account.Modules++
	if rec.Fallback != "" {
		lr.account.Fallbacks++
	}
	if rec.RelError > lr.account.WorstRel || rec.RelError == lr.account.WorstRel && (lr.account.Worst == "" || rec.Module < lr.account.Worst) {
		lr.account.WorstRel, lr.account.Worst = rec.RelError, rec.Module
	}
}

// fewRows is the few-row policy's outcome for an expert's site.
type fewRows struct {
	treatment   quant.Treatment
	own, common ledger.Ref
	rows        int64
}

func (f *fewRows) refs() []ledger.Ref {
	var out []ledger.Ref
	for _, r := range []ledger.Ref{f.own, f.common} {
		if r.Key != "" {
			out = append(out, r)
		}
	}
	return out
}

// Finding is something people should know that stops nothing by itself.
type Finding struct {
	Code  string `json:"code"`
	Where string `json:"where"`
	Text  string `json:"text"`
}

func (f Finding) String() string { return fmt.Sprintf("%s %s: %s", f.Code, f.Where, f.Text) }
