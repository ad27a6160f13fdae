package ledger

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"quire/ledger/codec"
	"quire/ledger/internal/boltfile"
)

// SalvageReport is what Salvage copied and what it could not.
type SalvageReport struct {
	Events   int64     `json:"events"`
	Payloads int64     `json:"payloads"`
	Bytes    int64     `json:"bytes"` // raw
	Lost     []Finding `json:"lost"`  // events and payloads that are not in the copy
}

// Salvage copies what is sound in a damaged ledger into a new one. Events are found by their own checksums anywhere in
// ledger.db and in the journal, payloads by their headers in the segment files, so neither the page structure nor the tables are needed.
// The copy has a chain of its own; each event's note names the old number and hash. What was lost is in `finding`
// events of the copy and in the report. The damaged ledger is not changed.
func Salvage(ctx context.Context, from, to string, o Options) (*SalvageReport, error) {
	if h, held, err := ReadHolder(from); err == nil && held {
		return nil, &LockedError{Holder: h}
	}
	f, err := os.Open(filepath.Join(from, databaseName))
	if os.IsNotExist(err) {
		return nil, noLedger(from)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	files := []*os.File{f}
	if j, err := os.Open(filepath.Join(from, journalName)); err == nil {
		defer j.Close()
		files = append(files, j)
	}
	found := map[uint64][]place{}
	for _, f := range files {
		if err := findEnvelopes(f, found); err != nil {
			return nil, err
		}
	}
	if len(found) == 0 {
		return nil, damagedf(databaseName, "no event could be found")
	}
	s := &salvage{ctx: ctx, from: from, rep: &SalvageReport{Lost: []Finding{}}, where: map[Digest][]salvaged{}}
	s.indexSegments()
	defer s.close()
	if r, err := openReader(from, Options{}); err == nil {
		s.old = r
		defer r.Close()
		if head, err := r.checkHead(); err == nil {
			_, _ = r.addJournal(head) // what can be read of it
		}
	}
	return s.rep, s.copy(found, to, o)
}

// place is where an envelope starts.
type place struct {
	file *os.File
	off  int64
	size int
}

// findEnvelopes looks for envelopes with a valid checksum at every offset. The newest state may hold several copies of
// an event, which are equal, or versions from before a rollback.
func findEnvelopes(f *os.File, found map[uint64][]place) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	const window = 4 << 20
	buf := make([]byte, window+len(envelopeMagic))
	for base := int64(0); base < st.Size(); base += window {
		n, err := f.ReadAt(buf, base)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		for at := 0; at < min(n, window); {
			i := bytes.Index(buf[at:n], []byte(envelopeMagic))
			if i < 0 || at+i >= window {
				break
			}
			at += i
			if b, err := readEnvelope(f, base+int64(at)); err == nil {
				seq := binary.LittleEndian.Uint64(b[8:])
				found[seq] = append(found[seq], place{f, base + int64(at), len(b)})
			}
			at += len(envelopeMagic)
		}
	}
	return nil
}

func readEnvelope(f *os.File, off int64) ([]byte, error) {
	head := make([]byte, envelopePrefix)
	if _, err := f.ReadAt(head, off); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[56:])
	if n > 64<<20 {
		return nil, errors.New("too long")
	}
	b := make([]byte, envelopePrefix+int(n)+envelopeCRC)
	if _, err := f.ReadAt(b, off); err != nil {
		return nil, err
	}
	_, err := envelopeIdentity(b)
	return b, err
}

// salvaged is a payload found in a segment file.
type salvaged struct {
	class Class
	key   string
	file  string
	ord   uint64
	head  payloadHead
}

type salvage struct {
	ctx   context.Context
	from  string
	old   *Reader // nil when the tables cannot be read
	rep   *SalvageReport
	where map[Digest][]salvaged
	open  map[string]*os.File
}

func (s *salvage) close() {
	for _, f := range s.open {
		f.Close()
	}
}

// indexSegments reads the payload headers of every segment file.
func (s *salvage) indexSegments() {
	s.open = map[string]*os.File{}
	entries, _ := os.ReadDir(filepath.Join(s.from, segmentDir))
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), ".db")
		class, rest, ok := strings.Cut(name, "-")
		cut := strings.LastIndexByte(rest, '-')
		if !ok || cut < 1 || name == e.Name() || !validClass(Class(class)) || !validSegmentKey(rest[:cut]) {
			continue
		}
		f, err := os.Open(filepath.Join(s.from, segmentDir, e.Name()))
		if err != nil {
			continue
		}
		s.open[e.Name()] = f
		_ = readSegment(f, e.Name(), func(_ *os.File, _, headers boltfile.Bucket) error {
			return headers.Walk(nil, func(en boltfile.Entry) error {
				b, err := en.Bytes()
				if err != nil || len(en.Key) != 8 {
					return err
				}
				if h, err := decodePayloadHead(b); err == nil {
					s.where[h.SHA256] = append(s.where[h.SHA256], salvaged{Class(class), rest[:cut], e.Name(), binary.BigEndian.Uint64(en.Key), h})
				}
				return nil
			})
		})
	}
}

func (s *salvage) lose(f Finding) {
	f.Type, f.Level, f.Severity = "finding", "salvage", "damage"
	s.rep.Lost = append(s.rep.Lost, f)
}

// copy appends what was found to a new ledger.
func (s *salvage) copy(found map[uint64][]place, to string, o Options) (err error) {
	seqs := make([]uint64, 0, len(found))
	for q := range found {
		seqs = append(seqs, q)
	}
	sort.Slice(seqs, func(i, j int) bool { return seqs[i] < seqs[j] })
	events := s.choose(seqs, found)
	g := Genesis{}
	if e, ok, err := s.event(events, 1); err == nil && ok && e.Type == TypeGenesis {
		g = Genesis{Record: e.Record, Inputs: e.Inputs, Note: salvagedNote(e)}
	}
	o.NoServe = true
	l, err := Create(s.ctx, to, g, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close(s.ctx, "salvaged")) }()
	next := uint64(1)
	for _, q := range seqs {
		if q > next {
			s.lose(Finding{Code: "event", File: databaseName, Seq: next, What: fmt.Sprintf("events %d to %d were not found", next, q-1), Consequence: "what they recorded is lost", Repair: "resume repeats the work"})
		}
		next = q + 1
		e, ok, err := s.event(events, q)
		if err != nil || !ok {
			s.lose(Finding{Code: "event", File: databaseName, Seq: q, What: fmt.Sprint(err), Consequence: "what it recorded is lost", Repair: "resume repeats the work"})
			continue
		}
		if e.Type == TypeGenesis {
			continue
		}
		if err := s.append(l, e); err != nil {
			return err
		}
	}
	_, err = l.submit(s.ctx, &request{}, Event{Type: TypeSalvaged, Schema: 1, Record: mustJSON(map[string]any{"events": s.rep.Events, "payloads": s.rep.Payloads, "lost": len(s.rep.Lost)})}).Wait(s.ctx)
	if err != nil {
		return err
	}
	for _, f := range s.rep.Lost {
		if _, err := l.Find(s.ctx, "", mustJSON(f)).Wait(s.ctx); err != nil {
			return err
		}
	}
	return nil
}

// choose settles which version of an event is taken where a rollback left several: the one that the next event follows.
func (s *salvage) choose(seqs []uint64, found map[uint64][]place) map[uint64]place {
	chosen := map[uint64]place{}
	var follows Digest // prev of the event after
	haveNext := false
	for i := len(seqs) - 1; i >= 0; i-- {
		q := seqs[i]
		pick := found[q][len(found[q])-1]
		var prev Digest
		for _, p := range found[q] {
			b, err := readEnvelope(p.file, p.off)
			if err != nil {
				continue
			}
			id, _ := envelopeIdentity(b)
			if haveNext && identityHash(id) == follows {
				pick, prev = p, Digest(b[24:56])
				break
			}
			if p == pick {
				prev = Digest(b[24:56])
			}
		}
		chosen[q] = pick
		follows, haveNext = prev, i > 0 && seqs[i-1] == q-1
	}
	return chosen
}

func (s *salvage) event(chosen map[uint64]place, seq uint64) (Event, bool, error) {
	p, ok := chosen[seq]
	if !ok {
		return Event{}, false, nil
	}
	b, err := readEnvelope(p.file, p.off)
	if err != nil {
		return Event{}, false, err
	}
	e, err := decodeEnvelope(b)
	return e, err == nil, err
}

func salvagedNote(e Event) []byte {
	return mustJSON(map[string]any{"salvaged": map[string]any{"seq": e.Seq, "hash": e.Hash, "time": e.Time}, "note": e.Note})
}

// append writes one old event, with the payloads that can be read.
func (s *salvage) append(l *Ledger, e Event) error {
	n := Event{Type: e.Type, Schema: e.Schema, Key: e.Key, Record: e.Record, Inputs: e.Inputs, Note: salvagedNote(e)}
	var moves []Relocation
	for _, p := range e.Payloads {
		q := Payload{Role: p.Role, Class: p.Class, Length: p.Length, SHA256: p.SHA256}
		loc := Location{Kind: KindNone}
		if s.old != nil {
			if at, err := s.old.Locate(e, p.Role); err == nil {
				loc = at
			}
		}
		switch {
		case loc.Kind == KindInline:
			b, err := s.old.ReadPayload(s.ctx, e, p.Role)
			if err == nil {
				q.Inline = b
				s.rep.Payloads++
				s.rep.Bytes += p.Length
			} else {
				s.loseP(e, p, err)
			}
		case loc.Kind == KindTensor || loc.Kind == KindForeign:
			moves = append(moves, Relocation{Key: e.Key, Role: p.Role, Location: loc})
		case loc.Kind == KindRetired:
		default:
			ref, err := s.payload(l, p)
			switch {
			case err == nil:
				q = ref.Payload(p.Role)
				s.rep.Payloads++
				s.rep.Bytes += p.Length
			case errors.Is(err, ErrDiskFull) || s.ctx.Err() != nil:
				return err
			case loc.Kind != KindNone || s.old == nil:
				s.loseP(e, p, err)
			}
		}
		n.Payloads = append(n.Payloads, q)
	}
	_, err := l.submit(s.ctx, &request{}, n).Wait(s.ctx)
	if errors.Is(err, ErrDivergence) {
		s.lose(Finding{Code: "event", Seq: e.Seq, Key: e.Key, What: err.Error(), Consequence: "the first content of the key was kept", Repair: "none"})
		return nil
	}
	if err != nil {
		return err
	}
	s.rep.Events++
	if len(moves) > 0 && e.Key != "" {
		return l.Relocate(s.ctx, moves...)
	}
	return nil
}

func (s *salvage) loseP(e Event, p Payload, err error) {
	s.lose(Finding{Code: "payload", Seq: e.Seq, Key: e.Key, Role: p.Role, What: err.Error(), Consequence: fmt.Sprintf("%d bytes are lost; length and SHA-256 stand", p.Length), Repair: repairRederive})
}

// payload copies the first sound copy of a payload into the new ledger.
func (s *salvage) payload(l *Ledger, p Payload) (PayloadRef, error) {
	err := errors.New("it is in no segment file")
	for _, at := range s.where[p.SHA256] {
		if at.head.Length != p.Length || at.class != p.Class {
			continue
		}
		rec := segmentRecord{ID: 1, Class: at.class, Key: at.key}
		r := &PayloadReader{ctx: s.ctx, where: DamageError{Chunk: -1}, len: p.Length, sha: p.SHA256, hash: newHash()}
		r.src = &segmentSource{r: r, files: oneFile{s.open[at.file], at.file}, rec: rec, cached: -1, loc: Location{Kind: KindSegment, Ordinal: at.ord, ChunkRaw: at.head.ChunkRaw}}
		var ref PayloadRef
		id := at.head.Codec
		if !id.Known() {
			id = codec.None
		}
		ref, err = l.Put(s.ctx, p.Class, at.key, id, r)
		if err = errors.Join(err, r.Close()); err == nil {
			return ref, nil
		}
	}
	return PayloadRef{}, err
}

// oneFile is a segment by itself, without a ledger that knows it.
type oneFile struct {
	f    *os.File
	name string
}

func (o oneFile) record(uint32) (segmentRecord, error) { return segmentRecord{}, nil }

func (o oneFile) with(_ segmentRecord, f func(file *os.File, parts, headers boltfile.Bucket) error) error {
	return readSegment(o.f, segmentDir+"/"+o.name, f)
}

func (o oneFile) data(_ segmentRecord, f func(file *os.File) error) error { return f(o.f) }
