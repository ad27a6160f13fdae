package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"quire/ledger"
	"quire/ledger/codec"
	"quire/ledger/internal/boltfile"
)

// A damaged copy must give, for everything that is asked of it, the true answer or an error; never another answer, a
// panic, or silence for ten seconds. The oracle is what was written, not what an undamaged ledger would say.

// truth is what was written to a small ledger.
type truth struct {
	payloads map[string][]byte // by event key
	events   []ledger.Event    // all, in order, as they were acknowledged
	segments map[string][]byte // the files, which nothing may change but a write
}

// answers asks a ledger everything through one of the ways of opening it.
func answers(dir string, want *truth, writer bool) error {
	ctx := context.Background()
	type asked interface {
		Get(string) (ledger.Event, bool, error)
		ReadPayload(context.Context, ledger.Event, string) ([]byte, error)
		At(uint64) (ledger.Event, error)
		Since(uint64) iter.Seq2[ledger.Event, error]
		Scan(string) iter.Seq2[ledger.Event, error]
		Head() ledger.Head
	}
	var l asked
	if writer {
		w, err := ledger.Open(ctx, dir, ledger.Options{NoServe: true, ReserveBytes: -1, JournalBytes: 16 << 10})
		if err != nil {
			return err
		}
		defer w.Abandon()
		l = w
	} else {
		r, err := ledger.OpenReader(dir, ledger.Options{})
		if err != nil {
			return err
		}
		defer r.Close()
		l = r
	}
	if h := l.Head(); h.Seq < uint64(len(want.events)) {
		return &wrong{fmt.Sprintf("the ledger ends at event %d of %d and says nothing", h.Seq, len(want.events))}
	}
	var trouble error
	same := func(e ledger.Event, i int) {
		if w := want.events[i]; e.Hash != w.Hash || e.Type != w.Type || e.Key != w.Key || !bytes.Equal(e.Record, w.Record) {
			trouble = &wrong{fmt.Sprintf("event %d is %q %s", i+1, e.Key, e.Record)}
		}
	}
	for i, w := range want.events {
		if e, err := l.At(uint64(i + 1)); err != nil {
			trouble = err
		} else {
			same(e, i)
		}
		if w.Key == "" || errors.As(trouble, new(*wrong)) {
			continue
		}
		e, ok, err := l.Get(w.Key)
		switch {
		case err != nil:
			trouble = err
		case !ok:
			// The index of a reader may be damaged without a page error; fsck must tell, which the caller checks.
			trouble = errMissing
		default:
			same(e, i)
		}
	}
	if errors.As(trouble, new(*wrong)) {
		return trouble
	}
	i := 0
	for e, err := range l.Since(0) {
		if err != nil {
			trouble = err
			break
		}
		if i < len(want.events) {
			same(e, i)
		}
		i++
	}
	if i < len(want.events) && trouble == nil {
		return &wrong{fmt.Sprintf("a walk ends after event %d without an error", i)}
	}
	for e, err := range l.Scan("decision/") {
		if err != nil {
			trouble = err
			break
		}
		if e.Seq == 0 || e.Seq > uint64(len(want.events)) {
			return &wrong{fmt.Sprintf("a scan gives event %d", e.Seq)}
		}
		same(e, int(e.Seq-1))
	}
	if errors.As(trouble, new(*wrong)) {
		return trouble
	}
	for key, b := range want.payloads {
		e, ok, err := l.Get(key)
		if err != nil || !ok {
			continue // counted above
		}
		got, err := l.ReadPayload(ctx, e, "p")
		if err != nil {
			trouble = err
		} else if !bytes.Equal(got, b) {
			return &wrong{"payload of " + key + " has wrong bytes and no error"}
		}
		var n int
		if _, err := fmt.Sscanf(string(e.Record), `{"i":%d}`, &n); err != nil {
			return &wrong{"record of " + key}
		}
		got, err = l.ReadPayload(ctx, e, "q")
		if err != nil {
			trouble = err
		} else if !bytes.Equal(got, pattern(100, byte(n))) {
			return &wrong{"inline payload of " + key + " has wrong bytes and no error"}
		}
	}
	if e, ok, err := l.Get("gone"); err == nil && ok {
		if _, err := l.ReadPayload(ctx, e, "p"); err == nil {
			return &wrong{"a retired payload can be read"}
		} else if !errors.Is(err, ledger.ErrRetired) {
			trouble = err
		}
	}
	return trouble
}

var errMissing = errors.New("a key is missing")

// wrong is an answer that no damage excuses.
type wrong struct{ what string }

func (w *wrong) Error() string { return w.what }

// judge runs f with a deadline and turns panics into wrong answers.
func judge(f func() error) (err error) {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- &wrong{fmt.Sprintf("panic: %v", r)}
			}
		}()
		done <- f()
	}()
	tick := time.NewTicker(time.Second) // ten of them: a process that was stopped for a while gets one for all of it
	defer tick.Stop()
	for range 10 {
		select {
		case err := <-done:
			return err
		case <-tick.C:
		}
	}
	stacks := make([]byte, 1<<16)
	return &wrong{fmt.Sprintf("no answer within 10 s\n%s", stacks[:runtime.Stack(stacks, true)])}
}

// small makes a ledger of about a hundred kilobytes, closed.
func small(t testing.TB, dir string) *truth {
	t.Helper()
	ctx := context.Background()
	l, payloads := filled(t, dir, 16, ledger.Options{PageSize: 4096, ReserveBytes: -1, NoServe: true})
	if err := l.Seal(ctx, ledger.ClassOpen, "L0000"); err != nil {
		t.Fatal(err)
	}
	ref, err := l.PutBytes(ctx, ledger.ClassLayer, "L0001", codec.None, pattern(3000, 9)) // a part that stays when another goes
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(ctx, ledger.Event{Type: "capture", Schema: 1, Key: "gone", Note: pattern(900, 3), Payloads: []ledger.Payload{ref.Payload("p")}}).Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Retire(ctx, ledger.ClassLayer, "L0001", "test"); err != nil {
		t.Fatal(err)
	}
	want := &truth{payloads: payloads, segments: map[string][]byte{}}
	for e, err := range l.Since(0) {
		if err != nil {
			t.Fatal(err)
		}
		want.events = append(want.events, e)
	}
	if err := l.Close(ctx, ""); err != nil {
		t.Fatal(err)
	}
	for _, f := range damagedFiles(t, dir) { // what bbolt set aside is not read, and slow to copy
		if err := os.Truncate(f, used(t, f)); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(f); filepath.Ext(f) == ".db" && filepath.Base(f) != "ledger.db" {
			if err != nil {
				t.Fatal(err)
			}
			want.segments["segments/"+filepath.Base(f)] = b
		}
	}
	return want
}

// damagedFiles are the files whose bytes matter.
func damagedFiles(t testing.TB, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "segments", "*.db"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	return append(files, filepath.Join(dir, "ledger.db"), filepath.Join(dir, "HEAD"))
}

// tally counts outcomes.
type tally struct{ detected, harmless atomic.Int64 }

// examine decides about a copy whose file was damaged: wrong answers fail; if an answer failed, or opening did, fsck must
// find the damage and say in which file it is.
func examine(dir, file string, want *truth, writer bool, n *tally) error {
	err := judge(func() error { return answers(dir, want, writer) })
	var w *wrong
	if errors.As(err, &w) {
		return err
	}
	var rep *ledger.Report
	ferr := judge(func() (err error) {
		rep, err = ledger.Fsck(context.Background(), dir, ledger.FsckOptions{Level: ledger.LevelDeep})
		return err
	})
	if errors.As(ferr, &w) {
		return fmt.Errorf("fsck: %w", ferr)
	}
	if writer && filepath.Dir(file) != "segments" { // a ledger that was closed in order has nothing to drop
		for name, b := range want.segments {
			if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, b) {
				return fmt.Errorf("opening for writing changed or removed %s (%v)", name, err)
			}
		}
	}
	found := ferr != nil || len(rep.Findings) > 0
	if err != nil && !found {
		if writer { // it may have repaired what it could: then the answers are right now
			if judge(func() error { return answers(dir, want, false) }) == nil {
				n.detected.Add(1)
				return nil
			}
		}
		return fmt.Errorf("an answer failed (%w) and fsck found nothing", err)
	}
	if !found {
		n.harmless.Add(1)
		return nil
	}
	n.detected.Add(1)
	if errors.Is(ferr, ledger.ErrNewer) && (file == "ledger.db" || file == "HEAD") {
		return nil // a format number that is greater by one bit: the error says so
	}
	for _, f := range rep.Findings {
		if f.File == file || f.File == "HEAD" && strings.Contains(f.What, "belongs to run") { // two files name two runs
			return nil
		}
	}
	return fmt.Errorf("fsck names another place (answers: %w): %v %+v", err, ferr, rep.Findings)
}

// used is the length of the part of a file that holds anything; bbolt sets more aside, which is never read.
func used(t testing.TB, path string) int64 {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Ext(path) != ".db" {
		return st.Size()
	}
	b, err := boltfile.Open(f, st.Size())
	if err != nil {
		t.Fatal(err)
	}
	return b.Used()
}

func flipBit(path string, bit int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, bit/8); err != nil {
		return err
	}
	b[0] ^= 1 << (bit % 8)
	_, err = f.WriteAt(b, bit/8)
	return err
}

// copyLedger copies a small ledger.
func copyLedger(t testing.TB, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// TestBitFlips flips single bits of every class of bytes of a small ledger and its segments: all of them where the bytes
// lead somewhere (headers, elements, keys, roots, lists; of the largest such classes one in two to seven), evenly spread ones
// where they are content under a checksum or unused.
func TestBitFlips(t *testing.T) {
	base := t.TempDir()
	want := small(t, base)
	flips, detected, harmless := flipBits(t, base, want, regionsOf(t, base))
	base = t.TempDir()
	want = crashed(t, base)
	regions, _ := journalRegions(t, base)
	f, d, h := flipBits(t, base, want, map[string][]region{"journal": regions})
	durable(t, "one bit flipped, every class of bytes of ledger.db, segments, journal, HEAD, LOCK", flips+f,
		"%d detected and the file named, %d without effect on any answer; no panic, no hang, no wrong answer", detected+d, harmless+h)
}

// flipBits flips bits of the regions of a ledger, by file, and counts.
func flipBits(t *testing.T, base string, want *truth, regions map[string][]region) (n int, detected, harmless int64) {
	t.Helper()
	type flip struct {
		file, class string
		bit         int64
	}
	bits := map[string]int64{} // by class
	for _, list := range regions {
		for _, r := range list {
			bits[r.class] += 8 * (r.to - r.from)
		}
	}
	var flips []flip
	classes := map[string]*tally{}
	files := slices.Sorted(maps.Keys(regions))
	for _, class := range slices.Sorted(maps.Keys(bits)) {
		classes[class] = &tally{}
		quota := int64(rounds(10, 250))
		if leads := !strings.Contains(class, "value in table") && !strings.Contains(class, "unused") && class != "LOCK" && !strings.HasPrefix(class, "HEAD"); long() && leads {
			quota = 1100 // all, but of the largest classes every so many
		}
		step := max(1, bits[class]/quota)
		if step > 1 && step%2 == 0 {
			step++ // visit every position of a byte
		}
		at := int64(0) // within the class
		for _, f := range files {
			for _, r := range regions[f] {
				if r.class != class {
					continue
				}
				n := 8 * (r.to - r.from)
				for b := (step - at%step) % step; b < n; b += step {
					flips = append(flips, flip{f, class, 8*r.from + b})
				}
				at += n
			}
		}
	}
	t.Logf("%d flips in %d classes", len(flips), len(classes))
	var next atomic.Int64
	var wg sync.WaitGroup
	for k := range runtime.GOMAXPROCS(0) {
		dir := filepath.Join(memoryDir(t), fmt.Sprint(k))
		copyLedger(t, base, dir)
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := int(next.Add(1)) - 1; i < len(flips) && !t.Failed(); i = int(next.Add(1)) - 1 {
				f := flips[i]
				path := filepath.Join(dir, f.file)
				if err := flipBit(path, f.bit); err != nil {
					t.Error(err)
					return
				}
				writer := i%8 == 0
				if err := examine(dir, f.file, want, writer, classes[f.class]); err != nil {
					t.Errorf("bit %d of byte %d of %s (%s, writer %v): %v", f.bit%8, f.bit/8, f.file, f.class, writer, err)
				}
				if writer { // it appended and rewrote: start from the original
					if err := os.RemoveAll(dir); err != nil {
						t.Error(err)
					}
					if err := os.CopyFS(dir, os.DirFS(base)); err != nil {
						t.Error(err)
					}
				} else if err := flipBit(path, f.bit); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	for _, class := range slices.Sorted(maps.Keys(classes)) {
		d, h := classes[class].detected.Load(), classes[class].harmless.Load()
		t.Logf("%-40s %7d bits, %6d flipped: %6d detected and located, %6d harmless", class, bits[class], d+h, d, h)
		detected, harmless = detected+d, harmless+h
	}
	return len(flips), detected, harmless
}

// TestTruncation cuts each file at every page, and to nothing.
func TestTruncation(t *testing.T) {
	closed, died := t.TempDir(), t.TempDir()
	closedTruth, diedTruth := small(t, closed), crashed(t, died)
	scratch := memoryDir(t)
	var n tally
	for _, f := range append(damagedFiles(t, closed), filepath.Join(died, "journal")) {
		base, want := closed, closedTruth
		if filepath.Dir(f) == died {
			base, want = died, diedTruth
		}
		orig, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		name, _ := filepath.Rel(base, f)
		orig = orig[:used(t, f)]
		step := 4096
		if len(orig) < step {
			step = 256
		}
		if name == "journal" {
			step = 512
		}
		if !long() && len(orig)/step > 12 {
			step *= len(orig)/step/12 + 1
		}
		for cut := 0; cut < len(orig); cut += step {
			dir := filepath.Join(scratch, "x")
			copyLedger(t, base, dir)
			if err := os.Truncate(filepath.Join(dir, name), int64(cut)); err != nil {
				t.Fatal(err)
			}
			for _, writer := range []bool{false, true} {
				if err := examine(dir, name, want, writer, &n); err != nil {
					t.Errorf("%s cut to %d bytes (writer %v): %v", name, cut, writer, err)
				}
			}
			os.RemoveAll(dir)
		}
	}
	durable(t, "a file cut at every page, the journal at every sector", int(n.detected.Load()+n.harmless.Load()), "%d detected and the file named, %d without effect on any answer",
		n.detected.Load(), n.harmless.Load())
}

// TestRollback takes the newest commits away in the ways in which bbolt itself would not notice.
func TestRollback(t *testing.T) {
	ctx := context.Background()
	base := t.TempDir()
	l, _ := filled(t, base, 10, ledger.Options{PageSize: 4096})
	old := filepath.Join(t.TempDir(), "old")
	if err := l.Backup(ctx, old, ledger.BackupOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(ctx, ledger.Event{Type: "x", Schema: 1, Key: "newest"}).Wait(ctx); err != nil {
		t.Fatal(err)
	}
	l.Abandon() // the newest commit is not followed by a `closed` event
	for name, harm := range map[string]func(dir string) error{
		"database from a copy": func(dir string) error {
			b, err := os.ReadFile(filepath.Join(old, "ledger.db"))
			if err != nil {
				return err
			}
			return errors.Join(os.WriteFile(filepath.Join(dir, "ledger.db"), b, 0o644), os.Remove(filepath.Join(dir, "journal")))
		},
		"journal removed": func(dir string) error { return os.Remove(filepath.Join(dir, "journal")) },
		"newest header damaged": func(dir string) error {
			if err := os.Remove(filepath.Join(dir, "journal")); err != nil { // it would heal that
				return err
			}
			path := filepath.Join(dir, "ledger.db")
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			at := 0
			if b[16+48] < b[4096+16+48] { // transaction ids of the two headers, lowest byte
				at = 4096
			}
			b[at+16+20] ^= 1
			return os.WriteFile(path, b, 0o644)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "x")
			copyLedger(t, base, dir)
			if err := harm(dir); err != nil {
				t.Fatal(err)
			}
			if _, err := ledger.OpenReader(dir, ledger.Options{}); !errors.Is(err, ledger.ErrRollback) {
				t.Fatal(err)
			}
			if _, err := ledger.Open(ctx, dir, ledger.Options{}); !errors.Is(err, ledger.ErrRollback) {
				t.Fatal(err)
			}
			rep, err := ledger.Fsck(ctx, dir, ledger.FsckOptions{})
			if err != nil || !rep.Damaged() {
				t.Fatal(rep, err)
			}
			l, err := ledger.Open(ctx, dir, ledger.Options{AcceptRollback: true})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close(ctx, "")
			accepted := false
			for e, err := range l.Since(0) {
				if err != nil {
					t.Fatal(err)
				}
				accepted = accepted || e.Type == ledger.TypeRollbackAccepted
			}
			if _, ok, _ := l.Get("newest"); ok || !accepted {
				t.Fatal("the rollback left no trace")
			}
		})
	}
	durable(t, "newest commit taken away (older copy of ledger.db; newest file header damaged; journal removed)", 3, "3 of 3 noticed through HEAD by reader, writer and fsck")
}
