package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	bolt "go.etcd.io/bbolt"

	"quire/ledger/internal/boltfile"
)

// store reads the tables of ledger.db: through the writer's handle, or from a file that nobody writes.
type store interface {
	// get gives a copy of a value, nil when the key is absent.
	get(bucket, key []byte) ([]byte, error)
	// scan calls fn for at most limit keys ≥ from; the slices are valid during the call. more says that keys are left.
	scan(bucket, from []byte, limit int, fn func(k, v []byte) error) (more bool, err error)
	// last gives the greatest key and its value, nil for an empty bucket.
	last(bucket []byte) (k, v []byte, err error)
}

// inOrder makes sure that a scan goes on: with keys out of order, one that starts again behind the last key may not.
func inOrder(bucket, from, prev, k []byte) error {
	if bytes.Compare(k, from) < 0 || prev != nil && bytes.Compare(k, prev) <= 0 {
		return damagedf(databaseName, "keys of table %s are out of order at %x", bucket, k)
	}
	return nil
}

// errStop ends a scan without an error.
var errStop = errors.New("stop")

// boltStore reads through bbolt in short transactions.
type boltStore struct{ db *bolt.DB }

func (s boltStore) view(bucket []byte, f func(*bolt.Bucket) error) error {
	return guarded(databaseName, func() error {
		return s.db.View(func(tx *bolt.Tx) error {
			b := tx.Bucket(bucket)
			if b == nil {
				return damagedf(databaseName, "bucket %s is missing", bucket)
			}
			return f(b)
		})
	})
}

func (s boltStore) get(bucket, key []byte) (v []byte, err error) {
	err = s.view(bucket, func(b *bolt.Bucket) error {
		v = bytes.Clone(b.Get(key))
		return nil
	})
	return v, err
}

func (s boltStore) scan(bucket, from []byte, limit int, fn func(k, v []byte) error) (more bool, err error) {
	err = s.view(bucket, func(b *bolt.Bucket) error {
		c := b.Cursor()
		var prev []byte
		for k, v := c.Seek(from); k != nil; k, v = c.Next() {
			if err := inOrder(bucket, from, prev, k); err != nil {
				return err
			}
			prev = k
			if limit == 0 {
				more = true
				return nil
			}
			limit--
			if err := fn(k, v); err != nil {
				return err
			}
		}
		return nil
	})
	if errors.Is(err, errStop) {
		return false, nil
	}
	return more, err
}

func (s boltStore) last(bucket []byte) (k, v []byte, err error) {
	err = s.view(bucket, func(b *bolt.Bucket) error {
		lk, lv := b.Cursor().Last()
		k, v = bytes.Clone(lk), bytes.Clone(lv)
		return nil
	})
	return k, v, err
}

// fileStore reads a file that nobody writes, trusting nothing in it.
type fileStore struct{ f *boltfile.File }

func wrapPage(err error) error {
	if err == nil || errors.Is(err, ErrDamaged) || errors.Is(err, errStop) || !errors.Is(err, boltfile.ErrFormat) {
		return err
	}
	return &DamageError{File: databaseName, Chunk: -1, What: "a page does not hold what it should", Inner: err}
}

func (s fileStore) bucket(name []byte) (boltfile.Bucket, error) {
	b, ok, err := s.f.Root().Bucket(name)
	if err == nil && !ok {
		err = damagedf(databaseName, "bucket %s is missing", name)
	}
	return b, wrapPage(err)
}

func (s fileStore) get(bucket, key []byte) ([]byte, error) {
	b, err := s.bucket(bucket)
	if err != nil {
		return nil, err
	}
	v, ok, err := b.Get(key)
	if !ok {
		return nil, wrapPage(err)
	}
	return v, nil
}

func (s fileStore) scan(bucket, from []byte, limit int, fn func(k, v []byte) error) (more bool, err error) {
	b, err := s.bucket(bucket)
	if err != nil {
		return false, err
	}
	var prev []byte
	err = b.Walk(from, func(e boltfile.Entry) error {
		if err := inOrder(bucket, from, prev, e.Key); err != nil {
			return err
		}
		prev = append(prev[:0], e.Key...)
		if limit == 0 {
			more = true
			return io.EOF
		}
		limit--
		v, err := e.Bytes()
		if err != nil {
			return err
		}
		return fn(e.Key, v)
	})
	if errors.Is(err, errStop) {
		return false, nil
	}
	return more, wrapPage(err)
}

func (s fileStore) last(bucket []byte) (k, v []byte, err error) {
	b, err := s.bucket(bucket)
	if err != nil {
		return nil, nil, err
	}
	k, v, _, err = b.Last()
	return k, v, wrapPage(err)
}

// segmentFiles gives read access to the payloads of a segment.
type segmentFiles interface {
	record(id uint32) (segmentRecord, error)
	// with calls f with the tables of a segment, at a moment when no page of them can change.
	with(rec segmentRecord, f func(file *os.File, parts, headers boltfile.Bucket) error) error
	// data calls f with the file of a segment, which stays open meanwhile.
	data(rec segmentRecord, f func(file *os.File) error) error
}

// readSegment opens the tables of a segment file that nobody writes meanwhile.
func readSegment(file *os.File, name string, f func(file *os.File, parts, headers boltfile.Bucket) error) error {
	st, err := file.Stat()
	if err != nil {
		return err
	}
	b, err := boltfile.Open(file, st.Size())
	if err != nil {
		return &DamageError{File: name, Chunk: -1, What: "file header", Inner: err}
	}
	return withTables(b.Root(), name, file, f)
}

func withTables(root boltfile.Bucket, name string, file *os.File, f func(file *os.File, parts, headers boltfile.Bucket) error) error {
	parts, ok1, err1 := root.Bucket(bucketParts)
	headers, ok2, err2 := root.Bucket(bucketHeaders)
	if err := errors.Join(err1, err2); err != nil || !ok1 || !ok2 {
		return &DamageError{File: name, Chunk: -1, What: "tables of the segment", Inner: err}
	}
	return f(file, parts, headers)
}

func openSegmentFile(path string, rec segmentRecord) (*os.File, error) {
	file, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil, &DamageError{File: rec.file(), Chunk: -1, What: "the segment file is missing"}
	}
	return file, err
}

// liveSegments reads the segments of a running ledger.
type liveSegments struct{ l *Ledger }

func (s liveSegments) record(id uint32) (segmentRecord, error) {
	g := s.l.segments.get(id)
	if g == nil {
		return segmentRecord{}, damagedf(databaseName, "segment %d is not recorded", id)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rec, nil
}

func (s liveSegments) with(rec segmentRecord, f func(file *os.File, parts, headers boltfile.Bucket) error) error {
	for {
		err := s.once(rec, f)
		if !errors.Is(err, boltfile.ErrWriterClosed) { // else it was sealed meanwhile
			return err
		}
	}
}

func (s liveSegments) once(rec segmentRecord, f func(file *os.File, parts, headers boltfile.Bucket) error) error {
	g := s.l.segments.get(rec.ID)
	if g == nil {
		return damagedf(databaseName, "segment %d is not recorded", rec.ID)
	}
	s.l.retireMu.RLock()
	defer s.l.retireMu.RUnlock()
	g.mu.Lock()
	file, err := g.reading()
	if err != nil {
		g.mu.Unlock()
		return err
	}
	w, sealed := g.w, g.rec.State != segOpen
	if w != nil {
		g.mu.Unlock()
		return w.View(file, func(root boltfile.Bucket) error { return withTables(root, rec.file(), file, f) })
	}
	if sealed { // nobody will write it again
		g.mu.Unlock()
	} else {
		defer g.mu.Unlock() // nobody must begin to write it meanwhile
	}
	return readSegment(file, rec.file(), f)
}

func (s liveSegments) data(rec segmentRecord, f func(file *os.File) error) error {
	g := s.l.segments.get(rec.ID)
	if g == nil {
		return damagedf(databaseName, "segment %d is not recorded", rec.ID)
	}
	s.l.retireMu.RLock()
	defer s.l.retireMu.RUnlock()
	g.mu.Lock()
	file, err := g.reading()
	g.mu.Unlock()
	if err != nil {
		return err
	}
	return f(file)
}

// stillSegments reads the segments of a ledger that nobody writes.
type stillSegments struct {
	dir string
	st  store

	mu     sync.Mutex
	files  map[uint32]*openSegment
	order  []uint32
	closed bool
}

const maxOpenSegments = 16

func (s *stillSegments) record(id uint32) (segmentRecord, error) {
	v, err := s.st.get(bucketSegments, indexKey(id))
	if err != nil {
		return segmentRecord{}, err
	}
	if v == nil {
		return segmentRecord{}, damagedf(databaseName, "segment %d is not recorded", id)
	}
	return parseSegmentRecord(id, v)
}

func (s *stillSegments) with(rec segmentRecord, f func(file *os.File, parts, headers boltfile.Bucket) error) error {
	return s.data(rec, func(file *os.File) error { return readSegment(file, rec.file(), f) })
}

func (s *stillSegments) data(rec segmentRecord, f func(file *os.File) error) error {
	o, err := s.open(rec)
	if err != nil {
		return err
	}
	defer s.letGo(o)
	return f(o.file)
}

func (s *stillSegments) open(rec segmentRecord) (*openSegment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	o := s.files[rec.ID]
	if o == nil {
		file, err := openSegmentFile(filepath.Join(s.dir, filepath.FromSlash(rec.file())), rec)
		if err != nil {
			return nil, err
		}
		if len(s.order) >= maxOpenSegments {
			oldest := s.files[s.order[0]]
			delete(s.files, s.order[0])
			s.order = s.order[1:]
			_ = oldest.drop()
		}
		if s.files == nil {
			s.files = map[uint32]*openSegment{}
		}
		o = &openSegment{file: file, users: 1}
		s.files[rec.ID] = o
		s.order = append(s.order, rec.ID)
	}
	o.users++
	return o, nil
}

func (s *stillSegments) letGo(o *openSegment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = o.drop()
}

// openSegment is a file that is closed when neither the list of open ones nor a reader needs it.
type openSegment struct {
	file  *os.File
	users int
}

func (o *openSegment) drop() error {
	if o.users--; o.users > 0 {
		return nil
	}
	return o.file.Close()
}

func (s *stillSegments) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, o := range s.files {
		errs = append(errs, o.drop())
	}
	s.files, s.order, s.closed = nil, nil, true
	return errors.Join(errs...)
}

// Decoder reads a payload that lives in an output tensor or a foreign file. It gives exactly length raw bytes.
type Decoder func(ctx context.Context, loc Location, length int64) (io.ReadCloser, error)

// view is what a running ledger and a closed one answer alike. Both embed it.
type view struct {
	st       store
	seg      segmentFiles
	decoders map[string]Decoder
}

func (v *view) eventAt(seq uint64) (Event, error) {
	b, err := v.st.get(bucketEvents, seqKey(seq))
	if err != nil {
		return Event{}, err
	}
	if b == nil {
		return Event{}, &DamageError{File: databaseName, Seq: seq, Chunk: -1, What: "the event is missing"}
	}
	return checkEvent(seq, b)
}

func checkEvent(seq uint64, b []byte) (Event, error) {
	e, err := decodeEnvelope(b)
	if err == nil && e.Seq != seq {
		err = fmt.Errorf("it calls itself event %d", e.Seq)
	}
	if errors.Is(err, ErrNewer) {
		return Event{}, err
	}
	if err != nil {
		return Event{}, &DamageError{File: databaseName, Seq: seq, Chunk: -1, What: "envelope", Inner: err}
	}
	return e, nil
}
