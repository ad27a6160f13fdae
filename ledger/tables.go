package ledger

import (
	"encoding/binary"

	bolt "go.etcd.io/bbolt"
)

// The buckets of ledger.db. Everything but ev, pl, loc and seg can be rebuilt from them.
var (
	bucketMeta      = []byte("meta") // `format` u32, `run` 16 B
	bucketEvents    = []byte("ev")   // seq u64 BE -> envelope; never changed
	bucketKeys      = []byte("ix")   // natural key -> seq u64 BE
	bucketLocations = []byte("loc")  // seq ‖ payload index u16 BE -> location; the only record that changes
	bucketInline    = []byte("pl")   // seq ‖ payload index -> inline payload, crc32c
	bucketOwners    = []byte("so")   // segment u32 BE ‖ ordinal u64 BE ‖ seq ‖ payload index -> nothing: who needs a segment
	bucketHashes    = []byte("mk")   // block u64 BE -> Merkle hashes
	bucketSegments  = []byte("seg")  // segment u32 BE -> segmentRecord
	bucketHead      = []byte("head") // `h` -> seq, hash, root, time, crc32c

	databaseBuckets = [][]byte{bucketMeta, bucketEvents, bucketKeys, bucketLocations, bucketInline, bucketOwners, bucketHashes, bucketSegments, bucketHead}

	headKey   = []byte("h")
	formatKey = []byte("format")
	runKey    = []byte("run")
)

// tables are the buckets of a transaction.
type tables struct {
	tx *bolt.Tx

	events, keys, locations, inline, owners, hashes, segments, head *bolt.Bucket
}

func newTables(tx *bolt.Tx) *tables {
	t := &tables{tx, tx.Bucket(bucketEvents), tx.Bucket(bucketKeys), tx.Bucket(bucketLocations), tx.Bucket(bucketInline),
		tx.Bucket(bucketOwners), tx.Bucket(bucketHashes), tx.Bucket(bucketSegments), tx.Bucket(bucketHead)}
	t.events.FillPercent = 1
	t.locations.FillPercent = 1
	t.hashes.FillPercent = 1
	t.keys.FillPercent = 0.9
	return t
}

// table gives a bucket that events are entered in.
func (t *tables) table(name []byte) *bolt.Bucket {
	switch string(name) {
	case "ev":
		return t.events
	case "ix":
		return t.keys
	case "loc":
		return t.locations
	case "pl":
		return t.inline
	case "so":
		return t.owners
	case "mk":
		return t.hashes
	case "head":
		return t.head
	}
	panic("ledger: no event is entered in table " + string(name))
}

func (t *tables) get(bucket []byte, key string) ([]byte, error) {
	return t.table(bucket).Get([]byte(key)), nil
}

func (t *tables) put(bucket []byte, key string, v []byte) error {
	return t.table(bucket).Put([]byte(key), v)
}

// locationKey is seq ‖ payload index.
func locationKey(seq uint64, i int) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 10), seq)
	return binary.BigEndian.AppendUint16(b, uint16(i))
}

// ownerKey is segment ‖ ordinal ‖ location key.
func ownerKey(l Location, at []byte) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 22), l.SegmentID)
	b = binary.BigEndian.AppendUint64(b, l.Ordinal)
	return append(b, at...)
}
