package engine_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quire/engine"
	"quire/ledger"
	"quire/ledger/codec"
)

// instant is a store that returns at once: nothing is hashed, encoded or written, what must be read back stays in memory.
type instant struct {
	*ledger.Ledger // Stats, SetUnit
	mu             sync.Mutex
	n              uint64
	events         map[string]ledger.Event
	payloads       map[ledger.Digest][]byte
}

func newInstant(l *ledger.Ledger) *instant {
	return &instant{Ledger: l, events: map[string]ledger.Event{}, payloads: map[ledger.Digest][]byte{}}
}

func (s *instant) Get(key string) (ledger.Event, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.events[key]
	if !ok { // what opening the run recorded
		return s.Ledger.Get(key)
	}
	return e, ok, nil
}

func (s *instant) Append(ctx context.Context, e ledger.Event) *ledger.Future {
	return s.AppendAll(ctx, []ledger.Event{e})
}

func (s *instant) AppendAll(_ context.Context, events []ledger.Event) *ledger.Future {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range events {
		s.events[e.Key] = e
	}
	return ledger.Answered(events, nil)
}

// PutBytes keeps the bytes under a number where their digest would stand.
func (s *instant) PutBytes(_ context.Context, class ledger.Class, segment string, _ codec.ID, b []byte) (ledger.PayloadRef, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	var d ledger.Digest
	binary.LittleEndian.PutUint64(d[:], s.n)
	if class == ledger.ClassCodes || class == ledger.ClassPermanent { // the rest is not asked for in a run that nothing stops
		s.payloads[d] = b
	}
	return ledger.PayloadRef{Class: class, Segment: segment, Length: int64(len(b)), SHA256: d}, nil
}

func (s *instant) ReadPayload(ctx context.Context, e ledger.Event, role string) ([]byte, error) {
	p, _ := e.Payload(role)
	s.mu.Lock()
	b, ok := s.payloads[p.SHA256]
	s.mu.Unlock()
	if !ok {
		return s.Ledger.ReadPayload(ctx, e, role)
	}
	return b, nil
}

func (s *instant) Sync(context.Context) error { return nil }
func (s *instant) Retire(context.Context, ledger.Class, string, string) ([]ledger.Retirement, error) {
	return nil, nil
}
func (s *instant) Relocate(context.Context, ...ledger.Relocation) error { return nil }
func (s *instant) Find(context.Context, string, json.RawMessage) *ledger.Future {
	return ledger.Answered(nil, nil)
}
func (s *instant) PublishStatus(any) error { return nil }

// BenchmarkLedgerOverhead runs a random layer of the shape of Qwen3-30B-A3B (hidden 2,048, experts of 768, 8 chosen by a
// token) with the ledger and with a store that returns at once, in turn, and reports the ratio of their wall times. There
// are 8 experts, all chosen by every token, so that each sees 2,048 rows a lane of the default 8 lanes from 16,384 tokens;
// the model's 128 experts see as many of 262,144 tokens. QUIRE_OVERHEAD=HIDDEN,INTER,ROWS,EXPERTS changes the size.
//
//	go test ./engine -run '^$' -bench LedgerOverhead -benchtime 3x
func BenchmarkLedgerOverhead(b *testing.B) {
	hidden, inter, rows, experts := 2048, 768, 2048, 8
	if v := os.Getenv("QUIRE_OVERHEAD"); v != "" {
		_, err := fmt.Sscanf(v, "%d,%d,%d,%d", &hidden, &inter, &rows, &experts)
		require.NoError(b, err)
	}
	const lanes, length = 8, 512
	dir := b.TempDir()
	model := filepath.Join(dir, "model")
	stack{layers: 1, hidden: hidden, inter: inter, experts: experts, topK: experts}.write(b, model)
	tokens := filepath.Join(dir, "tokens.jsonl")
	f, err := os.Create(tokens)
	require.NoError(b, err)
	rng := rand.New(rand.NewSource(1))
	for range lanes * rows / length {
		ids := make([]int, length)
		for i := range ids {
			ids[i] = rng.Intn(512)
		}
		require.NoError(b, json.NewEncoder(f).Encode(map[string]any{"input_ids": ids}))
	}
	require.NoError(b, f.Close())

	n := 0
	run := func(open func(*ledger.Ledger) engine.Store) (float64, *engine.Plan) {
		n++
		out := filepath.Join(dir, "out"+strconv.Itoa(n))
		p, err := engine.BuildPlan(context.Background(), &engine.Recipe{Model: &model, Output: &out, Calibration: []string{tokens}, Precheck: ptr(false)})
		require.NoError(b, err)
		began := time.Now()
		_, err = engine.Run(context.Background(), p, engine.RunOptions{OpenStore: open})
		took := time.Since(began).Seconds()
		require.NoError(b, err)
		require.NoError(b, os.RemoveAll(out))
		require.NoError(b, os.RemoveAll(out+".run"))
		return took, p
	}
	var ratios []float64
	var stats ledger.Stats
	var plan *engine.Plan
	for b.Loop() {
		var with, without float64
		with, plan = run(func(l *ledger.Ledger) engine.Store { return &watched{Ledger: l, last: &stats} })
		engine.WithoutDigests(func() {
			without, _ = run(func(l *ledger.Ledger) engine.Store { return newInstant(l) })
		})
		b.Logf("with the ledger %.2f s, with a store that returns at once %.2f s: %+.2f %%", with, without, 100*(with/without-1))
		ratios = append(ratios, with/without)
	}
	slices.Sort(ratios)
	b.ReportMetric(100*(ratios[len(ratios)/2]-1), "overhead%")
	for _, r := range plan.Advice.Stored {
		b.Logf("plan: %-10s %12d bytes  %s", r.Class, r.Bytes, r.What)
	}
	for class, c := range stats.Bytes {
		b.Logf("run:  %-10s %12d bytes raw, %d stored, %d payloads", class, c.Raw, c.Stored, c.Payloads)
	}
}

// watched remembers what the ledger counted when the last layer's events were made durable.
type watched struct {
	*ledger.Ledger
	last *ledger.Stats
}

func (w *watched) Sync(ctx context.Context) error {
	err := w.Ledger.Sync(ctx)
	*w.last = w.Ledger.Stats()
	return err
}
