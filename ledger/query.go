package ledger

import (
	"bytes"
	"encoding/binary"
	"iter"
)

// scanBatch is how many index entries one read transaction covers: short, so that the writer never waits.
const scanBatch = 512

// Get gives the event with a natural key.
func (v *view) Get(key string) (Event, bool, error) {
	at, err := v.st.get(bucketKeys, []byte(key))
	if err != nil || at == nil {
		return Event{}, false, err
	}
	e, err := v.entry(key, at)
	return e, err == nil, err
}

// entry follows an index entry.
func (v *view) entry(key string, at []byte) (Event, error) {
	if len(at) != 8 {
		return Event{}, &DamageError{File: databaseName, Key: key, Chunk: -1, What: "index entry"}
	}
	e, err := v.eventAt(binary.BigEndian.Uint64(at))
	if err != nil {
		return Event{}, err
	}
	if e.Key != key {
		return Event{}, &DamageError{File: databaseName, Seq: e.Seq, Key: key, Chunk: -1, What: "the index leads to another event"}
	}
	return e, nil
}

// At gives the event with a sequence number.
func (v *view) At(seq uint64) (Event, error) {
	_, last, err := v.bounds()
	if err != nil {
		return Event{}, err
	}
	if seq == 0 || seq > last {
		return Event{}, notFound("no event %d: there are %d", seq, last)
	}
	return v.eventAt(seq)
}

func (v *view) bounds() (first, last uint64, err error) {
	k, _, err := v.st.last(bucketEvents)
	if err != nil {
		return 0, 0, err
	}
	if len(k) != 8 {
		return 0, 0, damagedf(databaseName, "no events")
	}
	return 1, binary.BigEndian.Uint64(k), nil
}

// Scan gives the events whose key starts with prefix, in key order. It ends after the first error. Events appended
// meanwhile may or may not be seen.
func (v *view) Scan(prefix string) iter.Seq2[Event, error] {
	type hit struct {
		key string
		at  []byte
	}
	return func(yield func(Event, error) bool) {
		from, p := []byte(prefix), []byte(prefix)
		for {
			var hits []hit
			more, err := v.st.scan(bucketKeys, from, scanBatch, func(k, at []byte) error {
				if !bytes.HasPrefix(k, p) {
					return errStop
				}
				hits = append(hits, hit{string(k), bytes.Clone(at)})
				return nil
			})
			for _, h := range hits {
				e, err := v.entry(h.key, h.at)
				if !yield(e, err) || err != nil {
					return
				}
			}
			if err != nil {
				yield(Event{}, err)
				return
			}
			if !more || len(hits) == 0 {
				return
			}
			from = append([]byte(hits[len(hits)-1].key), 0)
		}
	}
}

// Since gives the events after seq, in order, up to the newest at the time. It ends after the first error.
func (v *view) Since(seq uint64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for next := seq + 1; ; {
			var got []Event
			var bad error
			more, err := v.st.scan(bucketEvents, seqKey(next), scanBatch, func(k, b []byte) error {
				if len(k) != 8 || binary.BigEndian.Uint64(k) != next {
					bad = &DamageError{File: databaseName, Seq: next, Chunk: -1, What: "the event is missing"}
					return errStop
				}
				e, err := checkEvent(next, b)
				if err != nil {
					bad = err
					return errStop
				}
				got = append(got, e)
				next++
				return nil
			})
			if bad != nil {
				err = bad
			}
			for _, e := range got {
				if !yield(e, nil) {
					return
				}
			}
			if err != nil {
				yield(Event{}, err)
				return
			}
			if !more {
				return
			}
		}
	}
}

// Locate gives where the payload of an event is.
func (v *view) Locate(e Event, role string) (Location, error) {
	i := e.payloadIndex(role)
	if i < 0 {
		return Location{}, notFound("event %d (%s) has no payload %q", e.Seq, e.Key, role)
	}
	b, err := v.st.get(bucketLocations, locationKey(e.Seq, i))
	if err != nil {
		return Location{}, err
	}
	if b == nil {
		return Location{Kind: KindNone}, nil
	}
	loc, err := parseLocation(b)
	if err != nil {
		return Location{}, &DamageError{File: databaseName, Seq: e.Seq, Key: e.Key, Role: role, Chunk: -1, What: "location", Inner: err}
	}
	if loc.Kind == KindSegment {
		rec, err := v.seg.record(loc.SegmentID)
		if err != nil {
			return Location{}, err
		}
		if rec.gone() {
			return Location{Kind: KindRetired, SegmentID: loc.SegmentID, Ordinal: loc.Ordinal}, nil
		}
	}
	return loc, nil
}
