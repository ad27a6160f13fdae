package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"

	"quire/ledger"
)

// decision is an event of the size and form that the engine writes for a module.
func decision(i int) ledger.Event {
	layer, expert := i/384, i%384/3
	module := [...]string{"gate_proj", "up_proj", "down_proj"}[i%3]
	key := fmt.Sprintf("decision/L%04d/model.layers.%d.mlp.experts.%d.%s", layer, layer, expert, module)
	record := fmt.Sprintf(`{"method":"gptq","bits":4,"group":128,"sym":true,"rows":%d,"damping":0.01,"error":0.0%06d,"rtn_error":0.0%06d,"weight_sha256":"%064x","codes_sha256":"%064x"}`,
		1000+i%7000, i%999983, i%999979, i, i+1)
	return ledger.Event{Type: "decision", Schema: 1, Key: key, Record: []byte(record)}
}

// events measures decisions: many at a time, and one after the other. The alternative is bbolt alone with the same values
// under increasing numbers: no index, hash, chain, tree or anchor.
func (b *bench) events() error {
	inFlight := b.pick(4096, 4096, 64)
	total := b.pick(400_000, 120_000, 2_000)
	all := make([]ledger.Event, total)
	for i := range all {
		all[i] = decision(i)
	}
	ours := func() (float64, error) {
		l, err := b.create(options())
		if err != nil {
			return 0, err
		}
		window := make([]*ledger.Future, inFlight)
		start := time.Now()
		for i := range all {
			if f := window[i%inFlight]; f != nil {
				if _, err := f.Wait(b.ctx); err != nil {
					return 0, err
				}
			}
			window[i%inFlight] = l.Append(b.ctx, all[i])
		}
		for _, f := range window {
			if _, err := f.Wait(b.ctx); err != nil {
				return 0, err
			}
		}
		rate := float64(total) / time.Since(start).Seconds()
		return rate, b.finish(l)
	}
	other := func() (rate float64, err error) {
		err = b.plainBolt(func(db *bolt.DB) error {
			start := time.Now()
			for at := 0; at < total; at += inFlight {
				if err := putValues(db, at, all[at:min(at+inFlight, total)]); err != nil {
					return err
				}
			}
			rate = float64(total) / time.Since(start).Seconds()
			return nil
		})
		return rate, err
	}
	if err := b.pairs(Result{Name: "decisions, 4,096 in flight", Unit: "/s", Against: "bbolt alone, 4,096 values a transaction", Target: 200_000, Of: "ours"}, b.pick(5, 3, 1), ours, other); err != nil {
		return err
	}

	l, err := b.create(options())
	if err != nil {
		return err
	}
	n := 0
	step := b.pick(300, 300, 5)
	one := func() (float64, error) {
		start := time.Now()
		for range step {
			if _, err := l.Append(b.ctx, decision(n)).Wait(b.ctx); err != nil {
				return 0, err
			}
			n++
		}
		return float64(step) / time.Since(start).Seconds(), nil
	}
	err = b.plainBolt(func(db *bolt.DB) error {
		m := 0
		return b.pairs(Result{Name: "decisions, alone", Unit: "/s", Against: "bbolt alone, one value a transaction", Target: 3_000, Of: "ours"}, b.pick(24, 10, 1), one, func() (float64, error) {
			start := time.Now()
			for range step {
				if err := putValues(db, m, all[m:m+1]); err != nil {
					return 0, err
				}
				m++
			}
			return float64(step) / time.Since(start).Seconds(), nil
		})
	})
	if err != nil {
		return err
	}
	return b.finish(l)
}

// plainBolt calls f with a new bbolt file that has the ledger's page size.
func (b *bench) plainBolt(f func(db *bolt.DB) error) error {
	path := filepath.Join(b.dir, "plain.db")
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second, PageSize: 16 << 10, FreelistType: bolt.FreelistMapType, InitialMmapSize: 4 << 30})
	if err != nil {
		return err
	}
	defer os.Remove(path)
	err = db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucket([]byte("ev"))
		return err
	})
	if err == nil {
		err = f(db)
	}
	return errors.Join(err, db.Close())
}

func putValues(db *bolt.DB, at int, events []ledger.Event) error {
	return db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("ev"))
		b.FillPercent = 1
		for i := range events {
			v := append(make([]byte, 64, 64+len(events[i].Key)+len(events[i].Record)), events[i].Key...)
			if err := b.Put(binary.BigEndian.AppendUint64(nil, uint64(at+i)), append(v, events[i].Record...)); err != nil {
				return err
			}
		}
		return nil
	})
}
