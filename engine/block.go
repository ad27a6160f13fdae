package engine

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"quire/capture/model"
	"quire/engine/quant"
	"quire/kernels"
	"quire/ledger"
)

// expertWork is one expert of the batch in work.
type expertWork struct {
	e    int
	site [2]*expertSite // gate/up, then down
}

// expertSite is one site of an expert: what is still to decide there, and the statistics that takes.
type expertSite struct {
	site      *model.Site
	todo      []*ModulePlan
	treatment quant.Treatment
	own       *gathering // rows that the routing mode gives the expert
	all       *gathering // every row sent through the expert, where a blend or all-rows needs it
	err       error
}

// gathering is a statistic on its way: stored already, or being fed.
type gathering struct {
	id  statID
	st  *statistic
	h   *quant.Hessian
	ref ledger.Ref
}

// block quantizes the routed and shared experts of a layer. Experts come in batches of ascending number: one at a time
// is the expert-outer order, all at once the lane-outer one, and neither changes a bit, since every statistic is added
// lane by lane and every output expert by expert.
func (lr *layerRun) block(ctx context.Context, b *model.Block) error {
	if err := lr.route(ctx, b); err != nil {
		return err
	}
	works, err := lr.expertWorks(b)
	if err != nil {
		return err
	}
	if len(works) > 0 {
		if err := lr.commonStatistics(ctx, b, works); err != nil {
			return err
		}
		size := lr.expertBatch(b.Experts)
		for lo := 0; lo < b.Experts; lo += size {
			hi := min(lo+size, b.Experts)
			if err := lr.experts(ctx, b, works, lo, hi); err != nil {
				return err
			}
			lr.counters.sawExpertBatch()
		}
	}
	if b.SharedMid != nil {
		return lr.site(ctx, b.SharedMid)
	}
	return nil
}

// route records the router's choices of every batch and counts the natively routed rows of every expert.
func (lr *layerRun) route(ctx context.Context, b *model.Block) error {
	lr.native = make([]int64, b.Experts)
	err := lr.eachSpan(func(sp *laneSpan) error {
		r := sp.span.Routing()
		for e := range b.Experts {
			ids, _ := r.Native(e)
			lr.native[e] += int64(len(sp.countedIDs(ids)))
		}
		for i, batch := range sp.batches {
			e, blobs := routingEvent(lr.layer.Index, batch, r, sp.starts[i], sp.starts[i+1])
			lr.futures.put(ctx, lr.store, e, blobs...)
		}
		return nil
	})
	if err != nil {
		return err
	}
	lr.account.Coverage = coverageOf(lr.native, lr.floor(b.ExpertIn[0].In))
	return nil
}

func (lr *layerRun) floor(in int) int64 {
	f, err := quant.ParseRowFloor(lr.settings.Identity.MinRows)
	if err != nil {
		return 0 // refused when settings were resolved
	}
	return f.Rows(in, lr.countedRows)
}

// expertWorks lists the experts with something to decide, and what the few-row policy says about them. It decides for
// the layer as a whole whether its experts are copied.
func (lr *layerRun) expertWorks(b *model.Block) ([]*expertWork, error) {
	floor, err := quant.ParseRowFloor(lr.settings.Identity.MinRows)
	if err != nil {
		return nil, err
	}
	id := &lr.settings.Identity
	treat := func(e int, s *model.Site) (quant.Treatment, error) {
		c := quant.Coverage{In: s.In, Native: lr.native[e], All: lr.countedRows, Total: lr.countedRows}
		if c.Rows = lr.native[e]; id.Routing == "all" {
			c.Rows = lr.countedRows
		}
		return quant.Decide(c, floor, id.Fallback)
	}
	treatments := make([][2]quant.Treatment, b.Experts)
	short := 0
	for e := range b.Experts {
		for i, s := range []*model.Site{b.ExpertIn[e], b.ExpertMid[e]} {
			t, err := treat(e, s)
			if err != nil {
				return nil, err
			}
			treatments[e][i] = t
			if !t.Fallback || !lr.quantizes(s) {
				continue
			}
			short++
			lr.finding(Finding{Code: "F_UNDERCALIBRATED", Where: s.Key(), Text: fmt.Sprintf("%s: %s", t.Reason, t.Use)})
			switch t.Use {
			case quant.UseFail:
				return nil, &Error{Code: "E0610", Exit: ExitFindings, What: "an expert has too few calibration rows", Where: s.Key(), Why: t.Reason,
					Try: "give more calibration data, or choose a --fallback other than fail"}
			case quant.UseCopy:
				lr.copied = true
			}
		}
	}
	if share := float64(short) / float64(2*b.Experts); share > lr.settings.MaxFallback {
		return nil, &Error{Code: "E0611", Exit: ExitFindings, What: fmt.Sprintf("%.1f %% of the expert sites of layer %d would fall back", 100*share, lr.layer.Index),
			Why: fmt.Sprintf("--max-fallback allows %.1f %%", 100*lr.settings.MaxFallback), Try: "give more calibration data, or raise --max-fallback"}
	}
	if lr.copied {
		return nil, nil
	}
	var works []*expertWork
	for e := range b.Experts {
		w := &expertWork{e: e}
		any := false
		for i, s := range []*model.Site{b.ExpertIn[e], b.ExpertMid[e]} {
			todo, err := lr.undecided(s.Linears)
			if err != nil {
				return nil, err
			}
			any = any || len(todo) > 0
			w.site[i] = &expertSite{site: s, todo: todo, treatment: treatments[e][i]}
		}
		if any {
			works = append(works, w)
		}
	}
	return works, nil
}

// quantizes says whether any linear of a site is quantized.
func (lr *layerRun) quantizes(s *model.Site) bool {
	for _, l := range s.Linears {
		if m := lr.plan.module(l.Module); m != nil && m.Scheme != nil {
			return true
		}
	}
	return false
}

// commonStatistics takes the statistic over all rows of the block once, where gate/up statistics share it.
func (lr *layerRun) commonStatistics(ctx context.Context, b *model.Block, works []*expertWork) error {
	if b.InputScaled { // every expert sees its own rows
		return nil
	}
	wanted := false
	for _, w := range works {
		s := w.site[0]
		if len(s.todo) > 0 && lr.needsGram(s.todo) && (lr.settings.Identity.Routing == "all" || s.treatment.Use == quant.UseBlend || s.treatment.Use == quant.UseAllRows) {
			wanted = true
		}
	}
	if !wanted {
		return nil
	}
	site := lr.siteNamed(model.SiteBlockIn)
	h, ref, err := lr.siteStatistic(ctx, site)
	if err != nil {
		return err
	}
	g := &gathering{id: statID{layer: site.Layer, site: site.Name, expert: -1}, h: h, ref: ref}
	for _, w := range works {
		w.site[0].all = g
	}
	return nil
}

func (lr *layerRun) siteNamed(name string) *model.Site {
	for _, st := range lr.layer.Stages {
		for _, s := range st.Sites {
			if s.Name == name {
				return s
			}
		}
	}
	panic("layer has no site " + name) // the family table states it
}

// experts does the experts [lo,hi): statistics and decisions of gate and up, then of down, then their outputs.
func (lr *layerRun) experts(ctx context.Context, b *model.Block, works []*expertWork, lo, hi int) error {
	var mine []*expertWork
	for _, w := range works {
		if w.e >= lo && w.e < hi {
			mine = append(mine, w)
		}
	}
	lr.observe(Progress{Kind: "stage", Stage: "experts", Done: int64(lo), Total: int64(b.Experts), Unit: "experts"})
	if err := lr.run.LoadExperts(ctx, lo, hi); err != nil {
		return err
	}
	defer lr.run.UnloadExperts(lo, hi)
	for i := range 2 {
		if err := lr.expertSites(ctx, mine, i); err != nil {
			return err
		}
	}
	if err := lr.eachSpan(func(sp *laneSpan) error {
		mids := sp.mids
		sp.mids = nil
		return sp.span.RunExperts(lo, hi, mids)
	}); err != nil {
		return err
	}
	return lr.barrier(ctx)
}

// expertSites takes the statistics of one site (0: gate/up, 1: down) of some experts and decides there.
func (lr *layerRun) expertSites(ctx context.Context, works []*expertWork, which int) error {
	var mine []*expertWork
	for _, w := range works {
		if len(w.site[which].todo) > 0 {
			mine = append(mine, w)
		}
	}
	if len(mine) == 0 {
		return nil
	}
	// Experts are taken side by side when there are enough of them, else the pool works inside one.
	outer, inner := lr.pool, (*kernels.Pool)(nil)
	if len(mine) < lr.pool.Threads() {
		outer, inner = nil, lr.pool
	}
	feeds := lr.openExpertStatistics(ctx, inner, mine, which)
	for _, w := range mine {
		if err := w.site[which].err; err != nil {
			return err
		}
	}
	for _, ln := range lr.lanes {
		if err := lr.feedExperts(ln, feeds, which); err != nil {
			return err
		}
	}
	outer.Do(len(mine), func(_, i int) {
		s := mine[i].site[which]
		s.err = lr.decideExpert(ctx, inner, s)
	})
	for _, w := range mine {
		if err := w.site[which].err; err != nil {
			return err
		}
	}
	return nil
}

// feed is a statistic that wants rows of an expert.
type feed struct {
	e     int
	g     *gathering
	every bool // all counted rows, not the routing mode's
	begun bool // wanted in the lane in work
	rows  kernels.Rows
	ids   []int32
	count int64
	err   error // of the task that feeds it
	in    model.RowBuf
	mid   model.RowBuf
}

// openExpertStatistics finds or opens the statistics that the treatments ask for.
func (lr *layerRun) openExpertStatistics(ctx context.Context, pool *kernels.Pool, works []*expertWork, which int) []*feed {
	var feeds []*feed
	open := func(s *expertSite, e int, every bool) *gathering {
		g := &gathering{id: statID{layer: s.site.Layer, site: s.site.Name, expert: e, allRows: every}}
		g.st, g.h, g.ref, s.err = lr.openStatistic(ctx, pool, g.id, s.site.In)
		if s.err == nil && g.st != nil {
			feeds = append(feeds, &feed{e: e, g: g, every: every})
		}
		return g
	}
	for _, w := range works {
		s := w.site[which]
		if !lr.needsGram(s.todo) || s.treatment.Use == quant.UseRTN {
			continue
		}
		sharesAll := which == 0 && s.all != nil && lr.settings.Identity.Routing == "all"
		if s.treatment.Use != quant.UseAllRows && !sharesAll {
			s.own = open(s, w.e, false)
		}
		if s.err == nil && s.all == nil && (s.treatment.Use == quant.UseBlend || s.treatment.Use == quant.UseAllRows) {
			s.all = open(s, w.e, true)
		}
	}
	return feeds
}

// feedExperts adds one lane's rows to the statistics. Rows are gathered span by span, one expert after the other; the
// statistics of different experts are added side by side.
func (lr *layerRun) feedExperts(ln *lane, feeds []*feed, which int) error {
	for _, f := range feeds {
		var err error
		if f.begun, err = f.g.st.begin(ln.index); err != nil {
			return err
		}
		f.count = 0
	}
	wanted := slices.DeleteFunc(slices.Clone(feeds), func(f *feed) bool { return !f.begun })
	// each works on the feeds side by side.
	each := func(work func(f *feed) error) error {
		lr.pool.Do(len(wanted), func(_, i int) { wanted[i].err = work(wanted[i]) })
		for _, f := range wanted {
			if f.err != nil {
				return f.err
			}
		}
		return nil
	}
	err := lr.laneSpans(ln, func(sp *laneSpan) error {
		r := sp.span.Routing()
		for _, f := range wanted {
			var err error
			if f.ids, err = lr.statisticIDs(sp, r, f); err != nil {
				return err
			}
			native, _ := r.Native(f.e)
			f.count += int64(len(sp.countedIDs(native)))
		}
		if err := each(func(f *feed) (err error) {
			f.rows, err = sp.span.ExpertRows(&f.in, f.e, f.ids)
			return err
		}); err != nil {
			return err
		}
		if which == 1 {
			if err := lr.middles(sp, wanted); err != nil {
				return err
			}
		}
		return each(func(f *feed) error {
			if lr.settings.Identity.RowWeight == "gate" {
				f.rows = weigh(f.rows, f.ids, r, f.e)
			}
			_, err := sp.addRows(f.g.st, f.rows, f.ids)
			return err
		})
	})
	if err != nil {
		return err
	}
	return each(func(f *feed) error { return f.g.st.end(f.count) })
}

// middles replaces the rows of feeds by the middle rows of their experts. Those of natively routed rows are kept for the
// experts' outputs where memory allows.
func (lr *layerRun) middles(sp *laneSpan, feeds []*feed) error {
	parts := make([]model.ExpertPart, len(feeds))
	for i, f := range feeds {
		keep := lr.budget.KeepMids && sp.counted == nil && !f.every && lr.settings.Identity.Routing == "native"
		buf := &f.mid
		if keep {
			buf = nil
		}
		parts[i] = model.ExpertPart{Expert: f.e, In: f.rows, Mid: sp.span.NewMid(buf, f.rows.M)}
		if f.rows = parts[i].Mid; keep {
			if sp.mids == nil {
				sp.mids = make([]kernels.Rows, lr.layer.Block.Experts)
			}
			sp.mids[f.e] = f.rows
		}
	}
	return sp.span.ExpertMids(parts)
}

// statisticIDs lists the counted rows that feed a statistic.
func (lr *layerRun) statisticIDs(sp *laneSpan, r *model.Routing, f *feed) ([]int32, error) {
	switch mode := lr.settings.Identity.Routing; {
	case f.every || mode == "all":
		return sp.countedIDs(r.All()), nil
	case strings.HasPrefix(mode, "top-k="):
		k, err := strconv.Atoi(strings.TrimPrefix(mode, "top-k="))
		if err != nil {
			return nil, err
		}
		if sp.wider == nil {
			sp.wider = sp.span.TopRows(k)
		}
		return sp.countedIDs(sp.wider[f.e]), nil
	}
	ids, _ := r.Native(f.e)
	return sp.countedIDs(ids), nil
}

// weigh scales rows by the square root of their combine weight, so that the statistic is Σ w·xᵀx. Rows that the router
// did not send to the expert weigh nothing.
func weigh(x kernels.Rows, ids []int32, r *model.Routing, e int) kernels.Rows {
	y := kernels.Rows{M: x.M, K: x.K, Stride: x.K, F32: make([]float32, x.M*x.K)}
	native, ws := r.Native(e)
	at := 0
	for i, id := range ids {
		for at < len(native) && native[at] < id {
			at++
		}
		if at == len(native) || native[at] != id {
			continue
		}
		f := float32(math.Sqrt(float64(ws[at])))
		row := y.F32[i*x.K : (i+1)*x.K]
		model.CopyF32(row, part(x, i, i+1))
		kernels.Scale(row, row, f)
	}
	return y
}

// decideExpert closes an expert's statistics, applies the few-row policy and decides.
func (lr *layerRun) decideExpert(ctx context.Context, pool *kernels.Pool, s *expertSite) error {
	few := &fewRows{treatment: s.treatment}
	take := func(g *gathering) (*quant.Hessian, error) {
		if g == nil {
			return nil, nil
		}
		if g.st != nil {
			var err error
			if g.h, g.ref, err = lr.closeStatistic(g.st); err != nil {
				return nil, err
			}
			g.st = nil
		}
		return g.h, nil
	}
	own, err := take(s.own)
	if err != nil {
		return err
	}
	all, err := take(s.all)
	if err != nil {
		return err
	}
	var h *quant.Hessian
	if s.treatment.Use == quant.UseOwn {
		if h = own; h == nil {
			h, own = all, nil
		}
	} else if h, err = quant.Statistic(s.treatment, own, all, nil); err != nil {
		return err
	}
	if own != nil {
		few.own = s.own.ref
	}
	if h != nil {
		few.rows = h.Rows
		if h != own && s.all != nil {
			few.common = s.all.ref
		}
	}
	ref := few.own
	if ref.Key == "" {
		ref = few.common
	}
	return lr.decide(ctx, pool, s.site.Name, s.todo, h, ref, few)
}
