package ledger_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	bolt "go.etcd.io/bbolt"

	"quire/ledger"
	"quire/ledger/codec"
)

// alter changes ledger.db behind the ledger's back.
func alter(t *testing.T, dir string, f func(tx *bolt.Tx) error) {
	t.Helper()
	db, err := bolt.Open(filepath.Join(dir, "ledger.db"), 0o644, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(f); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestRecoveryDeletesNothingNamed takes index entries away, as a damaged page may, and shows that opening for writing does
// not take the payloads after them.
func TestRecoveryDeletesNothingNamed(t *testing.T) {
	ctx := context.Background()
	for name, c := range map[string]struct {
		harm    func(tx *bolt.Tx) error
		finding string
	}{
		"owner lost": {func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte("so"))
			k, _ := b.Cursor().First()
			return b.Delete(k)
		}, "owner"},
		"owner changed": {func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte("so"))
			k, _ := b.Cursor().First()
			other := bytes.Clone(k)
			other[11] ^= 64 // the number of the payload
			if err := b.Delete(k); err != nil {
				return err
			}
			return b.Put(other, nil)
		}, "owner"},
		"segment lost": {func(tx *bolt.Tx) error {
			return tx.Bucket([]byte("seg")).Delete([]byte{0, 0, 0, 1})
		}, "segment-orphan"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			l := create(t, dir, ledger.Options{NoServe: true})
			want := pattern(50000, 1)
			ref, err := l.PutBytes(ctx, ledger.ClassLayer, "L1", codec.Planes2, want)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.Append(ctx, ledger.Event{Type: "capture", Schema: 1, Key: "k", Payloads: []ledger.Payload{ref.Payload("p")}}).Wait(ctx); err != nil {
				t.Fatal(err)
			}
			if err := l.Close(ctx, ""); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, "segments", "layer-L1-001.db")
			before, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			alter(t, dir, c.harm)
			if rep, err := ledger.Fsck(ctx, dir, ledger.FsckOptions{Level: ledger.LevelChain}); err != nil || len(rep.Findings) == 0 {
				t.Fatal("fsck sees nothing: ", err)
			}
			l, err = ledger.Open(ctx, dir, ledger.Options{NoServe: true})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close(ctx, "")
			if !slices.ContainsFunc(l.Findings(), func(f ledger.Finding) bool { return f.Code == c.finding }) {
				t.Fatalf("findings: %+v", l.Findings())
			}
			if after, err := os.ReadFile(file); err != nil || !bytes.Equal(after, before) {
				t.Fatal("the file was changed: ", err)
			}
			if c.finding == "owner" {
				e, _, err := l.Get("k")
				if err != nil {
					t.Fatal(err)
				}
				if got, err := l.ReadPayload(ctx, e, "p"); err != nil || !bytes.Equal(got, want) {
					t.Fatal(err)
				}
				return
			}
			// Work goes on beside the file whose record is lost.
			if ref, err = l.PutBytes(ctx, ledger.ClassLayer, "L1", codec.None, want); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Append(ctx, ledger.Event{Type: "capture", Schema: 1, Key: "k2", Payloads: []ledger.Payload{ref.Payload("p")}}).Wait(ctx); err != nil {
				t.Fatal(err)
			}
			if after, err := os.ReadFile(file); err != nil || !bytes.Equal(after, before) {
				t.Fatal("the file was changed: ", err)
			}
		})
	}
}
