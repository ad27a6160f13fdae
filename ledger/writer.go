package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/mod/sumdb/tlog"
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
	closing bool                    // last request: mark HEAD closed
	weight  int64
	fut     Future
	failErr error

	one [1]item // room for the items of the usual request
}

// eventWriter owns ledger.db and HEAD.
type eventWriter struct {
	l   *Ledger
	ch  chan *request
	sem *semaphore.Weighted
	wg  sync.WaitGroup

	headFile *headFile
	head     Head
	tree     frontier
	hashes   hashAppender
	lastSync time.Time
	held     *request // taken from the queue while a batch was collected, and not part of it
}

func (w *eventWriter) start() {
	w.wg.Add(1)
	go w.run()
}

func (w *eventWriter) run() {
	defer w.wg.Done()
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
			case <-tick.C:
				w.syncHead()
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

// batch is what becomes durable in one transaction.
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
	for w.held == nil && b.requests[0].op == nil && b.events < maxGroupEvents && b.weight < maxGroupBytes {
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
		err := w.transact(b)
		if err != nil && isFull(err) && w.l.releaseReserve() {
			w.l.opts.Log.Warn("the disk is full: the reserve was given back", "err", err)
			w.l.setFull(w.l.fullError(b.weight+fullSlack, err))
			err = w.transact(b)
		}
		if err != nil {
			if isFull(err) {
				err = w.l.fullError(b.weight+fullSlack, err)
				w.l.setFull(err)
			} else if !errors.Is(err, errRefused) {
				w.l.poison(err)
				err = poisoned(err)
			}
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
		if r.barrier {
			w.syncHead()
			break
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

// errRefused marks an operation that failed by its own rules: rolled back, the handle is sound.
var errRefused = errors.New("ledger: refused")

type refusal struct{ error }

func (r refusal) Is(t error) bool { return t == errRefused }
func (r refusal) Unwrap() error   { return r.error }

// transact applies a batch in one transaction, and what comes meanwhile. After an error the writer's state is as before.
func (w *eventWriter) transact(b *batch) error {
	head, tree, hashes := w.head, w.tree, w.hashes
	committing := false
	err := guarded(databaseName, func() error {
		tx, err := w.l.db.Begin(true)
		if err != nil {
			return err
		}
		defer func() {
			if !committing {
				_ = tx.Rollback()
			}
		}()
		t := newTables(tx)
		now := w.l.opts.Now()
		for i := 0; i < len(b.requests); i++ {
			if err := w.applyRequest(t, b.requests[i], now); err != nil {
				return err
			}
			if i+1 == len(b.requests) {
				w.fill(b)
			}
		}
		if w.head.Seq != head.Seq {
			if err := w.hashes.flush(t.putHashes); err != nil {
				return err
			}
			w.head.Root = w.tree.root()
			if err := t.head.Put(headKey, encodeHeadRecord(w.head)); err != nil {
				return err
			}
		}
		failpoint("append.before-commit")
		committing = true
		return tx.Commit()
	})
	if err != nil {
		w.head, w.tree, w.hashes = head, tree, hashes
		if committing && isFull(err) {
			if err2 := w.confirmHead(); err2 != nil {
				return err2
			}
		}
		return err
	}
	failpoint("append.committed")
	return nil
}

// applyRequest writes a request's events, unless its own fault keeps them out: then the others go on.
func (w *eventWriter) applyRequest(t *tables, r *request, now time.Time) error {
	r.failErr = nil
	if r.op != nil {
		if err := r.op(t.tx); err != nil {
			return refusal{err}
		}
	}
	if err := w.precheck(t, r); err != nil {
		if r.op != nil {
			return refusal{err}
		}
		r.failErr = err
		return nil
	}
	for i := range r.items {
		if !r.items[i].old {
			if err := w.apply(t, &r.items[i], now); err != nil {
				return err
			}
		}
	}
	return nil
}

// confirmHead re-reads the head after a commit that ran out of space: if it is not what it was before, the failed
// transaction is half visible and the handle must not be used.
func (w *eventWriter) confirmHead() error {
	return guarded(databaseName, func() error {
		return w.l.db.View(func(tx *bolt.Tx) error {
			h, err := decodeHeadRecord(tx.Bucket(bucketHead).Get(headKey))
			if err != nil {
				return err
			}
			if h.Seq != w.head.Seq || h.Hash != w.head.Hash {
				return fmt.Errorf("a commit that ran out of space left event %d behind, %d expected", h.Seq, w.head.Seq)
			}
			return nil
		})
	})
}

func isFull(err error) bool { return isDiskFull(err) || errors.Is(err, berrors.ErrMaxSizeReached) }

// precheck finds out which of a request's keys exist, and whether the others may be written.
func (w *eventWriter) precheck(t *tables, r *request) error {
	for i := range r.items {
		it := &r.items[i]
		it.old = false
		e := &it.ev
		for j := range e.Payloads {
			if ref := e.Payloads[j].Ref; ref != nil && ref.seg != nil && !ref.valid(w.l) {
				return usage("event %s %q: payload %s was put into another ledger or into a segment that was retired", e.Type, e.Key, e.Payloads[j].Role)
			}
		}
		if e.Key == "" {
			continue
		}
		for j := range i {
			if r.items[j].ev.Key == e.Key {
				return usage("key %q twice in one append", e.Key)
			}
		}
		at := t.keys.Get([]byte(e.Key))
		if at == nil {
			continue
		}
		if len(at) != 8 {
			return &DamageError{File: databaseName, Key: e.Key, Chunk: -1, What: "index entry"}
		}
		old, err := checkEvent(binary.BigEndian.Uint64(at), t.events.Get(at))
		if err != nil {
			return err
		}
		if field := old.differs(e); field != "" {
			return &DivergenceError{Key: e.Key, Field: field, Seq: old.Seq, Old: old.Digest(), New: e.Digest()}
		}
		for j := range e.Payloads { // what was put again for it is an orphan now
			if ref := e.Payloads[j].Ref; ref != nil {
				ref.named()
			}
		}
		it.ev, it.old = old, true
	}
	return nil
}

// apply writes one new event.
func (w *eventWriter) apply(t *tables, it *item, now time.Time) error {
	e := &it.ev
	e.Seq, e.Prev = w.head.Seq+1, w.head.Hash
	e.Time = now.UTC().Round(0)
	buf, hash := sealEnvelope(it.buf, e.Seq, e.Time, e.Prev)
	e.Hash = hash
	at := seqKey(e.Seq)
	if err := t.events.Put(at, buf); err != nil {
		return err
	}
	if e.Key != "" {
		if err := t.keys.Put([]byte(e.Key), at); err != nil {
			return err
		}
	}
	for i := range e.Payloads {
		p := &e.Payloads[i]
		loc := Location{Kind: KindNone}
		switch {
		case p.Inline != nil:
			loc.Kind = KindInline
			v := append(bytes.Clone(p.Inline), 0, 0, 0, 0)
			binary.LittleEndian.PutUint32(v[len(v)-4:], crcOf(p.Inline))
			if err := t.inline.Put(locationKey(e.Seq, i), v); err != nil {
				return err
			}
		case p.Ref != nil:
			loc = p.Ref.loc
		}
		lk := locationKey(e.Seq, i)
		if loc.Kind == KindSegment {
			if err := t.owners.Put(ownerKey(loc, lk), nil); err != nil {
				return err
			}
		}
		if loc.Kind != KindNone {
			if err := t.locations.Put(lk, appendLocation(nil, loc)); err != nil {
				return err
			}
		}
	}
	var perr error
	w.tree.push(tlog.Hash(hash), func(h tlog.Hash) {
		if err := w.hashes.add(h, t.putHashes); err != nil {
			perr = err
		}
	})
	w.head.Seq, w.head.Hash, w.head.Time = e.Seq, hash, e.Time
	return perr
}
