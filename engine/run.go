package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"quire/capture/checkpoint"
	"quire/capture/model"
	"quire/capture/text"
	"quire/kernels"
	"quire/ledger"
)

// Result is what a finished run says of itself.
type Result struct {
	Output       string    `json:"output"`
	RunDir       string    `json:"run_dir"`
	PlanDigest   string    `json:"plan_digest"`
	Modules      Modules   `json:"modules"`
	Events       uint64    `json:"events"`
	LedgerRoot   string    `json:"ledger_root"`
	DecisionRoot string    `json:"decision_root"`
	SumsSHA256   string    `json:"sums_sha256"`
	WallS        float64   `json:"wall_s"`
	PeakRSSBytes int64     `json:"peak_rss_bytes"`
	CalibPPL     float64   `json:"calibration_ppl,omitempty"` // of the quantized model on the first calibration rows
	Findings     []Finding `json:"findings"`
	AlreadyDone  bool      `json:"already_done,omitempty"`
}

// Modules counts what became of the linears.
type Modules struct {
	Quantized int `json:"quantized"`
	Fallback  int `json:"fallback"`
	Copied    int `json:"copied"`
}

// Hooks are for tests: they count work and may stop the process.
type Hooks struct {
	// Ran hears of every piece of work that a resume must not repeat: "statistic", "decision", "stage".
	Ran func(what, where string)
	// Work hears at the end what paths the run took.
	Work func(Work)
}

// Work counts what a run did besides its result.
type Work struct {
	ExpertBatches int
	SpilledBytes  int64
}

func (h *Hooks) ran(what, where string) {
	if h != nil && h.Ran != nil {
		h.Ran(what, where)
	}
}

// RunOptions are what a caller may add to a plan.
type RunOptions struct {
	Observer Observer
	Hooks    *Hooks
	TakeOver bool
	// Resume refuses to begin a new run.
	Resume bool
	// OpenStore wraps the ledger; measurements replace it.
	OpenStore func(*ledger.Ledger) Store
	// VerifyInputs hashes sources again even if the cache knows them.
	VerifyInputs bool
}

// runState is what the parts of a running run share.
type runState struct {
	settings    *Settings
	plan        *Plan
	model       *model.Model
	store       Store
	ledger      *ledger.Ledger
	pool        *kernels.Pool
	observer    Observer
	hooks       *Hooks
	stop        *stopper
	counters    counters
	budget      Budget
	batches     []text.Batch
	laneOf      []int
	countedRows int64
	out         *outputDir
	began       time.Time
	progress    progressState

	observeMu      sync.Mutex
	findingsMu     sync.Mutex
	findings       []Finding
	findingFutures futures
	findingCtx     context.Context
	calibrationPPL float64
	lettingGo      beside // of what the newest finished layer needed
}

// beside is a task beside the caller, one at a time.
type beside struct{ done chan error }

func (b *beside) start(f func() error) {
	done := make(chan error, 1)
	b.done = done
	go func() { done <- f() }()
}

// wait gives the error of the task, nil if there is none.
func (b *beside) wait() error {
	if b.done == nil {
		return nil
	}
	err := <-b.done
	b.done = nil
	return err
}

// stopper says whether a run is to stop at the next durable point.
type stopper struct {
	mu     sync.Mutex
	reason string
}

// ErrStopped is the sentinel of a run that stopped at a durable point; resuming goes on.
var ErrStopped = errors.New("stopped at a durable point")

func (s *stopper) ask(reason string) {
	s.mu.Lock()
	if s.reason == "" {
		s.reason = reason
	}
	s.mu.Unlock()
}

func (s *stopper) why() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason
}

func (s *stopper) check() error {
	if r := s.why(); r != "" {
		return stopped(r)
	}
	return nil
}

func stopped(reason string) error {
	return &Error{Code: "E0701", Exit: ExitStoppedDurably, What: "the run stopped", Why: reason, Err: ErrStopped,
		Try: "give the same command again, or `quire resume RUN`: it goes on where it stopped"}
}

// Run quantizes: it begins the run, or goes on with the one that the run directory holds. ctx ending asks for a stop at
// the next durable point.
func Run(ctx context.Context, plan *Plan, o RunOptions) (res *Result, err error) {
	if o.Observer == nil {
		o.Observer = Silent{}
	}
	s := plan.Settings
	if err := checkPaths(s); err != nil {
		return nil, err
	}
	rs := &runState{settings: s, plan: plan, model: plan.model, observer: o.Observer, hooks: o.Hooks, stop: &stopper{}, began: time.Now(), budget: plan.budget}
	if done, err := rs.alreadyFinished(ctx); done != nil || err != nil {
		return done, err
	}
	if err := rs.afterDeaths(); err != nil {
		return nil, err
	}
	obeyLimit(rs.budget.LimitBytes)
	rs.pool = kernels.NewPool(s.Threads)
	defer rs.pool.Close()
	if err := rs.open(ctx, o); err != nil {
		if ctx.Err() != nil {
			return nil, stopped(fmt.Sprint(context.Cause(ctx)))
		}
		return nil, whereDiskFailed(err)
	}
	// The ledger must take the last events even after ctx has ended.
	work := context.WithoutCancel(ctx)
	rs.findingCtx = work
	defer func() {
		reason := "finished"
		if err != nil {
			reason = err.Error()
		}
		last := rs.progress.snapshot("end")
		last.Memory, last.MemoryLimit = currentRSS(), rs.budget.LimitBytes
		rs.publishStatus(last, reason)
		if cerr := rs.ledger.Close(work, reason); cerr != nil && err == nil {
			err = cerr
		}
	}()
	watch := rs.watch(ctx)
	defer watch()
	if err := rs.work(work); err != nil {
		return nil, whereDiskFailed(err)
	}
	if o.Hooks != nil && o.Hooks.Work != nil {
		o.Hooks.Work(rs.counters.sum())
	}
	return rs.result(work)
}

// watch turns the end of ctx, the time limit, low disk and memory pressure into a request to stop, and sends heartbeats.
func (rs *runState) watch(ctx context.Context) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		var limit <-chan time.Time
		if rs.settings.TimeLimit > 0 {
			t := time.NewTimer(max(rs.settings.TimeLimit-rs.settings.Grace, 0))
			defer t.Stop()
			limit = t.C
		}
		beat := time.NewTicker(10 * time.Second)
		defer beat.Stop()
		look := time.NewTicker(time.Second)
		defer look.Stop()
		ended := ctx.Done()
		for {
			select {
			case <-done:
				return
			case <-ended:
				rs.stop.ask(fmt.Sprint(context.Cause(ctx)))
				ended = nil
			case <-limit:
				rs.stop.ask("the time limit is near")
			case <-beat.C:
				rs.heartbeat()
			case <-look.C:
				rs.lookAround()
			}
		}
	}()
	return func() { close(done); wg.Wait() }
}

// open finds or makes the ledger, checks the identity, and reads the batches back.
func (rs *runState) open(ctx context.Context, o RunOptions) error {
	s := rs.settings
	opts := ledger.Options{Types: eventTypes(), Stay: record(rs.stayFacts()), InFlightBytes: rs.budget.WriterBytes, TakeOver: o.TakeOver,
		Decoders: map[string]ledger.Decoder{codesDecoder: rs.codesDecoder()}}
	exists := false
	if _, err := os.Stat(filepath.Join(s.RunDir, "ledger.db")); err == nil {
		exists = true
	}
	if !exists {
		if o.Resume {
			return &Error{Code: "E0702", Exit: ExitNoRun, What: "no run to resume", Where: s.RunDir, Try: "give the run directory, by default OUTPUT.run"}
		}
		if err := foreignOutput(s.Output); err != nil {
			return err
		}
		if err := rs.preflight(); err != nil {
			return err
		}
	}
	inputs, sources, err := rs.hashInputs(ctx, o.VerifyInputs)
	if err != nil {
		return err
	}
	if !exists {
		g := GenesisRecord{PlanDigest: rs.plan.Digest, InputsDigest: inputs, Contract: kernels.ContractID, Identity: rs.plan.Identity}
		if rs.ledger, err = ledger.Create(ctx, s.RunDir, ledger.Genesis{Record: record(g), Note: record(map[string]string{"model": s.Model, "output": s.Output})}, opts); err != nil {
			return err
		}
		if err := rs.saveRecipe(); err != nil {
			return errors.Join(err, rs.ledger.Close(ctx, err.Error()))
		}
	} else if rs.ledger, err = ledger.Open(ctx, s.RunDir, opts); err != nil {
		return err
	}
	if err := clearSpill(s.RunDir); err != nil {
		return errors.Join(err, rs.ledger.Close(ctx, err.Error()))
	}
	rs.store = rs.ledger
	if o.OpenStore != nil {
		rs.store = o.OpenStore(rs.ledger)
	}
	rs.store = &mender{Store: rs.store, told: func(s string) { rs.observe(Progress{Kind: "note", Message: s}) }}
	err = rs.checkIdentity(inputs)
	if err == nil && exists {
		err = rs.saveRecipe() // a stay that died young may not have come to it
	}
	if err == nil {
		err = rs.recordInputs(ctx, sources)
	}
	if err == nil {
		rs.out, err = openOutput(s.Output, rs.plan)
	}
	if err != nil {
		return errors.Join(err, rs.ledger.Close(context.WithoutCancel(ctx), err.Error()))
	}
	return nil
}

// saveRecipe leaves the recipe and the plan in the run directory, for `resume` and for people.
func (rs *runState) saveRecipe() error {
	_, rerr := os.Stat(filepath.Join(rs.settings.RunDir, RecipeFile))
	if _, perr := os.Stat(filepath.Join(rs.settings.RunDir, "plan.json")); rerr == nil && perr == nil {
		return nil
	}
	b, err := rs.plan.recipe.Save()
	if err != nil {
		return err
	}
	if err := checkpoint.WriteFile(filepath.Join(rs.settings.RunDir, RecipeFile), b); err != nil {
		return err
	}
	p, err := json.Marshal(rs.plan)
	if err != nil {
		return err
	}
	return checkpoint.WriteFile(filepath.Join(rs.settings.RunDir, "plan.json"), append(p, '\n'))
}

// work takes the run from wherever it stands to the published output.
func (rs *runState) work(ctx context.Context) error {
	if err := rs.stop.check(); err != nil {
		return err
	}
	if err := rs.precheck(ctx); err != nil {
		return err
	}
	if rs.plan.calibrated() {
		if err := rs.calibrated(ctx); err != nil {
			return err
		}
	} else if err := rs.uncalibrated(ctx); err != nil {
		return err
	}
	if err := rs.outside(ctx); err != nil {
		return err
	}
	return rs.publish(ctx)
}

// calibrated walks the layers with the calibration batches.
func (rs *runState) calibrated(ctx context.Context) (err error) {
	defer func() {
		if lerr := rs.lettingGo.wait(); err == nil {
			err = lerr
		}
	}()
	rs.measureBatches()
	runner := rs.model.NewRunner(model.RunnerOptions{Pool: rs.pool, ScratchBytes: rs.budget.ScratchBytes})
	var hidden *hiddenStates
	for l := range rs.model.Layers {
		rs.ledger.SetUnit(fmt.Sprintf("layer %d", l))
		rs.progress.layer(l, len(rs.model.Layers))
		done, err := rs.layerDone(ctx, l)
		if err != nil {
			return err
		}
		if done {
			continue
		}
		if hidden == nil {
			if hidden, err = rs.layerInput(ctx, runner, l); err != nil {
				return err
			}
		}
		next, err := rs.quantizeLayer(ctx, runner, l, hidden)
		if err != nil && damagedInput(err, l) {
			if hidden, err = rs.rebuildInput(ctx, runner, l, err); err == nil {
				next, err = rs.quantizeLayer(ctx, runner, l, hidden)
			}
		}
		if hidden = next; err != nil {
			return err
		}
		if rs.settings.StopAfterLayer == l && l+1 < len(rs.model.Layers) {
			return stopped(fmt.Sprintf("--stop-after-layer %d", l))
		}
		if err := rs.stop.check(); err != nil {
			return err
		}
	}
	last := func() error {
		if err := rs.calibrationPerplexity(ctx, runner, hidden); err != nil {
			return err
		}
		return rs.head(ctx, runner, hidden)
	}
	err = last()
	if l := len(rs.model.Layers); err != nil && damagedInput(err, l) {
		if hidden, err = rs.rebuildInput(ctx, runner, l, err); err == nil {
			err = last()
		}
	}
	return err
}

// measureBatches counts rows and deals the batches to lanes.
func (rs *runState) measureBatches() {
	lengths := make([]int, len(rs.batches))
	rs.countedRows = 0
	for i, b := range rs.batches {
		lengths[i] = len(b.IDs)
		rs.countedRows += int64(b.Rows())
		rs.progress.tokens += len(b.IDs)
	}
	rs.laneOf = laneOf(lengths, rs.settings.Identity.Lanes)
}

// layerDone says whether an earlier stay finished a layer. What that stay may not have come to is done for the newest
// such layer.
func (rs *runState) layerDone(ctx context.Context, l int) (bool, error) {
	e, done, err := rs.store.Get(keyLayer(l))
	if err != nil || !done {
		return false, err
	}
	if l+1 < len(rs.model.Layers) {
		if _, later, err := rs.store.Get(keyLayer(l + 1)); err != nil || later {
			return true, err
		}
	}
	var rec LayerRecord
	if err := readRecord(e, &rec); err != nil {
		return true, err
	}
	return true, rs.afterLayer(ctx, l, rec.Copied)
}

// quantizeLayer runs one layer and gives the next one's input.
func (rs *runState) quantizeLayer(ctx context.Context, runner *model.Runner, l int, hidden *hiddenStates) (*hiddenStates, error) {
	began := time.Now()
	lr := &layerRun{runState: rs, layer: rs.model.Layers[l], account: LayerRecord{Layer: l}}
	rs.hooks.ran("layer", fmt.Sprint(l))
	var err error
	if lr.again, err = rs.unsound(ctx, l); err != nil {
		return nil, err
	}
	if lr.run, err = runner.OpenLayerWith(ctx, l, lr.override); err != nil {
		return nil, err
	}
	defer lr.run.Close()
	lr.original = lr.run.Original
	if err := lr.spread(hidden); err != nil {
		return nil, err
	}
	lr.pack = func() ([]ledger.Event, error) { return rs.writeShards(ctx, l, lr.copied) }
	defer func() { _, _ = lr.packed.wait() }()
	if err := lr.stages(ctx); err != nil {
		return nil, err
	}
	next, err := lr.outputs(ctx)
	if err != nil {
		return nil, err
	}
	files, err := lr.packed.wait()
	if err != nil {
		return nil, err
	}
	if err := rs.lettingGo.wait(); err != nil {
		return nil, err
	}
	if err := rs.closeLayer(ctx, l, files, &lr.account, lr.copied); err != nil {
		return nil, err
	}
	rs.lettingGo.start(func() error { return rs.afterLayer(ctx, l, lr.copied) })
	rs.progress.layerDone(&lr.account, time.Since(began))
	rs.observe(rs.progress.snapshot("layer-done"))
	return next, nil
}

// spread cuts the batches into lanes and spans and gives each span its rows.
func (lr *layerRun) spread(h *hiddenStates) error {
	var ln *lane
	var sp *laneSpan
	rows := 0
	for b := range lr.batches {
		if ln == nil || lr.laneOf[b] != ln.index {
			for ln == nil || ln.index < lr.laneOf[b] { // a lane may be empty
				next := 0
				if ln != nil {
					next = ln.index + 1
				}
				ln = &lane{index: next}
				lr.lanes = append(lr.lanes, ln)
			}
			sp = nil
		}
		n := len(lr.batches[b].IDs)
		if sp == nil || rows+n > lr.budget.SpanRows {
			sp, rows = &laneSpan{starts: []int{0}}, 0
			ln.spans = append(ln.spans, sp)
		}
		rows += n
		sp.batches = append(sp.batches, b)
		sp.starts = append(sp.starts, rows)
	}
	for len(lr.lanes) < lr.settings.Identity.Lanes {
		lr.lanes = append(lr.lanes, &lane{index: len(lr.lanes)})
	}
	for _, ln := range lr.lanes {
		for _, sp := range ln.spans {
			if err := lr.openSpan(sp, h); err != nil {
				return err
			}
			if err := lr.park(sp); err != nil {
				return err
			}
		}
	}
	return nil
}

func (lr *layerRun) openSpan(sp *laneSpan, h *hiddenStates) error {
	lengths := make([]int, len(sp.batches))
	masked := false
	for i, b := range sp.batches {
		lengths[i] = len(lr.batches[b].IDs)
		masked = masked || lr.batches[b].Mask != nil
	}
	if masked {
		for _, b := range sp.batches {
			for i := range lr.batches[b].IDs {
				sp.counted = append(sp.counted, lr.batches[b].Mask == nil || lr.batches[b].Mask[i])
			}
		}
	}
	x, err := h.rows(sp.batches)
	if err != nil {
		return err
	}
	sp.span, err = lr.run.NewSpan(lengths, x)
	return err
}
