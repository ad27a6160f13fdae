package ledger

import "context"

// Future is the answer to come of an append.
type Future struct {
	done  chan struct{}
	items []item
	err   error
}

// Done is closed when the events are durable or have failed.
func (f *Future) Done() <-chan struct{} { return f.done }

// Wait gives the first event once it is durable. When ctx ends first the append goes on, unanswered.
func (f *Future) Wait(ctx context.Context) (Event, error) {
	if err := f.wait(ctx); err != nil || len(f.items) == 0 {
		return Event{}, err
	}
	return f.items[0].ev, nil
}

// All gives the events of an AppendAll once they are durable: the new ones, and old ones where a key already had the
// same content.
func (f *Future) All(ctx context.Context) ([]Event, error) {
	if err := f.wait(ctx); err != nil || len(f.items) == 0 {
		return nil, err
	}
	events := make([]Event, len(f.items))
	for i := range f.items {
		events[i] = f.items[i].ev
	}
	return events, nil
}

func (f *Future) wait(ctx context.Context) error {
	select {
	case <-f.done:
		return f.err
	default:
	}
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func failed(err error) *Future {
	f := &Future{done: make(chan struct{}), err: err}
	close(f.done)
	return f
}

// Answered is a future that has its answer already: for stores that stand in for a ledger, such as a replay's.
func Answered(events []Event, err error) *Future {
	f := &Future{done: make(chan struct{}), items: make([]item, len(events)), err: err}
	for i, e := range events {
		f.items[i].ev = e
	}
	close(f.done)
	return f
}
