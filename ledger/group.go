package ledger

import (
	"encoding/binary"
	"time"

	bolt "go.etcd.io/bbolt"
)

// group is the changes of a batch above what is durable.
type group struct {
	*layer
	tail    *tail
	db      *bolt.DB
	tx      *bolt.Tx // nil until ledger.db is asked
	buckets map[string]*bolt.Bucket
	key     []byte
}

func (g *group) get(bucket []byte, key string) ([]byte, error) {
	if v := g.find(bucket, key); v != nil {
		return v, nil
	}
	if v := g.tail.find(bucket, key); v != nil {
		return v, nil
	}
	if g.tx == nil {
		tx, err := g.db.Begin(false)
		if err != nil {
			return nil, err
		}
		g.tx, g.buckets = tx, map[string]*bolt.Bucket{}
	}
	b := g.buckets[string(bucket)]
	if b == nil {
		if b = g.tx.Bucket(bucket); b == nil {
			return nil, damagedf(databaseName, "bucket %s is missing", bucket)
		}
		g.buckets[string(bucket)] = b
	}
	g.key = append(g.key[:0], key...)
	return b.Get(g.key), nil
}

func (g *group) close() {
	if g.tx != nil {
		_ = g.tx.Rollback()
	}
}

// applyRequest writes a request's events, unless its own fault keeps them out: then the others go on.
func (w *eventWriter) applyRequest(t lookup, r *request, now time.Time) error {
	r.failErr = nil
	if err := w.precheck(t, r); err != nil {
		r.failErr = err
		return nil
	}
	for i := range r.items {
		if it := &r.items[i]; !it.old {
			envelope, payloads := w.next(it, now)
			if err := w.chain.add(t, &it.ev, envelope, payloads); err != nil {
				return err
			}
			w.record = appendJournalEvent(w.record, envelope, payloads)
		}
	}
	return nil
}

// precheck finds out which of a request's keys exist, and whether the others may be written.
func (w *eventWriter) precheck(t lookup, r *request) error {
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
		at, err := t.get(bucketKeys, e.Key)
		if err != nil {
			return err
		}
		if at == nil {
			continue
		}
		if len(at) != 8 {
			return &DamageError{File: databaseName, Key: e.Key, Chunk: -1, What: "index entry"}
		}
		b, err := t.get(bucketEvents, string(at))
		if err != nil {
			return err
		}
		old, err := checkEvent(binary.BigEndian.Uint64(at), b)
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
