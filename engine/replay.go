package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"quire/capture/model"
	"quire/kernels"
	"quire/ledger"
)

// ReplayLayer runs the engine's own stage code over one layer again, from the layer's captured input, the sources, and
// those decisions that store gives. Everything it would write goes to store, which compares. The layer's output is
// captured too, so a difference anywhere in the layer shows.
func ReplayLayer(ctx context.Context, plan *Plan, store Store, layer int, o RunOptions) error {
	if layer < 0 || layer >= len(plan.model.Layers) {
		return usage("E0710", "--layer", fmt.Sprintf("the model has layers 0 to %d", len(plan.model.Layers)-1), "no layer %d", layer)
	}
	if !plan.calibrated() {
		return usage("E0711", "replay", "run `quire verify`: rounding to nearest is checked there", "this run used no calibration")
	}
	if o.Observer == nil {
		o.Observer = Silent{}
	}
	rs := &runState{settings: plan.Settings, plan: plan, model: plan.model, store: store, observer: o.Observer, hooks: o.Hooks, stop: &stopper{}, began: time.Now(),
		budget: plan.budget, findingCtx: ctx, batches: plan.Calibration.Batches}
	rs.pool = kernels.NewPool(plan.Settings.Threads)
	defer rs.pool.Close()
	refs := map[string]ledger.Ref{}
	for _, f := range plan.checkpoint.Shards() {
		e, ok, err := store.Get(keySource(f.Name))
		if err != nil {
			return err
		}
		if ok {
			refs[f.Name] = e.Ref()
		}
	}
	plan.checkpoint.SetSourceRefs(refs)
	rs.measureBatches()
	runner := rs.model.NewRunner(model.RunnerOptions{Pool: rs.pool, ScratchBytes: rs.budget.ScratchBytes})
	hidden, err := rs.deriveInput(ctx, runner, layer)
	if err != nil {
		return err
	}
	lr := &layerRun{runState: rs, layer: rs.model.Layers[layer], account: LayerRecord{Layer: layer}}
	if lr.run, err = runner.OpenLayerWith(ctx, layer, lr.override); err != nil {
		return err
	}
	defer lr.run.Close()
	lr.original = lr.run.Original
	if err := lr.spread(hidden); err != nil {
		return err
	}
	if err := lr.stages(ctx); err != nil {
		return err
	}
	if _, err = lr.outputs(ctx); err != nil {
		return err
	}
	return lr.barrier(ctx)
}

// deriveInput gives a layer's input: as captured, or, where the captures were let go, by running the layers since the
// nearest capture again with the codes that were decided for them. Every capture derived on the way is compared.
func (rs *runState) deriveInput(ctx context.Context, runner *model.Runner, layer int) (*hiddenStates, error) {
	from := layer
	for ; from > 0; from-- {
		e, ok, err := rs.store.Get(keyLayerInput(from, 0))
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		_, err = rs.store.ReadPayload(ctx, e, "rows")
		if err == nil {
			break
		}
		if !errors.Is(err, ledger.ErrRetired) && !errors.Is(err, ledger.ErrElsewhere) {
			return nil, err
		}
	}
	return rs.derive(ctx, runner, from, layer)
}

// derive gives a layer's input from that of the layer from, which is captured or the embedding.
func (rs *runState) derive(ctx context.Context, runner *model.Runner, from, layer int) (*hiddenStates, error) {
	hidden, err := rs.layerInput(ctx, runner, from)
	for l := from; l < layer && err == nil; l++ {
		rs.observe(Progress{Kind: "note", Message: fmt.Sprintf("deriving the input of layer %d", l+1)})
		hidden, err = rs.passThrough(ctx, runner, l, hidden)
	}
	return hidden, err
}

// passThrough runs a layer with the weights decided for it and gives the next one's input.
func (rs *runState) passThrough(ctx context.Context, runner *model.Runner, l int, hidden *hiddenStates) (*hiddenStates, error) {
	lr := &layerRun{runState: rs, layer: rs.model.Layers[l]}
	var err error
	if lr.run, err = runner.OpenLayerWith(ctx, l, lr.override); err != nil {
		return nil, err
	}
	defer lr.run.Close()
	if err := lr.spread(hidden); err != nil {
		return nil, err
	}
	return lr.outputs(ctx)
}

// Sites names the statistic keys of a module's site, so that a replay of one module can hide them.
func (p *Plan) Sites(module string) (prefixes []string, layer int, ok bool) {
	m := p.module(module)
	if m == nil || m.Scheme == nil {
		return nil, 0, false
	}
	site, expert := m.linear.Site.Name, m.linear.Site.Expert
	for _, kind := range []string{"partial", "hessian"} {
		prefixes = append(prefixes, fmt.Sprintf("%s/%s/%s/%s", kind, layerName(m.Layer), site, who(expert)))
	}
	return append(prefixes, keyDecision(m.Layer, module)), m.Layer, true
}
