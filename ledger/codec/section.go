package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"

	"github.com/klauspost/compress/huff0"
	"github.com/klauspost/compress/zstd"
)

// How a section is stored. The numbers are registered like codec ids.
const (
	howRaw  = 0
	howZstd = 1
	howHuff = 2 // blocks of huffBlock raw bytes, each: length u32, then that many bytes

	sectionHeader = 5

	// huffBlock is the raw size of all blocks of a section but the last. A block as long as its content is stored as it
	// is, one of length 1 repeats that byte, any other is a Huffman table and four streams as in a zstd literals section.
	huffBlock  = 128 << 10
	huffHeader = 4
)

const (
	// entropyLimit is the sampled entropy in bits a byte above which a plane is not worth compressing.
	entropyLimit = 7.9
	// probeBytes of a plane are compressed by zstd to see whether it repeats itself.
	probeBytes = 16 << 10
	// matchGain is the share of the order-0 size below which zstd must bring the probe to be used for the whole.
	matchGain = 0.97
)

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
	work = sync.Pool{New: func() any { return new(workspace) }}
)

// workspace is what one encoding or decoding needs beside its input and output.
type workspace struct {
	buf  []byte
	huff huff0.Scratch
}

// plane gives n bytes of undefined content, valid until the next call.
func (w *workspace) plane(n int) []byte {
	if cap(w.buf) < n {
		w.buf = make([]byte, n)
	}
	return w.buf[:n]
}

func putSection(b []byte, how byte, n int) {
	b[0] = how
	binary.LittleEndian.PutUint32(b[1:], uint32(n))
}

// shrink turns a section whose body is a plane as it is into the shortest of its forms, in place, and gives its length.
// Exponents are nearly independent of each other: Huffman coding alone comes closer to their entropy than a frame that
// looks for matches, at three times its speed. Where there is repetition (indices, zero channels) it is zstd.
func (w *workspace) shrink(section []byte) int {
	plane := section[sectionHeader:]
	bits := sampledEntropy(plane)
	how, body := byte(howRaw), []byte(nil)
	switch {
	case bits > entropyLimit:
	case len(plane) < 4*probeBytes || bits < 1 || w.repeats(plane):
		how, body = howZstd, encoder().EncodeAll(plane, w.plane(len(plane))[:0])
		w.buf = body
	default:
		how, body = howHuff, w.huffman(plane)
	}
	if how == howRaw || len(body) >= len(plane) {
		putSection(section, howRaw, len(plane))
		return len(section)
	}
	putSection(section, how, len(body))
	return sectionHeader + copy(plane, body)
}

// repeats says whether zstd makes clearly less of the middle of a plane than its order-0 entropy.
func (w *workspace) repeats(plane []byte) bool {
	at := (len(plane) - probeBytes) / 2
	probe := plane[at : at+probeBytes]
	w.buf = encoder().EncodeAll(probe, w.plane(probeBytes)[:0])
	return float64(len(w.buf)) < matchGain*entropy(probe)/8*probeBytes
}

// huffman gives the blocks of a plane, valid until the workspace is used again.
func (w *workspace) huffman(plane []byte) []byte {
	out := w.plane(len(plane) + (len(plane)/huffBlock+1)*huffHeader)[:0]
	for len(plane) > 0 {
		block := plane[:min(huffBlock, len(plane))]
		plane = plane[len(block):]
		w.huff.Reuse = huff0.ReusePolicyNone
		body, _, err := huff0.Compress4X(block, &w.huff)
		switch {
		case errors.Is(err, huff0.ErrUseRLE):
			body = block[:1]
		case err != nil || len(body) >= len(block):
			body = block
		}
		out = binary.LittleEndian.AppendUint32(out, uint32(len(body)))
		out = append(out, body...)
	}
	w.buf = out
	return out
}

// readSection gives the want bytes of the next section and what follows it. The bytes are in into, which holds want, or
// for a raw section in stored.
func (w *workspace) readSection(into, stored []byte, want int) (plane, rest []byte, err error) {
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
		plane, err = decoder().DecodeAll(body, into[:0:want]) // may move to a place of its own
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
	case howHuff:
		if plane = into[:want:want]; !w.unhuff(plane, body) {
			return nil, nil, fmt.Errorf("%w: Huffman blocks", ErrCorrupt)
		}
	default:
		return nil, nil, fmt.Errorf("%w: section kind %d", ErrCorrupt, how)
	}
	if len(plane) != want {
		return nil, nil, fmt.Errorf("%w: plane of %d bytes where %d are expected", ErrCorrupt, len(plane), want)
	}
	return plane, rest, nil
}

// unhuff fills plane from its blocks and says whether they were sound and all of body.
func (w *workspace) unhuff(plane, body []byte) bool {
	for len(plane) > 0 {
		block := plane[:min(huffBlock, len(plane)):min(huffBlock, len(plane))]
		plane = plane[len(block):]
		if len(body) < huffHeader {
			return false
		}
		n := int64(binary.LittleEndian.Uint32(body))
		body = body[huffHeader:]
		if n > int64(len(body)) || n > int64(len(block)) {
			return false
		}
		b := body[:n]
		body = body[n:]
		switch n {
		case int64(len(block)):
			copy(block, b)
		case 1:
			for i := range block {
				block[i] = b[0]
			}
		default:
			s, streams, err := huff0.ReadTable(b, &w.huff)
			if err != nil {
				return false
			}
			out, err := s.Decoder().Decompress4X(block[:0], streams)
			if err != nil || len(out) != len(block) || &out[0] != &block[0] {
				return false
			}
		}
	}
	return len(body) == 0
}

// sampledEntropy gives the order-0 entropy, in bits a byte, of up to 32 stretches of 1,024 bytes spread over p.
func sampledEntropy(p []byte) float64 {
	const stretch, stretches = 1024, 32
	if len(p) < stretch*4 {
		return 0 // too little to judge: let zstd decide
	}
	if len(p) <= stretch*stretches {
		return entropy(p)
	}
	var count [256]int
	step := (len(p) - stretch) / (stretches - 1)
	for s := range stretches {
		for _, b := range p[s*step : s*step+stretch] {
			count[b]++
		}
	}
	return entropyOf(&count, stretch*stretches)
}

func entropy(p []byte) float64 {
	var count [256]int
	for _, b := range p {
		count[b]++
	}
	return entropyOf(&count, len(p))
}

// entropyOf gives Σ −f·log2 f of the frequencies f = count/total.
func entropyOf(count *[256]int, total int) float64 {
	var h float64
	for _, c := range count {
		if c > 0 {
			f := float64(c) / float64(total)
			h -= f * math.Log2(f)
		}
	}
	return h
}
