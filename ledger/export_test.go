package ledger

import (
	"os"
	"time"
)

// SetFailpoint lets a test stop the process at the named instants. Failpoints lists the names.
func SetFailpoint(f func(name string)) {
	if f == nil {
		failHook.Store(nil)
		return
	}
	failHook.Store(&f)
}

// SetSync lets a test stand in for the sync of segments; nil ends that.
func SetSync(f func(*os.File) error) {
	if f == nil {
		syncHook.Store(nil)
		return
	}
	syncHook.Store(&f)
}

// Failpoints are the names that occur.
func Failpoints() []string { return failpoints }

// The decoders of what stands on disk, for fuzzing.
var (
	DecodeEnvelope = decodeEnvelope
	DecodeLock     = decodeLock
	EncodeLock     = encodeLock
	DecodeHeadFile = func(b []byte) (Head, error) { s, _, err := decodeHeadFile(b); return s.Head, err }
	DecodeHeadSlot = func(b []byte) (Head, error) { s, err := decodeHeadSlot(b); return s.Head, err }
	DecodeLocation = parseLocation
	EncodeLocation = func(l Location) []byte { return appendLocation(nil, l) }
	EncodeHeadSlot = func(h Head, g uint64) []byte { return encodeHeadSlot(headSlot{Head: h, Generation: g}) }
	CRC            = crcOf

	// DecodePayloadHead gives length, chunk size and number of chunks.
	DecodePayloadHead = func(b []byte) (int64, uint32, uint32, error) {
		h, err := decodePayloadHead(b)
		return h.Length, h.ChunkRaw, h.Chunks, err
	}
	// DecodeJournal gives the events of the record that b begins with, and writes them again.
	DecodeJournal = func(b []byte) (events []Event, again []byte, err error) {
		r, err := decodeJournalRecord(b)
		if err != nil {
			return nil, nil, err
		}
		again = make([]byte, journalPrefix)
		err = r.events(func(e Event, envelope []byte, payloads []stored) error {
			events = append(events, e)
			again = appendJournalEvent(again, envelope, payloads)
			return nil
		})
		return events, sealJournalRecord(again, r.run, r.first, int(r.count), r.prev, r.hash), err
	}
	EncodeJournal = func(events ...Event) []byte {
		b, prev := make([]byte, journalPrefix), events[0].Prev
		var c chain
		c.head = Head{Seq: events[0].Seq - 1, Hash: prev}
		for _, e := range events {
			envelope, payloads := c.next(&item{ev: e, buf: encodeBody(&e)}, e.Time)
			b = appendJournalEvent(b, envelope, payloads)
			c.head.Seq++
			c.head.Hash = identityHash(envelope[:len(envelope)-envelopeCRC])
		}
		return sealJournalRecord(b, RunID{1}, events[0].Seq, len(events), prev, c.head.Hash)
	}

	CheckChunk          = checkChunk
	ChunkCRC            = chunkCRC
	DecodeSegmentRecord = func(id uint32, b []byte) (file string, again []byte, err error) {
		r, err := parseSegmentRecord(id, b)
		return r.file(), r.encode(), err
	}
	EncodeEvent = func(e Event) []byte { b, _ := sealEnvelope(encodeBody(&e), e.Seq, e.Time, e.Prev); return b }
)

// SetPatience changes how long a client waits for a silent writer.
func (c *Client) SetPatience(d time.Duration) { c.patience = d }
