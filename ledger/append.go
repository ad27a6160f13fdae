package ledger

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"

	bolt "go.etcd.io/bbolt"
)

// Append hands an event to the writer. The future is answered when the event, and every payload that it names, is
// durable. Append itself waits only while too many bytes are in flight. The slices of the event must not be changed
// until the future is answered.
func (l *Ledger) Append(ctx context.Context, e Event) *Future {
	return l.AppendAll(ctx, []Event{e})
}

// AppendAll hands over events that become durable together: after a crash all or none are there. They follow each other
// without a gap. One key may not occur twice.
func (l *Ledger) AppendAll(ctx context.Context, events []Event) *Future {
	for i := range events {
		if ownType(events[i].Type) {
			return failed(usage("events of type %s are written by the ledger", events[i].Type))
		}
		if err := l.opts.checkType(&events[i]); err != nil {
			return failed(err)
		}
	}
	if err := l.admit(); err != nil {
		return failed(err)
	}
	return l.submit(ctx, &request{}, events...)
}

// submit queues events of any type with a request.
func (l *Ledger) submit(ctx context.Context, r *request, events ...Event) *Future {
	if r.items = r.one[:]; len(events) != 1 {
		r.items = make([]item, len(events))
	}
	for i, e := range events {
		if err := e.check(); err != nil {
			return failed(err)
		}
		if len(e.Payloads) > 0 {
			e.Payloads = append([]Payload(nil), e.Payloads...)
		}
		for j := range e.Payloads {
			p := &e.Payloads[j]
			if p.Inline != nil {
				p.Length, p.SHA256 = int64(len(p.Inline)), sha256.Sum256(p.Inline)
			} else if p.Ref != nil {
				p.Length, p.SHA256 = p.Ref.Length, p.Ref.SHA256
			}
			r.weight += int64(len(p.Inline))
		}
		r.items[i] = item{ev: e, buf: encodeBody(&e)}
		r.weight += int64(len(r.items[i].buf)) + 128
	}
	return l.enqueue(ctx, r)
}

func (l *Ledger) enqueue(ctx context.Context, r *request) *Future {
	r.fut.done = make(chan struct{})
	r.weight = min(r.weight, l.eventBudget)
	if r.weight > 0 && !l.events.sem.TryAcquire(r.weight) {
		stop := l.stats.wait()
		err := l.events.sem.Acquire(ctx, r.weight)
		stop()
		if err != nil {
			return failed(context.Cause(ctx))
		}
	}
	l.sendMu.RLock()
	defer l.sendMu.RUnlock()
	if l.sendClosed {
		if r.weight > 0 {
			l.events.sem.Release(r.weight)
		}
		return failed(ErrClosed)
	}
	select {
	case l.events.ch <- r:
	case <-ctx.Done():
		if r.weight > 0 {
			l.events.sem.Release(r.weight)
		}
		return failed(context.Cause(ctx))
	}
	return &r.fut
}

// do runs an operation on the tables alone in a transaction, with events that belong to it.
func (l *Ledger) do(ctx context.Context, op func(tx *bolt.Tx) error, after func(), events ...Event) ([]Event, error) {
	return l.submit(ctx, &request{op: op, after: after}, events...).All(ctx)
}

// Sync waits until everything appended before is durable and HEAD with it. Stage ends call it.
func (l *Ledger) Sync(ctx context.Context) error {
	_, err := l.enqueue(ctx, &request{barrier: true}).All(ctx)
	if err == nil {
		err = l.signHead()
	}
	return err
}

// Once runs work only if no event has the key, and gives the event: the old one, or the one that work described once it
// is durable. Two calls for one key at the same time run it once. The event's key is filled in when empty.
func (l *Ledger) Once(ctx context.Context, key string, work func(ctx context.Context) (Event, error)) (Event, error) {
	release, err := l.claims.acquire(ctx, key)
	if err != nil {
		return Event{}, err
	}
	defer release()
	if e, ok, err := l.Get(key); err != nil || ok {
		return e, err
	}
	e, err := work(ctx)
	if err != nil {
		return Event{}, err
	}
	if e.Key == "" {
		e.Key = key
	}
	if e.Key != key {
		return Event{}, usage("work for key %q gave an event with key %q", key, e.Key)
	}
	return l.Append(ctx, e).Wait(ctx)
}

// Find appends a `finding` event: something that people should know and that stopped nothing.
func (l *Ledger) Find(ctx context.Context, key string, record json.RawMessage) *Future {
	return l.submit(ctx, &request{}, Event{Type: TypeFinding, Schema: 1, Key: key, Record: bytes.Clone(record)})
}
