package ledger

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
)

// Type registers a type of event. The code that writes a type owns its registration.
type Type struct {
	Name      string
	Schema    uint16   // newest version of Record's form that this program writes and reads
	Permanent bool     // a reader that does not know the type must not judge a ledger that holds it
	Roles     []string // payload roles it may name; nil = any
}

// Options of a ledger. The zero value is usable.
type Options struct {
	// Types lists the event types that may be appended. Empty = any. The ledger's own types are always known.
	Types []Type
	// Stay is stored in the `opened` event's note: limits, CPU level, contract id, whatever tells stays apart.
	Stay json.RawMessage
	// InFlightBytes bounds encoded payload bytes accepted and not yet durable; events have an eighth of it beside.
	// Default 64 MiB; the engine scales it with the memory limit.
	InFlightBytes int64
	// TransactionBytes bounds the payload bytes of one transaction. Default 8 MiB, 1 MiB to 64 MiB.
	TransactionBytes int64
	// ChunkBytes is the raw size of a chunk. Default and maximum 1 MiB, minimum 4 KiB, a multiple of 16.
	ChunkBytes int
	// PageSize of ledger.db at creation. Default 16 KiB.
	PageSize int
	// SegmentBytes after which a segment is rolled. Default 4 GiB.
	SegmentBytes int64
	// ReserveBytes of the file that is given back to finish the last commits when the disk is full. Default 4 MiB, negative = none.
	ReserveBytes int64
	// JournalBytes of the file in which events are durable before they are in ledger.db. Default 4 MiB, negative = none: then
	// every group of events is a transaction of ledger.db, which takes two syncs and more bytes.
	JournalBytes int64
	// TakeOver takes the lock of a holder on another host whose heartbeat is not old enough.
	TakeOver bool
	// AcceptRollback goes on although HEAD is newer than the ledger; the acceptance becomes an event.
	AcceptRollback bool
	// VerifyEncode decodes every chunk after encoding it, for classes of statistics. Nil = ClassOpen.
	VerifyEncode func(Class) bool
	// Decoders read payloads that moved into tensors or foreign files, by Location.Decoder.
	Decoders map[string]Decoder
	// Signer signs heads (HEAD.note) at syncs and at close. Optional.
	Signer note.Signer
	// NoServe leaves out the socket.
	NoServe bool
	// Log receives what happened at opening and what went wrong. Nil = discard.
	Log *slog.Logger

	// Now and Random are bent by tests. Nil = the clock, crypto/rand.
	Now    func() time.Time
	Random io.Reader
}

func (o Options) withDefaults() (Options, error) {
	def := func(p *int64, v int64) {
		if *p == 0 {
			*p = v
		}
	}
	def(&o.InFlightBytes, 64<<20)
	def(&o.TransactionBytes, 8<<20)
	def(&o.SegmentBytes, 4<<30)
	def(&o.ReserveBytes, 4<<20)
	def(&o.JournalBytes, 4<<20)
	if o.ChunkBytes == 0 {
		o.ChunkBytes = 1 << 20
	}
	if o.PageSize == 0 {
		o.PageSize = 16 << 10
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.VerifyEncode == nil {
		o.VerifyEncode = func(c Class) bool { return c == ClassOpen }
	}
	switch {
	case o.ChunkBytes < 4<<10 || o.ChunkBytes > 1<<20 || o.ChunkBytes%16 != 0:
		return o, usage("chunk size %d: 4 KiB to 1 MiB, a multiple of 16", o.ChunkBytes)
	case o.TransactionBytes < 1<<20 || o.TransactionBytes > 64<<20:
		return o, usage("transaction size %d: 1 MiB to 64 MiB", o.TransactionBytes)
	case o.PageSize < 4<<10 || o.PageSize > 64<<10 || o.PageSize&(o.PageSize-1) != 0:
		return o, usage("page size %d: a power of two, 4 KiB to 64 KiB", o.PageSize)
	case o.InFlightBytes < 1<<20:
		return o, usage("%d bytes in flight: at least 1 MiB", o.InFlightBytes)
	case o.JournalBytes > 0 && (o.JournalBytes < 16<<10 || o.JournalBytes >= journalLimit || o.JournalBytes%(2*journalSector) != 0):
		return o, usage("journal of %d bytes: 16 KiB to less than 1 GiB, a multiple of 1 KiB", o.JournalBytes)
	case o.SegmentBytes < 1<<20:
		return o, usage("segment size %d: at least 1 MiB", o.SegmentBytes)
	}
	for _, t := range o.Types {
		if t.Name == "" || strings.HasPrefix(t.Name, "ledger.") || ownType(t.Name) {
			return o, usage("event type %q is reserved or empty", t.Name)
		}
	}
	return o, nil
}

// The ledger's own event types.
const (
	TypeGenesis          = "genesis"
	TypeOpened           = "opened"
	TypeClosed           = "closed"
	TypeRetired          = "retired"
	TypeRebuilt          = "rebuilt"
	TypeFinding          = "finding"
	TypeTakenOver        = "taken-over"
	TypeRollbackAccepted = "rollback-accepted"
	TypeSalvaged         = "salvaged"
)

func ownType(t string) bool {
	switch t {
	case TypeGenesis, TypeOpened, TypeClosed, TypeRetired, TypeRebuilt, TypeTakenOver, TypeRollbackAccepted, TypeSalvaged:
		return true
	}
	return false
}

// checkType says whether an event's type is registered with such roles.
func (o *Options) checkType(e *Event) error {
	if len(o.Types) == 0 || ownType(e.Type) || e.Type == TypeFinding {
		return nil
	}
	for _, t := range o.Types {
		if t.Name != e.Type {
			continue
		}
		if e.Schema == 0 || e.Schema > t.Schema {
			return usage("event type %s has schemas 1 to %d, not %d", t.Name, t.Schema, e.Schema)
		}
		for _, p := range e.Payloads {
			if t.Roles != nil && !contains(t.Roles, p.Role) {
				return usage("event type %s names no payload %q", t.Name, p.Role)
			}
		}
		return nil
	}
	return usage("event type %q is not registered", e.Type)
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// mustJSON encodes the ledger's own records, which always can be.
func mustJSON(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("ledger: %v", err))
	}
	return b
}
