package main

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"

	"quire/ledger"
	"quire/ledger/codec"
)

// replay reads payloads back from a cold disk: ours verified against checksum and SHA-256 in bounded memory, against a
// plain bbolt file of one value of 8 MiB a bucket, read through its mapping, only summed. Cold is what this machine's memory
// holds nothing of; whether the host of a virtual one does is not known.
func (b *bench) replay() error {
	count := b.pick(64, 16, 2)
	payload := hiddenStates(b.payloadBytes() / 2)
	total := float64(count * len(payload))

	l, err := b.create(options())
	if err != nil {
		return err
	}
	for i := range count {
		binary.LittleEndian.PutUint64(payload, uint64(i))
		ref, err := l.PutBytes(b.ctx, ledger.ClassLayer, "L0000", codec.None, payload)
		if err != nil {
			return err
		}
		if _, err := l.Append(b.ctx, ledger.Event{Type: "capture", Schema: 1, Key: fmt.Sprintf("capture/%04d", i), Payloads: []ledger.Payload{ref.Payload("rows")}}).Wait(b.ctx); err != nil {
			return err
		}
	}
	dir := l.Dir()
	if err := l.Close(b.ctx, "measured"); err != nil {
		return err
	}
	segments, err := filepath.Glob(filepath.Join(dir, "segments", "*.db"))
	if err != nil {
		return err
	}
	files := append(segments, filepath.Join(dir, "ledger.db"))

	plain := filepath.Join(b.dir, "plain.db")
	if err := writePlainBolt(plain, payload, count); err != nil {
		return err
	}
	defer os.Remove(plain)

	var warm int64
	cold := func(paths ...string) error {
		for _, f := range paths {
			left, err := dropCache(f)
			if err != nil {
				return err
			}
			warm = max(warm, left)
		}
		return nil
	}
	ours := func() (float64, error) {
		if err := cold(files...); err != nil {
			return 0, err
		}
		start := time.Now()
		r, err := ledger.OpenReader(dir, ledger.Options{})
		if err != nil {
			return 0, err
		}
		defer r.Close()
		// One payload is worked on while the next is read ahead, as who goes through a layer does.
		var next *ledger.PayloadReader
		work := func() error {
			if next == nil {
				return nil
			}
			_, err := io.Copy(io.Discard, next)
			return errors.Join(err, next.Close())
		}
		for e, err := range r.Scan("capture/") {
			if err != nil {
				return 0, err
			}
			p, err := r.OpenPayload(b.ctx, e, "rows")
			if err != nil {
				return 0, err
			}
			p.Prefetch()
			if err := work(); err != nil {
				return 0, err
			}
			next = p
		}
		if err := work(); err != nil {
			return 0, err
		}
		return total / time.Since(start).Seconds() / 1e6, nil
	}
	// The alternative needs seconds for what ours reads in one: it reads a part.
	part := min(max(4, count/8), count)
	other := func() (float64, error) {
		if err := cold(plain); err != nil {
			return 0, err
		}
		start := time.Now()
		db, err := bolt.Open(plain, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second})
		if err != nil {
			return 0, err
		}
		defer db.Close()
		err = db.View(func(tx *bolt.Tx) error {
			for i := range part {
				v := tx.Bucket(binary.BigEndian.AppendUint64(nil, uint64(i))).Get([]byte("v"))
				sha256.Sum256(v)
			}
			return nil
		})
		return float64(part*len(payload)) / time.Since(start).Seconds() / 1e6, err
	}
	r := Result{Name: "cold replay, 8 MiB payloads, verified", Unit: "MB/s", Against: "bbolt's mapping as it is, SHA-256 of each value", Target: 8, Of: "ratio"}
	report := b.report
	b.report = func(r Result) {
		if warm > 0 {
			r.Note = fmt.Sprintf("not cold: %d KiB of a file stayed in memory", warm>>10)
		}
		report(r)
	}
	err = b.pairs(r, b.pick(5, 3, 1), ours, other)
	b.report = report
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// writePlainBolt makes a bbolt file of n buckets that hold one value each.
func writePlainBolt(path string, payload []byte, n int) error {
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second})
	if err != nil {
		return err
	}
	for i := range n {
		err := db.Update(func(tx *bolt.Tx) error {
			b, err := tx.CreateBucket(binary.BigEndian.AppendUint64(nil, uint64(i)))
			if err != nil {
				return err
			}
			return b.Put([]byte("v"), payload)
		})
		if err != nil {
			db.Close()
			return err
		}
	}
	return db.Close()
}
