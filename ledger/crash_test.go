package ledger_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"quire/ledger"
	"quire/ledger/codec"
)

// A test process starts itself again as the victim when this names a directory.
const childEnv = "QUIRE_LEDGER_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := victim(dir); err != nil {
			fmt.Println("E", err)
			os.Exit(3)
		}
		os.Exit(0)
	}
	flag.Parse()
	goleak.VerifyTestMain(m)
}

// long says whether the long suites run.
func long() bool { return os.Getenv("QUIRE_LONG") == "1" }

// rounds picks the size of a suite.
func rounds(short, full int) int {
	if long() {
		return full
	}
	return short
}

// seed gives a test its randomness; it is printed, and QUIRE_SEED repeats it.
func seed(t testing.TB) *rand.Rand {
	s := uint64(time.Now().UnixNano())
	if v := os.Getenv("QUIRE_SEED"); v != "" {
		s, _ = strconv.ParseUint(v, 10, 64)
	}
	t.Logf("QUIRE_SEED=%d repeats this", s)
	return rand.New(rand.NewPCG(s, 7))
}

// victimKey and victimBytes say what the victim writes, so that whoever checks can know it independently.
func victimKey(n, size int) string { return fmt.Sprintf("k/%07d/%d", n, size) }

func victimBytes(n, size int) []byte { return pattern(size, byte(n)) }

// victimOptions make every kind of event frequent: small chunks, small segments, a small journal.
func victimOptions() ledger.Options {
	return ledger.Options{ChunkBytes: 32 << 10, SegmentBytes: 1 << 20, ReserveBytes: 64 << 10, TransactionBytes: 1 << 20, JournalBytes: 16 << 10}
}

// victim writes a ledger until it is killed, or for as many steps as asked, and says on stdout what was acknowledged:
//
//	A seq hash key      an event is durable
//	R key               the payload of this event may be gone from now on
func victim(dir string) error {
	ctx := context.Background()
	steps, _ := strconv.Atoi(os.Getenv("QUIRE_LEDGER_STEPS"))
	if fp := os.Getenv("QUIRE_LEDGER_FAILPOINT"); fp != "" {
		name, count, _ := strings.Cut(fp, ":")
		left, _ := strconv.Atoi(count)
		var mu sync.Mutex
		ledger.SetFailpoint(func(at string) {
			mu.Lock()
			defer mu.Unlock()
			if at == name {
				if left--; left == 0 {
					die()
				}
			}
		})
	}
	s, _ := strconv.ParseUint(os.Getenv("QUIRE_LEDGER_SEED"), 10, 64)
	r := rand.New(rand.NewPCG(s, 1))
	stays, _ := strconv.Atoi(os.Getenv("QUIRE_LEDGER_STAYS"))
	o, sizes := victimOptions(), []int{0, 10, 3000, 40000, 600000}
	if s%4 == 3 { // transactions of megabytes: they are written in another way
		o.ChunkBytes, o.SegmentBytes, o.TransactionBytes = 256<<10, 8<<20, 4<<20
		sizes = append(sizes, 3<<20)
	}
	for i := 1; i < stays; i++ {
		if err := victimStay(ctx, dir, o, sizes, r, steps, i%2 == 0); err != nil {
			return err
		}
	}
	return victimStay(ctx, dir, o, sizes, r, steps, true)
}

// victimStay is one opening of the ledger by a victim; one that is not closed in order is abandoned.
func victimStay(ctx context.Context, dir string, o ledger.Options, sizes []int, r *rand.Rand, steps int, inOrder bool) error {
	l, err := ledger.Open(ctx, dir, o)
	if errors.Is(err, ledger.ErrNoLedger) {
		l, err = ledger.Create(ctx, dir, ledger.Genesis{Record: []byte(`{"victim":1}`)}, o)
	}
	if err != nil {
		return err
	}
	var out sync.Mutex
	say := func(format string, a ...any) {
		out.Lock()
		defer out.Unlock()
		fmt.Printf(format+"\n", a...)
	}
	say("O")
	n := int(l.Head().Seq) * 10
	var last []string // what retirement may take
	for e, err := range l.Scan("k/") {
		if err != nil {
			return err
		}
		if e.Type == "capture" {
			last = append(last, e.Key)
		}
	}
	for step := 0; steps == 0 || step < steps; step++ {
		n++
		class := []ledger.Class{ledger.ClassLayer, ledger.ClassOpen, ledger.ClassCodes}[r.IntN(3)]
		key := fmt.Sprintf("L%d", n/100%3)
		size := sizes[r.IntN(len(sizes))]
		switch op := r.IntN(10); {
		case op < 5: // a payload and its event
			id := codec.ID(r.IntN(3))
			ref, err := l.PutBytes(ctx, class, key, id, victimBytes(n, size))
			if err != nil {
				return err
			}
			e, err := l.Append(ctx, ledger.Event{Type: "capture", Schema: 1, Key: victimKey(n, size), Payloads: []ledger.Payload{ref.Payload("p")}}).Wait(ctx)
			if err != nil {
				return err
			}
			say("A %d %s %s", e.Seq, e.Hash, e.Key)
			last = append(last, e.Key)
		case op < 8: // many at once
			var events []ledger.Event
			for range 1 + r.IntN(20) {
				n++
				events = append(events, ledger.Event{Type: "decision", Schema: 1, Key: victimKey(n, 50),
					Payloads: []ledger.Payload{{Role: "p", Class: ledger.ClassPermanent, Inline: victimBytes(n, 50)}}})
			}
			all, err := l.AppendAll(ctx, events).All(ctx)
			if err != nil {
				return err
			}
			for _, e := range all {
				say("A %d %s %s", e.Seq, e.Hash, e.Key)
			}
		case op == 8:
			if len(last) > 0 {
				k := last[r.IntN(len(last))]
				say("R %s", k)
				if err := l.Relocate(ctx, ledger.Relocation{Key: k, Role: "p", Location: ledger.Location{Kind: ledger.KindTensor, File: "out", Tensor: "w"}}); err != nil {
					return err
				}
			}
			if err := l.Seal(ctx, class, key); err != nil {
				return err
			}
		case op == 9 && r.IntN(2) == 0:
			for _, k := range last {
				say("R %s", k)
			}
			last = nil
			for _, class := range []ledger.Class{ledger.ClassLayer, ledger.ClassOpen, ledger.ClassCodes} {
				for i := range 3 {
					if _, err := l.Retire(ctx, class, fmt.Sprintf("L%d", i), "test"); err != nil {
						return err
					}
				}
			}
		default:
			if err := l.Sync(ctx); err != nil {
				return err
			}
		}
	}
	if !inOrder {
		l.Abandon()
		return nil
	}
	return l.Close(ctx, "done")
}

// witness is what a victim said.
type witness struct {
	opened bool
	acks   map[string]ack // by key
	gone   map[string]bool
	err    string
}

type ack struct {
	seq  uint64
	hash string
}

func newWitness() *witness { return &witness{acks: map[string]ack{}, gone: map[string]bool{}} }

func (w *witness) hear(line string) {
	f := strings.Fields(line)
	switch {
	case len(f) == 1 && f[0] == "O":
		w.opened = true
	case len(f) == 4 && f[0] == "A":
		seq, _ := strconv.ParseUint(f[1], 10, 64)
		w.acks[f[3]] = ack{seq, f[2]}
	case len(f) == 2 && f[0] == "R":
		w.gone[f[1]] = true
	case len(f) > 1 && f[0] == "E":
		w.err = line
	}
}

// listen hears complete lines until the pipe ends, and tells once that the ledger is open.
func (w *witness) listen(r io.Reader, opened func()) {
	in := bufio.NewReader(r)
	told := false
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		w.hear(strings.TrimSpace(line))
		if line == "O\n" && !told {
			told = true
			opened()
		}
	}
}

// check opens the ledger as the next stay would and looks for everything that was acknowledged.
func (w *witness) check(t testing.TB, dir string) {
	t.Helper()
	if err := w.verify(dir); err != nil {
		t.Fatal(err)
	}
}

func (w *witness) verify(dir string) error {
	ctx := context.Background()
	o := victimOptions()
	o.NoServe = true
	l, err := ledger.Open(ctx, dir, o)
	if err != nil {
		if !w.opened && len(w.acks) == 0 && errors.Is(err, ledger.ErrNoLedger) { // died inside creation
			l, err = ledger.Create(ctx, dir, ledger.Genesis{}, o)
		}
		if err != nil {
			return fmt.Errorf("open after crash: %w", err)
		}
	}
	for _, f := range l.Findings() {
		if f.Severity == "damage" || f.Code == "segment-damaged" {
			l.Abandon()
			return fmt.Errorf("finding after crash: %+v", f)
		}
	}
	err = w.compare(l)
	if cerr := l.Close(ctx, "checked"); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	rep, err := ledger.Fsck(ctx, dir, ledger.FsckOptions{Level: ledger.LevelDeep})
	if err != nil {
		return err
	}
	if len(rep.Findings) > 0 {
		return fmt.Errorf("fsck after crash: %+v", rep.Findings)
	}
	return nil
}

func (w *witness) compare(l *ledger.Ledger) error {
	ctx := context.Background()
	for key, a := range w.acks {
		e, ok, err := l.Get(key)
		if err != nil || !ok {
			return fmt.Errorf("acknowledged event %s is lost (%v)", key, err)
		}
		if e.Seq != a.seq || e.Hash.String() != a.hash {
			return fmt.Errorf("event %s was acknowledged as %d %s and is %d %s", key, a.seq, a.hash, e.Seq, e.Hash)
		}
	}
	// Every event, acknowledged or not, has the bytes that its key says, or a reason.
	for e, err := range l.Scan("k/") {
		if err != nil {
			return err
		}
		var n, size int
		if _, err := fmt.Sscanf(e.Key, "k/%d/%d", &n, &size); err != nil {
			return err
		}
		want := victimBytes(n, size)
		p, _ := e.Payload("p")
		if p.SHA256 != ledger.Digest(sha256.Sum256(want)) || p.Length != int64(size) {
			return fmt.Errorf("event %s names other bytes", e.Key)
		}
		got, err := l.ReadPayload(ctx, e, "p")
		switch {
		case err == nil:
			if !bytes.Equal(got, want) {
				return fmt.Errorf("payload of %s differs", e.Key)
			}
		case errors.Is(err, ledger.ErrElsewhere) && w.gone[e.Key] && p.Class != ledger.ClassPermanent:
		default:
			return fmt.Errorf("payload of %s: %w", e.Key, err)
		}
	}
	return nil
}

// victimProcess is a victim and what it says.
type victimProcess struct {
	cmd    *exec.Cmd
	w      *witness
	opened chan struct{} // closed once the ledger is open
	heard  chan struct{} // closed once it says nothing more
}

// startVictim runs a victim in dir; w hears it. One that does not end within two minutes is made to show its goroutines.
func startVictim(t testing.TB, dir string, w *witness, env ...string) *victimProcess {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=NONE")
	cmd.Env = append(append(os.Environ(), childEnv+"="+dir), env...)
	cmd.Cancel = func() error { return askStacks(cmd.Process) }
	cmd.WaitDelay = 10 * time.Second
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	v := &victimProcess{cmd: cmd, w: w, opened: make(chan struct{}), heard: make(chan struct{})}
	go func() {
		defer close(v.heard)
		w.listen(pipe, func() { close(v.opened) })
	}()
	return v
}

// untilOpen waits until the ledger is open or the victim is dead.
func (v *victimProcess) untilOpen() {
	select {
	case <-v.opened:
	case <-v.heard:
	}
}

// end waits for the victim's end and gives how it died.
func (v *victimProcess) end() error {
	<-v.heard
	return v.cmd.Wait()
}

// TestKill kills a writing process at random moments, those of creation and of opening among them.
func TestKill(t *testing.T) {
	t.Parallel()
	r := seed(t)
	dir, w := "", (*witness)(nil)
	n, acks := rounds(12, 300), 0
	for i := range n {
		if i%10 == 0 {
			dir, w = filepath.Join(t.TempDir(), strconv.Itoa(i)), newWitness()
		}
		before := len(w.acks)
		v := startVictim(t, dir, w, fmt.Sprintf("QUIRE_LEDGER_SEED=%d", r.Uint64()))
		wait := time.Duration(r.IntN(150)) * time.Millisecond // the moment of death is the random input of this test
		if i%5 != 0 {
			v.untilOpen()
			wait /= 2
		}
		time.Sleep(wait)
		_ = v.cmd.Process.Kill()
		_ = v.end()
		if w.err != "" {
			t.Fatal(w.err)
		}
		acks += len(w.acks) - before
		w.check(t, dir)
	}
	durable(t, "process killed (SIGKILL) at a random instant", n, "%d of %d: all of %d acknowledged events there, chain and payloads whole", n, n, acks)
}

// TestFailpoints kills at every instant between two effects on disk.
func TestFailpoints(t *testing.T) {
	t.Parallel()
	tried := 0
	for _, name := range ledger.Failpoints() {
		for _, count := range []int{1, 2, 7} {
			if count > 1 && strings.HasPrefix(name, "create.") || count > 2 && !long() {
				continue
			}
			t.Run(fmt.Sprintf("%s-%d", name, count), func(t *testing.T) {
				dir, w := filepath.Join(t.TempDir(), "run"), newWitness()
				stays := 1
				if strings.HasPrefix(name, "replay.") {
					stays = 2 * count // every other one is abandoned
				}
				v := startVictim(t, dir, w, "QUIRE_LEDGER_SEED=5", "QUIRE_LEDGER_STEPS=120", fmt.Sprintf("QUIRE_LEDGER_STAYS=%d", stays), fmt.Sprintf("QUIRE_LEDGER_FAILPOINT=%s:%d", name, count))
				err := v.end()
				if w.err != "" {
					t.Fatal(w.err)
				}
				if err == nil && count == 1 {
					t.Fatal("the scenario does not reach this point")
				}
				w.check(t, dir)
				if err != nil {
					tried++
				}
			})
		}
	}
	durable(t, "process killed between two effects on disk (append, put, roll, seal, move, retire, HEAD, create, close)", tried,
		"%d of %d, at %d named points: nothing acknowledged lost", tried, tried, len(ledger.Failpoints()))
}

// TestFailpointNames keeps the list of points complete: a point that no test kills at proves nothing.
func TestFailpointNames(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	found := map[string]bool{}
	call := regexp.MustCompile(`failpoint\("([^"]+)"\)`)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range call.FindAllSubmatch(b, -1) {
			found[string(m[1])] = true
		}
	}
	for _, name := range ledger.Failpoints() {
		if !found[name] {
			t.Errorf("no code passes point %q", name)
		}
		delete(found, name)
	}
	for name := range found {
		t.Errorf("point %q is not in the list of failpoints", name)
	}
}
