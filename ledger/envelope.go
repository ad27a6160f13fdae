package ledger

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"golang.org/x/mod/sumdb/tlog"
)

// An event is stored as an envelope, little-endian:
//
//	0        4        6       8      16       24        56         60           60+n    64+n
//	+--------+--------+-------+------+--------+---------+----------+------------+-------+
//	| "QLE1" | format | flags | seq  | time   | prev    | n        | n bytes of | crc32c|
//	| 4 B    | u16    | u16   | u64  | i64 ns | 32 B    | u32      | TLV        | u32   |
//	+--------+--------+-------+------+--------+---------+----------+------------+-------+
//	|<------------------------- identity: what is hashed ---------------------->|
//
// A TLV is tag (u8), length (u32), bytes. Unknown tags are kept (the bytes are never rewritten) and ignored. The event's
// hash is SHA-256(0x00 ‖ identity), which is also its leaf hash in the RFC 6962 tree; prev is the hash of seq-1.
const (
	envelopeMagic  = "QLE1"
	envelopeFormat = 1
	envelopePrefix = 60
	envelopeCRC    = 4
)

// The TLV tags of format 1.
const (
	tagType    = 1 // string
	tagSchema  = 2 // u16
	tagKey     = 3 // string
	tagRecord  = 4 // JSON
	tagNote    = 5 // JSON
	tagInput   = 6 // digest 32 B, key; repeated
	tagPayload = 7 // length u64, SHA-256 32 B, class length u8, class, role; repeated
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func crcOf(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

func crcUpdate(crc uint32, b []byte) uint32 { return crc32.Update(crc, castagnoli, b) }

func appendTLV(b []byte, tag byte, parts ...string) []byte {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	b = append(b, tag)
	b = binary.LittleEndian.AppendUint32(b, uint32(n))
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

func appendTLVBytes(b []byte, tag byte, v []byte) []byte {
	b = append(b, tag)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(v)))
	return append(b, v...)
}

// encodeBody writes an envelope whose seq, time, prev and checksum are still to be filled in by sealEnvelope. Before
// it stands the zero byte that a leaf hash begins with.
func encodeBody(e *Event) (leaf []byte) {
	size := envelopePrefix + envelopeCRC + 64 + len(e.Type) + len(e.Key) + len(e.Record) + len(e.Note) + 64*len(e.Payloads) + 96*len(e.Inputs)
	b := make([]byte, 1+envelopePrefix, 1+size)
	copy(b[1:], envelopeMagic)
	binary.LittleEndian.PutUint16(b[1+4:], envelopeFormat)
	b = appendTLV(b, tagType, e.Type)
	b = append(b, tagSchema, 2, 0, 0, 0, byte(e.Schema), byte(e.Schema>>8))
	if e.Key != "" {
		b = appendTLV(b, tagKey, e.Key)
	}
	if len(e.Record) > 0 {
		b = appendTLVBytes(b, tagRecord, e.Record)
	}
	if len(e.Note) > 0 {
		b = appendTLVBytes(b, tagNote, e.Note)
	}
	for i := range e.Inputs {
		r := &e.Inputs[i]
		b = append(b, tagInput)
		b = binary.LittleEndian.AppendUint32(b, uint32(32+len(r.Key)))
		b = append(b, r.Digest[:]...)
		b = append(b, r.Key...)
	}
	for i := range e.Payloads {
		p := &e.Payloads[i]
		b = append(b, tagPayload)
		b = binary.LittleEndian.AppendUint32(b, uint32(8+32+1+len(p.Class)+len(p.Role)))
		b = binary.LittleEndian.AppendUint64(b, uint64(p.Length))
		b = append(b, p.SHA256[:]...)
		b = append(b, byte(len(p.Class)))
		b = append(b, p.Class...)
		b = append(b, p.Role...)
	}
	binary.LittleEndian.PutUint32(b[1+56:], uint32(len(b)-1-envelopePrefix))
	return b
}

// sealEnvelope fills in what the writer knows in the bytes that encodeBody gave, and gives the envelope with its checksum,
// in the same memory, and the event's hash. It may be called again for the same bytes.
func sealEnvelope(leaf []byte, seq uint64, now time.Time, prev Digest) ([]byte, Digest) {
	b := leaf[1:]
	binary.LittleEndian.PutUint64(b[8:], seq)
	binary.LittleEndian.PutUint64(b[16:], uint64(now.UnixNano()))
	copy(b[24:56], prev[:])
	hash := Digest(sha256.Sum256(leaf)) // tlog.RecordHash(b), without copies
	return binary.LittleEndian.AppendUint32(b, crcOf(b)), hash
}

// envelopeIdentity checks magic, lengths and checksum and gives the bytes that are hashed.
func envelopeIdentity(b []byte) ([]byte, error) {
	if len(b) < envelopePrefix+envelopeCRC {
		return nil, fmt.Errorf("envelope of %d bytes", len(b))
	}
	if string(b[:4]) != envelopeMagic {
		return nil, fmt.Errorf("envelope magic %x", b[:4])
	}
	id := b[:len(b)-envelopeCRC]
	if got, want := crcOf(id), binary.LittleEndian.Uint32(b[len(id):]); got != want {
		return nil, fmt.Errorf("envelope checksum %08x, stored %08x", got, want)
	}
	if f := binary.LittleEndian.Uint16(b[4:]); f > envelopeFormat {
		return nil, newer(fmt.Sprintf("envelope format %d", f))
	}
	if n := int64(binary.LittleEndian.Uint32(b[56:])); n != int64(len(id)-envelopePrefix) {
		return nil, fmt.Errorf("envelope body of %d bytes announces %d", len(id)-envelopePrefix, n)
	}
	return id, nil
}

// identityHash is the hash of an event with these identity bytes.
func identityHash(id []byte) Digest { return Digest(tlog.RecordHash(id)) }

// decodeEnvelope reads an event. It copies, so b may be reused.
func decodeEnvelope(b []byte) (Event, error) {
	id, err := envelopeIdentity(b)
	if err != nil {
		return Event{}, err
	}
	return decodeIdentity(id)
}

// decodeIdentity reads an event from its identity bytes, which a proof carries without the checksum.
func decodeIdentity(id []byte) (Event, error) {
	if len(id) < envelopePrefix || string(id[:4]) != envelopeMagic {
		return Event{}, fmt.Errorf("no envelope")
	}
	e := Event{
		Seq:  binary.LittleEndian.Uint64(id[8:]),
		Time: time.Unix(0, int64(binary.LittleEndian.Uint64(id[16:]))).UTC(),
		Prev: Digest(id[24:56]),
		Hash: identityHash(id),
	}
	seen := [8]bool{}
	for b := id[envelopePrefix:]; len(b) > 0; {
		if len(b) < 5 {
			return Event{}, fmt.Errorf("TLV cut short")
		}
		tag, n := b[0], int64(binary.LittleEndian.Uint32(b[1:]))
		b = b[5:]
		if n > int64(len(b)) {
			return Event{}, fmt.Errorf("TLV %d of %d bytes in %d", tag, n, len(b))
		}
		v := b[:n]
		b = b[n:]
		if tag >= tagType && tag <= tagNote {
			if seen[tag] {
				return Event{}, fmt.Errorf("TLV %d twice", tag)
			}
			seen[tag] = true
		}
		switch tag {
		case tagType:
			e.Type = string(v)
		case tagSchema:
			if len(v) != 2 {
				return Event{}, fmt.Errorf("schema of %d bytes", len(v))
			}
			e.Schema = binary.LittleEndian.Uint16(v)
		case tagKey:
			e.Key = string(v)
		case tagRecord:
			e.Record = append(e.Record, v...)
		case tagNote:
			e.Note = append(e.Note, v...)
		case tagInput:
			if len(v) < 32 {
				return Event{}, fmt.Errorf("input of %d bytes", len(v))
			}
			e.Inputs = append(e.Inputs, Ref{Key: string(v[32:]), Digest: Digest(v[:32])})
		case tagPayload:
			if len(v) < 41 || len(v) < 41+int(v[40]) {
				return Event{}, fmt.Errorf("payload name of %d bytes", len(v))
			}
			c := 41 + int(v[40])
			p := Payload{Length: int64(binary.LittleEndian.Uint64(v)), SHA256: Digest(v[8:40]), Class: Class(v[41:c]), Role: string(v[c:])}
			if p.Length < 0 {
				return Event{}, fmt.Errorf("payload of %d bytes", p.Length)
			}
			e.Payloads = append(e.Payloads, p)
		}
	}
	if e.Type == "" {
		return Event{}, fmt.Errorf("event without type")
	}
	return e, nil
}
