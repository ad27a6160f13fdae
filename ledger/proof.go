package ledger

import (
	"encoding/json"
	"fmt"

	"golang.org/x/mod/sumdb/tlog"
)

// Proof shows that an event stands at its place in the ledger whose head it names. It is checked without the ledger.
type Proof struct {
	Type     string      `json:"type"` // "quire.inclusion.1"
	Head     Head        `json:"head"`
	Seq      uint64      `json:"seq"`
	Identity []byte      `json:"identity"` // the hashed bytes of the event
	Path     []tlog.Hash `json:"path"`
}

// Consistency shows that one head is an earlier state of another.
type Consistency struct {
	Type string      `json:"type"` // "quire.consistency.1"
	Old  Head        `json:"old"`
	New  Head        `json:"new"`
	Path []tlog.Hash `json:"path"`
}

const (
	typeInclusion   = "quire.inclusion.1"
	typeConsistency = "quire.consistency.1"
)

func (v *view) prove(seq uint64, head Head) (Proof, error) {
	p := Proof{Type: typeInclusion, Head: head, Seq: seq}
	if seq == 0 || seq > head.Seq {
		return p, notFound("no event %d: there are %d", seq, head.Seq)
	}
	b, err := v.st.get(bucketEvents, seqKey(seq))
	if err != nil {
		return p, err
	}
	id, err := envelopeIdentity(b)
	if err != nil {
		return p, &DamageError{File: databaseName, Seq: seq, Chunk: -1, What: "envelope", Inner: err}
	}
	p.Identity = id
	path, err := tlog.ProveRecord(int64(head.Seq), int64(seq-1), v.hashReader())
	if err != nil {
		return p, &DamageError{File: databaseName, Chunk: -1, What: "Merkle tree", Inner: err}
	}
	p.Path = path
	if _, err := p.Check(); err != nil { // a flipped hash must not leave as a proof
		return p, &DamageError{File: databaseName, Seq: seq, Chunk: -1, What: "Merkle tree", Inner: err}
	}
	return p, nil
}

func (v *view) proveConsistency(old uint64, head Head) (Consistency, error) {
	c := Consistency{Type: typeConsistency, New: head}
	if old == 0 || old > head.Seq {
		return c, notFound("no event %d: there are %d", old, head.Seq)
	}
	e, err := v.eventAt(old)
	if err != nil {
		return c, err
	}
	root, err := tlog.TreeHash(int64(old), v.hashReader())
	if err == nil {
		c.Path, err = tlog.ProveTree(int64(head.Seq), int64(old), v.hashReader())
	}
	if err != nil {
		return c, &DamageError{File: databaseName, Chunk: -1, What: "Merkle tree", Inner: err}
	}
	c.Old = Head{Seq: old, Hash: e.Hash, Root: Digest(root), Time: e.Time, Run: head.Run}
	if err := c.Check(); err != nil {
		return c, &DamageError{File: databaseName, Chunk: -1, What: "Merkle tree", Inner: err}
	}
	return c, nil
}

// Prove gives an inclusion proof of an event in the current head.
func (l *Ledger) Prove(seq uint64) (Proof, error) { return l.prove(seq, l.Head()) }

// Prove gives an inclusion proof of an event in the ledger's head.
func (r *Reader) Prove(seq uint64) (Proof, error) { return r.prove(seq, r.head) }

// ProveConsistency shows that the state after event old is an earlier state of the current head.
func (l *Ledger) ProveConsistency(old uint64) (Consistency, error) {
	return l.proveConsistency(old, l.Head())
}

// ProveConsistency shows that the state after event old is an earlier state of the ledger's head.
func (r *Reader) ProveConsistency(old uint64) (Consistency, error) {
	return r.proveConsistency(old, r.head)
}

// Check says whether the proof holds for the head that it names, and gives the event. Compare Head with one from a
// source that you trust.
func (p Proof) Check() (Event, error) {
	if p.Type != typeInclusion {
		return Event{}, proofFailed("type %q is not %s", p.Type, typeInclusion)
	}
	if p.Seq == 0 || p.Seq > p.Head.Seq || p.Head.Seq > 1<<62 {
		return Event{}, proofFailed("event %d of %d", p.Seq, p.Head.Seq)
	}
	if err := tlog.CheckRecord(p.Path, int64(p.Head.Seq), tlog.Hash(p.Head.Root), int64(p.Seq-1), tlog.RecordHash(p.Identity)); err != nil {
		return Event{}, proofFailed("event %d is not in the tree", p.Seq)
	}
	e, err := decodeIdentity(p.Identity)
	if err != nil {
		return Event{}, proofFailed("the proven bytes are no event: %v", err)
	}
	if e.Seq != p.Seq {
		return Event{}, proofFailed("the proven bytes are event %d, not %d", e.Seq, p.Seq)
	}
	if e.Seq == p.Head.Seq && e.Hash != p.Head.Hash {
		return Event{}, proofFailed("the head names another hash for event %d", e.Seq)
	}
	return e, nil
}

// Check says whether Old is an earlier state of New.
func (c Consistency) Check() error {
	switch {
	case c.Type != typeConsistency:
		return proofFailed("type %q is not %s", c.Type, typeConsistency)
	case c.Old.Run != c.New.Run:
		return proofFailed("the heads belong to different runs")
	case c.Old.Seq == 0 || c.Old.Seq > c.New.Seq || c.New.Seq > 1<<62:
		return proofFailed("event %d of %d", c.Old.Seq, c.New.Seq)
	}
	if err := tlog.CheckTree(c.Path, int64(c.New.Seq), tlog.Hash(c.New.Root), int64(c.Old.Seq), tlog.Hash(c.Old.Root)); err != nil {
		return proofFailed("the state after event %d is no earlier state of %d", c.Old.Seq, c.New.Seq)
	}
	return nil
}

// CheckProof decodes a proof of either kind and checks it. trusted, when given, must be the head that it ends in. The
// event is nil for a consistency proof.
func CheckProof(b []byte, trusted *Head) (e *Event, head Head, err error) {
	var kind struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(b, &kind); err != nil {
		return nil, head, proofFailed("it is no JSON: %v", err)
	}
	switch kind.Type {
	case typeInclusion:
		var p Proof
		if err := json.Unmarshal(b, &p); err != nil {
			return nil, head, proofFailed("%v", err)
		}
		ev, err := p.Check()
		if err != nil {
			return nil, p.Head, err
		}
		e, head = &ev, p.Head
	case typeConsistency:
		var c Consistency
		if err := json.Unmarshal(b, &c); err != nil {
			return nil, head, proofFailed("%v", err)
		}
		if err := c.Check(); err != nil {
			return nil, c.New, err
		}
		head = c.New
	default:
		return nil, head, proofFailed("type %q", kind.Type)
	}
	if trusted != nil && (trusted.Seq != head.Seq || trusted.Root != head.Root || trusted.Run != head.Run) {
		return e, head, proofFailed("it ends in %s, not in the head given (%s)", describe(head), describe(*trusted))
	}
	return e, head, nil
}

func describe(h Head) string { return fmt.Sprintf("event %d, root %.16s", h.Seq, h.Root) }
