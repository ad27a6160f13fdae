package ledger

import (
	"context"
	"encoding/binary"
	"fmt"

	bolt "go.etcd.io/bbolt"
)

// Relocation says where the payload of an event is from now on.
type Relocation struct {
	Key      string // the event's natural key
	Role     string
	Location Location // KindTensor, KindForeign, KindNone; for bytes put again, use Restore
}

// Relocate records, in one transaction, that payloads now live elsewhere. The caller has made the new place durable and
// read it back. The hash chain does not change: an event names bytes, not places.
func (l *Ledger) Relocate(ctx context.Context, moves ...Relocation) error {
	for _, m := range moves {
		switch m.Location.Kind {
		case KindTensor, KindForeign, KindNone:
		default:
			return usage("payload %s of %s cannot be moved to kind %s", m.Role, m.Key, m.Location.Kind)
		}
		if len(m.Location.File) > 4096 || len(m.Location.Tensor) > 4096 || len(m.Location.Decoder) > 256 {
			return usage("payload %s of %s: location over 4096 bytes", m.Role, m.Key)
		}
	}
	if err := l.usable(); err != nil {
		return err
	}
	_, err := l.do(ctx, func(tx *bolt.Tx) error {
		t := newTables(tx)
		for _, m := range moves {
			if _, err := t.move(m.Key, m.Role, m.Location, nil); err != nil {
				return err
			}
		}
		failpoint("relocate.before-commit")
		return nil
	}, nil)
	failpoint("relocate.committed")
	return err
}

// Restore gives an event its payload back: ref was Put and has the bytes that the event names. A `rebuilt` event says so.
func (l *Ledger) Restore(ctx context.Context, key, role string, ref PayloadRef) error {
	if !ref.valid(l) {
		return usage("payload %s of %s was put into another ledger", role, key)
	}
	rec := mustJSON(map[string]any{"key": key, "role": role, "sha256": ref.SHA256, "length": ref.Length})
	_, err := l.do(ctx, func(tx *bolt.Tx) error {
		t := newTables(tx)
		p, err := t.move(key, role, ref.loc, &ref)
		if err == nil && (p.SHA256 != ref.SHA256 || p.Length != ref.Length) {
			err = &DivergenceError{Key: key, Field: "payload " + role, Old: p.SHA256, New: ref.SHA256}
		}
		return err
	}, ref.named, Event{Type: TypeRebuilt, Schema: 1, Record: rec})
	return err
}

// move changes the location of one payload and gives the payload.
func (t *tables) move(key, role string, to Location, ref *PayloadRef) (Payload, error) {
	at := t.keys.Get([]byte(key))
	if at == nil {
		return Payload{}, notFound("no event has the key %q", key)
	}
	seq := binary.BigEndian.Uint64(at)
	e, err := checkEvent(seq, t.events.Get(at))
	if err != nil {
		return Payload{}, err
	}
	i := e.payloadIndex(role)
	if i < 0 {
		return Payload{}, notFound("event %d (%s) has no payload %q", seq, key, role)
	}
	p := e.Payloads[i]
	if p.Class == ClassPermanent && ref == nil && to.Kind == KindNone {
		return p, usage("payload %s of %s is permanent: it cannot be let go", role, key)
	}
	lk := locationKey(seq, i)
	if old := t.locations.Get(lk); old != nil {
		was, err := parseLocation(old)
		if err != nil {
			return p, &DamageError{File: databaseName, Seq: seq, Key: key, Role: role, Chunk: -1, What: "location", Inner: err}
		}
		switch was.Kind {
		case KindSegment:
			if err := t.owners.Delete(ownerKey(was, lk)); err != nil {
				return p, err
			}
		case KindInline:
			if err := t.inline.Delete(lk); err != nil {
				return p, err
			}
		}
	}
	if to.Kind == KindSegment {
		if err := t.owners.Put(ownerKey(to, lk), nil); err != nil {
			return p, err
		}
	}
	if err := t.locations.Put(lk, appendLocation(nil, to)); err != nil {
		return p, fmt.Errorf("ledger: location of %s: %w", key, err)
	}
	return p, nil
}
