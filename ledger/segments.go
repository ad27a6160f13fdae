package ledger

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"sync"

	bolt "go.etcd.io/bbolt"
)

// segmentSet knows every segment of the ledger by id, and the open one of each class and key.
type segmentSet struct {
	l *Ledger

	mu      sync.Mutex
	byID    map[uint32]*segment
	current map[string]*segment
	making  claims
	sealing claims
	last    uint32 // greatest id
}

func segmentName(c Class, key string) string { return string(c) + "/" + key }

func (s *segmentSet) get(id uint32) *segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id]
}

func (s *segmentSet) owns(seg *segment) bool {
	if seg == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[seg.rec.ID] == seg && !seg.rec.gone()
}

// of gives the segments of a class and key that still exist, oldest first.
func (s *segmentSet) of(class Class, key string) []*segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*segment
	for id := uint32(1); id <= s.last; id++ {
		if g := s.byID[id]; g != nil && g.rec.Class == class && g.rec.Key == key && !g.rec.gone() {
			list = append(list, g)
		}
	}
	return list
}

// begin gives the segment into which a payload goes, and the payload's number in it. The caller ends with leave.
func (s *segmentSet) begin(ctx context.Context, class Class, key string) (*segment, uint64, error) {
	name := segmentName(class, key)
	for {
		s.mu.Lock()
		seg := s.current[name]
		s.mu.Unlock()
		if seg != nil && !s.full(seg) {
			if n, ok := seg.take(); ok {
				return seg, n, nil
			}
		}
		if err := s.roll(ctx, class, key, seg); err != nil {
			return nil, 0, err
		}
	}
}

func (s *segmentSet) full(seg *segment) bool {
	seg.mu.Lock()
	defer seg.mu.Unlock()
	return seg.bytes >= s.l.opts.SegmentBytes
}

// roll makes a new segment for a class and key after old, which may be nil.
func (s *segmentSet) roll(ctx context.Context, class Class, key string, old *segment) error {
	release, err := s.making.acquire(ctx, segmentName(class, key))
	if err != nil {
		return err
	}
	defer release()
	s.mu.Lock()
	cur := s.current[segmentName(class, key)]
	s.mu.Unlock()
	if cur != old {
		return nil // another caller made it
	}
	if old != nil && old.open() {
		failpoint("segment.rolled")
		if err := s.seal(ctx, old); err != nil {
			return err
		}
	}
	roll := 0
	s.mu.Lock()
	for _, g := range s.byID {
		if g.rec.Class == class && g.rec.Key == key {
			roll = max(roll, g.rec.Roll)
		}
	}
	s.mu.Unlock()
	rec := segmentRecord{Class: class, Key: key, Roll: roll + 1, State: segOpen}
	for { // a file that no record names is left alone
		if _, err := os.Stat(s.l.path(rec.file())); err != nil {
			break
		}
		rec.Roll++
	}
	if err := createSegmentFile(s.l.dir, s.l.run, rec); err != nil {
		if isFull(err) {
			err = s.l.fullError(64<<10, err)
			s.l.setFull(err)
		}
		return err
	}
	_, err = s.l.do(ctx, func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketSegments)
		rec.ID = 1
		if k, _ := b.Cursor().Last(); k != nil {
			rec.ID = binary.BigEndian.Uint32(k) + 1
		}
		return b.Put(indexKey(rec.ID), rec.encode())
	}, nil)
	if err != nil {
		return err
	}
	failpoint("segment.registered")
	seg := s.l.newSegment(rec)
	s.mu.Lock()
	s.byID[rec.ID] = seg
	s.last = max(s.last, rec.ID)
	s.current[segmentName(class, key)] = seg
	s.mu.Unlock()
	return nil
}

func (l *Ledger) newSegment(rec segmentRecord) *segment {
	return &segment{rec: rec, path: l.path(rec.file()), pending: map[uint64]struct{}{}, next: 1}
}

// setState records a segment's state durably, then in memory.
func (s *segmentSet) setState(ctx context.Context, seg *segment, change func(*segmentRecord), events ...Event) error {
	seg.mu.Lock()
	rec := seg.rec
	seg.mu.Unlock()
	change(&rec)
	_, err := s.l.do(ctx, func(tx *bolt.Tx) error {
		return tx.Bucket(bucketSegments).Put(indexKey(rec.ID), rec.encode())
	}, func() {
		s.mu.Lock()
		seg.mu.Lock()
		// Only these change; the others are read without a lock.
		seg.rec.State, seg.rec.Size, seg.rec.TxID, seg.rec.Bytes = rec.State, rec.Size, rec.TxID, rec.Bytes
		seg.mu.Unlock()
		if rec.State != segOpen && s.current[segmentName(rec.Class, rec.Key)] == seg {
			delete(s.current, segmentName(rec.Class, rec.Key))
		}
		s.mu.Unlock()
	}, events...)
	return err
}

// seal ends writing to a segment, once those who put into it are done.
func (s *segmentSet) seal(ctx context.Context, seg *segment) error {
	release, err := s.sealing.acquire(ctx, seg.path)
	if err != nil {
		return err
	}
	defer release()
	if err := seg.quiesce(ctx); err != nil {
		return err
	}
	defer seg.resume()
	seg.mu.Lock()
	if seg.rec.State != segOpen {
		seg.mu.Unlock()
		return nil
	}
	raw, w := seg.bytes, seg.w
	seg.w = nil
	seg.mu.Unlock()
	if w != nil {
		if err := w.Close(); err != nil {
			return err
		}
	}
	size, txid, err := trimSegment(seg.path, seg.rec.file())
	if err != nil {
		return err
	}
	err = s.setState(ctx, seg, func(r *segmentRecord) { r.State, r.Size, r.TxID, r.Bytes = segSealed, size, txid, raw })
	failpoint("segment.sealed")
	return err
}

// Seal ends writing to the segments of a class and key: they are read-only from now on, and a further Put starts a new
// file. It waits for payloads that are being put.
func (l *Ledger) Seal(ctx context.Context, class Class, segmentKey string) error {
	for _, g := range l.segments.of(class, segmentKey) {
		if err := l.segments.seal(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

// closeFiles closes every handle.
func (s *segmentSet) closeFiles() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, g := range s.byID {
		g.mu.Lock()
		g.shut = true
		if g.w != nil {
			errs = append(errs, g.w.Close())
			g.w = nil
		}
		if g.file != nil {
			errs = append(errs, g.file.Close())
			g.file = nil
		}
		g.mu.Unlock()
	}
	return errors.Join(errs...)
}
