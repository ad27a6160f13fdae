package ledger

import (
	"bytes"
	"encoding/binary"
	"time"

	"golang.org/x/mod/sumdb/tlog"
)

// chain is the newest state and what the next event needs of it.
type chain struct {
	head   Head
	tree   frontier
	hashes hashAppender
}

// next makes an item the event after the newest one.
func (c *chain) next(it *item, now time.Time) (envelope []byte, payloads []stored) {
	e := &it.ev
	e.Seq, e.Prev = c.head.Seq+1, c.head.Hash
	e.Time = now.UTC().Round(0)
	envelope, e.Hash = sealEnvelope(it.buf, e.Seq, e.Time, e.Prev)
	if len(e.Payloads) > 0 {
		payloads = make([]stored, len(e.Payloads))
	}
	for i := range e.Payloads {
		p := &e.Payloads[i]
		switch {
		case p.Inline != nil:
			payloads[i] = stored{Location{Kind: KindInline}, p.Inline}
		case p.Ref != nil:
			payloads[i].loc = p.Ref.loc
		}
	}
	return envelope, payloads
}

// add enters an event that follows the newest one.
func (c *chain) add(t changes, e *Event, envelope []byte, payloads []stored) error {
	at := seqKey(e.Seq)
	if err := t.put(bucketEvents, string(at), envelope); err != nil {
		return err
	}
	if e.Key != "" {
		if err := t.put(bucketKeys, e.Key, at); err != nil {
			return err
		}
	}
	for i, p := range payloads {
		lk := string(locationKey(e.Seq, i))
		switch p.loc.Kind {
		case KindNone:
			continue
		case KindInline:
			v := append(bytes.Clone(p.inline), 0, 0, 0, 0)
			binary.LittleEndian.PutUint32(v[len(v)-4:], crcOf(p.inline))
			if err := t.put(bucketInline, lk, v); err != nil {
				return err
			}
		case KindSegment:
			if err := t.put(bucketOwners, string(ownerKey(p.loc, []byte(lk))), nil); err != nil {
				return err
			}
		}
		if err := t.put(bucketLocations, lk, appendLocation(nil, p.loc)); err != nil {
			return err
		}
	}
	var perr error
	c.tree.push(tlog.Hash(e.Hash), func(h tlog.Hash) {
		if err := c.hashes.add(h, putHashes(t)); err != nil {
			perr = err
		}
	})
	c.head.Seq, c.head.Hash, c.head.Time = e.Seq, e.Hash, e.Time
	return perr
}

// seal ends a group of events: the newest tree hashes and the head.
func (c *chain) seal(t changes) error {
	if err := c.hashes.flush(putHashes(t)); err != nil {
		return err
	}
	c.head.Root = c.tree.root()
	return t.put(bucketHead, string(headKey), encodeHeadRecord(c.head))
}

func putHashes(t changes) func(block uint64, b []byte) error {
	return func(block uint64, b []byte) error { return t.put(bucketHashes, string(seqKey(block)), b) }
}
