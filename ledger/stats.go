package ledger

import (
	"encoding/json"
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// Stats is what a writer knows of itself.
type Stats struct {
	Head Head `json:"head"`
	// DurableAt is when Head became durable: everything up to Head.Seq is safe since then.
	DurableAt     time.Time            `json:"durable_at"`
	Events        int64                `json:"events"`          // appended in this stay
	Commits       int64                `json:"commits"`         // transactions of ledger.db in this stay
	CommitNS      int64                `json:"commit_ns"`       // summed
	LastGroup     int64                `json:"last_group"`      // events in the newest transaction
	Bytes         map[Class]ClassBytes `json:"bytes,omitempty"` // put in this stay
	InFlightBytes int64                `json:"in_flight_bytes"` // accepted and not yet durable, estimated
	Waits         int64                `json:"waits"`           // times a caller waited for room
	WaitNS        int64                `json:"wait_ns"`         // summed
	Full          bool                 `json:"full,omitempty"`
	FreeBytes     int64                `json:"free_bytes"`
}

// ClassBytes counts payload bytes of a retention class.
type ClassBytes struct {
	Payloads int64 `json:"payloads"`
	Raw      int64 `json:"raw"`
	Stored   int64 `json:"stored"`
}

type stats struct {
	mu      sync.Mutex
	classes map[Class]ClassBytes
	durable time.Time

	events, commits, commitNS, lastGroup atomic.Int64
	waits, waitNS                        atomic.Int64
}

func (s *stats) init() { s.classes = map[Class]ClassBytes{} }

func (s *stats) put(c Class, raw, stored int64) {
	s.mu.Lock()
	b := s.classes[c]
	b.Payloads++
	b.Raw += raw
	b.Stored += stored
	s.classes[c] = b
	s.mu.Unlock()
}

func (s *stats) commit(events int, took time.Duration, now time.Time) {
	s.events.Add(int64(events))
	s.commits.Add(1)
	s.commitNS.Add(int64(took))
	s.lastGroup.Store(int64(events))
	s.mu.Lock()
	s.durable = now
	s.mu.Unlock()
}

// wait counts a caller that waits; the function given ends it.
func (s *stats) wait() func() {
	start := time.Now()
	s.waits.Add(1)
	return func() { s.waitNS.Add(int64(time.Since(start))) }
}

// Stats gives the writer's figures.
func (l *Ledger) Stats() Stats {
	l.stats.mu.Lock()
	defer l.stats.mu.Unlock()
	free, err := freeBytes(l.dir)
	if err != nil {
		free = -1
	}
	return Stats{Head: l.Head(), DurableAt: l.stats.durable, Events: l.stats.events.Load(), Commits: l.stats.commits.Load(),
		CommitNS: l.stats.commitNS.Load(), LastGroup: l.stats.lastGroup.Load(), Bytes: maps.Clone(l.stats.classes),
		InFlightBytes: int64(len(l.blobs.ch)) * int64(l.opts.ChunkBytes), Waits: l.stats.waits.Load(), WaitNS: l.stats.waitNS.Load(),
		Full: l.full.Load() != nil, FreeBytes: free}
}

// Status is what others may know of a running writer: status.json and the socket give it.
type Status struct {
	Type    string          `json:"type"` // "status"
	Live    bool            `json:"live"`
	Holder  Holder          `json:"holder"`
	Written time.Time       `json:"written"`
	Stats   Stats           `json:"stats"`
	Engine  json.RawMessage `json:"engine,omitempty"` // what PublishStatus gave
}

// PublishStatus sets the engine's part of the status; v must encode as JSON. It is written to status.json within two
// seconds, and the socket gives it at once.
func (l *Ledger) PublishStatus(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return usage("status: %v", err)
	}
	raw := json.RawMessage(b)
	l.status.Store(&raw)
	return nil
}

func (l *Ledger) currentStatus() Status {
	l.lock.mu.Lock()
	holder := l.lock.self
	l.lock.mu.Unlock()
	s := Status{Type: "status", Live: !l.closing.Load(), Holder: holder, Written: l.opts.Now().UTC(), Stats: l.Stats()}
	if p := l.status.Load(); p != nil {
		s.Engine = *p
	}
	return s
}

const statusName = "status.json"

func (l *Ledger) writeStatus() {
	b := append(mustJSON(l.currentStatus()), '\n')
	if err := writeFileAtomically(l.path(statusName), b); err != nil && !isDiskFull(err) {
		l.opts.Log.Warn("status.json could not be written", "err", err)
	}
}

// notifier wakes those who wait for new events.
type notifier struct {
	mu sync.Mutex
	ch chan struct{}
}

func (n *notifier) wait() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch == nil {
		n.ch = make(chan struct{})
	}
	return n.ch
}

func (n *notifier) wake() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch != nil {
		close(n.ch)
		n.ch = nil
	}
}
