package ledger_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"quire/ledger"
	"quire/ledger/codec"
)

// The fuzz targets take the checksum away where there is one: random bytes would not get past it, and behind it stands
// what must be right.

// sealed appends the checksum that the decoders want.
func sealed(b []byte) []byte {
	return binary.LittleEndian.AppendUint32(bytes.Clone(b), ledger.CRC(b))
}

func fuzzEvents() []ledger.Event {
	d := ledger.Digest{1, 2, 3}
	return []ledger.Event{
		{Type: "x", Schema: 1, Seq: 1, Time: time.Unix(5, 6).UTC()},
		{Type: "decision", Schema: 2, Key: "decision/L0001/q", Record: []byte(`{"bits":4}`), Note: []byte(`{"ms":3}`), Seq: 77, Time: time.Unix(1700000000, 1).UTC(), Prev: d,
			Inputs:   []ledger.Ref{{Key: "hessian/1", Digest: d}, {Key: "", Digest: d}},
			Payloads: []ledger.Payload{{Role: "codes", Class: ledger.ClassCodes, Length: 1 << 40, SHA256: d}, {Role: "r", Class: "permanent", Length: 0, SHA256: d}}},
	}
}

func FuzzEnvelope(f *testing.F) {
	for _, e := range fuzzEvents() {
		b := ledger.EncodeEvent(e)
		f.Add(b[:len(b)-4])
	}
	f.Add([]byte("QLE1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = ledger.DecodeEnvelope(b)
		e, err := ledger.DecodeEnvelope(sealed(b))
		if err != nil {
			return
		}
		// What was read can be written, and reads the same; unknown tags are the only thing that may be left out.
		again, err := ledger.DecodeEnvelope(ledger.EncodeEvent(e))
		if err != nil {
			t.Fatal(err)
		}
		if again.Hash != e.Hash {
			again.Hash = e.Hash
		}
		if !reflect.DeepEqual(e, again) {
			t.Fatalf("%+v reads back as %+v", e, again)
		}
	})
}

// FuzzTLV gives the decoder a sound envelope around any body.
func FuzzTLV(f *testing.F) {
	for _, e := range fuzzEvents() {
		b := ledger.EncodeEvent(e)
		f.Add(b[60 : len(b)-4])
	}
	f.Add([]byte{99, 3, 0, 0, 0, 1, 2, 3})
	f.Fuzz(func(t *testing.T, body []byte) {
		b := make([]byte, 60, 64+len(body))
		copy(b, "QLE1\x01\x00")
		binary.LittleEndian.PutUint64(b[8:], 5)
		binary.LittleEndian.PutUint32(b[56:], uint32(len(body)))
		e, err := ledger.DecodeEnvelope(sealed(append(b, body...)))
		if err != nil {
			return
		}
		if e.Seq != 5 {
			t.Fatal(e.Seq)
		}
		for _, p := range e.Payloads {
			if p.Length < 0 {
				t.Fatal("a payload of negative length")
			}
		}
	})
}

func FuzzHead(f *testing.F) {
	slots := ledger.EncodeHeadSlot(ledger.Head{Seq: 9, Time: time.Unix(0, 0).UTC()}, 4)
	slots = append(slots, ledger.EncodeHeadSlot(ledger.Head{Seq: 10, Time: time.Unix(1, 0).UTC()}, 5)...)
	f.Add(slots)
	f.Add(slots[:512])
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = ledger.DecodeHeadFile(b)
		if len(b) < 1024 {
			return
		}
		// With right checksums: the newest of the slots that say so wins, or none.
		b = append(sealed(b[:508]), sealed(b[512:1020])...)
		h, err := ledger.DecodeHeadFile(b)
		if err != nil {
			return
		}
		h0, err0 := ledger.DecodeHeadSlot(b[:512])
		h1, err1 := ledger.DecodeHeadSlot(b[512:])
		if !(err0 == nil && h == h0) && !(err1 == nil && h == h1) {
			t.Fatal("the head is in neither slot")
		}
	})
}

func FuzzLock(f *testing.F) {
	b := ledger.EncodeLock(ledger.Holder{Host: "h", Boot: "b", PID: 3, Start: time.Unix(1, 2).UTC(), Heartbeat: time.Unix(3, 4).UTC(), Unit: "L0003"})
	f.Add(b[:508])
	f.Add([]byte("quire-lock 1\npid 99999999999999999999\nstart yesterday\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = ledger.DecodeLock(b)
		b = append(b, make([]byte, 508)...)[:508]
		h, err := ledger.DecodeLock(sealed(b))
		if err != nil {
			return
		}
		again, err := ledger.DecodeLock(ledger.EncodeLock(h))
		if err != nil {
			// Times that only a forger writes (years over 9999, odd zones) cannot be written back.
			if y := h.Start.UTC().Year(); y >= 1 && y <= 9999 {
				if y := h.Heartbeat.UTC().Year(); y >= 1 && y <= 9999 {
					t.Fatal(err)
				}
			}
			return
		}
		if again.PID != h.PID || again.Closed != h.Closed || !again.Start.Equal(h.Start) || !again.Heartbeat.Equal(h.Heartbeat) {
			t.Fatalf("%+v reads back as %+v", h, again)
		}
	})
}

func FuzzLocation(f *testing.F) {
	for _, l := range []ledger.Location{{Kind: ledger.KindInline}, {Kind: ledger.KindSegment, SegmentID: 3, Ordinal: 9, ChunkRaw: 1 << 20, Stored: 5, Codec: codec.Planes2},
		{Kind: ledger.KindTensor, File: "model.safetensors", Tensor: "w", Decoder: "pack", Offset: 8, Stored: 99}} {
		b := ledger.EncodeLocation(l)
		f.Add(b[:len(b)-4])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = ledger.DecodeLocation(b)
		l, err := ledger.DecodeLocation(sealed(b))
		if err == nil && !bytes.Equal(ledger.EncodeLocation(l), sealed(b)) {
			t.Fatalf("%x reads as %+v and is written as %x", b, l, ledger.EncodeLocation(l))
		}
	})
}

// FuzzSegmentRecords covers what describes segments and payloads: segment record, payload header, chunk.
func FuzzSegmentRecords(f *testing.F) {
	f.Add([]byte(`{"class":"layer","key":"L0001","roll":1,"state":"open"}`))
	f.Add(append([]byte("QPL1\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00"), append(make([]byte, 32), 0, 0, 16, 0, 1, 0, 0, 0)...))
	f.Add([]byte("\x01\x00\x00\x00\x04\x00\x00\x00abcd"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if file, again, err := ledger.DecodeSegmentRecord(7, sealed(b)); err == nil {
			if strings.Contains(file, "..") && strings.ContainsAny(file[len("segments/"):], `/\`) {
				t.Fatalf("a record leads out of the directory: %q", file)
			}
			if _, twice, err := ledger.DecodeSegmentRecord(7, again); err != nil || !bytes.Equal(again, twice) {
				t.Fatal("a record is not written as it is read: ", err)
			}
		}
		if n, chunk, chunks, err := ledger.DecodePayloadHead(sealed(b)); err == nil {
			if n < 0 || chunk == 0 || (n+int64(chunk)-1)/int64(chunk) != int64(chunks) {
				t.Fatal(n, chunk, chunks)
			}
		}
		id, n, stored, err := ledger.CheckChunk(binary.LittleEndian.AppendUint32(bytes.Clone(b), ledger.ChunkCRC(1, 2, b)), 1, 2)
		if err == nil && n <= 1<<20 {
			if raw, err := codec.Decode(nil, id, stored, n); err == nil && len(raw) != n {
				t.Fatalf("a chunk of %d bytes decodes to %d", n, len(raw))
			}
		}
	})
}

// FuzzJournal reads records of any content behind a sound checksum.
func FuzzJournal(f *testing.F) {
	events := fuzzEvents()
	events[0].Payloads = []ledger.Payload{{Role: "q", Class: ledger.ClassPermanent, Inline: []byte("bytes"), Length: 5}}
	for _, list := range [][]ledger.Event{events[:1], events[1:], {events[1], events[0], events[1]}} {
		b := ledger.EncodeJournal(list...)
		got, again, err := ledger.DecodeJournal(b)
		if err != nil || len(got) != len(list) || !bytes.Equal(again, b) {
			f.Fatal(len(got), err)
		}
		n := binary.LittleEndian.Uint32(b[36:])
		f.Add(b[:104+n])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _, _ = ledger.DecodeJournal(b)
		if len(b) < 104 {
			return
		}
		b = bytes.Clone(b)
		binary.LittleEndian.PutUint32(b[36:], uint32(len(b)-104))
		events, again, err := ledger.DecodeJournal(sealed(b))
		if err != nil {
			return
		}
		if len(events) != int(binary.LittleEndian.Uint32(b[32:])) {
			t.Fatalf("%d events", len(events))
		}
		twice, _, err := ledger.DecodeJournal(again)
		if err != nil || !reflect.DeepEqual(twice, events) {
			t.Fatalf("what was read is written otherwise: %v", err)
		}
	})
}

// FuzzProof checks proofs of any content; what holds must name an event that lies in the tree.
func FuzzProof(f *testing.F) {
	ctx := context.Background()
	l, _ := filled(f, f.TempDir(), 10, ledger.Options{NoServe: true, ReserveBytes: -1})
	defer l.Close(ctx, "")
	trusted := l.Head()
	for seq := uint64(1); seq <= 9; seq += 4 {
		p, err := l.Prove(seq)
		if err != nil {
			f.Fatal(err)
		}
		b, err := json.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		c, err := l.ProveConsistency(seq)
		if err != nil {
			f.Fatal(err)
		}
		if b, err = json.Marshal(c); err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"type":"quire.inclusion.1","seq":1,"head":{"seq":4611686018427387904}}`))
	f.Add([]byte(`{"type":"quire.consistency.1","old":{"seq":1},"new":{"seq":9223372036854775807}}`))
	known := map[uint64]ledger.Digest{}
	for e, err := range l.Since(0) {
		if err != nil {
			f.Fatal(err)
		}
		known[e.Seq] = e.Hash
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _, _ = ledger.CheckProof(b, nil)
		e, _, err := ledger.CheckProof(b, &trusted)
		if err == nil && e != nil && known[e.Seq] != e.Hash {
			t.Fatalf("a proof holds for an event that the ledger does not have: %+v", e)
		}
	})
}

// FuzzHeadText covers the signed form of a head.
func FuzzHeadText(f *testing.F) {
	f.Add(ledger.Head{Seq: 5}.Text())
	f.Add(strings.Replace(ledger.Head{Seq: 5, Run: ledger.RunID{0xab}}.Text(), "ab", "AB", 1))
	f.Fuzz(func(t *testing.T, s string) {
		h, err := ledger.ParseHeadText(s)
		if err == nil && s != h.Text() {
			t.Fatalf("%q reads as %q", s, h.Text())
		}
	})
}
