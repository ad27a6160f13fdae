package ledger

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"

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
	if r == nil {
		r = strings.NewReader("")
	}
	return l.put(ctx, class, segmentKey, id, r, nil)
}

// PutBytes is Put of bytes in memory, which must not change before it returns. It is faster: with codec none
// they go from where they lie to the kernel, and the SHA-256 is computed meanwhile.
func (l *Ledger) PutBytes(ctx context.Context, class Class, segmentKey string, id codec.ID, b []byte) (PayloadRef, error) {
	return l.put(ctx, class, segmentKey, id, nil, b)
}

// put stores what r gives or, when it is nil, b.
func (l *Ledger) put(ctx context.Context, class Class, segmentKey string, id codec.ID, r io.Reader, b []byte) (ref PayloadRef, err error) {
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
	defer seg.leave()
	ref = PayloadRef{Class: class, Segment: segmentKey, seg: seg}
	p := &putter{l: l, ctx: ctx, seg: seg, ordinal: ordinal, codec: id, verify: l.opts.VerifyEncode(class), size: -1}
	if r != nil {
		ref.SHA256, err = p.stream(r)
	} else {
		p.size = int64(len(b))
		ref.SHA256, err = p.bytes(b)
	}
	if err != nil {
		_ = p.settle()
		ref.loc.Ordinal = ordinal
		ref.named()
		return PayloadRef{}, err
	}
	ref.Length, ref.Stored = p.length, p.stored
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
	size    int64 // raw bytes of the payload, -1 for unknown

	length, stored int64
	chunks         uint32
	part           *blobRequest
	inFlight       []*blobRequest // at most one part being committed while the next is encoded
}

// stream puts what r gives, holding at most two parts of it at a time.
func (p *putter) stream(r io.Reader) (Digest, error) {
	hash := sha256.New()
	for {
		raw := p.l.buffers.get()
		n, err := io.ReadFull(r, raw[:p.l.opts.ChunkBytes])
		raw = raw[:n]
		if n > 0 {
			hash.Write(raw)
			if err := p.chunk(raw, raw); err != nil {
				return Digest{}, err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return Digest{}, fmt.Errorf("ledger: payload source: %w", err)
		}
	}
	return p.finish(func() (sum Digest) { hash.Sum(sum[:0]); return sum })
}

// hashBeside is the length from which hashing is worth a goroutine.
const hashBeside = 256 << 10

// bytes puts b. Its SHA-256 takes about as long as handing it to the kernel, and is computed meanwhile.
func (p *putter) bytes(b []byte) (Digest, error) {
	sum := func() Digest { return sha256.Sum256(b) }
	if len(b) >= hashBeside {
		var d Digest
		hashed := make(chan struct{})
		go func() {
			d = sha256.Sum256(b)
			close(hashed)
		}()
		defer func() { <-hashed }() // b is the caller's again
		sum = func() Digest { <-hashed; return d }
	}
	for at := 0; at < len(b); at += p.l.opts.ChunkBytes {
		if err := p.chunk(b[at:min(at+p.l.opts.ChunkBytes, len(b))], nil); err != nil {
			return Digest{}, err
		}
	}
	return p.finish(sum)
}

// finish adds the header and waits until all is durable.
func (p *putter) finish(digest func() Digest) (Digest, error) {
	if p.part == nil { // the header alone
		p.part = p.newPart()
	}
	if err := p.write(); err != nil {
		return Digest{}, err
	}
	sum := digest()
	p.part.header = encodePayloadHead(payloadHead{Codec: p.codec, Length: p.length, SHA256: sum, ChunkRaw: uint32(p.l.opts.ChunkBytes), Chunks: p.chunks})
	if err := p.send(); err != nil {
		return Digest{}, err
	}
	return sum, p.settle()
}

func (p *putter) newPart() *blobRequest {
	return &blobRequest{seg: p.seg, ordinal: p.ordinal, first: p.chunks, done: make(chan struct{})}
}

// chunk adds raw to the part that is being made, and sends that when it is full. buf is raw's memory when it is to be recycled.
func (p *putter) chunk(raw, buf []byte) error {
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
	body, used := raw, codec.None
	if p.codec != codec.None {
		var err error
		if body, used, err = codec.Encode(p.l.buffers.get(), p.codec, raw); err != nil {
			return err
		}
		if p.verify && used != codec.None {
			if err := codec.Verify(used, body, raw); err != nil {
				return err
			}
		}
		p.l.buffers.put(buf)
		buf = body
	}
	c := newChunk(used, body, len(raw))
	c.buf = buf
	p.part.chunks = append(p.part.chunks, c)
	p.part.bytes += c.size()
	p.length += int64(len(raw))
	p.stored += c.size()
	p.chunks++
	if p.chunks%chunksPerPart == 0 && (p.size < 0 || p.length < p.size) {
		if err := p.write(); err != nil {
			return err
		}
		return p.send()
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

// write hands the part's chunks to the kernel.
func (p *putter) write() error {
	err := p.part.write()
	failpoint("put.written")
	if err != nil {
		return p.l.blobs.fail(p.seg, p.part.bytes, err)
	}
	return nil
}

// send has the part committed, and waits for the one before.
func (p *putter) send() error {
	part := p.part
	p.part = nil
	if err := p.l.blobs.submit(p.ctx, part); err != nil {
		p.l.blobs.drop(part, true)
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
		p.l.blobs.drop(p.part, true)
		p.part = nil
	}
	for len(p.inFlight) > 0 {
		if err := p.wait(); err != nil && first == nil {
			first = err
		}
	}
	return first
}
