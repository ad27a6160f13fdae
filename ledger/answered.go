package ledger

// Answered is a future that has its answer already: for stores that stand in for a ledger, such as a replay's.
func Answered(events []Event, err error) *Future {
	f := &Future{done: make(chan struct{}), items: make([]item, len(events)), err: err}
	for i, e := range events {
		f.items[i].ev = e
	}
	close(f.done)
	return f
}
