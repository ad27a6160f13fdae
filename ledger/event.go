package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Digest is a SHA-256.
type Digest [32]byte

// String gives the digest in hexadecimal.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// MarshalText writes hexadecimal.
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads hexadecimal.
func (d *Digest) UnmarshalText(b []byte) error {
	if len(b) != 64 {
		return fmt.Errorf("ledger: a digest has 64 hexadecimal digits, not %d", len(b))
	}
	_, err := hex.Decode(d[:], b)
	return err
}

// IsZero says whether the digest was never set.
func (d Digest) IsZero() bool { return d == Digest{} }

// Class is a retention class: when the payload of an event may go. The classes of a run stand below; others may be
// made up (lower-case letters, digits, '-'), and all but ClassPermanent may be retired.
type Class string

// The retention classes of a run.
const (
	ClassPermanent Class = "permanent" // tokens, routing ids, group tables, coverage: never retired
	ClassLayer     Class = "layer"     // captures: until the layers that read them are done
	ClassOpen      Class = "open"      // partials, hessians, spill: until the unit that needs them is done
	ClassCodes     Class = "codes"     // integer codes: until they live in an output tensor
)

// Ref names another event by key and content digest.
type Ref struct {
	Key    string `json:"key"`
	Digest Digest `json:"digest"`
}

// Payload is a blob that an event names. Either Inline is set when appending (≤ MaxInline bytes, stored in ledger.db,
// Length and SHA256 are filled in), or Ref comes from Put, or both are nil and the bytes are known elsewhere or not
// kept at all: Length and SHA256 stand, the location is KindNone until Relocate says otherwise.
type Payload struct {
	Role   string `json:"role"`
	Class  Class  `json:"class"`
	Length int64  `json:"length"` // raw bytes
	SHA256 Digest `json:"sha256"` // of the raw bytes

	Inline []byte      `json:"-"`
	Ref    *PayloadRef `json:"-"`
}

// Event is one record of the ledger. The fields up to Payloads are its content: they are what the key binds and what
// Digest covers. Seq, Time, Prev and Hash are assigned on append.
type Event struct {
	Type     string          `json:"type"`             // registered type name
	Schema   uint16          `json:"schema"`           // version of Record's form, from 1
	Key      string          `json:"key"`              // natural key; "" for events that only mark a moment
	Record   json.RawMessage `json:"record,omitempty"` // canonical JSON, ≤ MaxRecord bytes
	Inputs   []Ref           `json:"inputs,omitempty"` // what was read, in order
	Payloads []Payload       `json:"payloads,omitempty"`

	// Note holds facts of the moment (durations, host); chained, but a repetition of the event may differ in it.
	Note json.RawMessage `json:"note,omitempty"`

	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time"` // informational: order is Seq
	Prev Digest    `json:"prev"` // Hash of event Seq-1
	Hash Digest    `json:"hash"` // RFC 6962 leaf hash of the stored identity bytes
}

// Limits of one event.
const (
	MaxKey      = 1024     // bytes of a natural key
	MaxRecord   = 1 << 20  // bytes of Record and of Note
	MaxInline   = 32 << 10 // bytes of an inline payload
	MaxPayloads = 256      // payloads of one event
	MaxInputs   = 1 << 16  // inputs of one event
)

// Digest is the SHA-256 over the event's content; equal for equal events in every ledger.
func (e *Event) Digest() Digest {
	h := sha256.New()
	var n [8]byte
	put := func(b []byte) {
		binary.LittleEndian.PutUint64(n[:], uint64(len(b)))
		h.Write(n[:])
		h.Write(b)
	}
	put([]byte("quire event content 1"))
	put([]byte(e.Type))
	put([]byte{byte(e.Schema), byte(e.Schema >> 8)})
	put([]byte(e.Key))
	put(e.Record)
	binary.LittleEndian.PutUint64(n[:], uint64(len(e.Inputs)))
	h.Write(n[:])
	for _, r := range e.Inputs {
		put([]byte(r.Key))
		h.Write(r.Digest[:])
	}
	binary.LittleEndian.PutUint64(n[:], uint64(len(e.Payloads)))
	h.Write(n[:])
	for _, p := range e.Payloads {
		put([]byte(p.Role))
		put([]byte(p.Class))
		binary.LittleEndian.PutUint64(n[:], uint64(p.Length))
		h.Write(n[:])
		h.Write(p.SHA256[:])
	}
	var d Digest
	h.Sum(d[:0])
	return d
}

// Ref gives the reference by which other events name this one.
func (e *Event) Ref() Ref { return Ref{Key: e.Key, Digest: e.Digest()} }

// Payload gives the payload with the role.
func (e *Event) Payload(role string) (Payload, bool) {
	i := e.payloadIndex(role)
	if i < 0 {
		return Payload{}, false
	}
	return e.Payloads[i], true
}

func (e *Event) payloadIndex(role string) int {
	for i := range e.Payloads {
		if e.Payloads[i].Role == role {
			return i
		}
	}
	return -1
}

// differs names the first field of the content in which two events differ, or "".
func (e *Event) differs(o *Event) string {
	switch {
	case e.Type != o.Type:
		return "type"
	case e.Schema != o.Schema:
		return "schema"
	case e.Key != o.Key:
		return "key"
	case len(e.Payloads) != len(o.Payloads):
		return "number of payloads"
	case len(e.Inputs) != len(o.Inputs):
		return "number of inputs"
	}
	for i, p := range e.Payloads {
		q := o.Payloads[i]
		if p.Role != q.Role || p.Class != q.Class || p.Length != q.Length || p.SHA256 != q.SHA256 {
			return fmt.Sprintf("payload %s", p.Role)
		}
	}
	for i, r := range e.Inputs {
		if r != o.Inputs[i] {
			return fmt.Sprintf("input %s", r.Key)
		}
	}
	if !bytes.Equal(e.Record, o.Record) {
		return "record"
	}
	return ""
}

// check says what makes the event unfit to be appended.
func (e *Event) check() error {
	bad := func(format string, a ...any) error {
		return usage("event %s %q: %s", e.Type, e.Key, fmt.Sprintf(format, a...))
	}
	switch {
	case e.Type == "" || len(e.Type) > 64:
		return bad("a type has 1 to 64 bytes")
	case len(e.Key) > MaxKey:
		return bad("key of %d bytes, at most %d", len(e.Key), MaxKey)
	case strings.IndexByte(e.Key, 0) >= 0:
		return bad("key holds a zero byte")
	case len(e.Record) > MaxRecord || len(e.Note) > MaxRecord:
		return bad("record or note over %d bytes: make it a payload", MaxRecord)
	case len(e.Payloads) > MaxPayloads:
		return bad("%d payloads, at most %d", len(e.Payloads), MaxPayloads)
	case len(e.Inputs) > MaxInputs:
		return bad("%d inputs, at most %d", len(e.Inputs), MaxInputs)
	}
	for i, p := range e.Payloads {
		switch {
		case p.Role == "" || len(p.Role) > 64:
			return bad("payload %d: a role has 1 to 64 bytes", i)
		case e.payloadIndex(p.Role) != i:
			return bad("two payloads have the role %s", p.Role)
		case !validClass(p.Class):
			return bad("payload %s: retention class %q", p.Role, p.Class)
		case p.Length < 0:
			return bad("payload %s: length %d", p.Role, p.Length)
		case len(p.Inline) > MaxInline:
			return bad("payload %s: %d bytes inline, at most %d: use Put", p.Role, len(p.Inline), MaxInline)
		case p.Inline != nil && p.Ref != nil:
			return bad("payload %s is both inline and put", p.Role)
		case p.Ref != nil && p.Ref.Class != p.Class:
			return bad("payload %s: put as class %s, named as %s", p.Role, p.Ref.Class, p.Class)
		}
	}
	return nil
}

func validClass(c Class) bool {
	return c != "" && len(c) <= 32 && strings.Trim(string(c), "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}
