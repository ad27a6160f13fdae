// Package replay recomputes layers of a finished or unfinished run from its ledger and compares every digest.
//
// A replay is the engine's own stage code over a store that gives captures, tokens and the decisions it is allowed to
// see, and that keeps nothing: what the engine would append is compared with the event of the same key. The first
// difference ends the replay. Statistics are never read, so they are recomputed too.
package replay

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"quire/engine"
	"quire/ledger"
	"quire/ledger/codec"
	"quire/resume"
)

// Source is the ledger that is replayed: a Reader of a closed run.
type Source interface {
	Get(key string) (ledger.Event, bool, error)
	ReadPayload(ctx context.Context, e ledger.Event, role string) ([]byte, error)
	Head() ledger.Head
}

// Report says what a replay compared.
type Report struct {
	Layer     int            `json:"layer"`
	Module    string         `json:"module,omitempty"`
	Compared  map[string]int `json:"compared"`  // events by type
	Unmatched int            `json:"unmatched"` // recomputed events that the run does not have
}

// Difference is the first event in which the replay and the run differ.
type Difference struct {
	Key    string   `json:"key"`
	Seq    uint64   `json:"seq"`
	Fields []string `json:"fields"`
}

func (d *Difference) Error() string {
	return fmt.Sprintf("replay differs from event %d (%s): %s", d.Seq, d.Key, strings.Join(d.Fields, "; "))
}

// ErrorCode is the catalogue code.
func (d *Difference) ErrorCode() string { return "E0712" }

// ExitCode is that of a divergence.
func (d *Difference) ExitCode() int { return engine.ExitDiverged }

// Remedy says what to try.
func (d *Difference) Remedy() string {
	return "compare hosts and versions of the run's `opened` events, and run `quire ledger fsck RUN --level deep`"
}

// Layer replays one layer, or of it one module: then earlier decisions come from the ledger, and only this module's
// statistic and solve are done again.
func Layer(ctx context.Context, plan *engine.Plan, src Source, layer int, module string, o engine.RunOptions) (*Report, error) {
	s := &store{src: src, report: &Report{Layer: layer, Module: module, Compared: map[string]int{}}}
	hidden := make([]string, 0, 3)
	for _, kind := range []string{"partial", "hessian", "decision"} {
		hidden = append(hidden, fmt.Sprintf("%s/L%04d/", kind, layer))
	}
	if module != "" {
		prefixes, l, ok := plan.Sites(module)
		if !ok {
			return nil, &engine.Error{Code: "E0713", Exit: engine.ExitUsage, What: "no quantized module of this name", Where: module, Try: "list them with `quire audit RUN`"}
		}
		hidden, layer = prefixes, l
		s.report.Layer = l
	}
	s.hidden = hidden
	if err := engine.ReplayLayer(ctx, plan, s, layer, o); err != nil {
		return s.report, err
	}
	return s.report, s.failed()
}

// store compares instead of storing.
type store struct {
	src    Source
	hidden []string

	mu     sync.Mutex
	report *Report
	diff   *Difference
}

func (s *store) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.diff != nil {
		return s.diff
	}
	return nil
}

func (s *store) Get(key string) (ledger.Event, bool, error) {
	for _, h := range s.hidden {
		if strings.HasPrefix(key, h) {
			return ledger.Event{}, false, nil
		}
	}
	return s.src.Get(key)
}

func (s *store) ReadPayload(ctx context.Context, e ledger.Event, role string) ([]byte, error) {
	return s.src.ReadPayload(ctx, e, role)
}

func (s *store) PutBytes(_ context.Context, class ledger.Class, segment string, _ codec.ID, b []byte) (ledger.PayloadRef, error) {
	return ledger.PayloadRef{Class: class, Segment: segment, Length: int64(len(b)), SHA256: sha256.Sum256(b)}, s.failed()
}

func (s *store) Append(ctx context.Context, e ledger.Event) *ledger.Future {
	return s.AppendAll(ctx, []ledger.Event{e})
}

func (s *store) AppendAll(_ context.Context, events []ledger.Event) *ledger.Future {
	for i := range events {
		e := &events[i]
		for j := range e.Payloads {
			if p := &e.Payloads[j]; p.Ref != nil {
				p.Length, p.SHA256 = p.Ref.Length, p.Ref.SHA256
			}
		}
		if err := s.compare(e); err != nil {
			return ledger.Answered(nil, err)
		}
	}
	return ledger.Answered(events, nil)
}

func (s *store) compare(e *ledger.Event) error {
	was, ok, err := s.src.Get(e.Key)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !ok {
		s.report.Unmatched++
		return nil
	}
	if was.Digest() == e.Digest() {
		s.report.Compared[e.Type]++
		return nil
	}
	if s.diff == nil {
		s.diff = &Difference{Key: e.Key, Seq: was.Seq, Fields: fields(&was, e)}
	}
	return s.diff
}

// fields names what differs between the run's event and the replayed one.
func fields(was, now *ledger.Event) []string {
	out := resume.Diff(was.Record, now.Record)
	for _, p := range was.Payloads {
		if q, ok := now.Payload(p.Role); !ok {
			out = append(out, fmt.Sprintf("payload %s: not there now", p.Role))
		} else if p.SHA256 != q.SHA256 {
			out = append(out, fmt.Sprintf("payload %s: SHA-256 %s, now %s", p.Role, p.SHA256, q.SHA256))
		}
	}
	for i, r := range was.Inputs {
		if i >= len(now.Inputs) || now.Inputs[i] != r {
			out = append(out, fmt.Sprintf("input %s", r.Key))
			break
		}
	}
	if len(out) == 0 {
		out = []string{"type, schema or number of payloads"}
	}
	return out
}

func (s *store) Sync(context.Context) error { return s.failed() }

func (s *store) Retire(context.Context, ledger.Class, string, string) ([]ledger.Retirement, error) {
	return nil, nil
}

func (s *store) Relocate(context.Context, ...ledger.Relocation) error { return nil }

func (s *store) Find(context.Context, string, json.RawMessage) *ledger.Future {
	return ledger.Answered(nil, nil)
}

func (s *store) SetUnit(string)          {}
func (s *store) PublishStatus(any) error { return nil }
func (s *store) Stats() ledger.Stats     { return ledger.Stats{Head: s.src.Head(), FreeBytes: -1} }
