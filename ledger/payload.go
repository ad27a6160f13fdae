package ledger

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"io"
	"os"
	"sync"

	"quire/ledger/codec"
	"quire/ledger/internal/boltfile"
)

// PayloadReader reads the raw bytes of a payload. Read and WriteTo from start to end verify checksums and SHA-256: they give
// an error instead of io.EOF when the bytes are not those that the event names. They read ahead by a few chunks in a
// goroutine of their own, which ends with the payload or with Close. ReadAt verifies the checksums of the chunks that it
// touches, and is safe for concurrent use with itself.
type PayloadReader struct {
	ctx   context.Context
	where DamageError // seq, key, role for errors
	len   int64
	sha   Digest

	pos    int64  // of what was handed out
	piece  []byte // decoded and hashed, not yet handed out
	hashed int64
	hash   hash.Hash
	src    payloadSource
	ahead  *ahead
	closed bool
}

// payloadSource gives raw bytes in some way.
type payloadSource interface {
	readAt(p []byte, off int64) error // p lies inside the payload
	close() error
}

// OpenPayload opens a payload of an event for reading in bounded memory. What was retired or lives elsewhere is an
// *ElsewhereError.
func (v *view) OpenPayload(ctx context.Context, e Event, role string) (*PayloadReader, error) {
	loc, err := v.Locate(e, role)
	if err != nil {
		return nil, err
	}
	i := e.payloadIndex(role)
	p := e.Payloads[i]
	r := &PayloadReader{ctx: ctx, where: DamageError{Seq: e.Seq, Key: e.Key, Role: role, Chunk: -1}, len: p.Length, sha: p.SHA256, hash: newHash()}
	switch loc.Kind {
	case KindInline:
		b, err := v.st.get(bucketInline, locationKey(e.Seq, i))
		if err != nil {
			return nil, err
		}
		if len(b) < 4 || crcOf(b[:len(b)-4]) != binary.LittleEndian.Uint32(b[len(b)-4:]) || int64(len(b)-4) != p.Length {
			return nil, r.damage(databaseName, -1, "inline payload", nil)
		}
		r.src = inlineSource(b[:len(b)-4])
	case KindSegment:
		rec, err := v.seg.record(loc.SegmentID)
		if err != nil {
			return nil, err
		}
		s := &segmentSource{r: r, files: v.seg, rec: rec, loc: loc, cached: -1}
		if err := s.header(p); err != nil {
			return nil, err
		}
		r.src = s
	case KindTensor, KindForeign:
		d := v.decoders[loc.Decoder]
		if d == nil {
			return nil, &ElsewhereError{Location: loc, Role: role, Key: e.Key}
		}
		r.src = &decodedSource{ctx: ctx, open: d, loc: loc, len: p.Length}
	default:
		return nil, &ElsewhereError{Location: loc, Role: role, Key: e.Key}
	}
	return r, nil
}

// ReadPayload gives a whole payload, verified. Use it for payloads known to be small.
func (v *view) ReadPayload(ctx context.Context, e Event, role string) ([]byte, error) {
	r, err := v.OpenPayload(ctx, e, role)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b := make([]byte, r.Len())
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	return b, r.verify()
}

func (r *PayloadReader) damage(file string, chunk int64, what string, inner error) error {
	d := r.where
	d.File, d.Chunk, d.What, d.Inner = file, chunk, what, inner
	return &d
}

// Len is the payload's raw length in bytes.
func (r *PayloadReader) Len() int64 { return r.len }

// Read gives the next bytes in order.
func (r *PayloadReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := r.more(len(p)); err != nil {
		return 0, err
	}
	n := copy(p, r.piece)
	r.piece, r.pos = r.piece[n:], r.pos+int64(n)
	return n, nil
}

// WriteTo gives everything that is left to w, without a copy between.
func (r *PayloadReader) WriteTo(w io.Writer) (n int64, err error) {
	for {
		if err := r.more(copyBytes); err != nil {
			if err == io.EOF {
				err = nil
			}
			return n, err
		}
		k, err := w.Write(r.piece)
		r.piece, r.pos, n = r.piece[k:], r.pos+int64(k), n+int64(k)
		if err != nil {
			return n, err
		}
	}
}

// Prefetch begins to read ahead before the first Read. Who goes through many payloads opens and prefetches the next one
// before working on this one; that holds three chunks more.
func (r *PayloadReader) Prefetch() {
	if s, ok := r.src.(*segmentSource); ok && r.ahead == nil && r.len > 0 {
		r.ahead = s.readAhead(r.ctx)
	}
}

// copyBytes is how much WriteTo reads at a time of what is not cut into chunks.
const copyBytes = 256 << 10

// more makes sure that there is a piece. The last one is only given when all of them have the digest.
func (r *PayloadReader) more(want int) (err error) {
	if err := r.ctx.Err(); err != nil {
		return context.Cause(r.ctx)
	}
	if r.closed {
		return os.ErrClosed
	}
	if len(r.piece) > 0 {
		return nil
	}
	if r.hashed == r.len {
		if err := r.verify(); err != nil {
			return err
		}
		return io.EOF
	}
	if r.Prefetch(); r.ahead != nil {
		r.piece, err = r.ahead.next()
	} else {
		r.piece = make([]byte, min(int64(want), r.len-r.hashed))
		err = r.src.readAt(r.piece, r.hashed)
	}
	if err != nil {
		r.piece = nil
		return err
	}
	r.hash.Write(r.piece)
	if r.hashed += int64(len(r.piece)); r.hashed == r.len {
		if err := r.verify(); err != nil {
			r.piece = nil
			return err
		}
	}
	return nil
}

// verify compares the digest once everything was read in order.
func (r *PayloadReader) verify() error {
	var got Digest
	r.hash.Sum(got[:0])
	if got != r.sha {
		return r.damage("", -1, "the bytes have SHA-256 "+got.String()+", the event names "+r.sha.String(), nil)
	}
	return nil
}

// ReadAt reads a byte range; only the chunks that it touches are decoded.
func (r *PayloadReader) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, usage("negative offset")
	}
	if off >= r.len {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), r.len-off))
	if err := r.src.readAt(p[:n], off); err != nil {
		return 0, err
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// Close releases the reader.
func (r *PayloadReader) Close() error {
	if r.ahead != nil {
		r.ahead.close()
	}
	r.piece, r.closed = nil, true
	return r.src.close()
}

type inlineSource []byte

func (s inlineSource) readAt(p []byte, off int64) error { copy(p, s[off:]); return nil }
func (s inlineSource) close() error                     { return nil }

// segmentSource decodes chunks of a segment, and keeps the one that was read last out of order.
type segmentSource struct {
	r     *PayloadReader
	files segmentFiles
	rec   segmentRecord
	loc   Location

	mu     sync.Mutex
	cached int64
	last   chunkBuffer
}

// chunkBuffer is memory for one chunk.
type chunkBuffer struct {
	stored, decoded []byte
	raw             []byte // the chunk's bytes, in one of the others
}

// header compares the payload's own header with what the event says.
func (s *segmentSource) header(p Payload) error {
	var b []byte
	err := s.files.with(s.rec, func(_ *os.File, _, headers boltfile.Bucket) error {
		var ok bool
		var err error
		if b, ok, err = headers.Get(seqKey(s.loc.Ordinal)); err == nil && !ok {
			err = errors.New("the segment does not hold it")
		}
		return err
	})
	var have payloadHead
	if err == nil {
		have, err = decodePayloadHead(b)
	}
	if err != nil {
		var d *DamageError
		if errors.As(err, &d) && d.Seq == 0 {
			return s.r.damage(d.File, -1, d.What, d.Inner)
		}
		return s.r.damage(s.rec.file(), -1, "payload header", err)
	}
	if have.Length != p.Length || have.SHA256 != p.SHA256 || have.ChunkRaw != s.loc.ChunkRaw {
		return s.r.damage(s.rec.file(), -1, "the payload's header names other bytes", nil)
	}
	return nil
}

func (s *segmentSource) readAt(p []byte, off int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(p) > 0 {
		i := off / int64(s.loc.ChunkRaw)
		if s.cached != i {
			s.cached = -1
			if err := s.load(i, &s.last); err != nil {
				return err
			}
			s.cached = i
		}
		n := copy(p, s.last.raw[off-i*int64(s.loc.ChunkRaw):])
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// load reads and decodes chunk i.
func (s *segmentSource) load(i int64, b *chunkBuffer) error {
	id, stored, err := s.fetch(i, b)
	if err != nil {
		return err
	}
	if id == codec.None && len(stored) == s.want(i) {
		b.raw = stored
		return nil
	}
	if b.decoded, err = codec.Decode(b.decoded[:0], id, stored, s.want(i)); err != nil {
		return s.r.damage(s.rec.file(), i, "chunk", err)
	}
	b.raw = b.decoded
	return nil
}

// want is the raw length of chunk i.
func (s *segmentSource) want(i int64) int {
	return int(min(int64(s.loc.ChunkRaw), s.r.len-i*int64(s.loc.ChunkRaw)))
}

// chunks is the number of chunks.
func (s *segmentSource) chunks() int64 { return int64(chunkCount(s.r.len, s.loc.ChunkRaw)) }

// fetch reads the stored bytes of chunk i and verifies their checksum.
func (s *segmentSource) fetch(i int64, b *chunkBuffer) (codec.ID, []byte, error) {
	name := s.rec.file()
	off := int64(-1)
	err := s.files.with(s.rec, func(_ *os.File, parts, _ boltfile.Bucket) error {
		part, ok, err := parts.Bucket(partKey(s.loc.Ordinal, uint32(i/chunksPerPart)))
		if err != nil || !ok {
			return errors.Join(err, errors.New("no such part"))
		}
		v, ok, err := part.Value(indexKey(uint32(i)))
		if err != nil || !ok {
			return errors.Join(err, errors.New("no such chunk"))
		}
		if v.Len() > int64(s.want(i))+chunkOverhead {
			return errors.New("the stored chunk is longer than its content")
		}
		if int64(cap(b.stored)) < v.Len() {
			b.stored = make([]byte, v.Len())
		}
		b.stored = b.stored[:v.Len()]
		if off = v.Offset(); off < 0 {
			return v.Read(b.stored)
		}
		return nil
	})
	if err == nil && off >= 0 { // a chunk stays where it is as long as the file does: no table need be held still
		err = s.files.data(s.rec, func(f *os.File) error {
			_, err := f.ReadAt(b.stored, off)
			return err
		})
	}
	if err != nil {
		return 0, nil, s.r.damage(name, i, "chunk cannot be read", err)
	}
	id, rawLen, stored, err := checkChunk(b.stored, s.loc.Ordinal, uint32(i))
	if err == nil && rawLen != s.want(i) {
		err = errors.New("the chunk has another length than its place")
	}
	if err != nil {
		return 0, nil, s.r.damage(name, i, "chunk", err)
	}
	return id, stored, nil
}

func (s *segmentSource) close() error { return nil }

// decodedSource reads through a Decoder, in order; going back opens it again.
type decodedSource struct {
	ctx  context.Context
	open Decoder
	loc  Location
	len  int64

	mu  sync.Mutex
	rc  io.ReadCloser
	pos int64
}

func (s *decodedSource) readAt(p []byte, off int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rc == nil || off < s.pos {
		if s.rc != nil {
			s.rc.Close()
		}
		rc, err := s.open(s.ctx, s.loc, s.len)
		if err != nil {
			s.rc = nil
			return err
		}
		s.rc, s.pos = rc, 0
	}
	if off > s.pos {
		n, err := io.CopyN(io.Discard, s.rc, off-s.pos)
		s.pos += n
		if err != nil {
			return err
		}
	}
	n, err := io.ReadFull(s.rc, p)
	s.pos += int64(n)
	return err
}

func (s *decodedSource) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rc == nil {
		return nil
	}
	err := s.rc.Close()
	s.rc = nil
	return err
}

// BytesDecoder gives a Decoder for small things kept in memory; tests use it.
func BytesDecoder(f func(loc Location) ([]byte, error)) Decoder {
	return func(_ context.Context, loc Location, _ int64) (io.ReadCloser, error) {
		b, err := f(loc)
		return io.NopCloser(bytes.NewReader(b)), err
	}
}

// scan reads the whole payload: the checksums of its chunks, and with deep also what they decode to.
func (r *PayloadReader) scan(deep bool) (int64, error) {
	s, ok := r.src.(*segmentSource)
	if deep || !ok {
		return io.Copy(io.Discard, r)
	}
	var b chunkBuffer
	for i := range s.chunks() {
		if err := r.ctx.Err(); err != nil {
			return i * int64(s.loc.ChunkRaw), context.Cause(r.ctx)
		}
		if _, _, err := s.fetch(i, &b); err != nil {
			return i * int64(s.loc.ChunkRaw), err
		}
	}
	return r.len, nil
}

func newHash() hash.Hash { return sha256.New() }
