package ledger

import (
	"encoding/binary"
	"fmt"

	"quire/ledger/codec"
)

// Kind says in what way a payload is stored now.
type Kind uint8

// The kinds of location. The numbers are stored.
const (
	KindNone    Kind = 0 // only length and SHA-256 are known
	KindInline  Kind = 1 // in ledger.db
	KindSegment Kind = 2 // in a payload segment
	KindTensor  Kind = 3 // encoded inside a tensor of an output file
	KindForeign Kind = 4 // a byte range of another file
	KindRetired Kind = 5 // it was kept and was let go
)

var kindNames = [...]string{"none", "inline", "segment", "tensor", "foreign", "retired"}

// String names the kind.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// MarshalText names the kind.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads a kind's name.
func (k *Kind) UnmarshalText(b []byte) error {
	for i, s := range kindNames {
		if s == string(b) {
			*k = Kind(i)
			return nil
		}
	}
	return fmt.Errorf("ledger: unknown location kind %q", b)
}

// Location says where a payload's bytes are. It may change without touching the hash chain.
type Location struct {
	Kind Kind `json:"kind"`

	// KindTensor and KindForeign.
	File    string `json:"file,omitempty"`    // as the engine resolves it
	Tensor  string `json:"tensor,omitempty"`  // tensor name inside File
	Offset  int64  `json:"offset,omitempty"`  // bytes from the start of the tensor, or of the file
	Stored  int64  `json:"stored,omitempty"`  // bytes taken there
	Decoder string `json:"decoder,omitempty"` // id of the decoder that gives the raw bytes; "" = they are the raw bytes

	// KindSegment.
	SegmentID uint32   `json:"segment,omitempty"`
	Ordinal   uint64   `json:"ordinal,omitempty"`   // number of the payload inside the segment
	ChunkRaw  uint32   `json:"chunk_raw,omitempty"` // raw bytes of every chunk but the last
	Codec     codec.ID `json:"codec,omitempty"`     // the codec asked for; each chunk says its own
}

// String describes the location for people.
func (l Location) String() string {
	switch l.Kind {
	case KindSegment:
		return fmt.Sprintf("segment %d, payload %d", l.SegmentID, l.Ordinal)
	case KindTensor:
		return fmt.Sprintf("tensor %s of %s at %d (%s)", l.Tensor, l.File, l.Offset, l.Decoder)
	case KindForeign:
		return fmt.Sprintf("%s at %d", l.File, l.Offset)
	}
	return l.Kind.String()
}

// appendLocation writes the stored form: kind, then fields in the order of the struct, strings with a 16-bit length.
func appendLocation(b []byte, l Location) []byte {
	start := len(b)
	b = append(b, byte(l.Kind))
	switch l.Kind {
	case KindSegment:
		b = binary.LittleEndian.AppendUint32(b, l.SegmentID)
		b = binary.LittleEndian.AppendUint64(b, l.Ordinal)
		b = binary.LittleEndian.AppendUint32(b, l.ChunkRaw)
		b = binary.LittleEndian.AppendUint64(b, uint64(l.Stored))
		b = binary.LittleEndian.AppendUint16(b, uint16(l.Codec))
	case KindTensor, KindForeign:
		for _, s := range []string{l.File, l.Tensor, l.Decoder} {
			b = binary.LittleEndian.AppendUint16(b, uint16(len(s)))
			b = append(b, s...)
		}
		b = binary.LittleEndian.AppendUint64(b, uint64(l.Offset))
		b = binary.LittleEndian.AppendUint64(b, uint64(l.Stored))
	}
	return binary.LittleEndian.AppendUint32(b, crcOf(b[start:]))
}

// parseLocation reads what appendLocation wrote.
func parseLocation(b []byte) (Location, error) {
	bad := fmt.Errorf("location record of %d bytes is corrupt", len(b))
	if len(b) < 5 || crcOf(b[:len(b)-4]) != binary.LittleEndian.Uint32(b[len(b)-4:]) {
		return Location{}, bad
	}
	b = b[:len(b)-4]
	l := Location{Kind: Kind(b[0])}
	b = b[1:]
	switch l.Kind {
	case KindNone, KindInline, KindRetired:
		if len(b) != 0 {
			return Location{}, bad
		}
	case KindSegment:
		if len(b) != 26 {
			return Location{}, bad
		}
		l.SegmentID = binary.LittleEndian.Uint32(b)
		l.Ordinal = binary.LittleEndian.Uint64(b[4:])
		l.ChunkRaw = binary.LittleEndian.Uint32(b[12:])
		l.Stored = int64(binary.LittleEndian.Uint64(b[16:]))
		l.Codec = codec.ID(binary.LittleEndian.Uint16(b[24:]))
		if l.ChunkRaw == 0 || l.ChunkRaw > codec.MaxRaw {
			return Location{}, bad
		}
	case KindTensor, KindForeign:
		for _, s := range []*string{&l.File, &l.Tensor, &l.Decoder} {
			if len(b) < 2 || len(b) < 2+int(binary.LittleEndian.Uint16(b)) {
				return Location{}, bad
			}
			n := int(binary.LittleEndian.Uint16(b))
			*s = string(b[2 : 2+n])
			b = b[2+n:]
		}
		if len(b) != 16 {
			return Location{}, bad
		}
		l.Offset = int64(binary.LittleEndian.Uint64(b))
		l.Stored = int64(binary.LittleEndian.Uint64(b[8:]))
	default:
		return Location{}, fmt.Errorf("location kind %d is unknown", l.Kind)
	}
	return l, nil
}
