package ledger

import (
	"errors"
	"slices"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sync/semaphore"
)

const (
	databaseName   = "ledger.db"
	databaseFormat = 1

	maxGroupEvents = 8192
	maxGroupBytes  = 8 << 20
	queueLength    = 16384
)

// item is one event on its way.
type item struct {
	ev  Event
	buf []byte // from encodeBody, sealed by the writer; again if the transaction is repeated
	old bool   // the key already had this content
}

// request is what the writer does in one piece: events, or an operation of the ledger itself on its own tables.
type request struct {
	items   []item
	op      func(tx *bolt.Tx) error // runs alone in its transaction, before the items
	after   func()                  // runs once durable, before the future is answered
	barrier bool                    // sync HEAD before answering
	settle  bool                    // bring everything to ledger.db before answering
	closing bool                    // last request: mark HEAD closed
	weight  int64
	fut     Future
	failErr error

	one [1]item // room for the items of the usual request
}

// eventWriter owns ledger.db, the journal and HEAD.
type eventWriter struct {
	l   *Ledger
	ch  chan *request
	sem *semaphore.Weighted
	wg  sync.WaitGroup

	chain
	headFile *headFile
	lastSync time.Time
	held     *request // taken from the queue while a batch was collected, and not part of it

	journal *journalFile // nil: every batch is a transaction of ledger.db
	record  []byte       // the journal record that is being made
	tail    *tail        // what readers see beside ledger.db
	active  *layer       // its part in the area of the journal that takes records, nil when that is empty
	moving  *layer       // its part in the other area, on its way to ledger.db; nil when that is free
	moved   chan error   // the answer of the goroutine that brings it there, nil when there is none
}

func (w *eventWriter) start() {
	w.wg.Add(1)
	go w.run()
}

func (w *eventWriter) run() {
	defer w.wg.Done()
	defer func() { _ = w.await() }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		first := w.held
		w.held = nil
		if first == nil {
			select {
			case r, ok := <-w.ch:
				if !ok {
					return
				}
				first = r
			case err := <-w.moved:
				w.arrived(err)
				continue
			case <-tick.C:
				w.syncHead()
				w.move()
				continue
			}
		}
		b := &batch{}
		b.add(first)
		w.commit(b)
		if w.l.opts.Now().Sub(w.lastSync) >= time.Second {
			w.syncHead()
		}
	}
}

func (w *eventWriter) closeFiles() error {
	err := w.headFile.close()
	if w.journal != nil {
		err = errors.Join(err, w.journal.close())
	}
	return err
}

// batch is what becomes durable at once.
type batch struct {
	requests []*request
	events   int
	weight   int64
}

func (b *batch) add(r *request) {
	b.requests = append(b.requests, r)
	b.events += len(r.items)
	b.weight += r.weight
}

// fill adds the requests that wait, without waiting for more. It is called again while the batch is being applied, so that
// callers that were answered by the last commit get into this one. An operation on the tables is alone in its batch.
func (w *eventWriter) fill(b *batch) {
	limit := int64(maxGroupBytes)
	if w.journal != nil {
		limit = min(limit, w.journal.area*7/8) // mostly one group in an area: then nothing is merged
	}
	for w.held == nil && b.requests[0].op == nil && b.events < maxGroupEvents && b.weight < limit {
		select {
		case r, ok := <-w.ch:
			if !ok {
				return
			}
			if r.op != nil {
				w.held = r
				return
			}
			b.add(r)
		default:
			return
		}
	}
}

func (w *eventWriter) syncHead() {
	w.lastSync = w.l.opts.Now()
	if err := w.headFile.sync(); err != nil {
		w.l.opts.Log.Error("HEAD could not be synced", "err", err)
	}
}

// commit makes a batch durable and answers it.
func (w *eventWriter) commit(b *batch) {
	start := time.Now()
	w.fill(b)
	if err := w.l.usable(); err != nil {
		w.answer(b, err)
		return
	}
	if b.events > 0 || b.requests[0].op != nil {
		var err error
		if b.requests[0].op != nil {
			err = w.operate(b)
		} else {
			err = w.enter(b)
		}
		if err != nil {
			w.answer(b, err)
			return
		}
		if err := w.headFile.write(w.head, b.closing()); err != nil {
			w.l.opts.Log.Error("HEAD could not be written", "err", err)
		}
		h := w.head
		w.l.publish(&h, b.requests, time.Since(start))
	}
	for _, r := range b.requests {
		if r.settle {
			r.failErr = w.settle()
		}
		if r.barrier {
			w.syncHead()
		}
	}
	w.answer(b, nil)
}

// fullSlack is what a batch may need beside its events: pages on the way to them.
const fullSlack = 64 << 10

func (b *batch) closing() bool {
	return slices.ContainsFunc(b.requests, func(r *request) bool { return r.closing })
}

func (w *eventWriter) answer(b *batch, err error) {
	var weight int64
	for _, r := range b.requests {
		weight += r.weight
	}
	if weight > 0 {
		w.sem.Release(weight)
	}
	for _, r := range b.requests {
		e := err
		if r.failErr != nil {
			e = r.failErr
		}
		if e == nil && r.after != nil {
			r.after()
		}
		r.fut.err = e
		if e == nil {
			for i := range r.items {
				r.items[i].buf = nil
			}
			r.fut.items = r.items
		}
		close(r.fut.done)
	}
}

// enter makes the events of a batch, and of what comes meanwhile, durable. After an error the writer's state is as before.
func (w *eventWriter) enter(b *batch) error {
	was := w.chain
	fresh, err := w.prepare(b)
	if err == nil && len(fresh.envelopes) > 0 {
		err = w.keep(fresh, b.closing())
	}
	if err != nil {
		w.chain = was
	}
	return err
}

// prepare gives the changes that a batch makes, and leaves its record in w.record.
func (w *eventWriter) prepare(b *batch) (*layer, error) {
	g := &group{layer: newLayer(w.head), tail: w.tail, db: w.l.db}
	defer g.close()
	if b.events > 16 {
		g.expect(b.events + b.events/2)
	}
	w.record = append(w.record[:0], make([]byte, journalPrefix)...)
	now := w.l.opts.Now()
	err := guarded(databaseName, func() error {
		for i := 0; i < len(b.requests); i++ {
			if err := w.applyRequest(g, b.requests[i], now); err != nil {
				return err
			}
			if i+1 == len(b.requests) {
				w.fill(b)
			}
		}
		if w.head.Seq == g.base.Seq {
			return nil
		}
		return w.seal(g)
	})
	if err != nil {
		w.l.poison(err)
		return nil, poisoned(err)
	}
	g.head, g.bytes = w.head, b.weight
	return g.layer, nil
}

// keep makes a prepared batch durable: in the journal, or in ledger.db when there is no journal or it has no room for so
// much, and at the end of a stay.
func (w *eventWriter) keep(fresh *layer, closing bool) error {
	if w.journal != nil && !closing && int64(len(w.record)+journalSector) <= w.journal.area {
		w.record = sealJournalRecord(w.record, w.l.run, fresh.base.Seq+1, len(fresh.envelopes), fresh.base.Hash, fresh.head.Hash)
		if !w.journal.fits(len(w.record)) {
			if err := w.swap(); err != nil {
				return err
			}
		}
		written, err := w.journal.write(w.record)
		if err == nil {
			w.active = w.tail.add(w.active, fresh)
			return nil
		}
		if written || !isFull(err) { // a file system may need room to write what it has
			w.l.poison(err)
			return poisoned(err)
		}
	}
	if err := w.settle(); err != nil {
		return err
	}
	return w.persist(fresh.bytes, func() error { return bring(w.l.db, fresh) })
}
