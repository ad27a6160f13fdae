package ledger_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"quire/ledger"
	"quire/ledger/codec"
)

// TestManyPutsInASmallBudget lets many callers put payloads of several parts through a budget smaller than one of them:
// nobody may wait for ever.
func TestManyPutsInASmallBudget(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	l := create(t, filepath.Join(t.TempDir(), "run"), ledger.Options{InFlightBytes: 1 << 20, ChunkBytes: 64 << 10, NoServe: true})
	var wg sync.WaitGroup
	errs := make([]error, 24)
	for i := range errs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			ref, err := l.PutBytes(ctx, ledger.ClassOpen, "L1", codec.None, victimBytes(i, 1200000))
			if err == nil {
				_, err = l.Append(ctx, ledger.Event{Type: "x", Schema: 1, Key: fmt.Sprint(i), Payloads: []ledger.Payload{ref.Payload("p")}}).Wait(ctx)
			}
			errs[i] = err
		}()
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("put %d: %v", i, err)
		}
	}
	if err := l.Close(ctx, ""); err != nil {
		t.Error(err)
	}
}
