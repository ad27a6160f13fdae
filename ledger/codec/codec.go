package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// ID names a codec in stored chunks. Ids are registered here and never reused.
type ID uint16

// The registered codecs.
const (
	None    ID = 0 // raw bytes
	Planes2 ID = 1 // 2-byte elements (bf16, f16) split into byte planes, each zstd or raw
	Planes4 ID = 2 // 4-byte elements (f32) split into byte planes, each zstd or raw
	Zstd    ID = 3 // bytes without known structure
)

// MaxRaw is the largest chunk that Encode and Decode take, in bytes.
const MaxRaw = 16 << 20

// entropyLimit is the sampled entropy in bits a byte above which a plane is not worth compressing.
const entropyLimit = 7.9

// ErrCorrupt says that stored bytes are not what any encoder of this id writes. Typically this means that the chunk
// was damaged after its checksum was verified, or that the id is wrong.
var ErrCorrupt = errors.New("codec: stored chunk is corrupt")

// ErrUnknown says that the id is not registered in this version. Typically this means that a newer quire wrote it.
var ErrUnknown = errors.New("codec: unknown codec id")

const (
	howRaw  = 0
	howZstd = 1

	sectionHeader = 5
)

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

// The library's intended use is one shared encoder and decoder whose EncodeAll and DecodeAll run concurrently.
var (
	encoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithAllLitEntropyCompression(true),
			zstd.WithEncoderCRC(false), zstd.WithSingleSegment(true), zstd.WithLowerEncoderMem(true), zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)))
		if err != nil {
			panic(err) // constant options
		}
		return e
	})
	decoder = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(MaxRaw+(1<<20)), zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true))
		if err != nil {
			panic(err) // constant options
		}
		return d
	})
	planeScratch = sync.Pool{New: func() any { b := make([]byte, 0, 1<<20); return &b }}
)

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
	scratch := planeScratch.Get().(*[]byte)
	defer planeScratch.Put(scratch)
	for p := range elem {
		plane := raw
		if elem > 1 {
			plane = gather((*scratch)[:0], raw, p, elem, n)
			*scratch = plane[:0]
		}
		dst = appendSection(dst, plane)
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
	scratch := planeScratch.Get().(*[]byte)
	defer planeScratch.Put(scratch)
	for p := range elem {
		plane, rest, err := readSection((*scratch)[:0], stored, n)
		if err != nil {
			return dst[:start], err
		}
		if stored[0] == howZstd { // a raw plane is part of stored, which is not ours to keep
			*scratch = plane[:0]
		}
		stored = rest
		if elem == 1 {
			copy(out, plane)
		} else {
			scatter(out, plane, p, elem)
		}
	}
	if left := rawLen - n*elem; left > 0 {
		plane, rest, err := readSection(nil, stored, left)
		if err != nil {
			return dst[:start], err
		}
		stored = rest
		copy(out[n*elem:], plane)
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

func appendRaw(dst, plane []byte) []byte {
	dst = append(dst, howRaw)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(plane)))
	return append(dst, plane...)
}

func appendSection(dst, plane []byte) []byte {
	if sampledEntropy(plane) > entropyLimit {
		return appendRaw(dst, plane)
	}
	at := len(dst)
	dst = append(dst, howZstd, 0, 0, 0, 0)
	dst = encoder().EncodeAll(plane, dst)
	size := len(dst) - at - sectionHeader
	if size >= len(plane) {
		return appendRaw(dst[:at], plane)
	}
	binary.LittleEndian.PutUint32(dst[at+1:], uint32(size))
	return dst
}

// readSection gives the want bytes of the next section, in scratch unless it is raw, and what follows it.
func readSection(scratch, stored []byte, want int) (plane, rest []byte, err error) {
	if len(stored) < sectionHeader {
		return nil, nil, fmt.Errorf("%w: section header cut short", ErrCorrupt)
	}
	how, size := stored[0], int64(binary.LittleEndian.Uint32(stored[1:]))
	stored = stored[sectionHeader:]
	if size > int64(len(stored)) {
		return nil, nil, fmt.Errorf("%w: section of %d bytes in %d", ErrCorrupt, size, len(stored))
	}
	body, rest := stored[:size], stored[size:]
	switch how {
	case howRaw:
		plane = body
	case howZstd:
		var h zstd.Header
		if err := h.Decode(body); err != nil || !h.HasFCS || h.FrameContentSize != uint64(want) {
			return nil, nil, fmt.Errorf("%w: frame does not announce %d bytes", ErrCorrupt, want)
		}
		plane, err = decoder().DecodeAll(body, scratch)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
	default:
		return nil, nil, fmt.Errorf("%w: section kind %d", ErrCorrupt, how)
	}
	if len(plane) != want {
		return nil, nil, fmt.Errorf("%w: plane of %d bytes where %d are expected", ErrCorrupt, len(plane), want)
	}
	return plane, rest, nil
}

// gather appends byte p of each of the n elements of raw.
func gather(dst, raw []byte, p, elem, n int) []byte {
	dst = grow(dst, n)
	switch elem {
	case 2:
		for i := range dst {
			dst[i] = raw[2*i+p]
		}
	case 4:
		for i := range dst {
			dst[i] = raw[4*i+p]
		}
	}
	return dst
}

// scatter writes plane to byte p of each element of out.
func scatter(out, plane []byte, p, elem int) {
	switch elem {
	case 2:
		for i, b := range plane {
			out[2*i+p] = b
		}
	case 4:
		for i, b := range plane {
			out[4*i+p] = b
		}
	}
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

// sampledEntropy gives the order-0 entropy, in bits a byte, of up to 32 stretches of 1,024 bytes spread over p.
func sampledEntropy(p []byte) float64 {
	const stretch, stretches = 1024, 32
	if len(p) < stretch*4 {
		return 0 // too little to judge: let zstd decide
	}
	var count [256]int
	total := 0
	if len(p) <= stretch*stretches {
		for _, b := range p {
			count[b]++
		}
		total = len(p)
	} else {
		step := (len(p) - stretch) / (stretches - 1)
		for s := range stretches {
			for _, b := range p[s*step : s*step+stretch] {
				count[b]++
			}
		}
		total = stretch * stretches
	}
	var h float64
	for _, c := range count {
		if c > 0 {
			f := float64(c) / float64(total)
			h -= f * math.Log2(f)
		}
	}
	return h
}
