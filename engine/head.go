package engine

import (
	"context"

	"quire/capture/model"
	"quire/ledger"
)

// headRows is how many rows of logits exist at once.
const headRows = 64

// head quantizes the output head where asked for. Its site is the final norm of the last layer's output.
func (rs *runState) head(ctx context.Context, runner *model.Runner, hidden *hiddenStates) error {
	m := rs.plan.module(rs.model.Head.Module)
	if m == nil || m.Scheme == nil {
		return nil
	}
	again, err := rs.unsound(ctx, m.Layer)
	if err != nil {
		return err
	}
	if _, ok, err := rs.store.Get(keyDecision(m.Layer, m.Module)); err != nil || ok && !again[m.Module] {
		return err
	}
	if hidden == nil {
		var err error
		if hidden, err = rs.layerInput(ctx, runner, len(rs.model.Layers)); err != nil {
			return err
		}
	}
	head, err := runner.OpenHead(ctx)
	if err != nil {
		return err
	}
	lr := &layerRun{runState: rs, account: LayerRecord{Layer: -1}}
	for b := range rs.batches { // one span a batch: there is no attention here
		for len(lr.lanes) <= rs.laneOf[b] {
			lr.lanes = append(lr.lanes, &lane{index: len(lr.lanes)})
		}
		ln := lr.lanes[rs.laneOf[b]]
		ln.spans = append(ln.spans, &laneSpan{batches: []int{b}, starts: []int{0, len(rs.batches[b].IDs)}, counted: rs.batches[b].Mask})
	}
	for len(lr.lanes) < rs.settings.Identity.Lanes {
		lr.lanes = append(lr.lanes, &lane{index: len(lr.lanes)})
	}
	h, ref, err := lr.statistic(ctx, rs.pool, statID{layer: -1, site: model.SiteHead, expert: -1}, m.In, func(ln *lane, st *statistic) (int64, error) {
		var native int64
		for _, sp := range ln.spans {
			x, err := hidden.rows(sp.batches)
			if err != nil {
				return 0, err
			}
			n, err := sp.addRows(st, head.Normed(x), nil)
			if err != nil {
				return 0, err
			}
			native += n
		}
		return native, nil
	})
	if err != nil {
		return err
	}
	lr.original = func(ctx context.Context, l *model.Linear, dst []float32) error {
		return rs.model.ReadLinear(ctx, l, dst)
	}
	if err := lr.decide(ctx, rs.pool, model.SiteHead, []*ModulePlan{m}, h, ref, nil); err != nil {
		return err
	}
	return lr.barrier(ctx)
}

// uncalibrated rounds every module to nearest: no calibration, no forward pass.
func (rs *runState) uncalibrated(ctx context.Context) error {
	byLayer := map[int][]*ModulePlan{}
	for i := range rs.plan.Advice.Modules {
		m := &rs.plan.Advice.Modules[i]
		if m.Scheme != nil {
			byLayer[m.Layer] = append(byLayer[m.Layer], m)
		}
	}
	for l := range rs.model.Layers {
		if err := rs.roundLayer(ctx, l, byLayer[l]); err != nil {
			return err
		}
		if err := rs.stop.check(); err != nil {
			return err
		}
	}
	return rs.roundModules(ctx, &layerRun{runState: rs, account: LayerRecord{Layer: -1}}, byLayer[-1])
}

func (rs *runState) roundLayer(ctx context.Context, l int, ms []*ModulePlan) error {
	rs.progress.layer(l, len(rs.model.Layers))
	if done, err := rs.layerDone(ctx, l); done || err != nil {
		return err
	}
	again, err := rs.unsound(ctx, l)
	if err != nil {
		return err
	}
	lr := &layerRun{runState: rs, layer: rs.model.Layers[l], account: LayerRecord{Layer: l}, again: again}
	if err := rs.roundModules(ctx, lr, ms); err != nil {
		return err
	}
	files, err := rs.writeShards(ctx, l, false)
	if err != nil {
		return err
	}
	if err := rs.closeLayer(ctx, l, files, &lr.account, false); err != nil {
		return err
	}
	rs.observe(rs.progress.snapshot("layer-done"))
	return rs.afterLayer(ctx, l, false)
}

func (rs *runState) roundModules(ctx context.Context, lr *layerRun, ms []*ModulePlan) error {
	lr.original = func(ctx context.Context, l *model.Linear, dst []float32) error {
		return rs.model.ReadLinear(ctx, l, dst)
	}
	for _, m := range ms {
		todo, err := lr.undecided([]*model.Linear{m.linear})
		if err != nil {
			return err
		}
		if err := lr.decide(ctx, rs.pool, m.linear.Site.Name, todo, nil, ledger.Ref{}, nil); err != nil {
			return err
		}
	}
	return lr.barrier(ctx)
}
