package ledger

import (
	"errors"
	"fmt"
)

// replay gives the events in the journal that are not in ledger.db, which ends with head: a layer, nil when there are none,
// and the chain after them. v reads ledger.db alone. When damage keeps events from being read, the layer holds those before,
// and the error says so.
func (v *view) replay(dir string, head Head, run RunID) (*layer, chain, error) {
	c := chain{head: head}
	b, err := readJournal(dir)
	if err != nil || b == nil {
		return nil, c, err
	}
	records, err := findRecords(b)
	if err != nil {
		return nil, c, err
	}
	damage := func(seq uint64, format string, a ...any) error {
		return &DamageError{File: journalName, Seq: seq, Chunk: -1, What: fmt.Sprintf(format, a...)}
	}
	var y *layer
	for i := range records {
		r := &records[i]
		if r.run != run {
			return y, c, damage(0, "a record belongs to run %s, ledger.db to run %s", r.run, run)
		}
		if r.count == 0 || r.first+uint64(r.count)-1 <= c.head.Seq {
			continue // it is in ledger.db
		}
		if y == nil {
			if c.tree, c.hashes, err = v.loadTree(head); err != nil {
				return nil, c, err
			}
			y = newLayer(head)
		}
		if r.first != c.head.Seq+1 || r.prev != c.head.Hash {
			return y, c, damage(c.head.Seq+1, "the record of the event is missing, that of event %d is there", r.first)
		}
		was := c
		fresh := newLayer(c.head)
		err := r.events(func(e Event, envelope []byte, payloads []stored) error {
			return c.add(fresh, &e, envelope, payloads)
		})
		if err == nil {
			err = c.seal(fresh)
		}
		if err != nil {
			c = was
			if errors.Is(err, ErrNewer) {
				return nil, c, err
			}
			return y, c, &DamageError{File: journalName, Seq: r.first, Chunk: -1, What: "a record does not hold what it should", Inner: err}
		}
		fresh.head, fresh.bytes = c.head, int64(r.size)
		y.merge(fresh)
	}
	return y, c, nil
}

// newJournal makes the journal of a stay, after what the last one left in its own is in ledger.db.
func (l *Ledger) newJournal() (*journalFile, error) {
	w := l.events
	if !w.tail.empty() {
		y := w.tail.layers[0]
		failpoint("replay.read")
		if err := w.persist(y.bytes, func() error { return bring(l.db, y) }); err != nil {
			return nil, err
		}
		failpoint("replay.applied")
		w.tail.drop()
	}
	if l.opts.JournalBytes < 0 {
		return nil, removeJournal(l.dir)
	}
	j, err := createJournal(l.dir, l.run, l.opts.JournalBytes)
	if isFull(err) {
		err = l.fullError(l.opts.JournalBytes, err)
	}
	return j, err
}
