package ledger_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"quire/ledger"
	"quire/ledger/codec"
)

func create(t testing.TB, dir string, o ledger.Options) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Create(context.Background(), dir, ledger.Genesis{Record: []byte(`{"plan":"x"}`)}, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	x := uint32(seed) + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
		if i%2 == 1 {
			b[i] &= 3
		}
	}
	return b
}

func TestAppendPutReadReopen(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	l := create(t, dir, ledger.Options{})
	want := map[string][]byte{}
	for i, n := range []int{0, 1, 100, 1 << 20, 9<<20 + 17} {
		for _, id := range []codec.ID{codec.None, codec.Planes2, codec.Planes4} {
			key := fmt.Sprintf("capture/L0001/%d-%v", i, id)
			b := pattern(n, byte(i))
			ref, err := l.Put(ctx, ledger.ClassLayer, "L0001", id, bytes.NewReader(b))
			if err != nil {
				t.Fatal(err)
			}
			e, err := l.Append(ctx, ledger.Event{Type: "capture", Schema: 1, Key: key, Record: []byte(`{"a":1}`), Payloads: []ledger.Payload{ref.Payload("rows"), {Role: "ids", Class: ledger.ClassPermanent, Inline: []byte("small")}}}).Wait(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if e.Payloads[0].Length != int64(n) {
				t.Fatal(e)
			}
			want[key] = b
		}
	}
	type reader interface {
		Get(string) (ledger.Event, bool, error)
		OpenPayload(context.Context, ledger.Event, string) (*ledger.PayloadReader, error)
		ReadPayload(context.Context, ledger.Event, string) ([]byte, error)
	}
	check := func(l reader) {
		t.Helper()
		for key, b := range want {
			e, ok, err := l.Get(key)
			if err != nil || !ok {
				t.Fatal(key, ok, err)
			}
			r, err := l.OpenPayload(ctx, e, "rows")
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(r)
			if err != nil || !bytes.Equal(got, b) {
				t.Fatal(key, len(got), err)
			}
			if len(b) > 5000 {
				part := make([]byte, 1000)
				if _, err := r.ReadAt(part, int64(len(b)-3000)); err != nil || !bytes.Equal(part, b[len(b)-3000:len(b)-2000]) {
					t.Fatal(err)
				}
			}
			r.Close()
			if s, err := l.ReadPayload(ctx, e, "ids"); err != nil || string(s) != "small" {
				t.Fatal(s, err)
			}
		}
	}
	check(l)
	if err := l.Sync(ctx); err != nil {
		t.Fatal(err)
	}
	head := l.Head()
	if err := l.Close(ctx, "done"); err != nil {
		t.Fatal(err)
	}
	r, err := ledger.OpenReader(dir, ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	check(r)
	n := uint64(0)
	for e, err := range r.Since(0) {
		if err != nil {
			t.Fatal(err)
		}
		n++
		if e.Seq != n {
			t.Fatal(e.Seq)
		}
	}
	if n != head.Seq+1 {
		t.Fatal(n, head.Seq)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	l, err = ledger.Open(ctx, dir, ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	check(l)
	if p := l.Previous(); !p.Known || !p.Closed || p.TookOver {
		t.Fatal(p)
	}
	if got := l.Findings(); len(got) != 0 {
		t.Fatal(got)
	}
	l.Abandon()
	l, err = ledger.Open(ctx, dir, ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	check(l)
	if p := l.Previous(); p.Closed || !p.TookOver {
		t.Fatal(p)
	}
	if err := l.Close(ctx, "end"); err != nil {
		t.Fatal(err)
	}
}

func TestKeysBindContent(t *testing.T) {
	ctx := context.Background()
	l := create(t, t.TempDir(), ledger.Options{})
	defer l.Close(ctx, "")
	e := ledger.Event{Type: "decision", Schema: 1, Key: "decision/a", Record: []byte(`{"bits":4}`)}
	first, err := l.Append(ctx, e).Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	e.Note = []byte(`{"ms":3}`)
	again, err := l.Append(ctx, e).Wait(ctx)
	if err != nil || again.Seq != first.Seq {
		t.Fatal(again.Seq, err)
	}
	e.Record = []byte(`{"bits":8}`)
	_, err = l.Append(ctx, e).Wait(ctx)
	var d *ledger.DivergenceError
	if !errors.Is(err, ledger.ErrDivergence) || !errors.As(err, &d) || d.Field != "record" || d.Seq != first.Seq || d.ExitCode() != 5 {
		t.Fatal(err)
	}
	if _, err := l.Append(ctx, ledger.Event{Type: "decision", Schema: 1, Key: "decision/b"}).Wait(ctx); err != nil {
		t.Fatal("a divergence must not harm others:", err)
	}
	runs := 0
	for range 2 {
		got, err := l.Once(ctx, "decision/c", func(context.Context) (ledger.Event, error) {
			runs++
			return ledger.Event{Type: "decision", Schema: 1}, nil
		})
		if err != nil || got.Key != "decision/c" {
			t.Fatal(err)
		}
	}
	if runs != 1 {
		t.Fatal(runs)
	}
	var keys []string
	for e, err := range l.Scan("decision/") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, e.Key)
	}
	if fmt.Sprint(keys) != "[decision/a decision/b decision/c]" {
		t.Fatal(keys)
	}
}

func TestRetireRelocateRestore(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	l := create(t, dir, ledger.Options{Decoders: map[string]ledger.Decoder{"raw": ledger.BytesDecoder(func(loc ledger.Location) ([]byte, error) { return pattern(5000, 1), nil })}})
	ref, err := l.PutBytes(ctx, ledger.ClassCodes, "L0001", codec.None, pattern(5000, 1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Retire(ctx, ledger.ClassCodes, "L0001", "early"); !errors.Is(err, ledger.ErrBusy) {
		t.Fatal(err)
	}
	e, err := l.Append(ctx, ledger.Event{Type: "decision", Schema: 1, Key: "d/1", Payloads: []ledger.Payload{ref.Payload("codes")}}).Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	ref2, err := l.PutBytes(ctx, ledger.ClassCodes, "L0001", codec.None, pattern(6000, 2))
	if err != nil {
		t.Fatal(err)
	}
	e2, err := l.Append(ctx, ledger.Event{Type: "decision", Schema: 1, Key: "d/2", Payloads: []ledger.Payload{ref2.Payload("codes")}}).Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Relocate(ctx, ledger.Relocation{Key: "d/1", Role: "codes", Location: ledger.Location{Kind: ledger.KindTensor, File: "model.safetensors", Tensor: "w.qweight", Decoder: "raw", Stored: 5000}}); err != nil {
		t.Fatal(err)
	}
	got, err := l.Retire(ctx, ledger.ClassCodes, "L0001", "packed")
	if err != nil || len(got) != 1 || got[0].Payloads != 1 || got[0].Bytes != 6000 {
		t.Fatal(got, err)
	}
	if b, err := l.ReadPayload(ctx, e, "codes"); err != nil || !bytes.Equal(b, pattern(5000, 1)) {
		t.Fatal(err)
	}
	if _, err := l.ReadPayload(ctx, e2, "codes"); !errors.Is(err, ledger.ErrRetired) {
		t.Fatal(err)
	}
	wrong, err := l.PutBytes(ctx, ledger.ClassCodes, "L0001", codec.None, pattern(6000, 3))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Restore(ctx, "d/2", "codes", wrong); !errors.Is(err, ledger.ErrDivergence) {
		t.Fatal(err)
	}
	right, err := l.PutBytes(ctx, ledger.ClassCodes, "L0001", codec.None, pattern(6000, 2))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Restore(ctx, "d/2", "codes", right); err != nil {
		t.Fatal(err)
	}
	if b, err := l.ReadPayload(ctx, e2, "codes"); err != nil || !bytes.Equal(b, pattern(6000, 2)) {
		t.Fatal(err)
	}
	if err := l.Close(ctx, ""); err != nil {
		t.Fatal(err)
	}
	l, err = ledger.Open(ctx, dir, ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(ctx, "")
	if b, err := l.ReadPayload(ctx, e2, "codes"); err != nil || !bytes.Equal(b, pattern(6000, 2)) {
		t.Fatal(err)
	}
}

func TestSecondWriterIsToldAtOnce(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	l := create(t, dir, ledger.Options{})
	defer l.Close(ctx, "")
	for _, open := range []func() error{
		func() error { _, err := ledger.Open(ctx, dir, ledger.Options{}); return err },
		func() error { _, err := ledger.OpenReader(dir, ledger.Options{}); return err },
	} {
		err := open()
		var le *ledger.LockedError
		if !errors.Is(err, ledger.ErrLocked) || !errors.As(err, &le) || le.ExitCode() != 11 || le.Holder.PID == 0 {
			t.Fatal(err)
		}
	}
	if _, err := ledger.Open(ctx, t.TempDir(), ledger.Options{}); !errors.Is(err, ledger.ErrNoLedger) {
		t.Fatal(err)
	}
}
