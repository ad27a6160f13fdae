package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
)

// The journal is a file of fixed size that lies beside ledger.db while somebody writes, and after a crash. A group of events
// is durable, and is acknowledged, once its record is synced there: one write over bytes that are allocated, one sync.
// ledger.db gets the events later, many groups in one transaction. The file has two areas. One takes the records of new
// groups while those of the other are on their way to ledger.db; it is written over only when they have arrived.
//
// A record begins at a multiple of 512 bytes, so that writing it touches no sector of the one before. Little-endian:
//
//	0        4        6      8      24      32      36     40     72     104      104+n    108+n
//	+--------+--------+------+------+-------+-------+------+------+------+--------+--------+-------+
//	| "QJR1" | format | zero | run  | first | count | n    | prev | hash | n bytes| crc32c | zeros |
//	| 4 B    | u16    | u16  | 16 B | u64   | u32   | u32  | 32 B | 32 B | events | u32    |       |
//	+--------+--------+------+------+-------+-------+------+------+------+--------+--------+-------+
//
// first and count are the numbers of the events, prev is the hash of event first-1, hash that of the last. An event is
//
//	n u32 ‖ envelope ‖ for each payload: n u16 ‖ location ‖ when it is inline, n u32 ‖ bytes
//
// Records that are in ledger.db already are passed over by their numbers, so nothing marks them as done. The next record
// is the one that begins with the next number and the hash of the event before.
const (
	journalName   = "journal"
	journalMagic  = "QJR1"
	journalFormat = 1
	journalSector = 512
	journalPrefix = 104

	// journalLimit is the greatest file that is looked at.
	journalLimit = 1 << 30
)

// stored says where a payload of an event is, and gives its bytes when it is inline.
type stored struct {
	loc    Location
	inline []byte
}

// appendJournalEvent adds an event to the body of a record.
func appendJournalEvent(b, envelope []byte, payloads []stored) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(envelope)))
	b = append(b, envelope...)
	for _, p := range payloads {
		at := len(b)
		b = appendLocation(binary.LittleEndian.AppendUint16(b, 0), p.loc)
		binary.LittleEndian.PutUint16(b[at:], uint16(len(b)-at-2))
		if p.loc.Kind == KindInline {
			b = binary.LittleEndian.AppendUint32(b, uint32(len(p.inline)))
			b = append(b, p.inline...)
		}
	}
	return b
}

// sealJournalRecord fills in the prefix of a record, for which b has room before the body, and adds checksum and zeros.
func sealJournalRecord(b []byte, run RunID, first uint64, count int, prev, hash Digest) []byte {
	clear(b[:journalPrefix])
	copy(b, journalMagic)
	binary.LittleEndian.PutUint16(b[4:], journalFormat)
	copy(b[8:], run[:])
	binary.LittleEndian.PutUint64(b[24:], first)
	binary.LittleEndian.PutUint32(b[32:], uint32(count))
	binary.LittleEndian.PutUint32(b[36:], uint32(len(b)-journalPrefix))
	copy(b[40:], prev[:])
	copy(b[72:], hash[:])
	b = binary.LittleEndian.AppendUint32(b, crcOf(b))
	return append(b, make([]byte, -len(b)&(journalSector-1))...)
}

// journalRecord is a record whose checksum holds.
type journalRecord struct {
	run        RunID
	first      uint64
	count      uint32
	prev, hash Digest
	body       []byte
	size       int // in the file
}

// errNoRecord says that no whole record begins here.
var errNoRecord = errors.New("no journal record")

// decodeJournalRecord reads the record that b begins with. It does not copy.
func decodeJournalRecord(b []byte) (journalRecord, error) {
	if len(b) < journalPrefix+4 || string(b[:4]) != journalMagic {
		return journalRecord{}, errNoRecord
	}
	n := int64(binary.LittleEndian.Uint32(b[36:]))
	if n > int64(len(b)-journalPrefix-4) {
		return journalRecord{}, errNoRecord
	}
	end := journalPrefix + int(n)
	if crcOf(b[:end]) != binary.LittleEndian.Uint32(b[end:]) {
		return journalRecord{}, errNoRecord
	}
	if f := binary.LittleEndian.Uint16(b[4:]); f > journalFormat {
		return journalRecord{}, newer(fmt.Sprintf("journal format %d", f))
	}
	return journalRecord{run: RunID(b[8:24]), first: binary.LittleEndian.Uint64(b[24:]), count: binary.LittleEndian.Uint32(b[32:]),
		prev: Digest(b[40:72]), hash: Digest(b[72:104]), body: b[journalPrefix:end], size: (end + 4 + journalSector - 1) &^ (journalSector - 1)}, nil
}

// events gives the events of a record in order, with their envelopes; payloads do not outlive the call.
func (r *journalRecord) events(f func(e Event, envelope []byte, payloads []stored) error) error {
	b := r.body
	take := func(n int64) ([]byte, error) {
		if n > int64(len(b)) {
			return nil, fmt.Errorf("journal record of event %d: %d bytes wanted, %d left", r.first, n, len(b))
		}
		v := b[:n:n]
		b = b[n:]
		return v, nil
	}
	sized := func(bytes int64) ([]byte, error) { // a length and what it counts
		v, err := take(bytes)
		if err != nil {
			return nil, err
		}
		if bytes == 2 {
			return take(int64(binary.LittleEndian.Uint16(v)))
		}
		return take(int64(binary.LittleEndian.Uint32(v)))
	}
	prev := r.prev
	for i := range uint64(r.count) {
		envelope, err := sized(4)
		if err != nil {
			return err
		}
		e, err := decodeEnvelope(envelope)
		if err != nil {
			return err
		}
		if e.Seq != r.first+i || e.Prev != prev {
			return fmt.Errorf("journal record of event %d holds event %d, or one that does not follow", r.first+i, e.Seq)
		}
		prev = e.Hash
		payloads := make([]stored, len(e.Payloads))
		for j := range payloads {
			at, err := sized(2)
			if err != nil {
				return err
			}
			if payloads[j].loc, err = parseLocation(at); err != nil {
				return err
			}
			if payloads[j].loc.Kind == KindInline {
				if payloads[j].inline, err = sized(4); err != nil {
					return err
				}
			}
		}
		if err := f(e, envelope, payloads); err != nil {
			return err
		}
	}
	if len(b) > 0 || prev != r.hash {
		return fmt.Errorf("journal record of event %d: %d bytes are left, or its last event has another hash", r.first, len(b))
	}
	return nil
}

// findRecords gives the whole records in a journal file, by their first event.
func findRecords(b []byte) ([]journalRecord, error) {
	var list []journalRecord
	for at := 0; at < len(b); {
		r, err := decodeJournalRecord(b[at:])
		switch {
		case err == nil:
			list = append(list, r)
			at += r.size
		case errors.Is(err, errNoRecord):
			at += journalSector
		default:
			return nil, err
		}
	}
	sort.SliceStable(list, func(i, j int) bool { return list[i].first < list[j].first })
	return list, nil
}

// readJournal gives the bytes of RUN/journal, nil when there is none.
func readJournal(dir string) ([]byte, error) {
	f, err := os.Open(filepath.Join(dir, journalName))
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(st.Size(), journalLimit))
	n, err := io.ReadFull(f, b)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = nil
	}
	return b[:n], err
}

// journalFile is the journal open for writing.
type journalFile struct {
	f    *os.File
	run  RunID
	area int64 // bytes of each of the two
	turn int64 // which takes records
	off  int64 // in it
}

// createJournal puts a journal of zeros in place of the one that is there, durable.
func createJournal(dir string, run RunID, size int64) (*journalFile, error) {
	path := filepath.Join(dir, journalName)
	err := putFileDurably(path, func(f *os.File) error {
		// A page at a time: what one write brings into the page cache may become one piece there, and the kernel counts all of
		// a piece as written when a record touches it.
		var zeros [4 << 10]byte
		for at := int64(0); at < size; {
			n, err := f.Write(zeros[:min(size-at, int64(len(zeros)))])
			if err != nil {
				return err
			}
			at += int64(n)
		}
		return nil
	})
	if err != nil {
		os.Remove(path + ".tmp")
		return nil, err
	}
	failpoint("journal.created")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return &journalFile{f: f, run: run, area: size / 2}, nil
}

// removeJournal takes the journal away when all of it is in ledger.db. If a loss of power brings it back, it does no harm.
func removeJournal(dir string) error {
	if err := os.Remove(filepath.Join(dir, journalName)); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

func (j *journalFile) fits(n int) bool { return j.off+int64(n) <= j.area }

// write makes a record durable. written says whether anything may be in the file when it fails.
func (j *journalFile) write(record []byte) (written bool, err error) {
	failpoint("journal.write")
	if _, err := j.f.WriteAt(record, j.turn*j.area+j.off); err != nil {
		return false, err
	}
	failpoint("journal.written")
	if err := fdatasync(j.f); err != nil {
		return true, err
	}
	j.off += int64(len(record))
	failpoint("journal.synced")
	return true, nil
}

// swap lets the other area take records. All of its own are in ledger.db.
func (j *journalFile) swap() { j.turn, j.off = 1-j.turn, 0 }

func (j *journalFile) close() error { return j.f.Close() }
