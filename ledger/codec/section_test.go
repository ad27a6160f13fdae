package codec_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/klauspost/compress/zstd"

	"quire/ledger/codec"
)

// exponents gives n bytes of low order-0 entropy that do not repeat.
func exponents(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 0x38 + byte(int(r.NormFloat64()*2)&15)
	}
	return b
}

// The form of a section is its first byte: raw, zstd, Huffman blocks.
func TestSectionForms(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	noise := make([]byte, 300_000)
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	index := make([]byte, 300_000) // group indices: long runs, high entropy
	for i := range index {
		index[i] = byte(i / 128)
	}
	mixed := append(bytes.Repeat([]byte{9}, 128<<10), exponents(r, 400_000)...) // a block of one byte among others
	for name, c := range map[string]struct {
		raw  []byte
		how  byte
		most int // bytes of the section
	}{
		"exponents":        {exponents(r, 300_000), 2, 300_000 * 4 / 8},
		"few bytes":        {exponents(r, 5_000), 1, 5_000 * 5 / 8},
		"indices":          {index, 1, 30_000},
		"one byte":         {bytes.Repeat([]byte{5}, 300_000), 1, 100},
		"a constant block": {mixed, 2, 400_000*4/8 + 20},
	} {
		stored, used, err := codec.Encode(nil, codec.Zstd, c.raw)
		if err != nil || used != codec.Zstd {
			t.Fatal(name, used, err)
		}
		if stored[0] != c.how || len(stored) > c.most {
			t.Errorf("%s: form %d of %d bytes, want form %d of at most %d", name, stored[0], len(stored), c.how, c.most)
		}
		back, err := codec.Decode(nil, used, stored, len(c.raw))
		if err != nil || !bytes.Equal(back, c.raw) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, used, err := codec.Encode(nil, codec.Zstd, noise); err != nil || used != codec.None {
		t.Error("noise", used, err)
	}
}

// What earlier encoders wrote, and any other could write, decodes: sections put together here by hand.
func TestForeignSections(t *testing.T) {
	enc, err := zstd.NewWriter(nil, zstd.WithSingleSegment(true))
	if err != nil {
		t.Fatal(err)
	}
	section := func(how byte, body []byte) []byte {
		return append(binary.LittleEndian.AppendUint32([]byte{how}, uint32(len(body))), body...)
	}
	block := func(body ...byte) []byte {
		return append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...)
	}
	lo, hi := bytes.Repeat([]byte{1, 2, 3}, 1000), bytes.Repeat([]byte{60}, 3000)
	want := make([]byte, 0, 6001)
	for i := range lo {
		want = append(want, lo[i], hi[i])
	}
	want = append(want, 77)
	for name, stored := range map[string][]byte{
		"raw":          append(append(section(0, lo), section(0, hi)...), section(0, []byte{77})...),
		"zstd":         append(append(section(1, enc.EncodeAll(lo, nil)), section(1, enc.EncodeAll(hi, nil))...), section(0, []byte{77})...),
		"whole blocks": append(append(section(2, block(lo...)), section(2, block(60))...), section(2, block(77))...),
	} {
		got, err := codec.Decode(nil, codec.Planes2, stored, len(want))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, stored := range map[string][]byte{
		"block longer than the plane": append(section(2, block(append(lo, 1)...)), section(2, block(60))...),
		"block without bytes":         append(section(2, block()), section(2, block(60))...),
		"bytes behind the blocks":     append(section(2, append(block(lo...), 0)), section(2, block(60))...),
		"no table":                    append(section(2, block(0xff, 0xff)), section(2, block(60))...),
		"form 3":                      append(section(3, lo), section(3, hi)...),
	} {
		if _, err := codec.Decode(nil, codec.Planes2, stored, 6000); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// Cutting or changing Huffman blocks gives an error or other bytes of the right number, never a panic.
func TestDamagedHuffman(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 1))
	raw := exponents(r, 140_000)
	stored, used, err := codec.Encode(nil, codec.Zstd, raw)
	if err != nil || stored[0] != 2 {
		t.Fatal(stored[0], err)
	}
	for cut := 0; cut < len(stored); cut += 1 + cut/16 {
		if _, err := codec.Decode(nil, used, stored[:cut], len(raw)); err == nil {
			t.Fatalf("cut at %d went unnoticed", cut)
		}
	}
	for i := range 2000 {
		at := i
		if i >= 300 { // the header and the table, then anywhere
			at = r.IntN(len(stored))
		}
		b := bytes.Clone(stored)
		b[at] ^= 1 << r.IntN(8)
		if got, err := codec.Decode(nil, used, b, len(raw)); err == nil && len(got) != len(raw) {
			t.Fatalf("flip at %d: %d bytes", at, len(got))
		}
	}
}

func TestPlanesOfEveryLength(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	for n := range 70 {
		raw := make([]byte, n+(n%2)*70_000*4)
		for i := range raw {
			raw[i] = byte(r.Uint32()) >> (i % 4 * 2)
		}
		for _, id := range []codec.ID{codec.Planes2, codec.Planes4} {
			stored, used, err := codec.Encode(nil, id, raw)
			if err != nil {
				t.Fatal(err)
			}
			if n%2 == 1 && used != id {
				t.Fatalf("%v of %d bytes: %v", id, len(raw), used)
			}
			back, err := codec.Decode(nil, used, stored, len(raw))
			if err != nil || !bytes.Equal(back, raw) {
				t.Fatalf("%v of %d bytes: %v", id, len(raw), err)
			}
		}
	}
}
