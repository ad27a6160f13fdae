package ledger

// Answered is a future that has its answer already: for stores that stand in for a ledger, such as a replay's.
func Answered(events []Event, err error) *Future {
	f := &Future{done: make(chan struct{}), events: events, err: err}
	close(f.done)
	return f
}
