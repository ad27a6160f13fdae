package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"quire/ledger"
)

// large measures a ledger of a million events: opening, finding a key, walking a module.
func (b *bench) large() error {
	events := b.pick(1_000_000, 1_000_000, 30_000)
	l, err := b.create(options())
	if err != nil {
		return err
	}
	dir := l.Dir()
	start := time.Now()
	const group = 1000
	pending := make([]*ledger.Future, 0, 16)
	for at := 0; at < events; at += group {
		batch := make([]ledger.Event, 0, group)
		for i := at; i < min(at+group, events); i++ {
			batch = append(batch, million(i))
		}
		if len(pending) == cap(pending) {
			if _, err := pending[0].All(b.ctx); err != nil {
				return err
			}
			pending = append(pending[:0], pending[1:]...)
		}
		pending = append(pending, l.AppendAll(b.ctx, batch))
	}
	for _, f := range pending {
		if _, err := f.All(b.ctx); err != nil {
			return err
		}
	}
	built := time.Since(start)
	if err := l.Close(b.ctx, "built"); err != nil {
		return err
	}
	path := filepath.Join(dir, "ledger.db")
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	note := fmt.Sprintf("%d events, %d MiB, built in %.1f s", events, st.Size()>>20, built.Seconds())

	const limit = 500 // ms
	for _, cold := range []bool{false, true} {
		var took []float64
		for range b.pick(7, 3, 1) {
			if cold {
				if _, err := dropCache(path); err != nil {
					return err
				}
			}
			start := time.Now()
			l, err := ledger.Open(b.ctx, dir, options())
			if err != nil {
				return err
			}
			took = append(took, time.Since(start).Seconds()*1e3)
			if err := l.Close(b.ctx, "measured"); err != nil {
				return err
			}
		}
		name := "open for writing and head check, warm"
		if cold {
			name = "open for writing and head check, cold"
		}
		r := Result{Name: name, Unit: "ms", Target: limit, Of: "ours", Most: true, Runs: len(took), Note: note}
		r.Ours, r.Median = least(took)
		b.report(r)
		note = ""
	}

	var open, lookup, walk []float64
	for i := range b.pick(9, 5, 1) {
		if _, err := dropCache(path); err != nil {
			return err
		}
		start := time.Now()
		r, err := ledger.OpenReader(dir, ledger.Options{})
		if err != nil {
			return err
		}
		open = append(open, time.Since(start).Seconds()*1e3)
		e := million((i*7919 + 13) * events / 1_000_003 % events)
		start = time.Now()
		got, ok, err := r.Get(e.Key)
		lookup = append(lookup, time.Since(start).Seconds()*1e3)
		if err != nil || !ok || got.Key != e.Key {
			return fmt.Errorf("key %s: found %v, %w", e.Key, ok, err)
		}
		module := strings.TrimPrefix(million(eventsPerModule*((i+1)*1009%(events/eventsPerModule))).Key, "partial/")
		module = module[:strings.LastIndex(module, "/lane")]
		start = time.Now()
		seen := 0
		for _, prefix := range modulePrefixes {
			for _, err := range r.Scan(prefix + module + "/") {
				if err != nil {
					return err
				}
				seen++
			}
		}
		walk = append(walk, time.Since(start).Seconds()*1e3)
		if seen != eventsPerModule {
			return fmt.Errorf("module %s has %d events, not %d", module, seen, eventsPerModule)
		}
		if err := r.Close(); err != nil {
			return err
		}
	}
	for _, m := range []struct {
		name   string
		ms     []float64
		target float64
	}{{"open for reading and head check, cold", open, limit}, {"look up one natural key, cold", lookup, 1}, {"walk the events of one module, cold", walk, 20}} {
		r := Result{Name: m.name, Unit: "ms", Target: m.target, Of: "ours", Most: true, Runs: len(m.ms)}
		r.Ours, r.Median = least(m.ms)
		b.report(r)
	}
	return os.RemoveAll(dir)
}

// A module has a partial for each of 8 lanes, a hessian and a decision.
const eventsPerModule = 10

var modulePrefixes = []string{"partial/", "hessian/", "decision/"}

// million gives event i of the large ledger: modules of 48 layers in the order in which a run would write them.
func million(i int) ledger.Event {
	m, k := i/eventsPerModule, i%eventsPerModule
	unit := fmt.Sprintf("L%04d/mlp.experts.gate_up/e%06d", m/2084, m%2084)
	switch k {
	case 8:
		return ledger.Event{Type: "hessian", Schema: 1, Key: "hessian/" + unit + "/xtx", Record: fmt.Appendf(nil, `{"rows":%d,"lanes":8,"sha256":"%064x"}`, i, i)}
	case 9:
		e := decision(i)
		e.Key = "decision/" + unit + "/gate_proj"
		return e
	}
	return ledger.Event{Type: "partial", Schema: 1, Key: fmt.Sprintf("partial/%s/lane%04d/xtx", unit, k), Record: fmt.Appendf(nil, `{"rows":%d,"sha256":"%064x"}`, i%4096, i)}
}
