package main

import (
	"fmt"
	"time"

	"quire/ledger"
)

// decision is an event of the size and form that the engine writes for a module.
func decision(i int) ledger.Event {
	layer, expert := i/384, i%384/3
	module := [...]string{"gate_proj", "up_proj", "down_proj"}[i%3]
	key := fmt.Sprintf("decision/L%04d/model.layers.%d.mlp.experts.%d.%s", layer, layer, expert, module)
	record := fmt.Sprintf(`{"method":"gptq","bits":4,"group":128,"sym":true,"rows":%d,"damping":0.01,"error":0.0%06d,"rtn_error":0.0%06d,"weight_sha256":"%064x","codes_sha256":"%064x"}`,
		1000+i%7000, i%999983, i%999979, i, i+1)
	return ledger.Event{Type: "decision", Schema: 1, Key: key, Record: []byte(record)}
}

// events measures decisions: many at a time, and one after the other.
func (b *bench) events() error {
	const inFlight = 4096
	var many []float64
	total := b.pick(400_000, 160_000)
	for range b.pick(5, 3) {
		l, err := b.create(options())
		if err != nil {
			return err
		}
		all := make([]ledger.Event, total)
		for i := range all {
			all[i] = decision(i)
		}
		window := make([]*ledger.Future, inFlight)
		start := time.Now()
		for i := range all {
			if f := window[i%inFlight]; f != nil {
				if _, err := f.All(b.ctx); err != nil {
					return err
				}
			}
			window[i%inFlight] = l.Append(b.ctx, all[i])
		}
		for _, f := range window {
			if _, err := f.All(b.ctx); err != nil {
				return err
			}
		}
		many = append(many, float64(total)/time.Since(start).Seconds())
		if err := b.finish(l); err != nil {
			return err
		}
	}
	r := Result{Name: "decisions, 4,096 in flight", Unit: "/s", Target: 200_000, Of: "ours", Runs: len(many)}
	r.Ours, r.Median = most(many)
	b.report(r)

	l, err := b.create(options())
	if err != nil {
		return err
	}
	var lone []float64
	n := 0
	for range b.pick(20, 8) {
		const step = 500
		start := time.Now()
		for range step {
			if _, err := l.Append(b.ctx, decision(n)).Wait(b.ctx); err != nil {
				return err
			}
			n++
		}
		lone = append(lone, step/time.Since(start).Seconds())
	}
	r = Result{Name: "decisions, alone", Unit: "/s", Target: 3_000, Of: "ours", Runs: len(lone)}
	r.Ours, r.Median = most(lone)
	b.report(r)
	return b.finish(l)
}
