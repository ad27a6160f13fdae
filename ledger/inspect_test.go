package ledger_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"quire/ledger"
	"quire/ledger/codec"
)

// filled makes a ledger with n decisions and some payloads of every class, and gives what its payloads hold.
func filled(t testing.TB, dir string, n int, o ledger.Options) (*ledger.Ledger, map[string][]byte) {
	t.Helper()
	ctx := context.Background()
	l := create(t, dir, o)
	want := map[string][]byte{}
	for i := range n {
		key := fmt.Sprintf("decision/L%04d/m%d", i/10, i)
		e := ledger.Event{Type: "decision", Schema: 1, Key: key, Record: fmt.Appendf(nil, `{"i":%d}`, i)}
		if i%5 == 0 {
			class := []ledger.Class{ledger.ClassPermanent, ledger.ClassLayer, ledger.ClassOpen, ledger.ClassCodes}[i/5%4]
			b := pattern(1000*(i+1), byte(i))
			ref, err := l.PutBytes(ctx, class, fmt.Sprintf("L%04d", i/40), codec.Planes2, b)
			if err != nil {
				t.Fatal(err)
			}
			e.Payloads = append(e.Payloads, ref.Payload("p"), ledger.Payload{Role: "q", Class: ledger.ClassPermanent, Inline: pattern(100, byte(i))})
			want[key] = b
		}
		if _, err := l.Append(ctx, e).Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return l, want
}

func TestLiveInspection(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, name := range []string{"short", strings.Repeat("long", 30)} {
		dir := filepath.Join(t.TempDir(), name)
		l, _ := filled(t, dir, 30, ledger.Options{})
		if err := l.PublishStatus(map[string]int{"layer": 3}); err != nil {
			t.Fatal(err)
		}
		s, err := ledger.ReadStatus(ctx, dir)
		if err != nil || !s.Live || string(s.Engine) != `{"layer":3}` || s.Stats.Head.Seq != l.Head().Seq {
			t.Fatal(s, err)
		}
		c, err := ledger.Dial(ctx, dir)
		if err != nil {
			t.Fatal(err)
		}
		e, err := c.Get("decision/L0001/m10")
		if err != nil || string(e.Record) != `{"i":10}` || len(e.Where) != 2 || e.Where[0].Kind != ledger.KindSegment {
			t.Fatal(e, err)
		}
		if _, err := c.Get("nothing"); !errors.Is(err, ledger.ErrNotFound) {
			t.Fatal(err)
		}
		n := 0
		for _, err := range c.Scan("decision/L0001/") {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != 10 {
			t.Fatal(n)
		}
		p, err := c.Prove(e.Seq)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := p.Check(); err != nil || got.Hash != e.Hash {
			t.Fatal(err)
		}
		seen, from := make(chan uint64, 1), l.Head().Seq
		go func() {
			defer close(seen)
			f, err := ledger.Dial(ctx, dir)
			if err != nil {
				return
			}
			defer f.Close()
			for e, err := range f.Since(from, true) {
				if err != nil {
					return
				}
				seen <- e.Seq
				return
			}
		}()
		if _, err := l.Append(ctx, ledger.Event{Type: "x", Schema: 1}).Wait(ctx); err != nil {
			t.Fatal(err)
		}
		select {
		case seq := <-seen:
			if seq != from+1 {
				t.Fatal("the follower saw event ", seq)
			}
		case <-time.After(time.Minute):
			t.Fatal("the follower has not seen the event")
		}
		c.Close()
		if err := l.Close(ctx, ""); err != nil {
			t.Fatal(err)
		}
		s, err = ledger.ReadStatus(ctx, dir)
		if err != nil || s.Live {
			t.Fatal(s, err)
		}
	}
}

// TestFollowersSeeTheEnd shows that the last event of a stay reaches those who follow, and that one who does not read holds
// up nothing.
func TestFollowersSeeTheEnd(t *testing.T) {
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "run")
	l := create(t, dir, ledger.Options{})
	deaf, err := ledger.Dial(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	for range deaf.Since(0, true) {
		for i := range 20 { // nobody reads on: the answer fills what the socket holds
			if _, err := l.Append(ctx, ledger.Event{Type: "x", Schema: 1, Key: fmt.Sprint(i), Note: fmt.Appendf(nil, "%q", strings.Repeat("x", 100_000))}).Wait(ctx); err != nil {
				t.Fatal(err)
			}
		}
		c, err := ledger.Dial(ctx, dir)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		followed, ended := make(chan struct{}), make(chan error, 1)
		var last ledger.LiveEvent
		go func() {
			var end error
			for e, err := range c.Since(l.Head().Seq-1, true) {
				if last.Seq == 0 {
					close(followed)
				}
				last, end = e, err
				if err != nil {
					break
				}
			}
			ended <- end
		}()
		<-followed
		if err := l.Close(ctx, "the end"); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil || last.Type != ledger.TypeClosed {
			t.Fatalf("the last event seen is %s (%v)", last.Type, err)
		}
		return
	}
	t.Fatal("no event was seen")
}

// TestFollowersThatGoAway shows that a connection whose other end left is given up although nothing happens: were it
// not, those who look in now and then would use up all that a writer serves.
func TestFollowersThatGoAway(t *testing.T) {
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "run")
	l := create(t, dir, ledger.Options{})
	defer l.Close(ctx, "")
	for range 100 {
		var c *ledger.Client
		var err error
		for deadline := time.Now().Add(time.Minute); ; { // the writer may not have noticed the last one yet
			if c, err = ledger.Dial(ctx, dir); err == nil {
				if _, err = c.Head(); err == nil {
					break
				}
				c.Close()
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
		follow, stop := context.WithCancel(ctx)
		f, err := ledger.Dial(follow, dir)
		if err != nil {
			t.Fatal(err)
		}
		for range f.Since(0, true) {
			break // one event was seen, so the writer follows
		}
		stop()
		f.Close()
		c.Close()
	}
}

// TestSilentWriter asks a writer that is stopped: the questions end.
func TestSilentWriter(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "run")
	l := create(t, dir, ledger.Options{NoServe: true})
	defer l.Close(ctx, "")
	ln, err := net.Listen("unix", filepath.Join(dir, "ledger.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close() // connections are queued by the system and never accepted
	s, err := ledger.ReadStatus(ctx, dir)
	if err != nil || !s.Live || s.Stats.Head.Seq != l.Head().Seq {
		t.Fatal(s, err)
	}
	c, err := ledger.Dial(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetPatience(50 * time.Millisecond)
	if _, err := c.Head(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
}

func TestProofs(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	skey, vkey, err := note.GenerateKey(rand.Reader, "test")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(skey)
	if err != nil {
		t.Fatal(err)
	}
	l, _ := filled(t, dir, 50, ledger.Options{Signer: signer})
	if err := l.Close(ctx, ""); err != nil {
		t.Fatal(err)
	}
	r, err := ledger.OpenReader(dir, ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	msg, err := os.ReadFile(filepath.Join(dir, "HEAD.note"))
	if err != nil {
		t.Fatal(err)
	}
	v, err := note.NewVerifier(vkey)
	if err != nil {
		t.Fatal(err)
	}
	head, err := ledger.OpenHeadNote(msg, note.VerifierList(v))
	if err != nil || head.Root != r.Head().Root {
		t.Fatal(head, err)
	}
	for seq := uint64(1); seq <= head.Seq; seq++ {
		p, err := r.Prove(seq)
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if e, _, err := ledger.CheckProof(b, &head); err != nil || e.Seq != seq {
			t.Fatal(err)
		}
		p.Identity[20] ^= 1
		if _, err := p.Check(); !errors.Is(err, ledger.ErrProof) {
			t.Fatal("a changed event still proves")
		}
		c, err := r.ProveConsistency(seq)
		if err != nil {
			t.Fatal(err)
		}
		if b, err = json.Marshal(c); err != nil {
			t.Fatal(err)
		}
		if _, _, err := ledger.CheckProof(b, &head); err != nil {
			t.Fatal(err)
		}
		c.Old.Root[0] ^= 1
		if err := c.Check(); !errors.Is(err, ledger.ErrProof) {
			t.Fatal("a changed head is still consistent")
		}
	}
}

func TestBackup(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	l, want := filled(t, dir, 60, ledger.Options{})
	check := func(to string, compact bool) {
		t.Helper()
		rep, err := ledger.Fsck(ctx, to, ledger.FsckOptions{Level: ledger.LevelDeep})
		if err != nil || len(rep.Findings) != 0 {
			t.Fatalf("%v %+v", err, rep.Findings)
		}
		r, err := ledger.OpenReader(to, ledger.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for key, b := range want {
			e, ok, err := r.Get(key)
			if err != nil || !ok {
				t.Fatal(key, err)
			}
			got, err := r.ReadPayload(ctx, e, "p")
			p, _ := e.Payload("p")
			if compact && p.Class != ledger.ClassPermanent {
				if !errors.Is(err, ledger.ErrRetired) {
					t.Fatal(err)
				}
			} else if err != nil || !bytes.Equal(got, b) {
				t.Fatal(key, err)
			}
			pr, err := r.Prove(e.Seq)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := pr.Check(); err != nil {
				t.Fatal(err)
			}
		}
	}
	hot, hotCompact := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	if err := l.Backup(ctx, hot, ledger.BackupOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := l.Backup(ctx, hotCompact, ledger.BackupOptions{Compact: true}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(ctx, ""); err != nil {
		t.Fatal(err)
	}
	check(hot, false)
	check(hotCompact, true)
	r, err := ledger.OpenReader(dir, ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cold := filepath.Join(t.TempDir(), "c")
	if err := r.Backup(ctx, cold, ledger.BackupOptions{Compact: true}); err != nil {
		t.Fatal(err)
	}
	check(cold, true)
	if err := r.Backup(ctx, cold, ledger.BackupOptions{}); !errors.Is(err, ledger.ErrExists) {
		t.Fatal(err)
	}
}

func TestSalvage(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	l, want := filled(t, dir, 60, ledger.Options{})
	if err := l.Close(ctx, ""); err != nil {
		t.Fatal(err)
	}
	whole := filepath.Join(t.TempDir(), "whole")
	rep, err := ledger.Salvage(ctx, dir, whole, ledger.Options{})
	if err != nil || len(rep.Lost) != 0 || rep.Payloads != int64(2*len(want)) {
		t.Fatalf("%+v %v", rep, err)
	}
	// Both file headers go: nothing can be opened, everything but inline payloads is still there.
	path := filepath.Join(dir, "ledger.db")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	clear(b[:100])
	clear(b[16<<10 : 16<<10+100])
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	frep, err := ledger.Fsck(ctx, dir, ledger.FsckOptions{})
	if err != nil || !frep.Damaged() {
		t.Fatal(frep, err)
	}
	to := filepath.Join(t.TempDir(), "saved")
	rep, err = ledger.Salvage(ctx, dir, to, ledger.Options{})
	if err != nil || rep.Payloads != int64(len(want)) || len(rep.Lost) != len(want) {
		t.Fatalf("%+v %v", rep, err)
	}
	for _, to := range []string{whole, to} {
		r, err := ledger.OpenReader(to, ledger.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for key, b := range want {
			e, ok, err := r.Get(key)
			if err != nil || !ok {
				t.Fatal(key, err)
			}
			if got, err := r.ReadPayload(ctx, e, "p"); err != nil || !bytes.Equal(got, b) {
				t.Fatal(key, err)
			}
		}
		r.Close()
	}
}
