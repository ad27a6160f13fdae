package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"quire/internal/powercut"
	"quire/ledger"
	"quire/ledger/codec"
)

// mounts says why this process cannot mount file systems, nil when it can.
var mounts = sync.OnceValue(func() error {
	dir, err := os.MkdirTemp("", "mount")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		return fmt.Errorf("a small file system must be mounted: %w", err)
	}
	return unmount(dir)
})

// unmount takes a file system away at once. A child that another test forks at that moment may hold its files for the
// instant until it runs its own program, so asking for an idle file system would fail now and then.
func unmount(dir string) error { return unix.Unmount(dir, unix.MNT_DETACH) }

// TestDiskFull runs a scenario on file systems of growing size, so that each of its writes is once the one that does not
// fit: what was acknowledged stays, the error names the bytes needed, and after room is made work goes on.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	if leftOut(t, mounts()) {
		return
	}
	ctx := context.Background()
	step := 96 // KiB
	if long() {
		step = 4 // a page: the smallest difference that the file system knows
	}
	met, acks, fits := 0, 0, 0
	round := func(kb int) error {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dk", kb)); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := unmount(dir); err != nil {
				t.Error(err)
			}
		}()
		w := newWitness()
		err := fillDisk(ctx, filepath.Join(dir, "run"), w)
		if err != nil && !errors.Is(err, ledger.ErrDiskFull) && !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("%d KiB: %v", kb, err)
		}
		var full *ledger.DiskFullError
		if errors.As(err, &full) && full.Needed <= 0 {
			t.Fatalf("%d KiB: %+v", kb, full)
		}
		acks += len(w.acks)
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=64m"); err != nil {
			t.Fatal(err)
		}
		if err := w.verify(filepath.Join(dir, "run")); err != nil {
			t.Fatalf("%d KiB: %v", kb, err)
		}
		return err
	}
	for kb := 64; fits < 20 && kb < 8<<10; kb += step { // once it fits, it will
		if round(kb) != nil {
			met, fits = met+1, 0
		} else {
			fits++
		}
	}
	durable(t, "disk full (tmpfs, its size grown so that each page written is once the first that does not fit)", met,
		"%d of %d: an error that says ENOSPC, all of %d acknowledged events there after room was made", met, met, acks)
}

// fillDisk writes until it is done or the disk is full.
func fillDisk(ctx context.Context, dir string, w *witness) (err error) {
	o := victimOptions()
	o.NoServe = true
	l, err := ledger.Create(ctx, dir, ledger.Genesis{}, o)
	if err != nil {
		return err
	}
	w.opened = true
	defer func() {
		if cerr := l.Close(ctx, "full"); cerr != nil && err == nil {
			err = cerr
		}
	}()
	for n := range 60 {
		size := 9000 * (n % 7)
		ref, err := l.PutBytes(ctx, ledger.ClassLayer, fmt.Sprintf("L%d", n/20), codec.None, victimBytes(n, size))
		if err != nil {
			return err
		}
		e, err := l.Append(ctx, ledger.Event{Type: "capture", Schema: 1, Key: victimKey(n, size), Payloads: []ledger.Payload{ref.Payload("p")}}).Wait(ctx)
		if err != nil {
			return err
		}
		w.hear(fmt.Sprintf("A %d %s %s", e.Seq, e.Hash, e.Key))
	}
	return nil
}

// TestFullThenRoom goes on with the same handle after room was made.
func TestFullThenRoom(t *testing.T) {
	if leftOut(t, mounts()) {
		return
	}
	ctx, dir := context.Background(), t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unmount(dir); err != nil {
			t.Error(err)
		}
	}()
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 5<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	o := victimOptions()
	o.NoServe = true
	l := create(t, filepath.Join(dir, "run"), o)
	var full *ledger.DiskFullError
	for n := range 100 {
		_, err := l.PutBytes(ctx, ledger.ClassLayer, "L1", codec.None, victimBytes(n, 100000))
		if errors.As(err, &full) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if full == nil {
		t.Fatal("the disk was never full")
	}
	if _, err := l.PutBytes(ctx, ledger.ClassLayer, "L1", codec.None, victimBytes(1, 10)); !errors.Is(err, ledger.ErrDiskFull) {
		t.Fatal("admission goes on: ", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if _, err := l.PutBytes(ctx, ledger.ClassLayer, "L1", codec.None, victimBytes(1, 1000)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(ctx, ledger.Event{Type: "x", Schema: 1}).Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(ctx, ""); err != nil {
		t.Fatal(err)
	}
}

// TestPowerCut cuts the power under a writing process. Package powercut says what it
// needs.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	if leftOut(t, powercut.Available()) {
		return
	}
	r := seed(t)
	var d *powercut.Disk
	closeDisk := func() {
		if d != nil {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			d = nil
		}
	}
	defer closeDisk()
	var w *witness
	n, acks := rounds(2, 25), 0
	for i := range n {
		if i%5 == 0 {
			closeDisk()
			var err error
			if d, err = powercut.New(t.TempDir(), 256<<20); err != nil {
				t.Fatal(err)
			}
			w = newWitness()
		}
		before := len(w.acks)
		run := filepath.Join(d.Dir(), "run")
		v := startVictim(t, run, w, fmt.Sprintf("QUIRE_LEDGER_SEED=%d", r.Uint64()))
		wait := time.Duration(r.IntN(1000)) * time.Millisecond // the moment of the cut is the random input of this test
		if i%5 == 0 {
			wait /= 10 // inside creation, sometimes
		} else {
			v.untilOpen()
		}
		time.Sleep(wait)
		err := d.Cut()
		_ = v.cmd.Process.Kill()
		_ = v.end()
		if err != nil {
			t.Fatal(err)
		}
		w.err = "" // the victim may have met an I/O error before it was killed
		if err := d.Restore(); err != nil {
			t.Fatal(err)
		}
		if err := w.verify(run); err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		t.Logf("round %d: %d acknowledged events", i, len(w.acks)-before)
		acks += len(w.acks) - before
	}
	durable(t, "power cut (ext4 shut down without its journal, on a loop device)", n, "%d of %d: all of %d acknowledged events there", n, n, acks)
}
