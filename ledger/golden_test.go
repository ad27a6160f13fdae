package ledger_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"quire/ledger"
	"quire/ledger/codec"
)

// testdata/golden-1 is a ledger that the first version wrote. Every later version must read it to the same answers. It is
// never written again: a new format gets a directory of its own. How it was written stands in writeGolden and
// testdata/SOURCES.md.

const (
	goldenDir  = "testdata/golden-1"
	goldenList = "testdata/golden-1.txt" // every event and payload, as first read

	goldenRun  = "0102030405060708090a0b0c0d0e0f10"
	goldenSeq  = 112
	goldenHash = "ffb2f31622ea8ae5f6e4556f8c00cb15224ce3bbc9dedb6041d3a726ef255fe6"
	goldenRoot = "a6b74a0050d5a91c9f9f4043bbd16da43f416d37588eaf24c9bd7f332f8c34f7"
	goldenKey  = "quire-golden+03e75283+AcwwVT0waKUG6nhS/oJ6V9nEK59/WVgt8iAsve0W41Xt"
)

// goldenBytes is what the payloads of the golden ledger hold, by key.
func goldenBytes() map[string][]byte {
	noise := make([]byte, 0, 9000) // no plane of it can be made smaller
	for i := 0; len(noise) < 9000; i++ {
		h := sha256.Sum256([]byte{byte(i), byte(i >> 8)})
		noise = append(noise, h[:]...)
	}
	return map[string][]byte{
		"capture/none":      pattern(5000, 1),
		"capture/planes2":   pattern(40962, 2), // eleven chunks of 4 KiB in two parts
		"capture/planes4":   pattern(12000, 3),
		"capture/zstd":      bytes.Repeat([]byte("a row of text. "), 700),
		"capture/noise":     noise,
		"capture/empty":     {},
		"capture/byte":      {7},
		"capture/odd":       pattern(4097, 4),
		"capture/tensor":    pattern(3000, 5),
		"capture/elsewhere": pattern(2000, 6),
		"capture/gone":      pattern(6000, 7),
		"capture/back":      pattern(7000, 8),
		"capture/next":      pattern(4500, 9),
		"tokens/0":          pattern(300, 10),
	}
}

// writeGolden wrote the golden ledger.
func writeGolden(t *testing.T, dir string) {
	ctx := context.Background()
	want := goldenBytes()
	skey, vkey, err := note.GenerateKey(strings.NewReader(strings.Repeat("golden key, kept by nobody......", 8)), "quire-golden")
	if err != nil {
		t.Fatal(err)
	}
	t.Log("key: ", vkey)
	signer, err := note.NewSigner(skey)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	o := ledger.Options{PageSize: 4 << 10, ChunkBytes: 4 << 10, ReserveBytes: -1, NoServe: true, Signer: signer, Stay: []byte(`{"limits":"none"}`),
		Random: bytes.NewReader([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}),
		Now:    func() time.Time { now = now.Add(time.Millisecond); return now }}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	l, err := ledger.Create(ctx, dir, ledger.Genesis{Record: []byte(`{"plan":"golden"}`), Note: []byte(`{"tool":"test"}`)}, o)
	must(err)
	put := func(class ledger.Class, seg string, id codec.ID, key string) {
		t.Helper()
		ref, err := l.PutBytes(ctx, class, seg, id, want[key])
		must(err)
		_, err = l.Append(ctx, ledger.Event{Type: "capture", Schema: 1, Key: key, Record: []byte(`{"site":"input"}`), Note: []byte(`{"ms":12}`),
			Payloads: []ledger.Payload{ref.Payload("rows"), {Role: "ids", Class: ledger.ClassPermanent, Inline: []byte(key)}}}).Wait(ctx)
		must(err)
	}
	put(ledger.ClassPermanent, "run", codec.Zstd, "tokens/0")
	put(ledger.ClassLayer, "L0000", codec.None, "capture/none")
	put(ledger.ClassLayer, "L0000", codec.Planes2, "capture/planes2")
	put(ledger.ClassLayer, "L0000", codec.Planes4, "capture/planes4")
	must(l.Seal(ctx, ledger.ClassLayer, "L0000"))
	put(ledger.ClassLayer, "L0000", codec.Zstd, "capture/zstd") // into a second file
	put(ledger.ClassLayer, "L0000", codec.Planes2, "capture/noise")
	put(ledger.ClassLayer, "L0000", codec.None, "capture/empty")
	put(ledger.ClassLayer, "L0000", codec.Planes2, "capture/byte")
	put(ledger.ClassLayer, "L0000", codec.Planes2, "capture/odd")
	put(ledger.ClassLayer, "L0000", codec.None, "capture/tensor")
	put(ledger.ClassLayer, "L0000", codec.None, "capture/elsewhere")
	put(ledger.ClassOpen, "L0001", codec.Planes4, "capture/gone")
	put(ledger.ClassOpen, "L0001", codec.Planes4, "capture/back")
	must(l.Relocate(ctx, ledger.Relocation{Key: "capture/tensor", Role: "rows", Location: ledger.Location{Kind: ledger.KindTensor, File: "model-00001.safetensors", Tensor: "w.weight_packed", Offset: 64, Stored: 3000, Decoder: "raw"}},
		ledger.Relocation{Key: "capture/elsewhere", Role: "rows", Location: ledger.Location{Kind: ledger.KindNone}}))
	_, err = l.Retire(ctx, ledger.ClassOpen, "L0001", "layer done")
	must(err)
	ref, err := l.PutBytes(ctx, ledger.ClassOpen, "L0001", codec.Planes4, want["capture/back"])
	must(err)
	must(l.Restore(ctx, "capture/back", "rows", ref))
	_, err = l.Find(ctx, "finding/1", []byte(`{"what":"few rows"}`)).Wait(ctx)
	must(err)
	l.SetUnit("L0001")
	l.Abandon()
	l, err = ledger.Open(ctx, dir, o)
	must(err)
	put(ledger.ClassLayer, "L0001", codec.Planes2, "capture/next")
	in, _, err := l.Get("capture/next")
	must(err)
	var events []ledger.Event
	for i := range 90 { // enough for two blocks of Merkle hashes
		e := ledger.Event{Type: "decision", Schema: 2, Key: fmt.Sprintf("decision/L0001/m%02d", i), Record: fmt.Appendf(nil, `{"bits":4,"i":%d}`, i)}
		if i%10 == 0 {
			e.Inputs = []ledger.Ref{in.Ref(), {Key: "genesis", Digest: ledger.Digest{1}}}
			e.Payloads = []ledger.Payload{{Role: "kept", Class: ledger.ClassCodes, Length: 5, SHA256: sha256.Sum256([]byte("codes"))}}
		}
		events = append(events, e)
	}
	_, err = l.AppendAll(ctx, events).All(ctx)
	must(err)
	must(l.Close(ctx, "done"))
}

// goldenText lists a ledger through its reader.
func goldenText(t *testing.T, r *ledger.Reader) string {
	var b strings.Builder
	for e, err := range r.Since(0) {
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%d %s/%d %q %s %s content %s record %s note %d B\n", e.Seq, e.Type, e.Schema, e.Key, e.Time.Format(time.RFC3339Nano), e.Hash, e.Digest(), e.Record, len(e.Note))
		for _, in := range e.Inputs {
			fmt.Fprintf(&b, "\tinput %q %s\n", in.Key, in.Digest)
		}
		for _, p := range e.Payloads {
			loc, err := r.Locate(e, p.Role)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&b, "\tpayload %s %s %d B %s: %s\n", p.Role, p.Class, p.Length, p.SHA256, loc)
		}
	}
	return b.String()
}

func TestGolden(t *testing.T) {
	ctx := context.Background()
	if dir := os.Getenv("QUIRE_WRITE_GOLDEN"); dir != "" {
		writeGolden(t, dir)
		r, err := ledger.OpenReader(dir, ledger.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if err := os.WriteFile(dir+".txt", []byte(goldenText(t, r)), 0o644); err != nil {
			t.Fatal(err)
		}
		p, err1 := r.Prove(40)
		c, err2 := r.ProveConsistency(23)
		inclusion, err3 := json.Marshal(p)
		consistency, err4 := json.Marshal(c)
		err = errors.Join(err1, err2, err3, err4, os.WriteFile(dir+".inclusion.json", inclusion, 0o644), os.WriteFile(dir+".consistency.json", consistency, 0o644))
		if err != nil {
			t.Fatal(err)
		}
		files, _ := filepath.Glob(filepath.Join(dir, "segments", "*.db"))
		for _, f := range append(files, filepath.Join(dir, "ledger.db")) { // what bbolt only set aside is left out
			if err := os.Truncate(f, used(t, f)); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("head %d %s %s", r.Head().Seq, r.Head().Hash, r.Head().Root)
		return
	}
	dir := filepath.Join(t.TempDir(), "run") // a reader writes nothing, but whoever opens LOCK may not
	copyLedger(t, goldenDir, dir)
	checkGolden(t, dir, false)
	// A later version goes on with it, and all that was said of it stays true.
	l, err := ledger.Open(ctx, dir, ledger.Options{NoServe: true, ReserveBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	if p := l.Previous(); !p.Closed || p.Holder.Host != "golden" || len(l.Findings()) != 0 {
		t.Fatal(p, l.Findings())
	}
	if _, err := l.Append(ctx, ledger.Event{Type: "later", Schema: 1, Key: "later"}).Wait(ctx); err != nil {
		t.Fatal(err)
	}
	c, err := l.ProveConsistency(goldenSeq)
	if err != nil || c.Old.Root.String() != goldenRoot || c.Check() != nil {
		t.Fatal(c.Old, err)
	}
	if err := l.Close(ctx, "later"); err != nil {
		t.Fatal(err)
	}
	checkGolden(t, dir, true)
	// Salvage and backup read it too.
	to := filepath.Join(t.TempDir(), "backup")
	r, err := ledger.OpenReader(dir, ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Backup(ctx, to, ledger.BackupOptions{}), r.Close()); err != nil {
		t.Fatal(err)
	}
	checkGolden(t, to, true)
}

// checkGolden reads everything; longer says that the ledger went on.
func checkGolden(t *testing.T, dir string, longer bool) {
	t.Helper()
	ctx := context.Background()
	rep, err := ledger.Fsck(ctx, dir, ledger.FsckOptions{Level: ledger.LevelDeep})
	if err != nil || len(rep.Findings) > 0 {
		t.Fatalf("fsck: %v %+v", err, rep.Findings)
	}
	r, err := ledger.OpenReader(dir, ledger.Options{Decoders: map[string]ledger.Decoder{"raw": ledger.BytesDecoder(func(loc ledger.Location) ([]byte, error) {
		if loc.File != "model-00001.safetensors" || loc.Tensor != "w.weight_packed" || loc.Offset != 64 || loc.Stored != 3000 {
			return nil, fmt.Errorf("location %+v", loc)
		}
		return pattern(3000, 5), nil
	})}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	e, err := r.At(goldenSeq)
	if err != nil || e.Hash.String() != goldenHash || r.Run().String() != goldenRun {
		t.Fatal(e, r.Run(), err)
	}
	if h := r.Head(); !longer && (h.Seq != goldenSeq || h.Hash.String() != goldenHash || h.Root.String() != goldenRoot) {
		t.Fatal(h)
	}
	want, err := os.ReadFile(goldenList)
	if err != nil {
		t.Fatal(err)
	}
	if got := goldenText(t, r); !strings.HasPrefix(got, string(want)) || !longer && got != string(want) {
		gl, wl := strings.Split(got, "\n"), strings.Split(string(want), "\n")
		for i := range wl {
			if i >= len(gl) || gl[i] != wl[i] {
				t.Fatalf("line %d is\n%s\nit was\n%s", i+1, append(gl, "missing")[min(i, len(gl))], wl[i])
			}
		}
		t.Fatal("there is more than there was")
	}
	// The chain and the root, computed from the diagrams alone.
	var hashes []ledger.Digest
	prev := ledger.Digest{}
	for e, err := range r.Since(0) {
		if err != nil {
			t.Fatal(err)
		}
		if len(hashes) < goldenSeq {
			if e.Prev != prev || modelHash(e, e.Seq, prev) != e.Hash {
				t.Fatalf("event %d has hash %s", e.Seq, e.Hash)
			}
			prev, hashes = e.Hash, append(hashes, e.Hash)
		}
	}
	if modelRoot(hashes).String() != goldenRoot {
		t.Fatal("root ", modelRoot(hashes))
	}
	for key, b := range goldenBytes() {
		e, ok, err := r.Get(key)
		if err != nil || !ok {
			t.Fatal(key, err)
		}
		got, err := r.ReadPayload(ctx, e, "rows")
		switch key {
		case "capture/gone":
			if !errors.Is(err, ledger.ErrRetired) {
				t.Fatal(key, err)
			}
		case "capture/elsewhere":
			if !errors.Is(err, ledger.ErrElsewhere) {
				t.Fatal(key, err)
			}
		default:
			if err != nil || !bytes.Equal(got, b) {
				t.Fatal(key, err)
			}
		}
		if got, err := r.ReadPayload(ctx, e, "ids"); err != nil || string(got) != key {
			t.Fatal(key, err)
		}
	}
	for seq := uint64(1); seq <= goldenSeq; seq++ {
		p, err := r.Prove(seq)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Check(); err != nil {
			t.Fatal(err)
		}
	}
	// What was given to others then still holds: a signed head, and proofs in JSON.
	v, err := note.NewVerifier(goldenKey)
	if err != nil {
		t.Fatal(err)
	}
	msg, err := os.ReadFile(filepath.Join(goldenDir, "HEAD.note"))
	if err != nil {
		t.Fatal(err)
	}
	head, err := ledger.OpenHeadNote(msg, note.VerifierList(v))
	if err != nil || head.Seq != goldenSeq || head.Root.String() != goldenRoot {
		t.Fatal(head, err)
	}
	for _, name := range []string{"testdata/golden-1.inclusion.json", "testdata/golden-1.consistency.json"} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := ledger.CheckProof(b, &head); err != nil {
			t.Fatal(name, err)
		}
	}
}
