package codec_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"quire/ledger/codec"
)

var all = []codec.ID{codec.None, codec.Planes2, codec.Planes4, codec.Zstd}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 20000).Draw(t, "n")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		narrow := rapid.Bool().Draw(t, "narrow")
		raw := make([]byte, n)
		for i := range raw {
			raw[i] = byte(r.Uint32())
			if narrow && i%2 == 1 {
				raw[i] &= 3
			}
		}
		for _, id := range all {
			prefix := []byte("kept")
			stored, used, err := codec.Encode(prefix, id, raw)
			if err != nil {
				t.Fatal(err)
			}
			if len(stored)-4 > len(raw) {
				t.Fatalf("%v grew %d bytes to %d", id, len(raw), len(stored)-4)
			}
			back, err := codec.Decode([]byte("kept"), used, stored[4:], len(raw))
			if err != nil || !bytes.Equal(back[4:], raw) || string(back[:4]) != "kept" {
				t.Fatalf("%v: %v", id, err)
			}
			if err := codec.Verify(used, stored[4:], raw); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestShrinksNarrowExponents(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	raw := make([]byte, 1<<20)
	for i := 0; i < len(raw); i += 2 {
		raw[i] = byte(r.Uint32())         // mantissa: incompressible
		raw[i+1] = 0x3c + byte(r.IntN(4)) // exponent: 2 bits
	}
	stored, used, err := codec.Encode(nil, codec.Planes2, raw)
	if err != nil || used != codec.Planes2 {
		t.Fatal(used, err)
	}
	if ratio := float64(len(raw)) / float64(len(stored)); ratio < 1.45 { // the order-0 bound is 16/(8+2) = 1.6
		t.Fatalf("ratio %.3f", ratio)
	}
}

// Decoding must keep nothing of the stored bytes: they may change afterwards.
func TestDecodeKeepsNoInput(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	raw := make([]byte, 31000)
	for i := range raw {
		raw[i] = byte(r.Uint32())
		if i%2 == 1 {
			raw[i] &= 3
		}
	}
	stored, used, err := codec.Encode(nil, codec.Planes2, raw)
	if err != nil || used != codec.Planes2 {
		t.Fatal(used, err)
	}
	for range 50 {
		mine := bytes.Clone(stored)
		if err := codec.Verify(used, mine, raw); err != nil {
			t.Fatal(err)
		}
		if _, _, err := codec.Encode(nil, codec.Planes2, raw[:20000]); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(mine, stored) {
			t.Fatal("the stored bytes were changed")
		}
	}
}

func TestNames(t *testing.T) {
	for _, id := range all {
		got, err := codec.Parse(id.String())
		if err != nil || got != id || !id.Known() {
			t.Fatal(id, got, err)
		}
	}
	if _, err := codec.Parse("lz4"); !errors.Is(err, codec.ErrUnknown) {
		t.Fatal(err)
	}
	if codec.ID(99).Known() || codec.ID(99).String() != "codec(99)" {
		t.Fatal("id 99")
	}
	if codec.ForElement(2) != codec.Planes2 || codec.ForElement(4) != codec.Planes4 || codec.ForElement(1) != codec.Zstd {
		t.Fatal("ForElement")
	}
}

func TestDamageIsAnError(t *testing.T) {
	raw := bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7, 9}, 3000)
	raw = append(raw, 7)
	for _, id := range all[1:] {
		stored, used, err := codec.Encode(nil, id, raw)
		if err != nil || used != id {
			t.Fatal(id, used, err)
		}
		for cut := range len(stored) {
			if _, err := codec.Decode(nil, used, stored[:cut], len(raw)); err == nil {
				t.Fatalf("%v: cut at %d went unnoticed", id, cut)
			}
		}
		if _, err := codec.Decode(nil, used, append(bytes.Clone(stored), 0), len(raw)); !errors.Is(err, codec.ErrCorrupt) {
			t.Fatal(err)
		}
		if _, err := codec.Decode(nil, used, stored, len(raw)+8); !errors.Is(err, codec.ErrCorrupt) {
			t.Fatal(err)
		}
	}
	if _, err := codec.Decode(nil, 99, nil, 0); !errors.Is(err, codec.ErrUnknown) {
		t.Fatal(err)
	}
	if _, err := codec.Decode(nil, codec.None, nil, codec.MaxRaw+1); !errors.Is(err, codec.ErrCorrupt) {
		t.Fatal(err)
	}
}

func FuzzDecode(f *testing.F) {
	raw := bytes.Repeat([]byte{1, 2, 3, 4}, 2000)
	for _, id := range all {
		s, used, _ := codec.Encode(nil, id, raw)
		f.Add(uint16(used), s, len(raw))
	}
	for _, b := range [][]byte{exponents(rand.New(rand.NewPCG(1, 1)), 70_000)} {
		s, used, _ := codec.Encode(nil, codec.Zstd, b)
		f.Add(uint16(used), s, len(b))
	}
	f.Fuzz(func(t *testing.T, id uint16, stored []byte, n int) {
		out, err := codec.Decode(nil, codec.ID(id), stored, n)
		if err == nil && len(out) != n {
			t.Fatalf("%d bytes, want %d", len(out), n)
		}
	})
}

func BenchmarkEncodePlanes2(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	raw := make([]byte, 1<<20)
	for i := 0; i < len(raw); i += 2 {
		raw[i] = byte(r.Uint32())
		raw[i+1] = 0x3c + byte(int(r.NormFloat64()*2)&7)
	}
	b.SetBytes(int64(len(raw)))
	var dst []byte
	for b.Loop() {
		dst, _, _ = codec.Encode(dst[:0], codec.Planes2, raw)
	}
	b.ReportMetric(float64(len(raw))/float64(len(dst)), "ratio")
}
