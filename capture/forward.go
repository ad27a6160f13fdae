package capture

import (
	"context"

	"quire/capture/model"
)

// ForwardOptions say how a forward pass may use memory. They change no bit.
type ForwardOptions struct {
	// SpanRows is how many rows are processed together; 0 means 4096.
	SpanRows int
	// MemoryBytes bounds weights and spans of one layer; 0 means no bound.
	MemoryBytes int64
	// Look is called with every span that reaches a stage, before the stage's linears run.
	Look func(s *model.Span, batches Range) error
}

func (o ForwardOptions) spanRows() int {
	if o.SpanRows > 0 {
		return o.SpanRows
	}
	return 4096
}

// Embed puts the embeddings of all batches into a store.
func Embed(ctx context.Context, r *model.Runner, batches [][]int32, out Store) error {
	for b, ids := range batches {
		if len(ids) == 0 {
			continue
		}
		x, err := r.Embed(ctx, ids)
		if err != nil {
			return err
		}
		if err := out.Put(ctx, b, x); err != nil {
			return err
		}
	}
	return nil
}

// Forward runs one layer over all batches, from one store into another (they may be the same). The layer's experts are
// loaded once where they fit beside the spans; else expert batches go over all spans if those fit; else every span loads the
// experts it needs.
func Forward(ctx context.Context, run *model.LayerRun, lengths []int, in, out Store, o ForwardOptions) error {
	m, l := run.Model(), run.Layer
	spans := Spans(lengths, 0, len(lengths), o.spanRows())
	if l.Block == nil || o.MemoryBytes <= 0 {
		return eachSpan(ctx, run, lengths, spans, in, out, o, l.Block != nil)
	}
	var rows int
	for _, n := range lengths {
		rows += n
	}
	left := o.MemoryBytes - m.LayerBytes(l.Index)
	experts := m.ExpertBytes(l.Index)
	oneSpan := m.SpanBytes(l.Index, min(o.spanRows(), rows))
	switch {
	case int64(l.Block.Experts)*experts+oneSpan <= left:
		return eachSpan(ctx, run, lengths, spans, in, out, o, true)
	case experts+m.SpanBytes(l.Index, rows) <= left:
		batch := int(min((left-m.SpanBytes(l.Index, rows))/experts, int64(l.Block.Experts)))
		return expertOuter(ctx, run, lengths, spans, in, out, o, batch)
	}
	return eachSpan(ctx, run, lengths, spans, in, out, o, false)
}

func open(ctx context.Context, run *model.LayerRun, lengths []int, r Range, in Store) (*model.Span, error) {
	m, rows := run.Model(), 0
	for _, n := range lengths[r.First:r.Last] {
		rows += n
	}
	x := newRows(m.Compute == model.BF16, rows, m.Hidden)
	at := 0
	for b := r.First; b < r.Last; b++ {
		if lengths[b] == 0 {
			continue
		}
		if err := in.Get(ctx, b, rowsOf(x, at, at+lengths[b])); err != nil {
			return nil, err
		}
		at += lengths[b]
	}
	return run.NewSpan(lengths[r.First:r.Last], x)
}

func closeSpan(ctx context.Context, s *model.Span, lengths []int, r Range, out Store) error {
	y, err := s.Output()
	if err != nil {
		return err
	}
	at := 0
	for b := r.First; b < r.Last; b++ {
		if lengths[b] == 0 {
			continue
		}
		if err := out.Put(ctx, b, rowsOf(y, at, at+lengths[b])); err != nil {
			return err
		}
		at += lengths[b]
	}
	return nil
}

// toBlock advances a span to its block stage, or to its end in a dense layer.
func toBlock(ctx context.Context, s *model.Span, l *model.Layer, r Range, o ForwardOptions) error {
	for !s.Done() {
		if o.Look != nil {
			if err := o.Look(s, r); err != nil {
				return err
			}
		}
		if l.Stages[s.Stage()].Block != nil {
			return nil
		}
		if err := s.Advance(ctx); err != nil {
			return err
		}
	}
	return nil
}

func eachSpan(ctx context.Context, run *model.LayerRun, lengths []int, spans []Range, in, out Store, o ForwardOptions, load bool) error {
	l := run.Layer
	if load {
		if err := run.LoadExperts(ctx, 0, l.Block.Experts); err != nil {
			return err
		}
	}
	for _, r := range spans {
		if rowsIn(lengths, r) == 0 {
			continue
		}
		s, err := open(ctx, run, lengths, r, in)
		if err != nil {
			return err
		}
		if err := toBlock(ctx, s, l, r, o); err != nil {
			return err
		}
		for !s.Done() {
			if err := s.Advance(ctx); err != nil {
				return err
			}
		}
		if err := closeSpan(ctx, s, lengths, r, out); err != nil {
			return err
		}
	}
	return nil
}

func expertOuter(ctx context.Context, run *model.LayerRun, lengths []int, spans []Range, in, out Store, o ForwardOptions, batch int) error {
	l := run.Layer
	open1 := make([]*model.Span, 0, len(spans))
	var ranges []Range
	for _, r := range spans {
		if rowsIn(lengths, r) == 0 {
			continue
		}
		s, err := open(ctx, run, lengths, r, in)
		if err != nil {
			return err
		}
		if err := toBlock(ctx, s, l, r, o); err != nil {
			return err
		}
		open1, ranges = append(open1, s), append(ranges, r)
	}
	for lo := 0; lo < l.Block.Experts; lo += batch {
		hi := min(lo+batch, l.Block.Experts)
		if err := run.LoadExperts(ctx, lo, hi); err != nil {
			return err
		}
		for _, s := range open1 {
			if err := s.RunExperts(lo, hi, nil); err != nil {
				return err
			}
		}
		run.UnloadExperts(lo, hi)
	}
	for i, s := range open1 {
		if err := s.Advance(ctx); err != nil {
			return err
		}
		if err := closeSpan(ctx, s, lengths, ranges[i], out); err != nil {
			return err
		}
		open1[i] = nil
	}
	return nil
}

func rowsIn(lengths []int, r Range) int {
	n := 0
	for _, l := range lengths[r.First:r.Last] {
		n += l
	}
	return n
}

// Layers runs all layers over a store, reading the next layer's weights while one computes when MemoryBytes allows two.
// After each layer, done sees the store.
func Layers(ctx context.Context, r *model.Runner, lengths []int, h Store, o ForwardOptions, done func(layer int) error) error {
	m := r.Model()
	var next *ahead
	defer func() {
		if next != nil {
			next.drop()
		}
	}()
	for i := range m.Layers {
		var run *model.LayerRun
		var err error
		if next != nil {
			run, err = next.take()
			next = nil
		} else {
			run, err = r.OpenLayer(ctx, i)
		}
		if err != nil {
			return err
		}
		if i+1 < len(m.Layers) && twoFit(m, i, o.MemoryBytes) {
			next = readAhead(ctx, r, i+1)
		}
		err = Forward(ctx, run, lengths, h, h, o)
		run.Close()
		if err != nil {
			return err
		}
		if done != nil {
			if err := done(i); err != nil {
				return err
			}
		}
	}
	return nil
}

// twoFit reports whether layer i and the next fit together, all experts included.
func twoFit(m *model.Model, i int, limit int64) bool {
	if limit <= 0 {
		return true
	}
	n := int64(0)
	for _, l := range []int{i, i + 1} {
		n += m.LayerBytes(l) + m.LoadBytes(l)
		if b := m.Layers[l].Block; b != nil {
			n += int64(b.Experts) * m.ExpertBytes(l)
		}
	}
	return n <= limit/2
}

// ahead is a layer being read by its own goroutine; take or drop waits for it.
type ahead struct {
	done chan struct{}
	run  *model.LayerRun
	err  error
}

func readAhead(ctx context.Context, r *model.Runner, layer int) *ahead {
	a := &ahead{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.run, a.err = r.OpenLayer(ctx, layer)
		if a.err == nil && a.run.Layer.Block != nil {
			a.err = a.run.LoadExperts(ctx, 0, a.run.Layer.Block.Experts)
		}
	}()
	return a
}

func (a *ahead) take() (*model.LayerRun, error) {
	<-a.done
	return a.run, a.err
}

func (a *ahead) drop() {
	<-a.done
	if a.run != nil {
		a.run.Close()
	}
}
