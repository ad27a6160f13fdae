package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"quire/ledger"
	"quire/ledger/codec"
)

// TestSyncFails lets one sync of a segment fail, each in turn: that payload is not acknowledged, nothing is acknowledged after
// it, what was before stays, and the next opening works. A sync that ran out of space is the exception, unless it was the
// header's: then the ledger goes on once there is room. Tests that use the hook do not run beside others.
func TestSyncFails(t *testing.T) {
	for _, fault := range []error{syscall.EIO, syscall.ENOSPC} {
		for at := range int64(8) { // two syncs a commit
			t.Run(fmt.Sprintf("%v/%d", fault, at), func(t *testing.T) { syncFails(t, fault, at) })
		}
	}
}

func syncFails(t *testing.T, fault error, at int64) {
	ctx, dir := context.Background(), filepath.Join(t.TempDir(), "run")
	o := ledger.Options{NoServe: true, ReserveBytes: -1, ChunkBytes: 4 << 10}
	l := create(t, dir, o)
	var n atomic.Int64
	ledger.SetSync(func(f *os.File) error {
		if n.Add(1)-1 == at {
			return fault
		}
		return f.Sync()
	})
	defer ledger.SetSync(nil)
	payload := func(i int) []byte { return pattern(9000, byte(i)) }
	put := func(i int) error {
		ref, err := l.PutBytes(ctx, ledger.ClassLayer, "L1", codec.None, payload(i))
		if err == nil {
			_, err = l.Append(ctx, ledger.Event{Type: "x", Schema: 1, Key: fmt.Sprint("k", i), Payloads: []ledger.Payload{ref.Payload("p")}}).Wait(ctx)
		}
		return err
	}
	survives := fault == syscall.ENOSPC && at%2 == 0
	acked := map[int]bool{}
	failed := -1
	for i := range 6 {
		err := put(i)
		if err == nil {
			acked[i] = true
			if failed >= 0 && !survives {
				t.Fatalf("payload %d was acknowledged after the sync of payload %d had failed", i, failed)
			}
			continue
		}
		switch {
		case failed < 0:
			failed = i
			if want := int(at / 2); i != want {
				t.Fatalf("payload %d failed, not %d: %v", i, want, err)
			}
			if survives != errors.Is(err, ledger.ErrDiskFull) || survives == errors.Is(err, ledger.ErrPoisoned) {
				t.Fatal(err)
			}
		case survives:
			t.Fatalf("payload %d after one that found no room: %v", i, err)
		case !errors.Is(err, ledger.ErrPoisoned):
			t.Fatal(err)
		}
	}
	if failed < 0 {
		t.Fatal("no sync failed")
	}
	if _, err := l.Append(ctx, ledger.Event{Type: "x", Schema: 1, Key: "later"}).Wait(ctx); survives != (err == nil) {
		t.Fatal("an event after the failure: ", err)
	}
	if err := l.Close(ctx, ""); survives != (err == nil) {
		t.Fatal(err)
	}
	ledger.SetSync(nil)
	l, err := ledger.Open(ctx, dir, o)
	if err != nil {
		t.Fatal(err)
	}
	if f := l.Findings(); len(f) > 0 {
		t.Fatal(f)
	}
	for i := range 6 {
		e, ok, err := l.Get(fmt.Sprint("k", i))
		if err != nil || ok != acked[i] {
			t.Fatal(i, ok, err)
		}
		if !ok {
			continue
		}
		if b, err := l.ReadPayload(ctx, e, "p"); err != nil || !bytes.Equal(b, payload(i)) {
			t.Fatal(i, err)
		}
	}
	if err := put(7); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(ctx, ""); err != nil {
		t.Fatal(err)
	}
	rep, err := ledger.Fsck(ctx, dir, ledger.FsckOptions{Level: ledger.LevelDeep})
	if err != nil || len(rep.Findings) > 0 {
		t.Fatal(err, rep.Findings)
	}
}

// TestSyncFailsBeside: a payload whose pages were handed over before a sync failed for want of room may be gone, although a
// later sync succeeds. It is not acknowledged.
func TestSyncFailsBeside(t *testing.T) {
	ctx, dir := context.Background(), filepath.Join(t.TempDir(), "run")
	l := create(t, dir, ledger.Options{NoServe: true, ReserveBytes: -1, ChunkBytes: 4 << 10})
	if _, err := l.PutBytes(ctx, ledger.ClassLayer, "L1", codec.None, nil); err != nil {
		t.Fatal(err)
	}
	fail := make(chan struct{})
	var once atomic.Bool
	ledger.SetSync(func(f *os.File) error {
		select {
		case <-fail:
			if once.CompareAndSwap(false, true) {
				return syscall.ENOSPC
			}
		default:
		}
		return f.Sync()
	})
	defer ledger.SetSync(nil)
	// The first payload lies with the kernel and is not committed yet when another one meets the failure.
	written, goOn := make(chan struct{}), make(chan struct{})
	var puts atomic.Int64
	ledger.SetFailpoint(func(name string) {
		if name == "put.written" && puts.Add(1) == 1 {
			close(written)
			<-goOn
		}
	})
	defer ledger.SetFailpoint(nil)
	slow := make(chan error, 1)
	go func() {
		_, err := l.PutBytes(ctx, ledger.ClassLayer, "L1", codec.None, pattern(20000, 3))
		slow <- err
	}()
	<-written
	close(fail)
	if _, err := l.PutBytes(ctx, ledger.ClassLayer, "L1", codec.None, pattern(5000, 1)); !errors.Is(err, ledger.ErrDiskFull) {
		t.Fatal(err)
	}
	close(goOn)
	if err := <-slow; !errors.Is(err, ledger.ErrDiskFull) {
		t.Fatal("a payload written before a sync failed: ", err)
	}
	if _, err := l.PutBytes(ctx, ledger.ClassLayer, "L1", codec.None, pattern(5000, 2)); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(ctx, ""); err != nil {
		t.Fatal(err)
	}
}
