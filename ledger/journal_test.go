package ledger_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"quire/ledger"
	"quire/ledger/codec"
)

// crashed makes a small ledger that was not closed: its newest events, with payloads of every kind, are in the journal alone.
func crashed(t testing.TB, dir string) *truth {
	t.Helper()
	ctx := context.Background()
	l, payloads := filled(t, dir, 16, ledger.Options{PageSize: 4096, JournalBytes: 32 << 10, ReserveBytes: -1, NoServe: true})
	for i := range 9 {
		n := 1000 + i
		e := ledger.Event{Type: "decision", Schema: 1, Key: fmt.Sprintf("decision/tail/%d", i), Record: fmt.Appendf(nil, `{"i":%d}`, n)}
		if i%3 == 0 {
			b := pattern(500*(i+1), byte(n))
			ref, err := l.PutBytes(ctx, ledger.ClassCodes, "L0000", codec.None, b)
			if err != nil {
				t.Fatal(err)
			}
			e.Payloads = []ledger.Payload{ref.Payload("p"), {Role: "q", Class: ledger.ClassPermanent, Inline: pattern(100, byte(n))}}
			payloads[e.Key] = b
		}
		var err error
		if i == 4 { // a record of several events
			_, err = l.AppendAll(ctx, []ledger.Event{e, {Type: "x", Schema: 1}, {Type: "x", Schema: 1, Key: "second", Record: []byte(`{"i":3}`)}}).All(ctx)
		} else {
			_, err = l.Append(ctx, e).Wait(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	want := &truth{payloads: payloads}
	for e, err := range l.Since(0) {
		if err != nil {
			t.Fatal(err)
		}
		want.events = append(want.events, e)
	}
	l.Abandon()
	return want
}

// journalRegions says what each byte of a journal is for. It is written after docs/ledger.md.
func journalRegions(t testing.TB, dir string) (list []region, records int) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "journal"))
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(b); {
		from := int64(at)
		if !bytes.Equal(b[at:at+4], []byte("QJR1")) {
			list = append(list, region{"journal unused room", from, from + 512})
			at += 512
			continue
		}
		n := int64(binary.LittleEndian.Uint32(b[at+36:]))
		end := (from + 108 + n + 511) / 512 * 512
		list = append(list, region{"journal record", from, from + 104}, region{"journal events", from + 104, from + 104 + n},
			region{"journal checksum", from + 104 + n, from + 108 + n}, region{"journal room behind a record", from + 108 + n, end})
		at, records = int(end), records+1
	}
	return list, records
}

// TestJournal shows what the next stay makes of a journal.
func TestJournal(t *testing.T) {
	ctx := context.Background()
	base := filepath.Join(t.TempDir(), "base")
	want := crashed(t, base)
	_, records := journalRegions(t, base)
	if records < 6 {
		t.Fatalf("%d records in the journal show little", records)
	}
	last := uint64(len(want.events))
	path := func(dir string) string { return filepath.Join(dir, "journal") }
	record := func(b []byte, seq uint64) int { // where the record of an event begins
		for at := 0; at < len(b); at += 512 {
			if bytes.Equal(b[at:at+4], []byte("QJR1")) && binary.LittleEndian.Uint64(b[at+24:]) == seq {
				return at
			}
		}
		t.Fatalf("no record of event %d", seq)
		return 0
	}
	edit := func(f func(b []byte) []byte) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			b, err := os.ReadFile(path(dir))
			if err == nil {
				err = os.WriteFile(path(dir), f(b), 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name string
		harm func(t *testing.T, dir string)
		is   error  // what opening says, nil when nothing is lost
		left uint64 // events that are there when the loss is accepted
	}{
		{"whole", func(*testing.T, string) {}, nil, 0},
		{"longer", edit(func(b []byte) []byte { return append(b, make([]byte, 3000)...) }), nil, 0},
		{"without its unused end", edit(func(b []byte) []byte { return bytes.TrimRight(b, "\x00") }), nil, 0},
		{"removed", func(t *testing.T, dir string) {
			if err := os.Remove(path(dir)); err != nil {
				t.Fatal(err)
			}
		}, ledger.ErrRollback, 0},
		{"empty", edit(func([]byte) []byte { return nil }), ledger.ErrRollback, 0},
		{"newest record torn", edit(func(b []byte) []byte { b[record(b, last)+130] ^= 1; return b }), ledger.ErrRollback, last - 1},
		{"record in the middle damaged", edit(func(b []byte) []byte { b[record(b, last-2)+130] ^= 1; return b }), ledger.ErrDamaged, last - 3},
		{"record in the middle zeroed", edit(func(b []byte) []byte { clear(b[record(b, last-2):][:512]); return b }), ledger.ErrDamaged, last - 3},
		{"two records exchanged", edit(func(b []byte) []byte { // one sector each: it does not matter where a record is
			x, y := record(b, last-1), record(b, last-2)
			one := bytes.Clone(b[x : x+512])
			copy(b[x:], b[y:y+512])
			copy(b[y:], one)
			return b
		}), nil, 0},
		{"of another run", func(t *testing.T, dir string) {
			other := filepath.Join(t.TempDir(), "other")
			crashed(t, other)
			b, err := os.ReadFile(path(other))
			if err != nil {
				t.Fatal(err)
			}
			edit(func([]byte) []byte { return b })(t, dir)
		}, ledger.ErrDamaged, 0},
		{"of a newer version", edit(func(b []byte) []byte {
			at := record(b, last)
			n := int(binary.LittleEndian.Uint32(b[at+36:]))
			b[at+4] = 2
			binary.LittleEndian.PutUint32(b[at+104+n:], ledger.CRC(b[at:at+104+n]))
			return b
		}), ledger.ErrNewer, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			copyLedger(t, base, dir)
			c.harm(t, dir)
			o := ledger.Options{NoServe: true, ReserveBytes: -1}
			rep, ferr := ledger.Fsck(ctx, dir, ledger.FsckOptions{Level: ledger.LevelDeep})
			if c.is == nil {
				if err := answers(dir, want, false); err != nil {
					t.Fatal(err)
				}
				if ferr != nil || len(rep.Findings) > 0 || rep.Head.Seq != last {
					t.Fatal(rep, ferr)
				}
				copied := filepath.Join(t.TempDir(), "copy")
				r, err := ledger.OpenReader(dir, o)
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(r.Backup(ctx, copied, ledger.BackupOptions{}), r.Close()); err != nil {
					t.Fatal(err)
				}
				for _, d := range []string{copied, dir} {
					for _, writer := range []bool{true, false, true} { // the last two find what the first left
						if err := answers(d, want, writer); err != nil {
							t.Fatal(d, err)
						}
					}
				}
				return
			}
			if _, err := ledger.OpenReader(dir, o); !errors.Is(err, c.is) {
				t.Fatal(err)
			}
			if _, err := ledger.Open(ctx, dir, o); !errors.Is(err, c.is) {
				t.Fatal(err)
			}
			if errors.Is(c.is, ledger.ErrNewer) {
				if !errors.Is(ferr, c.is) {
					t.Fatal(ferr)
				}
				return
			}
			if ferr != nil || !rep.Damaged() {
				t.Fatal(rep, ferr)
			}
			o.AcceptRollback = true
			l, err := ledger.Open(ctx, dir, o)
			if err != nil {
				t.Fatal(err)
			}
			accepted, n := false, uint64(0)
			for e, err := range l.Since(0) {
				if err != nil {
					t.Fatal(err)
				}
				accepted = accepted || e.Type == ledger.TypeRollbackAccepted
				if n < last && e.Hash == want.events[n].Hash {
					n++
				}
			}
			if !accepted || n >= last || c.left != 0 && n != c.left {
				t.Fatalf("%d events are left, %d expected; rollback accepted: %v", n, c.left, accepted)
			}
			if err := l.Close(ctx, ""); err != nil {
				t.Fatal(err)
			}
			if rep, err := ledger.Fsck(ctx, dir, ledger.FsckOptions{Level: ledger.LevelDeep}); err != nil || rep.Damaged() {
				t.Fatal(rep, err)
			}
		})
	}
	t.Run("heals an older ledger.db", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "run")
		o := ledger.Options{NoServe: true, ReserveBytes: -1}
		l := create(t, dir, o)
		old := filepath.Join(t.TempDir(), "old")
		if err := l.Backup(ctx, old, ledger.BackupOptions{}); err != nil {
			t.Fatal(err)
		}
		for i := range 20 {
			if _, err := l.Append(ctx, ledger.Event{Type: "x", Schema: 1, Key: fmt.Sprint(i)}).Wait(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Backup(ctx, filepath.Join(t.TempDir(), "new"), ledger.BackupOptions{}); err != nil { // ledger.db has them
			t.Fatal(err)
		}
		head := l.Head()
		l.Abandon()
		b, err := os.ReadFile(filepath.Join(old, "ledger.db"))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "ledger.db"), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
		r, err := ledger.OpenReader(dir, o)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if h := r.Head(); h.Seq != head.Seq || h.Hash != head.Hash || h.Root != head.Root {
			t.Fatal(h, head)
		}
	})
	t.Run("salvaged", func(t *testing.T) {
		dir, to := filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "to")
		copyLedger(t, base, dir)
		rep, err := ledger.Salvage(ctx, dir, to, ledger.Options{ReserveBytes: -1})
		if err != nil || len(rep.Lost) > 0 {
			t.Fatal(rep, err)
		}
		r, err := ledger.OpenReader(to, ledger.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for key, b := range want.payloads {
			e, ok, err := r.Get(key)
			if err != nil || !ok {
				t.Fatal(key, ok, err)
			}
			if got, err := r.ReadPayload(ctx, e, "p"); err != nil || !bytes.Equal(got, b) {
				t.Fatal(key, err)
			}
		}
		if _, ok, err := r.Get("second"); err != nil || !ok {
			t.Fatal(err)
		}
	})
	t.Run("gone after closing", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "run")
		copyLedger(t, base, dir)
		l, err := ledger.Open(ctx, dir, ledger.Options{NoServe: true, ReserveBytes: -1})
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(ctx, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path(dir)); !os.IsNotExist(err) {
			t.Fatal(err)
		}
	})
}

// TestJournalSizes appends groups that fit the journal, fill it and are greater than it, and reads each back at once.
func TestJournalSizes(t *testing.T) {
	ctx := context.Background()
	for _, bytes := range []int64{-1, 16 << 10, 64 << 10, 0} {
		t.Run(fmt.Sprint(bytes), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			o := ledger.Options{NoServe: true, ReserveBytes: -1, JournalBytes: bytes}
			l := create(t, dir, o)
			n := 0
			for i := range 60 {
				var events []ledger.Event
				for range 1 + i*i%50 {
					events = append(events, ledger.Event{Type: "x", Schema: 1, Key: fmt.Sprintf("k/%05d", n*7919%10000), Note: pattern(i*40, byte(i))})
					n++
				}
				all, err := l.AppendAll(ctx, events).All(ctx)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range all {
					if got, ok, err := l.Get(e.Key); err != nil || !ok || got.Hash != e.Hash {
						t.Fatal(e.Key, ok, err)
					}
				}
				again, err := l.AppendAll(ctx, events[:1]).All(ctx) // an old key, wherever its event is
				if err != nil || again[0].Hash != all[0].Hash {
					t.Fatal(err)
				}
				events[0].Schema = 2
				if _, err := l.AppendAll(ctx, events[:1]).All(ctx); !errors.Is(err, ledger.ErrDivergence) {
					t.Fatal(err)
				}
				if i%7 == 0 {
					scanned, prev := 0, ""
					for e, err := range l.Scan("k/") {
						if err != nil || e.Key <= prev {
							t.Fatal(e.Key, prev, err)
						}
						scanned, prev = scanned+1, e.Key
					}
					if scanned != n {
						t.Fatalf("%d of %d keys are scanned", scanned, n)
					}
				}
				if i%20 == 19 {
					head := l.Head()
					l.Abandon()
					if l, err = ledger.Open(ctx, dir, o); err != nil {
						t.Fatal(err)
					}
					if e, err := l.At(head.Seq); err != nil || e.Hash != head.Hash {
						t.Fatal(err)
					}
				}
			}
			if err := l.Close(ctx, ""); err != nil {
				t.Fatal(err)
			}
			if rep, err := ledger.Fsck(ctx, dir, ledger.FsckOptions{}); err != nil || len(rep.Findings) > 0 {
				t.Fatal(rep, err)
			}
		})
	}
}
