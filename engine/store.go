package engine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sync"
	"unsafe"

	"quire/ledger"
	"quire/ledger/codec"
)

// Store is what a run writes to and resumes from: the ledger, or in measurements of its cost a store that returns at
// once.
type Store interface {
	Get(key string) (ledger.Event, bool, error)
	Append(ctx context.Context, e ledger.Event) *ledger.Future
	AppendAll(ctx context.Context, events []ledger.Event) *ledger.Future
	PutBytes(ctx context.Context, class ledger.Class, segmentKey string, id codec.ID, b []byte) (ledger.PayloadRef, error)
	ReadPayload(ctx context.Context, e ledger.Event, role string) ([]byte, error)
	Sync(ctx context.Context) error
	Retire(ctx context.Context, class ledger.Class, segmentKey, reason string) ([]ledger.Retirement, error)
	Relocate(ctx context.Context, moves ...ledger.Relocation) error
	Find(ctx context.Context, key string, record json.RawMessage) *ledger.Future
	SetUnit(unit string)
	PublishStatus(v any) error
	Stats() ledger.Stats
}

// PayloadReader is the part of a store that questions need.
type PayloadReader interface {
	Get(key string) (ledger.Event, bool, error)
	ReadPayload(ctx context.Context, e ledger.Event, role string) ([]byte, error)
}

// segmentOf names the payload segments of a layer.
func segmentOf(layer int) string {
	if layer < 0 {
		return "run"
	}
	return fmt.Sprintf("L%04d", layer)
}

// record spells a record canonically.
func record(v any) json.RawMessage {
	b, err := canonicalJSON(v)
	if err != nil {
		panic(err) // only our own record types come here
	}
	return b
}

// readRecord reads an event's record.
func readRecord(e ledger.Event, v any) error {
	if err := json.Unmarshal(e.Record, v); err != nil {
		return &Error{Code: "E0901", Exit: ExitLedgerDamaged, What: fmt.Sprintf("the record of event %d (%s) does not parse", e.Seq, e.Key), Err: err,
			Try: "run `quire ledger fsck RUN --level deep`"}
	}
	return nil
}

var littleEndian = func() bool {
	x := uint16(1)
	return *(*byte)(unsafe.Pointer(&x)) == 1
}()

// bytesOf gives the little-endian bytes of float32 or integer values; on little-endian machines they are the values' own
// memory.
func bytesOf[T float32 | int32 | uint16](v []T) []byte {
	if len(v) == 0 {
		return nil
	}
	size := int(unsafe.Sizeof(v[0]))
	if littleEndian {
		return unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), len(v)*size)
	}
	var buf bytes.Buffer
	_ = binary.Write(&buf, binary.LittleEndian, v) // a Buffer takes everything
	return buf.Bytes()
}

// valuesOf is the inverse of bytesOf; it copies.
func valuesOf[T float32 | int32 | uint16](b []byte) []T {
	var zero T
	size := int(unsafe.Sizeof(zero))
	out := make([]T, len(b)/size)
	for i := range out {
		switch p := any(&out[i]).(type) {
		case *float32:
			*p = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		case *int32:
			*p = int32(binary.LittleEndian.Uint32(b[4*i:]))
		case *uint16:
			*p = binary.LittleEndian.Uint16(b[2*i:])
		}
	}
	return out
}

func triangleLen(n int) int { return n * (n + 1) / 2 }

// blob is a payload that is still to be put.
type blob struct {
	role    string
	class   ledger.Class
	segment string
	codec   codec.ID
	bytes   []byte         // nil: there is no such payload
	sum     *ledger.Digest // of bytes, where it is known already
	discard bool           // only length and digest are recorded
}

// digestsOff leaves out every digest that only the ledger wants. Only the measurement of the ledger's cost sets it.
var digestsOff bool

func payloadDigest(b []byte) ledger.Digest {
	if digestsOff {
		return ledger.Digest{}
	}
	return sha256.Sum256(b)
}

// futures are writes that a stage waits for at its end. Puts and appends run beside the computation; the ledger commits
// what comes together in one transaction.
type futures struct {
	mu    sync.Mutex
	list  []*ledger.Future
	err   error
	tasks sync.WaitGroup
	slots chan struct{}
}

// writesInFlight bounds the events whose payloads wait to be put.
const writesInFlight = 32

func (f *futures) add(fut *ledger.Future) {
	f.mu.Lock()
	f.list = append(f.list, fut)
	f.mu.Unlock()
}

// write puts the blobs and appends the event that names them, beside the caller. The event is given back as it will be
// appended, so that others can refer to it at once. Bytes must not change until wait returns. It blocks while too many
// writes are in flight.
func (f *futures) write(ctx context.Context, s Store, e ledger.Event, blobs ...blob) ledger.Event {
	e, kept := withBlobs(e, blobs)
	for i, b := range kept {
		if b.sum == nil {
			d := payloadDigest(b.bytes)
			b.sum = &d
		}
		e.Payloads[len(e.Payloads)-len(kept)+i].SHA256 = *b.sum
	}
	out := e
	out.Payloads = slices.Clone(e.Payloads)
	f.start(ctx, s, e, kept)
	return out
}

// put is write where nobody refers to the event yet: no digest is waited for.
func (f *futures) put(ctx context.Context, s Store, e ledger.Event, blobs ...blob) {
	e, kept := withBlobs(e, blobs)
	f.start(ctx, s, e, kept)
}

// withBlobs adds the payloads that there are to an event, without their digests, and lists them.
func withBlobs(e ledger.Event, blobs []blob) (ledger.Event, []blob) {
	kept := slices.DeleteFunc(slices.Clone(blobs), func(b blob) bool { return b.bytes == nil })
	e.Payloads = slices.Clone(e.Payloads)
	for _, b := range kept {
		e.Payloads = append(e.Payloads, ledger.Payload{Role: b.role, Class: b.class, Length: int64(len(b.bytes))})
	}
	return e, kept
}

// start puts blobs, the last payloads of e, and appends e.
func (f *futures) start(ctx context.Context, s Store, e ledger.Event, blobs []blob) {
	f.mu.Lock()
	if f.slots == nil {
		f.slots = make(chan struct{}, writesInFlight)
	}
	slots := f.slots
	f.mu.Unlock()
	slots <- struct{}{}
	f.tasks.Go(func() {
		defer func() { <-slots }()
		for i, b := range blobs {
			p := &e.Payloads[len(e.Payloads)-len(blobs)+i]
			if b.discard {
				if p.SHA256 == (ledger.Digest{}) {
					p.SHA256 = payloadDigest(b.bytes)
				}
				continue
			}
			ref, err := s.PutBytes(ctx, b.class, b.segment, b.codec, b.bytes)
			if err != nil {
				f.fail(err)
				return
			}
			*p = ref.Payload(b.role)
		}
		if _, err := s.Append(ctx, e).All(ctx); err != nil {
			f.fail(err)
		}
	})
}

func (f *futures) fail(err error) {
	f.mu.Lock()
	if f.err == nil {
		f.err = err
	}
	f.mu.Unlock()
}

// wait returns when everything handed over is durable, with the first error.
func (f *futures) wait(ctx context.Context) error {
	f.tasks.Wait()
	f.mu.Lock()
	list, first := f.list, f.err
	f.list, f.err = nil, nil
	f.mu.Unlock()
	for _, fut := range list {
		if _, err := fut.All(ctx); err != nil && first == nil {
			first = err
		}
	}
	return first
}
