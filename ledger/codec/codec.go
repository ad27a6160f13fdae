package codec

import (
	"bytes"
	"errors"
	"fmt"
)

// ID names a codec in stored chunks. Ids are registered here and never reused.
type ID uint16

// The registered codecs.
const (
	None    ID = 0 // raw bytes
	Planes2 ID = 1 // 2-byte elements (bf16, f16) split into byte planes, each in its shortest form
	Planes4 ID = 2 // 4-byte elements (f32) split into byte planes, each in its shortest form
	Zstd    ID = 3 // bytes without known structure
)

// MaxRaw is the largest chunk that Encode and Decode take, in bytes.
const MaxRaw = 16 << 20

// ErrCorrupt says that stored bytes are not what any encoder of this id writes. Typically this means that the chunk
// was damaged after its checksum was verified, or that the id is wrong.
var ErrCorrupt = errors.New("codec: stored chunk is corrupt")

// ErrUnknown says that the id is not registered in this version. Typically this means that a newer quire wrote it.
var ErrUnknown = errors.New("codec: unknown codec id")

var names = map[ID]string{None: "none", Planes2: "planes2", Planes4: "planes4", Zstd: "zstd"}

// String gives the registered name.
func (id ID) String() string {
	if s, ok := names[id]; ok {
		return s
	}
	return fmt.Sprintf("codec(%d)", uint16(id))
}

// Known says whether this version can decode id.
func (id ID) Known() bool { _, ok := names[id]; return ok }

// Parse gives the id of a registered name.
func Parse(name string) (ID, error) {
	for id, s := range names {
		if s == name {
			return id, nil
		}
	}
	return 0, fmt.Errorf("%w: %q (none, planes2, planes4, zstd)", ErrUnknown, name)
}

// ForElement gives the codec that suits elements of the given size in bytes.
func ForElement(size int) ID {
	switch size {
	case 2:
		return Planes2
	case 4:
		return Planes4
	}
	return Zstd
}

func (id ID) elementSize() int {
	switch id {
	case Planes2:
		return 2
	case Planes4:
		return 4
	}
	return 1
}

// Encode appends the stored form of raw to dst and gives it with the id that decodes it: the one asked for, or None
// when that would not be smaller.
func Encode(dst []byte, id ID, raw []byte) ([]byte, ID, error) {
	if len(raw) > MaxRaw {
		return dst, None, fmt.Errorf("codec: chunk of %d bytes is over %d", len(raw), MaxRaw)
	}
	switch id {
	case None:
		return append(dst, raw...), None, nil
	case Planes2, Planes4, Zstd:
	default:
		return dst, None, fmt.Errorf("%w: %d", ErrUnknown, id)
	}
	start := len(dst)
	elem := id.elementSize()
	n := len(raw) / elem
	if need := start + len(raw) + (elem+1)*sectionHeader; cap(dst) < need {
		dst = append(make([]byte, 0, need), dst...)
	}
	w := work.Get().(*workspace)
	defer work.Put(w)
	for p := range elem {
		// The plane is written where it stays if it turns out incompressible, as the larger half of activations does.
		at := len(dst)
		dst = dst[:at+sectionHeader+n]
		plane := dst[at+sectionHeader:]
		gather(plane, raw, p, elem)
		dst = dst[:at+w.shrink(dst[at:])]
	}
	if rest := raw[n*elem:]; elem > 1 && len(rest) > 0 {
		dst = appendRaw(dst, rest)
	}
	if len(dst)-start >= len(raw) {
		return append(dst[:start], raw...), None, nil
	}
	return dst, id, nil
}

// Decode appends the rawLen raw bytes of a stored chunk to dst.
func Decode(dst []byte, id ID, stored []byte, rawLen int) ([]byte, error) {
	if rawLen < 0 || rawLen > MaxRaw {
		return dst, fmt.Errorf("%w: raw length %d", ErrCorrupt, rawLen)
	}
	switch id {
	case None:
		if len(stored) != rawLen {
			return dst, fmt.Errorf("%w: %d bytes where %d are expected", ErrCorrupt, len(stored), rawLen)
		}
		return append(dst, stored...), nil
	case Planes2, Planes4, Zstd:
	default:
		return dst, fmt.Errorf("%w: %d", ErrUnknown, id)
	}
	elem := id.elementSize()
	n := rawLen / elem
	start := len(dst)
	dst = grow(dst, rawLen)
	out := dst[start:]
	w := work.Get().(*workspace)
	defer work.Put(w)
	buf := out
	if elem > 1 {
		buf = w.plane(rawLen)
	}
	var planes [4][]byte
	for p := range elem {
		plane, rest, err := w.readSection(buf[p*n:(p+1)*n], stored, n)
		if err != nil {
			return dst[:start], err
		}
		planes[p], stored = plane, rest
	}
	interleave(out[:n*elem], planes[:elem])
	if left := rawLen - n*elem; left > 0 {
		last, rest, err := w.readSection(buf[n*elem:], stored, left)
		if err != nil {
			return dst[:start], err
		}
		stored = rest
		copy(out[n*elem:], last)
	}
	if len(stored) != 0 {
		return dst[:start], fmt.Errorf("%w: %d bytes too many", ErrCorrupt, len(stored))
	}
	return dst, nil
}

// Verify says whether stored decodes to raw. Statistics are written only after it does: a wrong encoder would
// otherwise be found when the run that could repeat them is gone.
func Verify(id ID, stored, raw []byte) error {
	got, err := Decode(make([]byte, 0, len(raw)), id, stored, len(raw))
	if err != nil {
		return err
	}
	if !bytes.Equal(got, raw) {
		return fmt.Errorf("%w: encoder output of %s does not decode to its input", ErrCorrupt, id)
	}
	return nil
}

// grow extends b by n bytes whose content is undefined.
func grow(b []byte, n int) []byte {
	if cap(b)-len(b) >= n {
		return b[:len(b)+n]
	}
	g := make([]byte, len(b)+n)
	copy(g, b)
	return g
}

// appendRaw appends bytes as a section that is stored as it is.
func appendRaw(dst, b []byte) []byte {
	at := len(dst)
	dst = grow(dst, sectionHeader)
	putSection(dst[at:], howRaw, len(b))
	return append(dst, b...)
}
