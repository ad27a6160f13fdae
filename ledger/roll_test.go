package ledger_test

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"quire/ledger"
	"quire/ledger/codec"
)

// TestSealWhilePutting seals and rolls segments under payloads of many parts that are being put: each is in one file, whole,
// and no file changes after its record says that it will not.
func TestSealWhilePutting(t *testing.T) {
	t.Parallel()
	ctx, dir := context.Background(), filepath.Join(t.TempDir(), "run")
	l := create(t, dir, ledger.Options{NoServe: true, ChunkBytes: 4 << 10, SegmentBytes: 1 << 20, TransactionBytes: 1 << 20})
	const callers, each = 6, 8
	size := func(c, i int) int { return 3000 + 70001*((c+i)%5) }
	errs := make([]error, callers+1)
	var putting, sealing sync.WaitGroup
	for c := range callers {
		putting.Go(func() {
			for i := range each {
				var ref ledger.PayloadRef
				b := victimBytes(c*each+i, size(c, i))
				if i%2 == 0 {
					ref, errs[c] = l.PutBytes(ctx, ledger.ClassLayer, "L1", codec.None, b)
				} else {
					ref, errs[c] = l.Put(ctx, ledger.ClassLayer, "L1", codec.Zstd, bytes.NewReader(b))
				}
				if errs[c] == nil {
					_, errs[c] = l.Append(ctx, ledger.Event{Type: "x", Schema: 1, Key: fmt.Sprint(c, "/", i), Payloads: []ledger.Payload{ref.Payload("p")}}).Wait(ctx)
				}
				if errs[c] != nil {
					return
				}
			}
		})
	}
	done := make(chan struct{})
	sealing.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if errs[callers] = l.Seal(ctx, ledger.ClassLayer, "L1"); errs[callers] != nil {
				return
			}
		}
	})
	putting.Wait()
	close(done)
	sealing.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(ctx, ""); err != nil {
		t.Fatal(err)
	}
	l, err := ledger.Open(ctx, dir, ledger.Options{NoServe: true})
	if err != nil {
		t.Fatal(err)
	}
	if f := l.Findings(); len(f) > 0 {
		t.Fatal(f)
	}
	for c := range callers {
		for i := range each {
			e, ok, err := l.Get(fmt.Sprint(c, "/", i))
			if err != nil || !ok {
				t.Fatal(c, i, ok, err)
			}
			if b, err := l.ReadPayload(ctx, e, "p"); err != nil || !bytes.Equal(b, victimBytes(c*each+i, size(c, i))) {
				t.Fatal(c, i, err)
			}
		}
	}
	if err := l.Close(ctx, ""); err != nil {
		t.Fatal(err)
	}
}
