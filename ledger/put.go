package ledger

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"quire/ledger/codec"
)

// PayloadRef is a payload that is durable and that an event may name, in this stay only: what no event names is dropped
// when the ledger is opened again.
type PayloadRef struct {
	Class   Class
	Segment string // segment key
	Length  int64  // raw bytes
	SHA256  Digest // of the raw bytes
	Stored  int64  // bytes taken on disk

	loc Location
	seg *segment
}

// Payload names the payload for an event.
func (r PayloadRef) Payload(role string) Payload {
	return Payload{Role: role, Class: r.Class, Length: r.Length, SHA256: r.SHA256, Ref: &r}
}

// Location gives where the bytes are.
func (r PayloadRef) Location() Location { return r.loc }

// valid says whether an event of l may name the payload.
func (r *PayloadRef) valid(l *Ledger) bool { return l.segments.owns(r.seg) }

// named tells the segment that an event names the payload, or that none will.
func (r *PayloadRef) named() {
	if r.seg != nil {
		r.seg.mu.Lock()
		delete(r.seg.pending, r.loc.Ordinal)
		r.seg.mu.Unlock()
	}
}

// Put makes the bytes of r durable in the segment of a class and segment key ("L0003"), and gives the reference by which
// an event names them. It reads r in chunks and holds a few of them, whatever the length. Encoding runs in the calling
// goroutine; several Puts run side by side.
func (l *Ledger) Put(ctx context.Context, class Class, segmentKey string, id codec.ID, r io.Reader) (PayloadRef, error) {
	return l.put(ctx, class, segmentKey, id, r, -1)
}

// PutBytes is Put of bytes in memory. Equal bytes that this stay already put there, and that no event names yet, are not
// stored twice.
func (l *Ledger) PutBytes(ctx context.Context, class Class, segmentKey string, id codec.ID, b []byte) (PayloadRef, error) {
	return l.put(ctx, class, segmentKey, id, bytes.NewReader(b), int64(len(b)))
}

// put is Put of size bytes, -1 for unknown.
func (l *Ledger) put(ctx context.Context, class Class, segmentKey string, id codec.ID, r io.Reader, size int64) (ref PayloadRef, err error) {
	switch {
	case !validClass(class):
		return ref, usage("retention class %q", class)
	case !validSegmentKey(segmentKey):
		return ref, usage("segment key %q: letters, digits, '.', '_', '-', at most %d", segmentKey, maxSegmentName)
	case !id.Known():
		return ref, usage("codec %d is not registered", id)
	}
	if err := l.admit(); err != nil {
		return ref, err
	}
	seg, ordinal, err := l.segments.begin(ctx, class, segmentKey)
	if err != nil {
		return ref, err
	}
	ref = PayloadRef{Class: class, Segment: segmentKey, seg: seg}
	p := &putter{l: l, ctx: ctx, seg: seg, ordinal: ordinal, codec: id, hash: sha256.New(), verify: l.opts.VerifyEncode(class), size: size}
	if err := p.copy(r); err != nil {
		p.settle()
		ref.loc.Ordinal = ordinal
		ref.named()
		return PayloadRef{}, err
	}
	ref.Length, ref.Stored = p.length, p.stored
	p.hash.Sum(ref.SHA256[:0])
	ref.loc = Location{Kind: KindSegment, SegmentID: seg.rec.ID, Ordinal: ordinal, ChunkRaw: uint32(l.opts.ChunkBytes), Codec: id, Stored: p.stored}
	seg.mu.Lock()
	seg.bytes += ref.Length
	seg.mu.Unlock()
	l.stats.put(class, ref.Length, ref.Stored)
	return ref, nil
}

// putter streams one payload into a segment.
type putter struct {
	l       *Ledger
	ctx     context.Context
	seg     *segment
	ordinal uint64
	codec   codec.ID
	verify  bool
	hash    hash.Hash
	size    int64 // raw bytes of the payload, -1 for unknown

	length, stored int64
	chunks         uint32
	part           *blobRequest
	inFlight       []*blobRequest // at most one part being committed while the next is encoded
}

func (p *putter) copy(r io.Reader) error {
	raw := p.l.buffers.get()
	defer p.l.buffers.put(raw)
	raw = raw[:p.l.opts.ChunkBytes]
	for {
		n, err := io.ReadFull(r, raw)
		if n > 0 {
			if err := p.chunk(raw[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("ledger: payload source: %w", err)
		}
	}
	if p.part == nil { // the header alone
		p.part = p.newPart()
	}
	head := payloadHead{Codec: p.codec, Length: p.length, ChunkRaw: uint32(p.l.opts.ChunkBytes), Chunks: p.chunks}
	p.hash.Sum(head.SHA256[:0])
	p.part.header = encodePayloadHead(head)
	if err := p.send(); err != nil {
		return err
	}
	return p.settle()
}

func (p *putter) newPart() *blobRequest {
	return &blobRequest{seg: p.seg, ordinal: p.ordinal, first: p.chunks, done: make(chan struct{})}
}

func (p *putter) chunk(raw []byte) error {
	if p.part == nil {
		// The budget is taken for the whole part, in the worst case, before its memory is. Were it taken chunk by chunk,
		// several putters could each hold a piece of a part and wait for the others for ever.
		weight := p.partWeight()
		if err := p.l.blobs.acquire(p.ctx, weight); err != nil {
			return err
		}
		p.part = p.newPart()
		p.part.weight = weight
	}
	p.hash.Write(raw)
	buf := p.l.buffers.get()
	buf, err := encodeChunk(buf[:0], p.codec, raw, p.ordinal, p.chunks, p.verify)
	if err != nil {
		return err
	}
	p.part.chunks = append(p.part.chunks, buf)
	p.length += int64(len(raw))
	p.stored += int64(len(buf))
	p.chunks++
	if p.chunks%chunksPerPart == 0 || p.part.size() >= p.l.opts.TransactionBytes {
		if p.chunks%chunksPerPart == 0 {
			return p.send()
		}
	}
	return nil
}

// partWeight is the most that the part to come may hold.
func (p *putter) partWeight() int64 {
	chunks := int64(chunksPerPart)
	if chunk := int64(p.l.opts.ChunkBytes); p.size >= 0 {
		chunks = min(chunks, (p.size-p.length+chunk-1)/chunk)
		if chunks <= 1 {
			return min(p.size-p.length+chunkOverhead, p.l.opts.InFlightBytes)
		}
	}
	return min(chunks*int64(p.l.opts.ChunkBytes+chunkOverhead), p.l.opts.InFlightBytes)
}

// send hands the part over and waits for the one before.
func (p *putter) send() error {
	part := p.part
	p.part = nil
	if err := p.l.blobs.submit(p.ctx, part); err != nil {
		p.l.blobs.drop(part)
		return err
	}
	p.inFlight = append(p.inFlight, part)
	if len(p.inFlight) > 1 {
		return p.wait()
	}
	return nil
}

func (p *putter) wait() error {
	part := p.inFlight[0]
	p.inFlight = p.inFlight[1:]
	<-part.done // a submitted part is always answered
	return part.err
}

// settle waits for everything that was handed over.
func (p *putter) settle() error {
	var first error
	if p.part != nil {
		p.l.blobs.drop(p.part)
		p.part = nil
	}
	for len(p.inFlight) > 0 {
		if err := p.wait(); err != nil && first == nil {
			first = err
		}
	}
	return first
}
