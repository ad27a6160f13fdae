package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// errRefused marks an operation that failed by its own rules: rolled back, the handle is sound.
var errRefused = errors.New("ledger: refused")

type refusal struct{ error }

func (r refusal) Is(t error) bool { return t == errRefused }
func (r refusal) Unwrap() error   { return r.error }

// persist runs a transaction of ledger.db, once more when the disk was full and had a reserve, and gives its error as
// callers should see it.
func (w *eventWriter) persist(bytes int64, transaction func() error) error {
	err := transaction()
	if err != nil && isFull(err) && w.l.releaseReserve() {
		w.l.opts.Log.Warn("the disk is full: the reserve was given back", "err", err)
		w.l.setFull(w.l.fullError(bytes+fullSlack, err))
		err = transaction()
	}
	switch {
	case err == nil || errors.Is(err, errRefused):
	case isFull(err):
		err = w.l.fullError(bytes+fullSlack, err)
		w.l.setFull(err)
	default:
		w.l.poison(err)
		err = poisoned(err)
	}
	return err
}

// update runs f in a transaction of ledger.db and gives it the head before.
func update(db *bolt.DB, f func(t *tables, was Head) error) error {
	committing := false
	var was Head
	err := guarded(databaseName, func() error {
		tx, err := db.Begin(true)
		if err != nil {
			return err
		}
		defer func() {
			if !committing {
				_ = tx.Rollback()
			}
		}()
		t := newTables(tx)
		if was, err = decodeHeadRecord(t.head.Get(headKey)); err != nil {
			return err
		}
		if err := f(t, was); err != nil {
			return err
		}
		failpoint("append.before-commit")
		committing = true
		return causeOf(tx.Commit())
	})
	if err == nil {
		failpoint("append.committed")
	} else if committing && isFull(err) {
		// If the head is not what it was before, the failed transaction is half visible and the handle must not be used.
		if err := sameHead(db, was); err != nil {
			return err
		}
	}
	return err
}

func sameHead(db *bolt.DB, was Head) error {
	return guarded(databaseName, func() error {
		return db.View(func(tx *bolt.Tx) error {
			h, err := decodeHeadRecord(tx.Bucket(bucketHead).Get(headKey))
			if err != nil {
				return err
			}
			if h.Seq != was.Seq || h.Hash != was.Hash {
				return fmt.Errorf("a commit that ran out of space left event %d behind, %d expected", h.Seq, was.Seq)
			}
			return nil
		})
	})
}

// operate runs an operation on the tables, with its events, in one transaction. Everything before it is in ledger.db then.
func (w *eventWriter) operate(b *batch) error {
	if err := w.settle(); err != nil {
		return err
	}
	was := w.chain
	err := w.persist(b.weight, func() error {
		w.chain, w.record = was, w.record[:0]
		return update(w.l.db, func(t *tables, _ Head) error {
			r := b.requests[0]
			if err := r.op(t.tx); err != nil {
				return refusal{err}
			}
			if err := w.applyRequest(t, r, w.l.opts.Now()); err != nil {
				return err
			}
			if r.failErr != nil {
				return refusal{r.failErr}
			}
			if w.head.Seq == was.head.Seq {
				return nil
			}
			return w.seal(t)
		})
	})
	if err != nil {
		w.chain = was
	}
	return err
}

// bring writes a layer's changes to ledger.db, in one transaction.
func bring(db *bolt.DB, y *layer) error {
	return update(db, func(t *tables, was Head) error {
		if was.Seq != y.base.Seq || was.Hash != y.base.Hash {
			return damagedf(databaseName, "it ends at event %d, the events to come follow event %d", was.Seq, y.base.Seq)
		}
		var key []byte // of which bbolt makes a copy
		for i, v := range y.envelopes {
			key = binary.BigEndian.AppendUint64(key[:0], y.base.Seq+1+uint64(i))
			if err := t.events.Put(key, v); err != nil {
				return err
			}
		}
		for name, table := range y.tables {
			b := t.table([]byte(name))
			for _, k := range table.inOrder(table.keys) {
				key = append(key[:0], k...)
				if err := b.Put(key, table.values[k]); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func isFull(err error) bool { return isDiskFull(err) || errors.Is(err, berrors.ErrMaxSizeReached) }
