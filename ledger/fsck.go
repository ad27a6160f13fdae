package ledger

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"quire/ledger/internal/boltfile"
)

// Level is how much a check reads; each includes those before it.
type Level int

// The levels of Fsck.
const (
	LevelQuick     Level = iota // headers, head, anchor, newest events, presence of segments
	LevelChain                  // every event: checksum, chain, Merkle leaf, index, locations
	LevelStructure              // every page of every file
	LevelData                   // the checksum of every chunk
	LevelDeep                   // decoding and SHA-256 of every payload
)

var levelNames = []string{"quick", "chain", "structure", "data", "deep"}

func (l Level) String() string { return levelNames[l] }

// ParseLevel reads a level's name.
func ParseLevel(s string) (Level, error) {
	for i, n := range levelNames {
		if n == s {
			return Level(i), nil
		}
	}
	return 0, usage("check level %q: one of %s", s, strings.Join(levelNames, ", "))
}

// FsckOptions of a check.
type FsckOptions struct {
	Level   Level
	Percent float64       // share of payloads read at the levels data and deep, chosen by digest; 0 = all
	Report  func(Finding) // called for each finding as it is found; may be nil
}

// Report is what a check found.
type Report struct {
	Level    string    `json:"level"`
	Head     Head      `json:"head"`
	Events   uint64    `json:"events"`   // read
	Segments int       `json:"segments"` // live
	Payloads int64     `json:"payloads"` // read
	Bytes    int64     `json:"bytes"`    // raw bytes read
	Findings []Finding `json:"findings"`
}

// Damaged says whether anything is lost or wrong.
func (r *Report) Damaged() bool {
	for _, f := range r.Findings {
		if f.Severity == "damage" {
			return true
		}
	}
	return false
}

// fsck walks a ledger that nobody writes and reports instead of stopping.
type fsck struct {
	ctx    context.Context
	dir    string
	o      FsckOptions
	r      *Reader
	rep    *Report
	anchor headSlot
}

// Fsck checks the ledger in dir. It changes nothing. What it finds is in the report; the error is for what kept it from
// looking: a live writer (*LockedError), no ledger, an end of ctx.
func Fsck(ctx context.Context, dir string, o FsckOptions) (*Report, error) {
	if err := present(dir); err != nil && !errors.Is(err, ErrDamaged) {
		return nil, err
	}
	if h, held, err := ReadHolder(dir); err == nil && held {
		return nil, &LockedError{Holder: h}
	}
	c := &fsck{ctx: ctx, dir: dir, o: o, rep: &Report{Level: o.Level.String(), Findings: []Finding{}}}
	return c.rep, c.run()
}

func (c *fsck) find(level Level, severity, code string, f Finding) {
	f.Type, f.Level, f.Severity, f.Code = "finding", level.String(), severity, code
	c.rep.Findings = append(c.rep.Findings, f)
	if c.o.Report != nil {
		c.o.Report(f)
	}
}

const (
	repairSalvage  = "`quire ledger salvage` copies what is sound into a new ledger; restore a backup if there is one"
	repairRederive = "resume or replay: a derivable payload is recomputed, compared and stored anew"
	repairRestore  = "restore the file from a backup; otherwise resume recomputes what is derivable"
)

func (c *fsck) run() error {
	anchor, slots, anchorErr := readHead(c.dir)
	for _, d := range slots {
		if anchorErr == nil {
			c.find(LevelQuick, "warning", "head-slot", Finding{File: headFileName, What: d.Error(), Consequence: "none: the other slot stands", Repair: "the next opening writes it anew"})
		}
	}
	if anchorErr != nil {
		c.find(LevelQuick, "warning", "head-lost", Finding{File: headFileName, What: anchorErr.Error(), Consequence: "a rollback of the newest commits cannot be noticed", Repair: "compare with a head from a log or a signed note; the next opening writes it anew"})
	}
	c.anchor = anchor
	r, err := openReader(c.dir, Options{})
	if err != nil {
		if errors.Is(err, ErrNewer) {
			return err
		}
		c.find(LevelQuick, "damage", "database", Finding{File: databaseName, What: err.Error(), Consequence: "the ledger cannot be opened", Repair: repairSalvage})
		return nil
	}
	defer r.Close()
	c.r = r
	if o := r.pages.Other; o != nil {
		c.find(LevelQuick, "warning", "database-header", Finding{File: databaseName, What: "one of the two file headers is damaged: " + o.Error(), Consequence: "if it was the newer, the newest commit is gone; HEAD tells", Repair: "the next commit writes it anew"})
	}
	head, err := r.checkHead()
	if err != nil {
		c.find(LevelQuick, "damage", "head-record", c.located(err, "the newest state is in doubt", repairSalvage))
	}
	head.Run = r.run
	if err == nil {
		if head, err = r.addJournal(head); err != nil {
			if errors.Is(err, ErrNewer) {
				return err
			}
			c.find(LevelQuick, "damage", "journal", c.located(err, "acknowledged events behind it cannot be read", repairSalvage))
		}
	}
	c.rep.Head, r.head = head, head
	if _, jerr := os.Stat(filepath.Join(c.dir, journalName)); err == nil && jerr == nil && anchorErr == nil && anchor.Seq > head.Seq {
		c.find(LevelQuick, "damage", "journal", Finding{File: journalName, Seq: head.Seq + 1, What: fmt.Sprintf("HEAD names event %d, with the journal the ledger ends at event %d", anchor.Seq, head.Seq), Consequence: "the records behind it are damaged, or not from here", Repair: repairSalvage})
	}
	if anchorErr == nil {
		switch err := c.compare(anchor, head); {
		case err == nil:
		case errors.Is(err, ErrRollback):
			c.find(LevelQuick, "damage", "rollback", Finding{File: databaseName, Seq: anchor.Seq, What: err.Error(), Consequence: fmt.Sprintf("events up to %d were acknowledged and are gone", anchor.Seq), Repair: "restore the newer ledger.db; or open with --accept-rollback and the work is repeated"})
		default:
			c.find(LevelQuick, "damage", "anchor", c.located(err, "the ledger cannot be compared with HEAD", repairSalvage))
		}
	}
	recs, err := r.segmentRecords()
	if err != nil {
		c.find(LevelQuick, "damage", "segment-table", c.located(err, "payloads cannot be found", repairSalvage))
	}
	live := c.segments(recs)
	if c.o.Level >= LevelChain {
		if err := c.events(); err != nil {
			return err
		}
	} else if f, err := loadFrontier(head.Seq, r.hashReader()); err != nil || f.root() != head.Root {
		c.find(LevelQuick, "damage", "tree", Finding{File: databaseName, What: fmt.Sprintf("the edge of the Merkle tree does not give the head's root (%v)", err), Consequence: "proofs cannot be given", Repair: repairSalvage})
	} else if err := r.checkTail(head, anchor, anchorErr == nil); err != nil {
		c.find(LevelQuick, "damage", "event", c.located(err, "the event cannot be read", repairSalvage))
	}
	if c.o.Level >= LevelStructure {
		c.structure(live)
	}
	if c.o.Level >= LevelData {
		return c.payloads()
	}
	return nil
}

func (c *fsck) compare(anchor headSlot, head Head) error {
	if anchor.Run != c.r.run {
		return damagedf(headFileName, "it belongs to run %s, ledger.db to run %s", anchor.Run, c.r.run)
	}
	return c.r.compareAnchor(anchor, head)
}

// located turns an error into a finding at its place.
func (c *fsck) located(err error, consequence, repair string) Finding {
	f := Finding{File: databaseName, What: err.Error(), Consequence: consequence, Repair: repair}
	var d *DamageError
	if errors.As(err, &d) {
		f.File, f.Seq, f.Key, f.Role = d.File, d.Seq, d.Key, d.Role
		if d.Chunk >= 0 {
			f.Chunk = &d.Chunk
		}
	}
	return f
}

// segments checks that every live segment is there and is itself.
func (c *fsck) segments(recs []segmentRecord) []segmentRecord {
	var live []segmentRecord
	known := map[string]bool{}
	for _, rec := range recs {
		if rec.State == segRetired || rec.State == segDropped {
			continue
		}
		known[filepath.Base(rec.file())] = true
		if rec.State == segRetiring {
			c.find(LevelQuick, "info", "retirement-open", Finding{File: rec.file(), Segment: rec.ID, What: "its retirement was recorded and not finished", Consequence: "none", Repair: "the next opening finishes it"})
			continue
		}
		c.rep.Segments++
		if err := c.segment(rec); err != nil {
			c.find(LevelQuick, "damage", "segment", Finding{File: rec.file(), Segment: rec.ID, What: err.Error(), Consequence: "its payloads cannot be read", Repair: repairRestore})
			continue
		}
		live = append(live, rec)
	}
	entries, _ := os.ReadDir(filepath.Join(c.dir, segmentDir))
	for _, e := range entries {
		if !known[e.Name()] {
			c.find(LevelQuick, "info", "segment-orphan", Finding{File: segmentDir + "/" + e.Name(), What: "no record names this file", Consequence: "none: it takes space", Repair: "the next opening removes it if it is empty; if it holds payloads, a record of it was lost"})
		}
	}
	return live
}

func (c *fsck) segment(rec segmentRecord) error {
	f, err := openSegmentFile(filepath.Join(c.dir, filepath.FromSlash(rec.file())), rec)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	b, err := boltfile.Open(f, st.Size())
	if err != nil {
		return err
	}
	if rec.State == segSealed && b.Meta.TxID != rec.TxID {
		return damagedf(rec.file(), "a sealed segment is at transaction %d instead of %d", b.Meta.TxID, rec.TxID)
	}
	if b.Other != nil {
		c.find(LevelQuick, "warning", "segment-header", Finding{File: rec.file(), Segment: rec.ID, What: b.Other.Error(), Consequence: "if it was the newer, the newest payload of the segment is gone; level data tells", Repair: "none needed if level data is clean"})
	}
	l := &Ledger{run: c.r.run}
	return l.checkIdentity(b, &segment{rec: rec})
}

// events reads every event, and goes on behind what it cannot read.
func (c *fsck) events() error {
	v := &c.r.view
	last := max(c.rep.Head.Seq, c.anchor.Seq)
	var tree frontier
	var stored uint64
	whole := true // no event was missing so far
	var prev Digest
	havePrev := true
	keys, located, owned := 0, 0, 0
	check := func(seq uint64, b []byte) error {
		e, err := checkEvent(seq, b)
		if err != nil {
			if errors.Is(err, ErrNewer) {
				return err
			}
			whole, havePrev = false, false
			c.find(LevelChain, "damage", "event", Finding{File: databaseName, Seq: seq, What: err.Error(), Consequence: "the event cannot be read; its hash is still proven by its neighbours", Repair: repairSalvage})
			return nil
		}
		c.rep.Events++
		if havePrev && e.Prev != prev {
			c.find(LevelChain, "damage", "chain", Finding{File: databaseName, Seq: seq, Key: e.Key, What: "it does not follow from the event before", Consequence: "history was changed here", Repair: "compare with a backup or a signed head"})
		}
		prev, havePrev = e.Hash, true
		if whole {
			tree.push(tlog.Hash(e.Hash), func(tlog.Hash) { stored++ })
		}
		if e.Key != "" {
			keys++
			at, err := v.st.get(bucketKeys, []byte(e.Key))
			if err != nil || len(at) != 8 || binary.BigEndian.Uint64(at) != seq {
				c.find(LevelChain, "damage", "index", Finding{File: databaseName, Seq: seq, Key: e.Key, What: fmt.Sprintf("the index does not lead to it (%v)", err), Consequence: "the event is not found by its key, and would be written again", Repair: repairSalvage})
			}
		}
		for i, p := range e.Payloads {
			lk := locationKey(seq, i)
			b, err := v.st.get(bucketLocations, lk)
			var loc Location
			if err == nil && b != nil {
				located++
				loc, err = parseLocation(b)
			}
			if err == nil && loc.Kind == KindSegment {
				owned++
				if o, oerr := v.st.get(bucketOwners, ownerKey(loc, lk)); oerr != nil || o == nil {
					c.find(LevelChain, "damage", "owner", Finding{File: databaseName, Seq: seq, Key: e.Key, Role: p.Role, What: fmt.Sprintf("the table of owners does not list it (%v)", oerr), Consequence: "none for reading; a retirement would not count it", Repair: repairSalvage})
				}
			}
			if err != nil {
				c.find(LevelChain, "damage", "location", Finding{File: databaseName, Seq: seq, Key: e.Key, Role: p.Role, What: err.Error(), Consequence: "the payload cannot be found", Repair: repairSalvage})
			}
		}
		return nil
	}
	var newer error
	disorder := false
	for next := uint64(1); next <= last; {
		if err := c.ctx.Err(); err != nil {
			return context.Cause(c.ctx)
		}
		started := next
		_, err := v.st.scan(bucketEvents, seqKey(next), 4096, func(k, b []byte) error {
			if len(k) != 8 {
				return damagedf(databaseName, "event key of %d bytes", len(k))
			}
			seq := binary.BigEndian.Uint64(k)
			if seq != next {
				return errStop
			}
			next++
			if err := check(seq, b); err != nil {
				newer = err
				return errStop
			}
			return nil
		})
		if newer != nil {
			return newer
		}
		if next > last {
			break
		}
		if b, gerr := v.st.get(bucketEvents, seqKey(next)); gerr == nil && b != nil {
			if err == nil && next > started {
				continue // the scan ended at its limit
			}
			// A search finds it and a walk does not: the order of keys is damaged.
			if !disorder {
				disorder = true
				c.find(LevelChain, "damage", "order", Finding{File: databaseName, Seq: next, What: fmt.Sprintf("the event is found by its number and not in order (%v)", err), Consequence: "listings end before it", Repair: repairSalvage})
			}
			if err := check(next, b); err != nil {
				return err
			}
			next++
			continue
		}
		// Events are missing here: find the next that can be read.
		from := next
		what := "missing"
		if err != nil {
			what = err.Error()
		}
		for ; next <= last; next++ {
			if b, err := v.st.get(bucketEvents, seqKey(next)); err == nil && b != nil {
				break
			}
		}
		whole, havePrev = false, false
		c.find(LevelChain, "damage", "event", Finding{File: databaseName, Seq: from, What: fmt.Sprintf("events %d to %d cannot be read: %s", from, next-1, what), Consequence: "what they recorded is lost unless salvage finds it", Repair: repairSalvage})
	}
	if whole && tree.n == c.rep.Head.Seq && tree.root() != c.rep.Head.Root {
		c.find(LevelChain, "damage", "tree", Finding{File: databaseName, What: "the events give another Merkle root than the head names", Consequence: "history was changed", Repair: "compare with a backup or a signed head"})
	}
	c.tree(whole)
	c.entries(bucketKeys, "index", keys, "a key may lead nowhere")
	if whole {
		c.entries(bucketLocations, "location", located, "a payload may not be found")
		c.entries(bucketOwners, "owner", owned, "a retirement would count wrong")
	}
	return nil
}

// tree checks the stored Merkle hashes against the events' own.
func (c *fsck) tree(whole bool) {
	if !whole {
		return
	}
	var tree frontier
	var at, count uint64
	var block []byte
	bad := ""
	compare := func(h tlog.Hash) {
		if bad != "" {
			return
		}
		if n := count / hashesPerBlock; block == nil || n != at {
			b, err := c.r.st.get(bucketHashes, seqKey(n))
			if err == nil {
				block, err = checkHashBlock(b)
			}
			if err != nil {
				bad = fmt.Sprintf("Merkle block %d: %v", n, err)
				return
			}
			at = n
		}
		o := int(count%hashesPerBlock) * tlog.HashSize
		if o+tlog.HashSize > len(block) || tlog.Hash(block[o:o+tlog.HashSize]) != h {
			bad = fmt.Sprintf("Merkle hash %d differs from the event's", count)
		}
		count++
	}
	for e, err := range c.r.Since(0) {
		if err != nil || bad != "" {
			break
		}
		tree.push(tlog.Hash(e.Hash), compare)
	}
	if bad != "" {
		c.find(LevelChain, "damage", "tree", Finding{File: databaseName, What: bad, Consequence: "proofs cannot be given; the events themselves stand", Repair: repairSalvage})
	}
}

// entries looks for entries of a table that belong to no event: want is how many the events account for.
func (c *fsck) entries(table []byte, code string, want int, consequence string) {
	n := 0
	for from := []byte(nil); ; {
		more, err := c.r.st.scan(table, from, 4096, func(k, _ []byte) error {
			n++
			from = append(append([]byte(nil), k...), 0)
			return nil
		})
		if err != nil {
			c.find(LevelChain, "damage", code, c.located(err, consequence, repairSalvage))
			return
		}
		if !more {
			break
		}
	}
	if n != want {
		c.find(LevelChain, "damage", code, Finding{File: databaseName, What: fmt.Sprintf("%d entries in table %s, the events account for %d", n, table, want), Consequence: consequence, Repair: repairSalvage})
	}
}

// structure checks every page of every file.
func (c *fsck) structure(live []segmentRecord) {
	if _, err := checkPages(filepath.Join(c.dir, databaseName), databaseName, boltfile.Elements); err != nil {
		c.find(LevelStructure, "damage", "pages", c.located(err, "parts of the file cannot be followed", repairSalvage))
	}
	for _, rec := range live {
		if _, err := checkPages(filepath.Join(c.dir, filepath.FromSlash(rec.file())), rec.file(), boltfile.Elements); err != nil {
			f := c.located(err, "payloads of the segment may be unreadable; level data says which", repairRestore)
			f.Segment = rec.ID
			c.find(LevelStructure, "damage", "pages", f)
		}
	}
}

// payloads reads payloads: checksums at level data, everything at level deep.
func (c *fsck) payloads() error {
	v := &c.r.view
	var bad []Finding
	for e, err := range c.r.Since(0) {
		if err != nil {
			break // reported by events
		}
		if err := c.ctx.Err(); err != nil {
			return context.Cause(c.ctx)
		}
		for _, p := range e.Payloads {
			if c.o.Percent > 0 && float64(binary.BigEndian.Uint32(p.SHA256[:4]))/(1<<32)*100 >= c.o.Percent {
				continue
			}
			loc, err := v.Locate(e, p.Role)
			if err == nil && loc.Kind != KindInline && loc.Kind != KindSegment {
				continue
			}
			c.rep.Payloads++
			if err == nil {
				err = c.payload(e, p)
			}
			if err != nil {
				f := c.located(err, fmt.Sprintf("%d bytes of %s are lost or in doubt", p.Length, e.Key), repairRederive)
				f.Seq, f.Key, f.Role = e.Seq, e.Key, p.Role
				bad = append(bad, f)
			}
		}
	}
	sort.SliceStable(bad, func(i, j int) bool { return bad[i].Seq < bad[j].Seq })
	for _, f := range bad {
		c.find(c.o.Level, "damage", "payload", f)
	}
	return nil
}

func (c *fsck) payload(e Event, p Payload) error {
	r, err := c.r.OpenPayload(c.ctx, e, p.Role)
	if err != nil {
		return err
	}
	defer r.Close()
	n, err := r.scan(c.o.Level >= LevelDeep)
	c.rep.Bytes += n
	return err
}
