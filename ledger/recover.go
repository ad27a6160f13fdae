package ledger

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/mod/sumdb/tlog"

	"quire/ledger/internal/boltfile"
)

// tailChecked is how many events before the anchor are verified again at every opening.
const tailChecked = 256

// recovered is what opening found, to be recorded once events can be appended.
type recovered struct {
	rollback *Head // HEAD named this, the ledger is older, and that was accepted
	retiring []*segment
	dropped  []string // orphan payloads and files
}

// recover brings the directory into a state in which it can be written: steps 2 to 8 of an opening.
func (l *Ledger) recover() (*recovered, error) {
	rec := &recovered{}
	path := l.path(databaseName)
	if _, err := checkPages(path, databaseName, boltfile.Pages); err != nil {
		return nil, err
	}
	anchor, slotDamage, anchorErr := readHead(l.dir)
	if errors.Is(anchorErr, ErrNewer) {
		return nil, anchorErr
	}
	db, err := openBolt(path, databaseName, bolt.Options{InitialMmapSize: 4 << 30})
	if err != nil {
		return nil, err
	}
	l.db = db
	l.view = view{st: boltStore{db}, decoders: l.opts.Decoders}
	if err := l.readMeta(); err != nil {
		return nil, err
	}
	head, err := l.checkHead()
	if err != nil {
		return nil, err
	}
	head.Run = l.run
	c := chain{head: head}
	if c.tree, c.hashes, err = l.loadTree(head); err != nil {
		return nil, err
	}
	t := &tail{}
	y, after, err := l.replay(l.dir, head, l.run)
	if err != nil {
		if !l.opts.AcceptRollback || !errors.Is(err, ErrDamaged) {
			return nil, err
		}
		l.findings = append(l.findings, Finding{Level: "quick", Code: "journal", File: journalName, What: err.Error(),
			Consequence: "the events behind it are lost", Repair: "none: the loss was accepted, and the work is repeated"})
	}
	if y != nil {
		t.layers = []*layer{y}
		head, c = after.head, after
	}
	l.view.st = layeredStore{boltStore{db}, t}
	switch {
	case anchorErr != nil:
		l.findings = append(l.findings, Finding{Level: "quick", Code: "head-lost", File: headFileName, What: "no readable anchor: " + anchorErr.Error(),
			Consequence: "a rollback of the newest commits before this opening could not have been noticed", Repair: "none needed: it is written anew"})
	case anchor.Run != l.run:
		return nil, damagedf(headFileName, "it belongs to run %s, ledger.db to run %s", anchor.Run, l.run)
	default:
		for _, d := range slotDamage {
			l.findings = append(l.findings, Finding{Level: "quick", Code: "head-slot", File: headFileName, What: d.Error(),
				Consequence: "none: the other slot stands", Repair: "none needed: it is written anew"})
		}
		if err := l.compareAnchor(anchor, head); err != nil {
			if !l.opts.AcceptRollback {
				return nil, err
			}
			rec.rollback = &anchor.Head
		}
	}
	if err := l.checkTail(head, anchor, anchorErr == nil); err != nil {
		return nil, err
	}
	if anchorErr != nil {
		if err := createHead(l.dir, head); err != nil {
			return nil, err
		}
		anchor.Generation = 1
	}
	hf, err := openHead(l.dir, anchor.Generation)
	if err != nil {
		return nil, err
	}
	newWriters(l, hf, c, t)
	l.segments = &segmentSet{l: l, byID: map[uint32]*segment{}, current: map[string]*segment{}}
	l.view.seg = liveSegments{l}
	if err := l.loadSegments(rec); err != nil {
		return nil, err
	}
	return rec, nil
}

// readMeta checks format and run id.
func (l *Ledger) readMeta() error {
	run, err := readMeta(l.st)
	l.run = run
	return err
}

func readMeta(st store) (run RunID, err error) {
	b, err := st.get(bucketMeta, formatKey)
	if err != nil {
		return run, err
	}
	if len(b) != 4 {
		return run, damagedf(databaseName, "no format number")
	}
	if f := binary.LittleEndian.Uint32(b); f > databaseFormat {
		return run, newer(fmt.Sprintf("ledger format %d, this program knows %d", f, databaseFormat))
	} else if f == 0 {
		return run, damagedf(databaseName, "format number 0")
	}
	if b, err = st.get(bucketMeta, runKey); err != nil {
		return run, err
	}
	if len(b) != len(run) {
		return run, damagedf(databaseName, "no run id")
	}
	copy(run[:], b)
	return run, nil
}

// checkHead compares the head record with the newest event and the stored tree.
func (v *view) checkHead() (Head, error) {
	b, err := v.st.get(bucketHead, headKey)
	if err != nil {
		return Head{}, err
	}
	h, err := decodeHeadRecord(b)
	if err != nil {
		return h, err
	}
	_, last, err := v.bounds()
	if err != nil {
		return h, err
	}
	if last != h.Seq {
		return h, damagedf(databaseName, "the head names event %d, the newest is %d", h.Seq, last)
	}
	e, err := v.eventAt(h.Seq)
	if err != nil {
		return h, err
	}
	if e.Hash != h.Hash {
		return h, &DamageError{File: databaseName, Seq: h.Seq, Chunk: -1, What: "the newest event has another hash than the head names"}
	}
	return h, nil
}

func (v *view) hashReader() tlog.HashReader {
	return hashBlocks(func(block uint64) ([]byte, error) {
		b, err := v.st.get(bucketHashes, seqKey(block))
		if err == nil && b == nil {
			err = damagedf(databaseName, "Merkle block %d is missing", block)
		}
		return b, err
	})
}

// loadTree rebuilds the writer's edge of the Merkle tree and compares its root with the head.
func (v *view) loadTree(h Head) (frontier, hashAppender, error) {
	var a hashAppender
	f, err := loadFrontier(h.Seq, v.hashReader())
	if err != nil {
		return f, a, &DamageError{File: databaseName, Chunk: -1, What: "Merkle tree", Inner: err}
	}
	if f.root() != h.Root {
		return f, a, damagedf(databaseName, "the Merkle tree has another root than the head names")
	}
	a.count = uint64(tlog.StoredHashCount(int64(h.Seq)))
	if a.count%hashesPerBlock != 0 {
		b, err := v.st.get(bucketHashes, seqKey(a.count/hashesPerBlock))
		if err != nil {
			return f, a, err
		}
		body, err := checkHashBlock(b)
		if err != nil || uint64(len(body)/tlog.HashSize) != a.count%hashesPerBlock {
			return f, a, &DamageError{File: databaseName, Chunk: -1, What: "newest Merkle block", Inner: err}
		}
		a.tail = bytes.Clone(body)
	}
	return f, a, nil
}

// compareAnchor notices that the ledger is older than HEAD.
func (v *view) compareAnchor(anchor headSlot, head Head) error {
	if anchor.Seq > head.Seq {
		return rolledBack(databaseName, fmt.Sprintf("HEAD names event %d, the newest is %d", anchor.Seq, head.Seq))
	}
	e, err := v.eventAt(anchor.Seq)
	if err != nil {
		return err
	}
	if e.Hash != anchor.Hash {
		return rolledBack(databaseName, fmt.Sprintf("event %d has hash %.16s, HEAD names %.16s", anchor.Seq, e.Hash, anchor.Hash))
	}
	return nil
}

// checkTail verifies chain and leaf hashes of the newest events: all that the anchor does not cover, and some before.
func (v *view) checkTail(head Head, anchor headSlot, anchored bool) error {
	from := head.Seq
	if anchored {
		from = min(from, anchor.Seq)
	}
	if from > tailChecked {
		from -= tailChecked
	} else {
		from = 1
	}
	prev, err := v.eventAt(from)
	if err != nil {
		return err
	}
	for e, err := range v.Since(from) {
		if err != nil {
			return err
		}
		if e.Prev != prev.Hash {
			return &DamageError{File: databaseName, Seq: e.Seq, Key: e.Key, Chunk: -1, What: "the hash chain is broken"}
		}
		prev = e
	}
	return nil
}

// loadSegments reads the table of segments, compares it with the directory, finishes retirements and drops orphans.
func (l *Ledger) loadSegments(rec *recovered) error {
	known := map[string]bool{}
	recs, err := l.segmentRecords()
	if err != nil {
		return err
	}
	for _, r := range recs {
		g := l.newSegment(r)
		l.segments.byID[r.ID] = g
		l.segments.last = max(l.segments.last, r.ID)
		switch r.State {
		case segRetiring:
			rec.retiring = append(rec.retiring, g)
			known[filepath.Base(g.path)] = true
			continue
		case segRetired, segDropped:
			continue
		}
		known[filepath.Base(g.path)] = true
		if err := l.adopt(g, rec); err != nil {
			if !errors.Is(err, ErrDamaged) {
				return err
			}
			g.failed = err
			l.findings = append(l.findings, Finding{Level: "quick", Code: "segment-damaged", File: r.file(), Segment: r.ID, What: err.Error(),
				Consequence: "its payloads cannot be read; a further Put starts a new file", Repair: "`quire ledger fsck --level data` lists the payloads; derivable ones are recomputed"})
		}
	}
	entries, err := os.ReadDir(l.path(segmentDir))
	if os.IsNotExist(err) {
		if err := os.MkdirAll(l.path(segmentDir), 0o755); err != nil {
			return err
		}
		return syncDir(l.dir)
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := segmentDir + "/" + e.Name()
		if known[e.Name()] || !(strings.HasSuffix(name, ".db") || strings.HasSuffix(name, ".db.new")) {
			continue
		}
		// A crash leaves unfinished files and empty ones that were not recorded yet. One that holds payloads was recorded:
		// if it is unknown now, it is the record that was lost, and the payloads must not follow it.
		if strings.HasSuffix(name, ".db") && rec.rollback == nil && !emptySegment(l.path(name)) {
			l.findings = append(l.findings, Finding{Level: "quick", Code: "segment-orphan", File: name, What: "no record names this file, and it is not empty",
				Consequence: "none for what is recorded; it takes space", Repair: "`quire ledger fsck`, then `salvage` if records were lost; otherwise remove it"})
			continue
		}
		if err := os.Remove(l.path(name)); err != nil {
			return err
		}
		rec.dropped = append(rec.dropped, name)
	}
	return nil
}

// emptySegment says whether a segment file is sound and holds nothing.
func emptySegment(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	empty := true
	some := func(boltfile.Entry) error { empty = false; return io.EOF }
	err = readSegment(f, filepath.Base(path), func(_ *os.File, parts, headers boltfile.Bucket) error {
		return errors.Join(parts.Walk(nil, some), headers.Walk(nil, some))
	})
	return err == nil && empty
}

// segmentRecords gives the table of segments, by id.
func (v *view) segmentRecords() (recs []segmentRecord, err error) {
	for from := []byte(nil); ; {
		more, err := v.st.scan(bucketSegments, from, scanBatch, func(k, b []byte) error {
			if len(k) != 4 {
				return damagedf(databaseName, "segment key of %d bytes", len(k))
			}
			r, err := parseSegmentRecord(binary.BigEndian.Uint32(k), b)
			recs = append(recs, r)
			from = append(bytes.Clone(k), 0)
			return err
		})
		if err != nil || !more {
			return recs, err
		}
	}
}

// adopt prepares a live segment: finds its next ordinal and drops the payloads that no event names.
func (l *Ledger) adopt(g *segment, rec *recovered) error {
	file, err := openSegmentFile(g.path, g.rec)
	if err != nil {
		return err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return err
	}
	name := g.rec.file()
	if g.rec.State == segSealed {
		b, err := boltfile.Open(file, st.Size())
		if err != nil {
			return &DamageError{File: name, Chunk: -1, What: "file header", Inner: err}
		}
		if b.Meta.TxID != g.rec.TxID {
			return damagedf(name, "a sealed segment is at transaction %d instead of %d", b.Meta.TxID, g.rec.TxID)
		}
		return l.checkIdentity(b, g)
	}
	b, err := checkPages(g.path, name, boltfile.Pages)
	if err != nil {
		return err
	}
	bf, err := boltfile.Open(file, st.Size())
	if err != nil {
		return &DamageError{File: name, Chunk: -1, What: "file header", Inner: err}
	}
	_ = b
	if err := l.checkIdentity(bf, g); err != nil {
		return err
	}
	l.segments.current[segmentName(g.rec.Class, g.rec.Key)] = g
	owned := map[uint64]bool{}
	if err := l.ownersOf(g.rec.ID, func(ordinal, _ uint64, _ int) error {
		owned[ordinal] = true
		return nil
	}); err != nil {
		return err
	}
	var orphanParts, orphanHeads [][]byte
	err = withTables(bf.Root(), name, file, func(_ *os.File, parts, headers boltfile.Bucket) error {
		visit := func(into *[][]byte) func(boltfile.Entry) error {
			return func(e boltfile.Entry) error {
				if len(e.Key) < 8 {
					return damagedf(name, "key of %d bytes", len(e.Key))
				}
				n := binary.BigEndian.Uint64(e.Key)
				g.next = max(g.next, n+1)
				if !owned[n] {
					*into = append(*into, bytes.Clone(e.Key))
				}
				return nil
			}
		}
		if err := parts.Walk(nil, visit(&orphanParts)); err != nil {
			return err
		}
		return headers.Walk(nil, visit(&orphanHeads))
	})
	if err != nil {
		if errors.Is(err, boltfile.ErrFormat) {
			err = &DamageError{File: name, Chunk: -1, What: "tables", Inner: err}
		}
		return err
	}
	for n := range owned {
		g.next = max(g.next, n+1)
	}
	if len(orphanParts)+len(orphanHeads) == 0 {
		return nil
	}
	// What is deleted is gone: the table of owners alone, whose keys have no checksum, is not enough.
	named, err := l.locatedIn(g.rec.ID)
	if err != nil {
		l.findings = append(l.findings, Finding{Level: "quick", Code: "location", File: databaseName, Segment: g.rec.ID, What: err.Error(),
			Consequence: "payloads that no event names were kept in " + name, Repair: repairSalvage})
		return nil
	}
	lost := 0
	kept := func(k []byte) bool {
		if named[binary.BigEndian.Uint64(k)] {
			lost++
			return true
		}
		return false
	}
	orphanParts, orphanHeads = slices.DeleteFunc(orphanParts, kept), slices.DeleteFunc(orphanHeads, kept)
	if lost > 0 {
		l.findings = append(l.findings, Finding{Level: "quick", Code: "owner", File: databaseName, Segment: g.rec.ID, What: "the table of owners does not list payloads whose location is in " + name,
			Consequence: "none for reading; a retirement would not count them", Repair: repairSalvage})
	}
	if len(orphanParts)+len(orphanHeads) == 0 {
		return nil
	}
	rec.dropped = append(rec.dropped, fmt.Sprintf("%s: %d parts", name, len(orphanParts)))
	file.Close()
	db, err := openBolt(g.path, name, bolt.Options{NoFreelistSync: true})
	if err != nil {
		return err
	}
	err = guarded(name, func() error {
		return db.Update(func(tx *bolt.Tx) error {
			for _, k := range orphanParts {
				if err := tx.Bucket(bucketParts).DeleteBucket(k); err != nil {
					return err
				}
			}
			for _, k := range orphanHeads {
				if err := tx.Bucket(bucketHeaders).Delete(k); err != nil {
					return err
				}
			}
			return nil
		})
	})
	return errors.Join(causeOf(err), guarded(name, db.Close))
}

// checkIdentity notices a segment file in another's place.
func (l *Ledger) checkIdentity(b *boltfile.File, g *segment) error {
	name := g.rec.file()
	t, ok, err := b.Root().Bucket(bucketIdentity)
	var raw []byte
	if err == nil && ok {
		raw, ok, err = t.Get([]byte("id"))
	}
	var id segmentIdentity
	if err == nil && ok {
		err = json.Unmarshal(raw, &id)
	}
	if err != nil || !ok {
		return &DamageError{File: name, Chunk: -1, What: "identity of the segment", Inner: err}
	}
	if id != (segmentIdentity{Run: l.run, Class: g.rec.Class, Key: g.rec.Key, Roll: g.rec.Roll}) {
		return damagedf(name, "the file says that it is %s-%s-%03d of run %s", id.Class, id.Key, id.Roll, id.Run)
	}
	return nil
}

// ownersOf calls f for every payload name that needs a segment: ordinal, event, index of the payload.
func (v *view) ownersOf(id uint32, f func(ordinal, seq uint64, index int) error) error {
	prefix := indexKey(id)
	for from := prefix; ; {
		more, err := v.st.scan(bucketOwners, from, 4096, func(k, _ []byte) error {
			if !bytes.HasPrefix(k, prefix) {
				return errStop
			}
			if len(k) != 22 {
				return damagedf(databaseName, "owner key of %d bytes", len(k))
			}
			from = append(bytes.Clone(k), 0)
			return f(binary.BigEndian.Uint64(k[4:]), binary.BigEndian.Uint64(k[12:]), int(binary.BigEndian.Uint16(k[20:])))
		})
		if err != nil || !more {
			return err
		}
	}
}

// locatedIn gives the payloads of a segment that locations name, whatever the table of owners says.
func (v *view) locatedIn(id uint32) (map[uint64]bool, error) {
	named := map[uint64]bool{}
	for from := []byte(nil); ; {
		more, err := v.st.scan(bucketLocations, from, 4096, func(k, b []byte) error {
			from = append(bytes.Clone(k), 0)
			loc, err := parseLocation(b)
			if err != nil {
				return damagedf(databaseName, "location %x: %v", k, err)
			}
			if loc.Kind == KindSegment && loc.SegmentID == id {
				named[loc.Ordinal] = true
			}
			return nil
		})
		if err != nil || !more {
			return named, err
		}
	}
}

// announce appends what opening must record, and finishes retirements.
func (l *Ledger) announce(ctx context.Context, rec *recovered) error {
	if rec.rollback != nil {
		r := mustJSON(map[string]any{"head": rec.rollback, "ledger": l.Head()})
		if _, err := l.submit(ctx, &request{}, Event{Type: TypeRollbackAccepted, Schema: 1, Record: r}).Wait(ctx); err != nil {
			return err
		}
	}
	if l.previous.TookOver {
		r := mustJSON(map[string]any{"holder": l.previous.Holder})
		if _, err := l.submit(ctx, &request{}, Event{Type: TypeTakenOver, Schema: 1, Note: r}).Wait(ctx); err != nil {
			return err
		}
	}
	for _, g := range rec.retiring {
		if err := l.finishRetirement(ctx, g); err != nil {
			return err
		}
	}
	note := map[string]any{"holder": l.lock.self, "previous": l.previous}
	if len(rec.dropped) > 0 {
		note["dropped"] = rec.dropped
	}
	if len(l.findings) > 0 {
		note["findings"] = l.findings
	}
	if len(l.opts.Stay) > 0 {
		note["stay"] = l.opts.Stay
	}
	_, err := l.submit(ctx, &request{barrier: true}, Event{Type: TypeOpened, Schema: 1, Note: mustJSON(note)}).Wait(ctx)
	return err
}
