package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"quire/ledger"
	"quire/ledger/codec"
)

// needMount skips unless this process may mount file systems.
func needMount(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root to mount a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("needs the right to mount a small file system: %v", err)
	}
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
}

// TestDiskFull runs a scenario on file systems of growing size, so that each of its writes is once the one that does not
// fit: what was acknowledged stays, the error names the bytes needed, and after room is made work goes on.
func TestDiskFull(t *testing.T) {
	needMount(t)
	ctx := context.Background()
	step := 96
	if long() {
		step = 16
	}
	for kb := 256; kb < 3000; kb += step {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dk", kb)); err != nil {
			t.Fatal(err)
		}
		w := newWitness()
		err := fillDisk(ctx, filepath.Join(dir, "run"), w)
		if err != nil && !errors.Is(err, ledger.ErrDiskFull) && !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("%d KiB: %v", kb, err)
		}
		var full *ledger.DiskFullError
		if errors.As(err, &full) && full.Needed <= 0 {
			t.Fatalf("%d KiB: %+v", kb, full)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=64m"); err != nil {
			t.Fatal(err)
		}
		if err := w.verify(filepath.Join(dir, "run")); err != nil {
			t.Fatalf("%d KiB: %v", kb, err)
		}
		if err := unix.Unmount(dir, 0); err != nil {
			t.Fatal(err)
		}
	}
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
	needMount(t)
	ctx, dir := context.Background(), t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
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

// powerCut stops an ext4 file system as a power cut does: nothing more reaches the disk, not even the journal's tail.
func powerCut(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	const shutdown, noLogFlush = 0x8004587d, 2
	flag := uint32(noLogFlush)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, d.Fd(), shutdown, uintptr(unsafe.Pointer(&flag))); errno != 0 {
		return errno
	}
	return nil
}

// TestPowerCut cuts the power of a loop device under a writing victim. It needs root, loop devices and mkfs.ext4;
// QUIRE_POWERCUT=1 makes their absence a failure.
func TestPowerCut(t *testing.T) {
	n := rounds(0, 20)
	if os.Getenv("QUIRE_POWERCUT") == "1" {
		n = max(n, 20)
	}
	if n == 0 {
		t.Skip("power cuts run with QUIRE_LONG=1 or QUIRE_POWERCUT=1")
	}
	absent := func(what string, err error) {
		if os.Getenv("QUIRE_POWERCUT") == "1" {
			t.Fatalf("%s: %v", what, err)
		}
		t.Skipf("needs root, loop devices and mkfs.ext4: %s: %v", what, err)
	}
	r := seed(t)
	base := t.TempDir()
	img, mnt := filepath.Join(base, "img"), filepath.Join(base, "mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	mount := func() error { return command("mount", "-o", "loop", img, mnt) }
	umount := func() {
		for range 100 {
			if command("umount", mnt) == nil {
				return
			}
			time.Sleep(20 * time.Millisecond) // the killed victim is still going
		}
		t.Fatal("umount")
	}
	var w *witness
	for i := range n {
		if i%5 == 0 {
			if err := os.WriteFile(img, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(img, 256<<20); err != nil {
				t.Fatal(err)
			}
			if err := command("mkfs.ext4", "-q", "-F", img); err != nil {
				absent("mkfs.ext4", err)
			}
			w = newWitness()
		}
		if err := mount(); err != nil {
			absent("mount -o loop", err)
		}
		cmd, done := startVictim(t, filepath.Join(mnt, "run"), w, fmt.Sprintf("QUIRE_LEDGER_SEED=%d", r.Uint64()))
		time.Sleep(time.Duration(50+r.IntN(1200)) * time.Millisecond) // the moment of the cut is the random input of this test
		err := powerCut(mnt)
		_ = cmd.Process.Kill()
		<-done
		_ = cmd.Wait()
		umount()
		if err != nil {
			absent("shutdown ioctl", err)
		}
		w.err = "" // the victim may have met an I/O error before it was killed
		if err := mount(); err != nil {
			t.Fatal(err)
		}
		err = w.verify(filepath.Join(mnt, "run"))
		umount()
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		t.Logf("round %d: %d acknowledged events", i, len(w.acks))
	}
}
