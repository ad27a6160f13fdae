package ledger

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	bolt "go.etcd.io/bbolt"

	"quire/ledger/codec"
	"quire/ledger/internal/boltfile"
)

// A segment file holds the payloads of one retention class and segment key. Buckets:
//
//	i    one key `id`: JSON {run, class, key, roll}: whose segment this is
//	h    ordinal u64 BE -> header of a complete payload
//	b    ordinal u64 BE ‖ part u32 BE -> nested bucket of up to 8 chunks: index u32 BE -> chunk
//
//	header   0        4        6       8       16        48         52       56
//	         +--------+--------+-------+-------+---------+----------+--------+-------+
//	         | "QPL1" | codec  | zero  | length| SHA-256 | chunk raw| chunks | crc32c|
//	         +--------+--------+-------+-------+---------+----------+--------+-------+
//
//	chunk    0       2       4          8            8+n     12+n
//	         +-------+-------+----------+-------------+-------+
//	         | codec | zero  | raw len  | n stored    | crc32c|    the checksum also covers ordinal and index,
//	         | u16   | u16   | u32      | bytes       | u32   |    so a chunk in another's place is noticed
//	         +-------+-------+----------+-------------+-------+
//
// A part is written in one transaction and never touched again, so appending to a payload rewrites no chunk.
const (
	segmentDir     = "segments"
	segmentPage    = 4 << 10
	chunksPerPart  = 8
	chunkHeader    = 8
	chunkOverhead  = 12
	payloadHeader  = 60
	payloadMagic   = "QPL1"
	maxSegmentName = 64
)

var (
	bucketIdentity = []byte("i")
	bucketHeaders  = []byte("h")
	bucketParts    = []byte("b")
)

// States of a segment.
const (
	segOpen     = "open"
	segSealed   = "sealed"
	segRetiring = "retiring" // the event is durable, the file may still be there
	segRetired  = "retired"
	segDropped  = "dropped" // left out of a compact backup or of a salvage
)

// segmentRecord is what ledger.db knows of a segment: JSON, then crc32c, in bucket `seg` under id u32 BE.
type segmentRecord struct {
	ID    uint32 `json:"-"`
	Class Class  `json:"class"`
	Key   string `json:"key"`
	Roll  int    `json:"roll"`
	State string `json:"state"`
	Size  int64  `json:"size,omitempty"`  // when sealed
	TxID  uint64 `json:"txid,omitempty"`  // newest transaction when sealed
	Bytes int64  `json:"bytes,omitempty"` // raw bytes when sealed
}

func (s segmentRecord) file() string {
	return filepath.ToSlash(filepath.Join(segmentDir, fmt.Sprintf("%s-%s-%03d.db", s.Class, s.Key, s.Roll)))
}

func (s segmentRecord) gone() bool {
	return s.State == segRetiring || s.State == segRetired || s.State == segDropped
}

func (s segmentRecord) encode() []byte {
	b := mustJSON(s)
	return binary.LittleEndian.AppendUint32(b, crcOf(b))
}

func parseSegmentRecord(id uint32, b []byte) (segmentRecord, error) {
	s := segmentRecord{ID: id}
	if len(b) < 4 || crcOf(b[:len(b)-4]) != binary.LittleEndian.Uint32(b[len(b)-4:]) {
		return s, damagedf(databaseName, "record of segment %d", id)
	}
	if err := json.Unmarshal(b[:len(b)-4], &s); err != nil {
		return s, damagedf(databaseName, "record of segment %d: %v", id, err)
	}
	if !validClass(s.Class) || !validSegmentKey(s.Key) {
		return s, damagedf(databaseName, "record of segment %d names %q %q", id, s.Class, s.Key)
	}
	return s, nil
}

func validSegmentKey(k string) bool {
	if k == "" || len(k) > maxSegmentName || k[0] == '.' {
		return false
	}
	return strings.IndexFunc(k, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
	}) < 0
}

// segmentIdentity is what a segment file says of itself.
type segmentIdentity struct {
	Run   RunID  `json:"run"`
	Class Class  `json:"class"`
	Key   string `json:"key"`
	Roll  int    `json:"roll"`
}

// payloadHead is the header of a complete payload.
type payloadHead struct {
	Codec    codec.ID
	Length   int64
	SHA256   Digest
	ChunkRaw uint32
	Chunks   uint32
}

func encodePayloadHead(h payloadHead) []byte {
	b := make([]byte, payloadHeader)
	copy(b, payloadMagic)
	binary.LittleEndian.PutUint16(b[4:], uint16(h.Codec))
	binary.LittleEndian.PutUint64(b[8:], uint64(h.Length))
	copy(b[16:], h.SHA256[:])
	binary.LittleEndian.PutUint32(b[48:], h.ChunkRaw)
	binary.LittleEndian.PutUint32(b[52:], h.Chunks)
	binary.LittleEndian.PutUint32(b[56:], crcOf(b[:56]))
	return b
}

func decodePayloadHead(b []byte) (payloadHead, error) {
	if len(b) != payloadHeader || string(b[:4]) != payloadMagic || crcOf(b[:56]) != binary.LittleEndian.Uint32(b[56:]) {
		return payloadHead{}, fmt.Errorf("payload header is corrupt")
	}
	h := payloadHead{Codec: codec.ID(binary.LittleEndian.Uint16(b[4:])), Length: int64(binary.LittleEndian.Uint64(b[8:])),
		SHA256: Digest(b[16:48]), ChunkRaw: binary.LittleEndian.Uint32(b[48:]), Chunks: binary.LittleEndian.Uint32(b[52:])}
	if h.Length < 0 || h.ChunkRaw == 0 || uint64(h.Chunks) != chunkCount(h.Length, h.ChunkRaw) {
		return payloadHead{}, fmt.Errorf("payload header of %d bytes in %d chunks", h.Length, h.Chunks)
	}
	return h, nil
}

func chunkCount(length int64, chunkRaw uint32) uint64 {
	return (uint64(length) + uint64(chunkRaw) - 1) / uint64(chunkRaw)
}

func chunkCRC(ordinal uint64, index uint32, body []byte) uint32 {
	var seed [12]byte
	binary.BigEndian.PutUint64(seed[:], ordinal)
	binary.BigEndian.PutUint32(seed[8:], index)
	return crcUpdate(crcOf(seed[:]), body)
}

// chunk is the stored form of a chunk: what stands before, the stored bytes, and the checksum.
type chunk struct {
	frame [chunkOverhead]byte // header and checksum
	body  []byte              // the caller's own, or in buf
	buf   []byte              // to be recycled
}

func (c *chunk) size() int64 { return int64(len(c.body)) + chunkOverhead }

// newChunk gives the stored form of a chunk whose body was encoded with a codec, but for the checksum.
func newChunk(id codec.ID, body []byte, rawLen int) (c chunk) {
	c.body = body
	binary.LittleEndian.PutUint16(c.frame[:], uint16(id))
	binary.LittleEndian.PutUint32(c.frame[4:], uint32(rawLen))
	return c
}

// item is the chunk as a key of its part.
func (c *chunk) item(ordinal uint64, index uint32) boltfile.Item {
	return boltfile.Item{Key: indexKey(index), Value: [][]byte{c.frame[:chunkHeader], c.body, c.frame[chunkHeader:]}, Ready: func() {
		crc := crcUpdate(chunkCRC(ordinal, index, c.frame[:chunkHeader]), c.body)
		binary.LittleEndian.PutUint32(c.frame[chunkHeader:], crc)
	}}
}

// checkChunk verifies a stored chunk's checksum and gives its parts.
func checkChunk(b []byte, ordinal uint64, index uint32) (id codec.ID, rawLen int, stored []byte, err error) {
	if len(b) < chunkOverhead {
		return 0, 0, nil, fmt.Errorf("chunk of %d bytes", len(b))
	}
	body := b[:len(b)-4]
	if got, want := chunkCRC(ordinal, index, body), binary.LittleEndian.Uint32(b[len(body):]); got != want {
		return 0, 0, nil, fmt.Errorf("chunk checksum %08x, stored %08x", got, want)
	}
	return codec.ID(binary.LittleEndian.Uint16(b)), int(binary.LittleEndian.Uint32(b[4:])), body[chunkHeader:], nil
}

func partKey(ordinal uint64, part uint32) []byte {
	b := make([]byte, 12)
	binary.BigEndian.PutUint64(b, ordinal)
	binary.BigEndian.PutUint32(b[8:], part)
	return b
}

func indexKey(index uint32) []byte { return binary.BigEndian.AppendUint32(nil, index) }

func seqKey(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// segment is a segment of the running ledger. Those who put write their payloads' pages; the blob writer commits them.
type segment struct {
	rec  segmentRecord
	path string

	mu      sync.Mutex
	next    uint64              // ordinal of the next payload
	pending map[uint64]struct{} // payloads being put, or put and not yet named by an event
	bytes   int64               // raw bytes put in this stay
	w       *boltfile.Writer    // nil until written to in this stay, or when sealed
	file    *os.File            // for readers
	failed  error               // why it cannot be written any more
	putting int                 // payloads being put
	sealing bool                // no further ones
	idle    chan struct{}       // closed when none is being put any more, for who seals
	shut    bool                // the ledger was closed
}

// take claims the next ordinal, unless the segment is no longer open. leave ends what it began.
func (g *segment) take() (uint64, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.rec.State != segOpen || g.sealing {
		return 0, false
	}
	n := g.next
	g.next++
	g.pending[n] = struct{}{}
	g.putting++
	return n, true
}

func (g *segment) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.putting--; g.putting == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// quiesce lets no payload begin in the segment and waits for those that have: each is in one file, whole. resume takes it back.
func (g *segment) quiesce(ctx context.Context) error {
	g.mu.Lock()
	g.sealing = true
	if g.putting == 0 {
		g.mu.Unlock()
		return nil
	}
	if g.idle == nil {
		g.idle = make(chan struct{})
	}
	idle := g.idle
	g.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		g.resume()
		return context.Cause(ctx)
	}
}

func (g *segment) resume() {
	g.mu.Lock()
	g.sealing = false
	g.mu.Unlock()
}

// open says whether payloads may still be put into the segment.
func (g *segment) open() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rec.State == segOpen
}

// broken says why the segment cannot be written.
func (g *segment) broken() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failed
}

// reading gives the file for readers; g.mu is held.
func (g *segment) reading() (*os.File, error) {
	if g.file == nil {
		if g.shut {
			return nil, ErrClosed
		}
		file, err := openSegmentFile(g.path, g.rec)
		if err != nil {
			return nil, err
		}
		g.file = file
	}
	return g.file, nil
}

// writer gives what adds to the segment's file.
func (g *segment) writer() (*boltfile.Writer, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.w != nil {
		return g.w, nil
	}
	if g.shut {
		return nil, boltfile.ErrWriterClosed
	}
	f, err := os.OpenFile(g.path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	w, err := boltfile.NewWriter(f, syncSegment)
	if err != nil {
		f.Close()
		if errors.Is(err, boltfile.ErrFormat) {
			err = &DamageError{File: g.rec.file(), Chunk: -1, What: "a page does not hold what it should", Inner: err}
		}
		return nil, err
	}
	w.Wrote = startWriteback // the disk works while the next bytes are handed over and hashed
	g.w = w
	return w, nil
}

// syncHook, when set by a test, stands in for the sync of a segment.
var syncHook atomic.Pointer[func(*os.File) error]

func syncSegment(f *os.File) error {
	if h := syncHook.Load(); h != nil {
		return (*h)(f)
	}
	return fdatasync(f)
}

// createSegmentFile makes an empty, durable segment file under its final name.
func createSegmentFile(dir string, run RunID, rec segmentRecord) error {
	path := filepath.Join(dir, filepath.FromSlash(rec.file()))
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !os.IsNotExist(err) {
		return err
	}
	db, err := openBolt(tmp, rec.file(), bolt.Options{PageSize: segmentPage, NoFreelistSync: true})
	if err != nil {
		return err
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, b := range [][]byte{bucketIdentity, bucketHeaders, bucketParts} {
			if _, err := tx.CreateBucket(b); err != nil {
				return err
			}
		}
		return tx.Bucket(bucketIdentity).Put([]byte("id"), mustJSON(segmentIdentity{Run: run, Class: rec.Class, Key: rec.Key, Roll: rec.Roll}))
	})
	err = causeOf(err)
	if cerr := db.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = syncFile(tmp)
	}
	if err != nil {
		os.Remove(tmp)
		return err
	}
	failpoint("segment.created")
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	failpoint("segment.renamed")
	return syncDir(filepath.Dir(path))
}
