package ledger

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Head names a state of the ledger: everything up to Seq.
type Head struct {
	Seq  uint64    `json:"seq"`  // also the size of the Merkle tree
	Hash Digest    `json:"hash"` // of event Seq
	Root Digest    `json:"root"` // RFC 6962 tree over events 1..Seq
	Time time.Time `json:"time"` // of event Seq
	Run  RunID     `json:"run"`
}

// RunID tells ledgers apart; random, made at creation.
type RunID [16]byte

// String gives the id in hexadecimal.
func (r RunID) String() string { return fmt.Sprintf("%x", r[:]) }

// MarshalText writes hexadecimal.
func (r RunID) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads hexadecimal.
func (r *RunID) UnmarshalText(b []byte) error {
	if len(b) != 32 {
		return fmt.Errorf("ledger: a run id has 32 hexadecimal digits")
	}
	_, err := hex.Decode(r[:], b)
	return err
}

// HEAD holds two slots of 512 bytes; generation g is in slot g mod 2. Little-endian:
//
//	0        4        6      8      24           32     40       72       104      112     508     512
//	+--------+--------+------+------+------------+------+--------+--------+--------+-------+-------+
//	| "QHD1" | format | flags| run  | generation | seq  | hash   | root   | time   | zeros | crc32c|
//	| 4 B    | u16    | u16  | 16 B | u64        | u64  | 32 B   | 32 B   | i64 ns |       | u32   |
//	+--------+--------+------+------+------------+------+--------+--------+--------+-------+-------+
//
// flags bit 0: the stay was closed. A slot is written after the events that it names are durable, so a valid HEAD is never
// newer than ledger.db with the journal unless something was lost.
const (
	headMagic    = "QHD1"
	headFormat   = 1
	headSlotSize = 512
	headFileName = "HEAD"

	headFlagClosed = 1
)

type headSlot struct {
	Head
	Generation uint64
	Closed     bool
}

func encodeHeadSlot(s headSlot) []byte {
	b := make([]byte, headSlotSize)
	copy(b, headMagic)
	binary.LittleEndian.PutUint16(b[4:], headFormat)
	if s.Closed {
		binary.LittleEndian.PutUint16(b[6:], headFlagClosed)
	}
	copy(b[8:], s.Run[:])
	binary.LittleEndian.PutUint64(b[24:], s.Generation)
	binary.LittleEndian.PutUint64(b[32:], s.Seq)
	copy(b[40:], s.Hash[:])
	copy(b[72:], s.Root[:])
	binary.LittleEndian.PutUint64(b[104:], uint64(s.Time.UnixNano()))
	binary.LittleEndian.PutUint32(b[508:], crcOf(b[:508]))
	return b
}

func decodeHeadSlot(b []byte) (headSlot, error) {
	if len(b) != headSlotSize {
		return headSlot{}, fmt.Errorf("slot of %d bytes", len(b))
	}
	if string(b[:4]) != headMagic {
		return headSlot{}, fmt.Errorf("slot magic %x", b[:4])
	}
	if got, want := crcOf(b[:508]), binary.LittleEndian.Uint32(b[508:]); got != want {
		return headSlot{}, fmt.Errorf("slot checksum %08x, stored %08x", got, want)
	}
	if f := binary.LittleEndian.Uint16(b[4:]); f > headFormat {
		return headSlot{}, newer(fmt.Sprintf("HEAD format %d", f))
	}
	s := headSlot{Generation: binary.LittleEndian.Uint64(b[24:]), Closed: binary.LittleEndian.Uint16(b[6:])&headFlagClosed != 0}
	s.Run = RunID(b[8:24])
	s.Seq = binary.LittleEndian.Uint64(b[32:])
	s.Hash = Digest(b[40:72])
	s.Root = Digest(b[72:104])
	s.Time = time.Unix(0, int64(binary.LittleEndian.Uint64(b[104:]))).UTC()
	return s, nil
}

// decodeHeadFile gives the newest valid slot and what is wrong with the other, if anything.
func decodeHeadFile(b []byte) (best headSlot, damage []error, err error) {
	found := false
	for i := range 2 {
		if len(b) < (i+1)*headSlotSize {
			damage = append(damage, fmt.Errorf("slot %d missing: file of %d bytes", i, len(b)))
			continue
		}
		s, err := decodeHeadSlot(b[i*headSlotSize : (i+1)*headSlotSize])
		switch {
		case errors.Is(err, ErrNewer):
			return headSlot{}, nil, err
		case err != nil:
			damage = append(damage, fmt.Errorf("slot %d: %w", i, err))
			continue
		case s.Generation%2 != uint64(i):
			damage = append(damage, fmt.Errorf("slot %d holds generation %d", i, s.Generation))
			continue
		}
		if !found || s.Generation > best.Generation {
			best, found = s, true
		}
	}
	if len(b) > 2*headSlotSize {
		damage = append(damage, fmt.Errorf("%d bytes behind the slots", len(b)-2*headSlotSize))
	}
	if !found {
		return headSlot{}, damage, errors.Join(append([]error{errors.New("no valid slot")}, damage...)...)
	}
	return best, damage, nil
}

// readHead reads RUN/HEAD. It gives os.ErrNotExist when there is none.
func readHead(dir string) (headSlot, []error, error) {
	f, err := os.Open(filepath.Join(dir, headFileName))
	if err != nil {
		return headSlot{}, nil, err
	}
	defer f.Close()
	b := make([]byte, 2*headSlotSize+1)
	n, _ := f.ReadAt(b, 0)
	return decodeHeadFile(b[:n])
}

// headFile is HEAD open for writing.
type headFile struct {
	f          *os.File
	generation uint64
	dirty      bool
}

// createHead writes HEAD with both slots naming h, durable.
func createHead(dir string, h Head) error {
	b := append(encodeHeadSlot(headSlot{Head: h, Generation: 0}), encodeHeadSlot(headSlot{Head: h, Generation: 1})...)
	return writeFileDurably(filepath.Join(dir, headFileName), b)
}

func openHead(dir string, generation uint64) (*headFile, error) {
	f, err := os.OpenFile(filepath.Join(dir, headFileName), os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	return &headFile{f: f, generation: generation}, nil
}

// write puts the next generation in its slot; not synced.
func (h *headFile) write(head Head, closed bool) error {
	failpoint("head.write")
	g := h.generation + 1
	s := headSlot{Head: head, Generation: g, Closed: closed}
	if _, err := h.f.WriteAt(encodeHeadSlot(s), int64(g%2)*headSlotSize); err != nil {
		return err
	}
	h.generation, h.dirty = g, true
	failpoint("head.written")
	return nil
}

func (h *headFile) sync() error {
	if !h.dirty {
		return nil
	}
	if err := fdatasync(h.f); err != nil {
		return err
	}
	h.dirty = false
	failpoint("head.synced")
	return nil
}

func (h *headFile) close() error { return h.f.Close() }

// The head record, in bucket `head`: seq u64, hash 32 B, root 32 B, time i64 ns, crc32c u32; little-endian.
const headRecordSize = 84

func encodeHeadRecord(h Head) []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, headRecordSize), h.Seq)
	b = append(b, h.Hash[:]...)
	b = append(b, h.Root[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.Time.UnixNano()))
	return binary.LittleEndian.AppendUint32(b, crcOf(b))
}

func decodeHeadRecord(b []byte) (Head, error) {
	if len(b) != headRecordSize || crcOf(b[:80]) != binary.LittleEndian.Uint32(b[80:]) {
		return Head{}, damagedf(databaseName, "head record of %d bytes", len(b))
	}
	return Head{Seq: binary.LittleEndian.Uint64(b), Hash: Digest(b[8:40]), Root: Digest(b[40:72]),
		Time: time.Unix(0, int64(binary.LittleEndian.Uint64(b[72:]))).UTC()}, nil
}
