package boltfile_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"

	"quire/ledger/internal/boltfile"
)

// file makes a small bbolt file with branches, nested buckets and free pages.
func file(t testing.TB) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.db")
	db, err := bolt.Open(path, 0o644, &bolt.Options{PageSize: 1024, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		err := db.Update(func(tx *bolt.Tx) error {
			for _, name := range []string{"a", "b"} {
				b, err := tx.CreateBucketIfNotExists([]byte(name))
				if err != nil {
					return err
				}
				for i := range 40 {
					if err := b.Put([]byte{byte(i), byte(round)}, bytes.Repeat([]byte{byte(i)}, i*3)); err != nil {
						return err
					}
				}
				n, err := b.CreateBucketIfNotExists([]byte("nested"))
				if err != nil {
					return err
				}
				if err := n.Put([]byte{byte(round)}, []byte("v")); err != nil {
					return err
				}
				if err := b.Delete([]byte{3, byte(round)}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := boltfile.Open(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	return b[:f.Used()]
}

// explore follows everything in a file, nested buckets included, to a bounded number of entries.
func explore(b boltfile.Bucket, left *int) {
	_ = b.Walk(nil, func(e boltfile.Entry) error {
		*left--
		if *left < 0 {
			return bytes.ErrTooLarge
		}
		_, _ = e.Bytes()
		_, _, _ = b.Get(e.Key)
		if n, err := e.Bucket(); err == nil && e.IsBucket {
			explore(n, left)
		}
		return nil
	})
	_, _, _, _ = b.Last()
}

// FuzzFile reads files that an attacker made: never a panic, never without an end.
func FuzzFile(f *testing.F) {
	sound := file(f)
	f.Add(uint32(0), []byte{}, false)
	f.Add(uint32(2048), []byte{1, 0, 0, 0, 0, 0, 0, 0, 1}, false)
	f.Add(uint32(16+8), []byte{0, 4}, true)
	f.Fuzz(func(t *testing.T, at uint32, patch []byte, cut bool) {
		b := bytes.Clone(sound)
		n := int(at) % len(b)
		copy(b[n:], patch)
		if cut {
			b = b[:n]
		}
		file, err := boltfile.Open(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		left := 100000
		explore(file.Root(), &left)
		pages, elements := file.Check(boltfile.Pages), file.Check(boltfile.Elements)
		if len(pages) > 0 && len(elements) == 0 {
			t.Fatal("the deeper check sees less")
		}
	})
}

// TestDamage damages bytes all over a file; 31 shares no factor with the size of anything in it.
func TestDamage(t *testing.T) {
	sound := file(t)
	if f, err := boltfile.Open(bytes.NewReader(sound), int64(len(sound))); err != nil || len(f.Check(boltfile.Elements)) > 0 {
		t.Fatal("the sound file is not: ", err)
	}
	for at := 0; at < len(sound); at += 31 {
		for _, x := range []byte{1, 0xff} {
			sound[at] ^= x
			if f, err := boltfile.Open(bytes.NewReader(sound), int64(len(sound))); err == nil {
				left := 100000
				explore(f.Root(), &left)
				f.Check(boltfile.Elements)
			}
			sound[at] ^= x
		}
	}
}
