package ledger

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/mod/sumdb/tlog"
)

// Retirement is the record of a `retired` event: what went, and enough to prove what it was.
type Retirement struct {
	Class    Class  `json:"class"`
	Segment  string `json:"segment"`
	File     string `json:"file"`
	Reason   string `json:"reason"`
	Payloads int64  `json:"payloads"`
	Bytes    int64  `json:"bytes"` // raw
	// Root is the RFC 6962 root over the leaves "seq index length sha256\n" of the payloads, in (ordinal, seq, index) order.
	Root Digest `json:"root"`
}

// Retire lets the payloads of a class and segment key go by unlinking their files. What was named stays named: length
// and SHA-256 remain provable. It refuses ClassPermanent, and segments with payloads that no event names yet. It gives the
// `retired` events, one for each file; none when there was nothing.
func (l *Ledger) Retire(ctx context.Context, class Class, segmentKey, reason string) ([]Retirement, error) {
	if class == ClassPermanent {
		return nil, usage("payloads of class permanent are never retired")
	}
	release, err := l.segments.making.acquire(ctx, segmentName(class, segmentKey))
	if err != nil {
		return nil, err
	}
	defer release()
	var all []Retirement
	for _, g := range l.segments.of(class, segmentKey) {
		g.mu.Lock()
		waiting := len(g.pending)
		g.mu.Unlock()
		if waiting > 0 {
			return all, busy("segment %s has %d payloads that no event names", g.rec.file(), waiting)
		}
		r, err := l.retire(ctx, g, reason)
		if err != nil {
			return all, err
		}
		all = append(all, r)
	}
	return all, nil
}

func (l *Ledger) retire(ctx context.Context, g *segment, reason string) (Retirement, error) {
	if g.broken() == nil {
		if err := l.segments.seal(ctx, g); err != nil && !errors.Is(err, ErrDamaged) {
			return Retirement{}, err
		}
	}
	r := Retirement{Class: g.rec.Class, Segment: g.rec.Key, File: g.rec.file(), Reason: reason}
	var f frontier
	err := l.ownersOf(g.rec.ID, func(_, seq uint64, index int) error {
		e, err := l.eventAt(seq)
		if err != nil {
			return err
		}
		if index >= len(e.Payloads) {
			return &DamageError{File: databaseName, Seq: seq, Key: e.Key, Chunk: -1, What: "a segment is owned by a payload that the event does not name"}
		}
		p := e.Payloads[index]
		f.push(tlog.RecordHash(retirementLeaf(seq, index, p)), func(tlog.Hash) {})
		r.Payloads++
		r.Bytes += p.Length
		return nil
	})
	if err != nil {
		return r, err
	}
	r.Root = f.root()
	err = l.segments.setState(ctx, g, func(s *segmentRecord) { s.State = segRetiring }, Event{Type: TypeRetired, Schema: 1, Record: mustJSON(r)})
	if err != nil {
		return r, err
	}
	failpoint("retire.recorded")
	return r, l.finishRetirement(ctx, g)
}

// finishRetirement unlinks the file of a segment whose retirement is recorded.
func (l *Ledger) finishRetirement(ctx context.Context, g *segment) error {
	l.retireMu.Lock()
	g.mu.Lock()
	if g.file != nil {
		_ = g.file.Close()
		g.file = nil
	}
	g.mu.Unlock()
	err := os.Remove(g.path)
	l.retireMu.Unlock()
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	failpoint("retire.unlinked")
	if err := syncDir(l.path(segmentDir)); err != nil {
		return err
	}
	err = l.segments.setState(ctx, g, func(s *segmentRecord) { s.State = segRetired })
	failpoint("retire.done")
	return err
}

// retirementLeaf is the leaf of one payload in a retirement's tree.
func retirementLeaf(seq uint64, index int, p Payload) []byte {
	return fmt.Appendf(nil, "%d %d %d %s\n", seq, index, p.Length, p.SHA256)
}
