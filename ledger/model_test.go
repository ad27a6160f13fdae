package ledger_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"iter"
	"math/bits"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"quire/ledger"
	"quire/ledger/codec"
)

// The model of a ledger is a slice of events and a map of payloads. It computes hashes by itself, after the diagrams in
// docs/ledger.md and not with the code under test.
type model struct {
	events []ledger.Event
	hashes []ledger.Digest
	byKey  map[string]int // index into events
	blobs  map[blobName]*blob
	orphan map[string]int // payloads that were put and not named in this stay, by class/segment key
	clock  atomic.Int64   // nanoseconds; the ledger's goroutines read it too
}

func (m *model) now() time.Time { return time.Unix(0, m.clock.Load()).UTC() }

type blobName struct{ key, role string }

type blob struct {
	bytes   []byte
	class   ledger.Class
	segment string      // class/segment key while its bytes are in a segment
	kind    ledger.Kind // where it is
}

// modelHash is the hash of an event: SHA-256 over 0x00 and the identity bytes.
func modelHash(e ledger.Event, seq uint64, prev ledger.Digest) ledger.Digest {
	le := binary.LittleEndian
	var body []byte
	tlv := func(tag byte, v []byte) {
		body = append(body, tag)
		body = le.AppendUint32(body, uint32(len(v)))
		body = append(body, v...)
	}
	tlv(1, []byte(e.Type))
	tlv(2, le.AppendUint16(nil, e.Schema))
	if e.Key != "" {
		tlv(3, []byte(e.Key))
	}
	if len(e.Record) > 0 {
		tlv(4, e.Record)
	}
	if len(e.Note) > 0 {
		tlv(5, e.Note)
	}
	for _, in := range e.Inputs {
		tlv(6, append(in.Digest[:], in.Key...))
	}
	for _, p := range e.Payloads {
		v := le.AppendUint64(nil, uint64(p.Length))
		v = append(v, p.SHA256[:]...)
		v = append(v, byte(len(p.Class)))
		v = append(v, p.Class...)
		tlv(7, append(v, p.Role...))
	}
	id := []byte("\x00QLE1\x01\x00\x00\x00")
	id = le.AppendUint64(id, seq)
	id = le.AppendUint64(id, uint64(e.Time.UnixNano()))
	id = append(id, prev[:]...)
	id = le.AppendUint32(id, uint32(len(body)))
	return sha256.Sum256(append(id, body...))
}

// modelRoot is the RFC 6962 root over leaf hashes, by its recursive definition.
func modelRoot(leaves []ledger.Digest) ledger.Digest {
	if len(leaves) == 1 {
		return leaves[0]
	}
	k := 1 << (bits.Len(uint(len(leaves)-1)) - 1)
	l, r := modelRoot(leaves[:k]), modelRoot(leaves[k:])
	return sha256.Sum256(append(append([]byte{1}, l[:]...), r[:]...))
}

// add appends an event to the model.
func (m *model) add(e ledger.Event) {
	prev := ledger.Digest{}
	if n := len(m.hashes); n > 0 {
		prev = m.hashes[n-1]
	}
	e.Seq, e.Prev = uint64(len(m.events)+1), prev
	e.Hash = modelHash(e, e.Seq, prev)
	m.events, m.hashes = append(m.events, e), append(m.hashes, e.Hash)
	if e.Key != "" {
		m.byKey[e.Key] = len(m.events) - 1
	}
}

// modelRun drives a ledger and its model side by side.
type modelRun struct {
	t    *rapid.T
	ctx  context.Context
	dir  string
	l    *ledger.Ledger
	m    *model
	opts ledger.Options
}

func (r *modelRun) must(err error) {
	if err != nil {
		r.t.Fatal(err)
	}
}

// own takes over into the model what the ledger itself appended: its records hold facts of the process, so they are
// read; that they are chained rightly is checked like everything else.
func (r *modelRun) own(types ...string) {
	for e, err := range r.l.Since(uint64(len(r.m.events))) {
		r.must(err)
		if len(types) == 0 || e.Type != types[0] {
			r.t.Fatalf("the ledger appended %s by itself, expected %v", e.Type, types)
		}
		types = types[1:]
		r.m.add(e)
	}
	if len(types) > 0 {
		r.t.Fatalf("the ledger did not append %v", types)
	}
}

func (r *modelRun) open() {
	r.opts.ChunkBytes = rapid.SampledFrom([]int{4 << 10, 8 << 10, 1 << 20}).Draw(r.t, "chunk")
	l, err := ledger.Open(r.ctx, r.dir, r.opts)
	r.must(err)
	r.l = l
	r.m.orphan = map[string]int{}
}

var (
	modelClasses  = []ledger.Class{ledger.ClassPermanent, ledger.ClassLayer, ledger.ClassCodes}
	modelSegments = []string{"L0", "L1"}
	modelSizes    = []int{0, 1, 100, 4095, 4096, 4097, 20000, 70000, 400000}
)

func drawBytes(t *rapid.T) []byte {
	n := rapid.SampledFrom(modelSizes).Draw(t, "size")
	return pattern(n, byte(rapid.IntRange(0, 255).Draw(t, "seed")))
}

func drawKey(t *rapid.T) string {
	return fmt.Sprintf("%s/%d", rapid.SampledFrom([]string{"a", "a/b", "decision", "é"}).Draw(t, "family"), rapid.IntRange(0, 40).Draw(t, "n"))
}

// put makes a payload durable.
func (r *modelRun) put(class ledger.Class, b []byte) (ledger.PayloadRef, string) {
	seg := rapid.SampledFrom(modelSegments).Draw(r.t, "segment")
	id := rapid.SampledFrom([]codec.ID{codec.None, codec.Planes2, codec.Planes4, codec.Zstd}).Draw(r.t, "codec")
	ref, err := r.l.PutBytes(r.ctx, class, seg, id, b)
	r.must(err)
	if ref.Length != int64(len(b)) || ref.SHA256 != sha256.Sum256(b) {
		r.t.Fatal("Put names other bytes")
	}
	return ref, string(class) + "/" + seg
}

// draw makes an event, its payloads put, and what the model knows of them.
func (r *modelRun) draw(key string) (ledger.Event, map[string]*blob) {
	e := ledger.Event{Type: rapid.SampledFrom([]string{"capture", "decision"}).Draw(r.t, "type"), Schema: uint16(rapid.IntRange(1, 3).Draw(r.t, "schema")), Key: key}
	if rapid.Bool().Draw(r.t, "record") {
		e.Record = fmt.Appendf(nil, `{"n":%d}`, rapid.IntRange(0, 9).Draw(r.t, "value"))
	}
	if rapid.Bool().Draw(r.t, "note") {
		e.Note = []byte(`{"ms":1}`)
	}
	if len(r.m.events) > 0 && rapid.Bool().Draw(r.t, "input") {
		in := r.m.events[rapid.IntRange(0, len(r.m.events)-1).Draw(r.t, "of")]
		e.Inputs = append(e.Inputs, ledger.Ref{Key: in.Key, Digest: in.Digest()})
	}
	blobs := map[string]*blob{}
	for i := range rapid.IntRange(0, 2).Draw(r.t, "payloads") {
		role := fmt.Sprintf("p%d", i)
		class := rapid.SampledFrom(modelClasses).Draw(r.t, "class")
		if rapid.IntRange(0, 3).Draw(r.t, "inline") == 0 {
			b := pattern(rapid.IntRange(0, 300).Draw(r.t, "size"), 5)
			e.Payloads = append(e.Payloads, ledger.Payload{Role: role, Class: class, Inline: b})
			blobs[role] = &blob{bytes: b, class: class, kind: ledger.KindInline}
			continue
		}
		b := drawBytes(r.t)
		ref, seg := r.put(class, b)
		e.Payloads = append(e.Payloads, ref.Payload(role))
		blobs[role] = &blob{bytes: b, class: class, kind: ledger.KindSegment, segment: seg}
	}
	return e, blobs
}

// filled gives an event as it stands once it is appended.
func (r *modelRun) filled(e ledger.Event, blobs map[string]*blob) ledger.Event {
	e.Time = r.m.now()
	e.Payloads = append([]ledger.Payload(nil), e.Payloads...)
	for i := range e.Payloads {
		p := &e.Payloads[i]
		b := blobs[p.Role].bytes
		p.Length, p.SHA256, p.Inline, p.Ref = int64(len(b)), sha256.Sum256(b), nil, nil
	}
	return e
}

// appended notes in the model what an append of new events must have done.
func (r *modelRun) appended(e ledger.Event, blobs map[string]*blob) {
	r.m.add(r.filled(e, blobs))
	for role, b := range blobs {
		r.m.blobs[blobName{e.Key, role}] = b
	}
}

func (r *modelRun) append() {
	key := drawKey(r.t)
	e, blobs := r.draw(key)
	at, exists := r.m.byKey[key]
	got, err := r.l.Append(r.ctx, e).Wait(r.ctx)
	switch {
	case !exists:
		r.must(err)
		r.appended(e, blobs)
		if got.Hash != r.m.hashes[len(r.m.hashes)-1] {
			r.t.Fatalf("event %d has hash %s, the model says %s", got.Seq, got.Hash, r.m.hashes[len(r.m.hashes)-1])
		}
	case sameContent(r.m.events[at], r.filled(e, blobs)):
		r.must(err)
		if got.Seq != uint64(at+1) {
			r.t.Fatalf("the same content again gave event %d, not %d", got.Seq, at+1)
		}
	default:
		if !errors.Is(err, ledger.ErrDivergence) {
			r.t.Fatalf("other content under key %q: %v", key, err)
		}
		for _, b := range blobs { // put, and named by nothing
			if b.segment != "" {
				r.m.orphan[b.segment]++
			}
		}
	}
}

// sameContent compares what a key binds.
func sameContent(a, b ledger.Event) bool {
	clean := func(e ledger.Event) string {
		e.Note, e.Seq, e.Time, e.Prev, e.Hash = nil, 0, time.Time{}, ledger.Digest{}, ledger.Digest{}
		j, _ := json.Marshal(e)
		return string(j)
	}
	return clean(a) == clean(b)
}

func (r *modelRun) batch() {
	var events []ledger.Event
	var all []map[string]*blob
	for i := range rapid.IntRange(1, 20).Draw(r.t, "batch") {
		e, blobs := r.draw(fmt.Sprintf("batch/%d/%d", len(r.m.events), i))
		events, all = append(events, e), append(all, blobs)
	}
	got, err := r.l.AppendAll(r.ctx, events).All(r.ctx)
	r.must(err)
	for i, e := range events {
		r.appended(e, all[i])
		if got[i].Hash != r.m.hashes[len(r.m.hashes)-1] {
			r.t.Fatal("a batch has other hashes")
		}
	}
}

func (r *modelRun) once() {
	key := drawKey(r.t)
	at, exists := r.m.byKey[key]
	ran := false
	got, err := r.l.Once(r.ctx, key, func(context.Context) (ledger.Event, error) {
		ran = true
		return ledger.Event{Type: "once", Schema: 1}, nil
	})
	r.must(err)
	if ran == exists {
		r.t.Fatalf("work for %q ran: %v, its event was there: %v", key, ran, exists)
	}
	if !exists {
		r.appended(ledger.Event{Type: "once", Schema: 1, Key: key}, nil)
	} else if got.Hash != r.m.hashes[at] {
		r.t.Fatal("Once gave another event")
	}
}

func (r *modelRun) strayPut() {
	_, seg := r.put(rapid.SampledFrom(modelClasses).Draw(r.t, "class"), drawBytes(r.t))
	r.m.orphan[seg]++
}

// pick gives a payload of the model.
func (r *modelRun) pick() (blobName, *blob, bool) {
	var list []blobName
	for n := range r.m.blobs {
		list = append(list, n)
	}
	if len(list) == 0 {
		return blobName{}, nil, false
	}
	sort.Slice(list, func(i, j int) bool { return list[i].key+"\x00"+list[i].role < list[j].key+"\x00"+list[j].role })
	n := rapid.SampledFrom(list).Draw(r.t, "payload")
	return n, r.m.blobs[n], true
}

func (r *modelRun) relocate() {
	n, b, ok := r.pick()
	if !ok {
		return
	}
	to := ledger.Location{Kind: rapid.SampledFrom([]ledger.Kind{ledger.KindNone, ledger.KindTensor, ledger.KindForeign}).Draw(r.t, "kind")}
	if to.Kind != ledger.KindNone {
		to.File, to.Decoder, to.Offset = "out.bin", "raw", int64(rapid.IntRange(0, 9).Draw(r.t, "offset"))
		to.Tensor = n.key + " " + n.role
	}
	err := r.l.Relocate(r.ctx, ledger.Relocation{Key: n.key, Role: n.role, Location: to})
	if b.class == ledger.ClassPermanent && to.Kind == ledger.KindNone {
		if !errors.Is(err, ledger.ErrUsage) {
			r.t.Fatalf("a permanent payload was let go: %v", err)
		}
		return
	}
	r.must(err)
	b.kind, b.segment = to.Kind, ""
}

func (r *modelRun) restore() {
	n, b, ok := r.pick()
	if !ok {
		return
	}
	if rapid.IntRange(0, 3).Draw(r.t, "wrong") == 0 {
		ref, seg := r.put(b.class, append([]byte("other"), b.bytes...))
		if err := r.l.Restore(r.ctx, n.key, n.role, ref); !errors.Is(err, ledger.ErrDivergence) {
			r.t.Fatalf("a payload was restored with other bytes: %v", err)
		}
		r.m.orphan[seg]++
		return
	}
	ref, seg := r.put(b.class, b.bytes)
	r.must(r.l.Restore(r.ctx, n.key, n.role, ref))
	r.own(ledger.TypeRebuilt)
	b.kind, b.segment = ledger.KindSegment, seg
}

func (r *modelRun) retire() {
	class, key := rapid.SampledFrom(modelClasses).Draw(r.t, "class"), rapid.SampledFrom(modelSegments).Draw(r.t, "segment")
	name := string(class) + "/" + key
	got, err := r.l.Retire(r.ctx, class, key, "model")
	switch {
	case class == ledger.ClassPermanent:
		if !errors.Is(err, ledger.ErrUsage) {
			r.t.Fatalf("permanent payloads were retired: %v", err)
		}
		return
	case errors.Is(err, ledger.ErrBusy):
		if r.m.orphan[name] == 0 {
			r.t.Fatal(err)
		}
	default:
		r.must(err)
		if r.m.orphan[name] > 0 {
			r.t.Fatalf("%s was retired under %d payloads that no event names yet", name, r.m.orphan[name])
		}
	}
	// Rolled segments are retired one by one: which payloads went is in the records.
	types := make([]string, len(got))
	payloads, size := int64(0), int64(0)
	for i, x := range got {
		types[i] = ledger.TypeRetired
		payloads, size = payloads+x.Payloads, size+x.Bytes
	}
	r.own(types...)
	if err != nil {
		r.readBack(name)
		return
	}
	n, bytes := int64(0), int64(0)
	for _, b := range r.m.blobs {
		if b.segment == name && b.kind == ledger.KindSegment {
			b.kind, n, bytes = ledger.KindRetired, n+1, bytes+int64(len(b.bytes))
		}
	}
	if n != payloads || bytes != size {
		r.t.Fatalf("%d payloads of %d bytes were retired, the model says %d of %d", payloads, size, n, bytes)
	}
}

// readBack learns which payloads of a segment name went when a retirement stopped half-way at a busy file.
func (r *modelRun) readBack(name string) {
	for n, b := range r.m.blobs {
		if b.segment != name || b.kind != ledger.KindSegment {
			continue
		}
		e, _, err := r.l.Get(n.key)
		r.must(err)
		loc, err := r.l.Locate(e, n.role)
		r.must(err)
		b.kind = loc.Kind
	}
}

func (r *modelRun) seal() {
	r.must(r.l.Seal(r.ctx, rapid.SampledFrom(modelClasses).Draw(r.t, "class"), rapid.SampledFrom(modelSegments).Draw(r.t, "segment")))
}

func (r *modelRun) reopen() {
	r.must(r.l.Close(r.ctx, "model"))
	reader, err := ledger.OpenReader(r.dir, r.opts)
	r.must(err)
	for e, err := range reader.Since(uint64(len(r.m.events))) { // `closed`
		r.must(err)
		r.m.add(e)
	}
	r.ask(reader)
	r.must(reader.Close())
	r.open()
	r.own(ledger.TypeOpened)
}

func (r *modelRun) crash() {
	r.l.Abandon()
	reader, err := ledger.OpenReader(r.dir, r.opts)
	r.must(err)
	r.ask(reader)
	r.must(reader.Close())
	r.open()
	r.own(ledger.TypeTakenOver, ledger.TypeOpened)
}

type asked interface {
	Head() ledger.Head
	Get(string) (ledger.Event, bool, error)
	At(uint64) (ledger.Event, error)
	ReadPayload(context.Context, ledger.Event, string) ([]byte, error)
	OpenPayload(context.Context, ledger.Event, string) (*ledger.PayloadReader, error)
	Locate(ledger.Event, string) (ledger.Location, error)
	Prove(uint64) (ledger.Proof, error)
	ProveConsistency(uint64) (ledger.Consistency, error)
	Scan(string) iter.Seq2[ledger.Event, error]
}

// ask compares every answer with the model.
func (r *modelRun) ask(l asked) {
	m := r.m
	h := l.Head()
	if h.Seq != uint64(len(m.events)) || h.Hash != m.hashes[len(m.hashes)-1] || h.Root != modelRoot(m.hashes) {
		r.t.Fatalf("head %d %s root %s, the model has %d events, hash %s", h.Seq, h.Hash, h.Root, len(m.events), m.hashes[len(m.hashes)-1])
	}
	same := func(e ledger.Event, i int) {
		if w := m.events[i]; e.Hash != m.hashes[i] || !sameContent(e, w) || !e.Time.Equal(w.Time) || !bytes.Equal(e.Note, w.Note) {
			r.t.Fatalf("event %d is %+v, the model says %+v", i+1, e, w)
		}
	}
	for i := range m.events {
		e, err := l.At(uint64(i + 1))
		r.must(err)
		same(e, i)
	}
	if _, err := l.At(uint64(len(m.events) + 1)); !errors.Is(err, ledger.ErrNotFound) {
		r.t.Fatal(err)
	}
	if _, ok, err := l.Get("no/such/key"); ok || err != nil {
		r.t.Fatal("a key that was never written is found: ", err)
	}
	for _, prefix := range []string{"", "a/", "a/b/", "batch/", "é", "zz"} {
		var want []string
		for key := range m.byKey {
			if strings.HasPrefix(key, prefix) {
				want = append(want, key)
			}
		}
		sort.Strings(want)
		var got []string
		for e, err := range l.Scan(prefix) {
			r.must(err)
			same(e, m.byKey[e.Key])
			got = append(got, e.Key)
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			r.t.Fatalf("scan of %q gives %q, the model says %q", prefix, got, want)
		}
	}
	for n, b := range m.blobs {
		e, ok, err := l.Get(n.key)
		r.must(err)
		if !ok {
			r.t.Fatalf("key %q is missing", n.key)
		}
		same(e, m.byKey[n.key])
		loc, err := l.Locate(e, n.role)
		r.must(err)
		if loc.Kind != b.kind {
			r.t.Fatalf("payload %s of %s is %s, the model says %s", n.role, n.key, loc.Kind, b.kind)
		}
		got, err := l.ReadPayload(r.ctx, e, n.role)
		switch b.kind {
		case ledger.KindRetired:
			if !errors.Is(err, ledger.ErrRetired) {
				r.t.Fatalf("retired payload %s of %s: %v", n.role, n.key, err)
			}
		case ledger.KindNone:
			if !errors.Is(err, ledger.ErrElsewhere) || errors.Is(err, ledger.ErrRetired) {
				r.t.Fatalf("payload %s of %s that is nowhere: %v", n.role, n.key, err)
			}
		default: // also where the decoder reads it from elsewhere
			r.must(err)
			if !bytes.Equal(got, b.bytes) {
				r.t.Fatalf("payload %s of %s has other bytes", n.role, n.key)
			}
			if len(b.bytes) > 1 {
				from := rapid.IntRange(0, len(b.bytes)-1).Draw(r.t, "from")
				part := make([]byte, rapid.IntRange(1, len(b.bytes)-from).Draw(r.t, "part"))
				p, err := l.OpenPayload(r.ctx, e, n.role)
				r.must(err)
				if _, err := p.ReadAt(part, int64(from)); err != nil || !bytes.Equal(part, b.bytes[from:from+len(part)]) {
					r.t.Fatalf("bytes %d.. of payload %s of %s: %v", from, n.role, n.key, err)
				}
				r.must(p.Close())
			}
		}
	}
	seq := uint64(rapid.IntRange(1, len(m.events)).Draw(r.t, "proven"))
	p, err := l.Prove(seq)
	r.must(err)
	if e, err := p.Check(); err != nil || e.Hash != m.hashes[seq-1] {
		r.t.Fatal("proof of event ", seq, ": ", err)
	}
	c, err := l.ProveConsistency(seq)
	r.must(err)
	if err := c.Check(); err != nil || c.Old.Root != modelRoot(m.hashes[:seq]) {
		r.t.Fatal("consistency with event ", seq, ": ", err)
	}
}

// TestModel runs random histories against the model. The chain hash is computed by the model from the events alone, so
// it is the same whatever codec, page size, chunk size, crash or reopening the history holds.
func TestModel(t *testing.T) {
	t.Parallel()
	checks := rounds(8, 60)
	if f := flag.Lookup("rapid.checks"); f != nil && f.Value.String() == f.DefValue {
		if err := flag.Set("rapid.checks", fmt.Sprint(checks)); err != nil {
			t.Fatal(err)
		}
		defer flag.Set("rapid.checks", f.DefValue)
	}
	base := memoryDir(t)
	histories, events := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(base, "m")
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		r := &modelRun{t: rt, ctx: context.Background(), dir: filepath.Join(dir, "run"),
			m: &model{byKey: map[string]int{}, blobs: map[blobName]*blob{}, orphan: map[string]int{}}}
		r.m.clock.Store(1700000000_000000005)
		r.opts = ledger.Options{NoServe: true, ReserveBytes: -1, SegmentBytes: 1 << 20, TransactionBytes: 1 << 20, Now: r.m.now,
			PageSize:     rapid.SampledFrom([]int{4 << 10, 16 << 10, 64 << 10}).Draw(rt, "page"),
			JournalBytes: rapid.SampledFrom([]int64{-1, 16 << 10, 128 << 10}).Draw(rt, "journal"), ChunkBytes: 4 << 10,
			Decoders: map[string]ledger.Decoder{"raw": ledger.BytesDecoder(func(loc ledger.Location) ([]byte, error) {
				key, role, _ := strings.Cut(loc.Tensor, " ")
				return r.m.blobs[blobName{key, role}].bytes, nil
			})}}
		if r.l, err = ledger.Create(r.ctx, r.dir, ledger.Genesis{Record: []byte(`{"model":1}`)}, r.opts); err != nil {
			rt.Fatal(err)
		}
		defer func() { r.l.Abandon() }()
		r.own(ledger.TypeGenesis, ledger.TypeOpened)
		rt.Repeat(map[string]func(*rapid.T){
			"append":   func(*rapid.T) { r.append() },
			"batch":    func(*rapid.T) { r.batch() },
			"once":     func(*rapid.T) { r.once() },
			"put":      func(*rapid.T) { r.strayPut() },
			"relocate": func(*rapid.T) { r.relocate() },
			"restore":  func(*rapid.T) { r.restore() },
			"retire":   func(*rapid.T) { r.retire() },
			"seal":     func(*rapid.T) { r.seal() },
			"reopen":   func(*rapid.T) { r.reopen() },
			"crash":    func(*rapid.T) { r.crash() },
			"sync":     func(*rapid.T) { r.must(r.l.Sync(r.ctx)) },
			"tick": func(*rapid.T) {
				r.m.clock.Add(int64(rapid.IntRange(1, 5000).Draw(rt, "ms")) * 1e6)
			},
			"": func(*rapid.T) {},
		})
		r.ask(r.l)
		r.reopen()
		r.ask(r.l)
		r.must(r.l.Close(r.ctx, "end"))
		rep, err := ledger.Fsck(r.ctx, r.dir, ledger.FsckOptions{Level: ledger.LevelDeep})
		r.must(err)
		if len(rep.Findings) > 0 {
			rt.Fatalf("fsck: %+v", rep.Findings)
		}
		histories, events = histories+1, events+len(r.m.events)
	})
	durable(t, "random history (appends, moves, retirements, restores, reopenings, crashes; any codec, chunk, page and journal size) against a model in memory", histories,
		"%d of %d: the same chain hash, tree root and answers; %d events", histories, histories, events)
}
