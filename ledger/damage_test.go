package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"quire/ledger"
	"quire/ledger/internal/boltfile"
)

// A damaged copy must give, for everything that is asked of it, the true answer or an error; never another answer, a
// panic, or silence for ten seconds. The oracle is what was written, not what an undamaged ledger would say.

// answers asks a ledger everything through one of the ways of opening it.
func answers(dir string, want map[string][]byte, events uint64, writer bool) error {
	ctx := context.Background()
	type asked interface {
		Get(string) (ledger.Event, bool, error)
		ReadPayload(context.Context, ledger.Event, string) ([]byte, error)
		At(uint64) (ledger.Event, error)
		Head() ledger.Head
	}
	var l asked
	if writer {
		w, err := ledger.Open(ctx, dir, ledger.Options{NoServe: true, ReserveBytes: -1})
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
	if h := l.Head(); h.Seq < events {
		return &wrong{fmt.Sprintf("the ledger ends at event %d of %d and says nothing", h.Seq, events)}
	}
	var trouble error
	for key, b := range want {
		e, ok, err := l.Get(key)
		if err != nil {
			trouble = err
			continue
		}
		if !ok {
			// The index of a reader may be damaged without a page error; fsck must tell, which the caller checks.
			trouble = errMissing
			continue
		}
		var i int
		if _, err := fmt.Sscanf(string(e.Record), `{"i":%d}`, &i); err != nil || len(b) != 1000*(i+1) || e.Key != key {
			return &wrong{fmt.Sprintf("event %s is %q %s", key, e.Key, e.Record)}
		}
		got, err := l.ReadPayload(ctx, e, "p")
		if err != nil {
			trouble = err
		} else if !bytes.Equal(got, b) {
			return &wrong{"payload of " + key + " has wrong bytes and no error"}
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
	timer := time.NewTimer(10 * time.Second)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		stacks := make([]byte, 1<<16)
		return &wrong{fmt.Sprintf("no answer within 10 s\n%s", stacks[:runtime.Stack(stacks, true)])}
	}
}

// small makes a ledger of a few hundred kilobytes, closed.
func small(t testing.TB, dir string) (want map[string][]byte, events uint64) {
	t.Helper()
	l, want := filled(t, dir, 21, ledger.Options{PageSize: 4096, ReserveBytes: -1, NoServe: true})
	if err := l.Seal(context.Background(), ledger.ClassOpen, "L0000"); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(context.Background(), ""); err != nil {
		t.Fatal(err)
	}
	return want, l.Head().Seq
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

// tally counts outcomes by file class.
type tally struct{ detected, harmless atomic.Int64 }

// examine decides about one damaged copy: wrong answers fail; if every answer was right, fsck may or may not find
// something; if an answer failed, fsck must locate it.
func examine(dir string, want map[string][]byte, events uint64, writer bool, n *tally) error {
	err := judge(func() error { return answers(dir, want, events, writer) })
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
	found := ferr != nil || len(rep.Findings) > 0
	if err != nil && !found {
		return fmt.Errorf("an answer failed (%w) and fsck found nothing", err)
	}
	if found {
		n.detected.Add(1)
		if rep != nil {
			for _, f := range rep.Findings {
				if f.File == "" && f.Seq == 0 {
					return fmt.Errorf("finding without a place: %+v", f)
				}
			}
		}
	} else {
		n.harmless.Add(1)
	}
	return nil
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

// TestBitFlips flips single bits: every bit of the headers, pages' heads, tables and records of a small ledger and its
// segments, spread evenly over the files.
func TestBitFlips(t *testing.T) {
	base := t.TempDir()
	want, events := small(t, base)
	var n tally
	type flip struct {
		file string
		bit  int64
	}
	var flips []flip
	total := rounds(500, 20400)
	files := damagedFiles(t, base)
	for _, f := range files {
		share := total / len(files)
		bits := used(t, f) * 8
		step := max(1, bits/int64(share))
		if step%8 == 0 {
			step-- // visit every position of a byte
		}
		name, _ := filepath.Rel(base, f)
		for b := int64(0); b < bits; b += step {
			flips = append(flips, flip{name, b})
		}
	}
	t.Logf("%d flips over %d files", len(flips), len(files))
	var next atomic.Int64
	var wg sync.WaitGroup
	for k := range runtime.GOMAXPROCS(0) {
		dir := filepath.Join(t.TempDir(), fmt.Sprint(k))
		copyLedger(t, base, dir)
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				i := int(next.Add(1)) - 1
				if i >= len(flips) || t.Failed() {
					return
				}
				f := flips[i]
				path := filepath.Join(dir, f.file)
				if err := flipBit(path, f.bit); err != nil {
					t.Error(err)
					return
				}
				writer := i%8 == 0
				if err := examine(dir, want, events, writer, &n); err != nil {
					t.Errorf("bit %d of byte %d of %s: %v", f.bit%8, f.bit/8, f.file, err)
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
	t.Logf("%d detected and located, %d harmless", n.detected.Load(), n.harmless.Load())
}

// TestTruncation cuts each file at every page, and to nothing.
func TestTruncation(t *testing.T) {
	base := t.TempDir()
	want, events := small(t, base)
	var n tally
	for _, f := range damagedFiles(t, base) {
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
		if !long() && len(orig)/step > 12 {
			step *= len(orig)/step/12 + 1
		}
		for cut := 0; cut < len(orig); cut += step {
			dir := filepath.Join(t.TempDir(), "x")
			copyLedger(t, base, dir)
			if err := os.Truncate(filepath.Join(dir, name), int64(cut)); err != nil {
				t.Fatal(err)
			}
			for _, writer := range []bool{false, true} {
				if err := examine(dir, want, events, writer, &n); err != nil {
					t.Errorf("%s cut to %d bytes (writer %v): %v", name, cut, writer, err)
				}
			}
			os.RemoveAll(dir)
		}
	}
	t.Logf("%d detected and located, %d harmless", n.detected.Load(), n.harmless.Load())
}

// TestRollback takes the newest commits away in the three ways in which bbolt itself would not notice.
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
			return os.WriteFile(filepath.Join(dir, "ledger.db"), b, 0o644)
		},
		"newest header damaged": func(dir string) error {
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
}
