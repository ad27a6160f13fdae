package boltfile_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"

	"quire/ledger/internal/boltfile"
)

func noSync(*os.File) error { return nil }

// twoTables makes a bbolt file as a segment is made.
func twoTables(t *testing.T, pageSize int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s.db")
	db, err := bolt.Open(path, 0o644, &bolt.Options{PageSize: pageSize, NoFreelistSync: true, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, n := range []string{"b", "h", "i"} {
			b, err := tx.CreateBucket([]byte(n))
			if err != nil {
				return err
			}
			if n == "i" {
				err = b.Put([]byte("id"), []byte("kept"))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

func openWriter(t *testing.T, path string, sync func(*os.File) error) *boltfile.Writer {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	w, err := boltfile.NewWriter(f, sync)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// checkWithBolt compares a file with what it should hold, as bbolt and this package read it.
func checkWithBolt(t *testing.T, path string, leaves map[uint64]map[uint32][]byte, heads map[uint64][]byte) {
	t.Helper()
	db, err := bolt.Open(path, 0o644, &bolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.View(func(tx *bolt.Tx) error {
		for err := range tx.Check() {
			return err
		}
		if v := tx.Bucket([]byte("i")).Get([]byte("id")); string(v) != "kept" {
			return fmt.Errorf("another table holds %q", v)
		}
		n := 0
		if err := tx.Bucket([]byte("h")).ForEach(func(k, v []byte) error {
			n++
			if !bytes.Equal(v, heads[binary.BigEndian.Uint64(k)]) {
				return fmt.Errorf("key %x holds %x", k, v)
			}
			return nil
		}); err != nil {
			return err
		}
		if n != len(heads) {
			return fmt.Errorf("%d keys of %d", n, len(heads))
		}
		n = 0
		parts := tx.Bucket([]byte("b"))
		if err := parts.ForEachBucket(func(k []byte) error {
			n++
			want, b := leaves[binary.BigEndian.Uint64(k)], parts.Bucket(k)
			for i, v := range want {
				if !bytes.Equal(b.Get(binary.BigEndian.AppendUint32(nil, i)), v) {
					return fmt.Errorf("leaf %x differs at %d", k, i)
				}
			}
			if have := b.Inspect().KeyN; have != len(want) {
				return fmt.Errorf("leaf %x has %d keys of %d", k, have, len(want))
			}
			return nil
		}); err != nil {
			return err
		}
		if n != len(leaves) {
			return fmt.Errorf("%d leaves of %d", n, len(leaves))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b, err := boltfile.Open(f, st.Size())
	if err != nil {
		t.Fatal(err)
	}
	if problems := b.Check(boltfile.Elements); len(problems) > 0 {
		t.Fatal(problems)
	}
}

// TestWriter puts random keys and leaves, takes the file over again and again, lets bbolt delete in between, and compares
// with a map.
func TestWriter(t *testing.T) {
	t.Parallel()
	for _, ps := range []int{1024, 4096} {
		t.Run(fmt.Sprint(ps), func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			r := rand.New(rand.NewPCG(seed, 1))
			path := twoTables(t, ps)
			leaves, heads := map[uint64]map[uint32][]byte{}, map[uint64][]byte{}
			noise := func(n int) []byte {
				b := make([]byte, n)
				for i := range b {
					b[i] = byte(r.Uint32())
				}
				return b
			}
			for range 5 {
				w := openWriter(t, path, noSync)
				for range 40 {
					var puts []boltfile.Put
					for range r.IntN(12) {
						k := r.Uint64N(5000)
						key := binary.BigEndian.AppendUint64(nil, k)
						if r.IntN(3) == 0 {
							heads[k] = noise(r.IntN(100))
							puts = append(puts, boltfile.Put{Table: []byte("h"), Key: key, Value: heads[k]})
						}
						if leaves[k] != nil {
							continue
						}
						leaves[k] = map[uint32][]byte{}
						var items []boltfile.Item
						for i := range 1 + r.IntN(8) {
							v := noise([]int{0, 1, 50, 700, 3000, 20000}[r.IntN(6)])
							cut := r.IntN(len(v) + 1)
							leaves[k][uint32(i)] = v
							items = append(items, boltfile.Item{Key: binary.BigEndian.AppendUint32(nil, uint32(i)), Value: [][]byte{v[:cut], nil, v[cut:]}})
						}
						put := boltfile.Put{Table: []byte("b"), Key: key, Bucket: true}
						if n := boltfile.LeafBytes(items); w.Inlines(n) {
							put.Value = boltfile.InlineBucket(items)
						} else {
							e, err := w.Reserve(n)
							if err != nil {
								t.Fatal(err)
							}
							if r.IntN(4) == 0 { // one that nobody uses after all
								w.Release(e)
								if e, err = w.Reserve(n); err != nil {
									t.Fatal(err)
								}
							}
							if err := w.WriteLeaf(e, items); err != nil {
								t.Fatal(err)
							}
							put.Value = e.Bucket()
						}
						puts = append(puts, put)
					}
					if err := w.Commit(puts); err != nil {
						t.Fatal(err)
					}
				}
				copied := filepath.Join(t.TempDir(), "copy.db")
				f, err := os.Create(copied)
				if err != nil {
					t.Fatal(err)
				}
				_, err = w.WriteTo(f)
				if err := errors.Join(err, f.Close(), w.Close()); err != nil {
					t.Fatal(err)
				}
				checkWithBolt(t, path, leaves, heads)
				checkWithBolt(t, copied, leaves, heads)
				if r.IntN(2) == 0 {
					path = copied
				}
				db, err := bolt.Open(path, 0o644, &bolt.Options{NoFreelistSync: true, NoSync: true})
				if err != nil {
					t.Fatal(err)
				}
				err = db.Update(func(tx *bolt.Tx) error {
					for k := range leaves {
						if r.IntN(3) > 0 {
							continue
						}
						delete(leaves, k)
						if err := tx.Bucket([]byte("b")).DeleteBucket(binary.BigEndian.AppendUint64(nil, k)); err != nil {
							return err
						}
					}
					for k := range heads {
						if r.IntN(3) > 0 {
							continue
						}
						delete(heads, k)
						if err := tx.Bucket([]byte("h")).Delete(binary.BigEndian.AppendUint64(nil, k)); err != nil {
							return err
						}
					}
					return nil
				})
				if err := errors.Join(err, db.Close()); err != nil {
					t.Fatal(err)
				}
				checkWithBolt(t, path, leaves, heads)
			}
		})
	}
}

// TestWriterReuses commits many times: pages that no state needs are used again, but none that a reader looks at.
func TestWriterReuses(t *testing.T) {
	t.Parallel()
	path := twoTables(t, 4096)
	w := openWriter(t, path, noSync)
	head := func(k uint64) []boltfile.Put {
		return []boltfile.Put{{Table: []byte("h"), Key: binary.BigEndian.AppendUint64(nil, k), Value: make([]byte, 60)}}
	}
	for k := range uint64(200) {
		if err := w.Commit(head(k)); err != nil {
			t.Fatal(err)
		}
	}
	used := func() int64 {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		b, err := boltfile.Open(f, 1<<40)
		if err != nil {
			t.Fatal(err)
		}
		return b.Used() / 4096
	}
	if n := used(); n > 20 {
		t.Fatalf("%d pages for 200 keys of 60 bytes", n)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = w.View(f, func(root boltfile.Bucket) error {
		for k := range uint64(50) {
			if err := w.Commit(head(1000 + k)); err != nil {
				return err
			}
		}
		n := 0
		b, _, err := root.Bucket([]byte("h"))
		if err != nil {
			return err
		}
		err = b.Walk(nil, func(boltfile.Entry) error { n++; return nil })
		if err == nil && n != 200 {
			err = fmt.Errorf("the reader sees %d keys of 200", n)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(head(1)); !errors.Is(err, boltfile.ErrWriterClosed) {
		t.Fatal(err)
	}
}

// TestWriterSyncFails: a failed sync takes back the commit, and what had been written beside it is no longer trusted. When it
// was the header's, nothing is.
func TestWriterSyncFails(t *testing.T) {
	t.Parallel()
	failure := errors.New("medium error")
	path := twoTables(t, 4096)
	left := 100
	w := openWriter(t, path, func(*os.File) error {
		if left--; left < 0 {
			return failure
		}
		return nil
	})
	defer w.Close()
	put := []boltfile.Put{{Table: []byte("h"), Key: []byte("k"), Value: []byte("v")}}
	if err := w.Commit(put); err != nil {
		t.Fatal(err)
	}
	e, err := w.Reserve(5000)
	if err != nil {
		t.Fatal(err)
	}
	left = 0
	if err := w.Commit(put); !errors.Is(err, failure) || errors.As(err, new(*boltfile.DoubtError)) {
		t.Fatal(err)
	}
	if err := w.Lost(e); !errors.Is(err, failure) {
		t.Fatal(err)
	}
	w.Release(e)
	if e, err = w.Reserve(5000); err != nil || w.Lost(e) != nil {
		t.Fatal(err, w.Lost(e))
	}
	left = 100
	if err := w.Commit(put); err != nil {
		t.Fatal(err)
	}
	left = 1
	var doubt *boltfile.DoubtError
	if err := w.Commit(put); !errors.As(err, &doubt) || doubt.Inner != failure {
		t.Fatal(err)
	}
	left = 100
	if err := w.Commit(put); !errors.As(err, &doubt) {
		t.Fatal("a commit after one in doubt: ", err)
	}
	if _, err := w.Reserve(1); !errors.As(err, &doubt) {
		t.Fatal("a page was given away after a commit in doubt: ", err)
	}
}
