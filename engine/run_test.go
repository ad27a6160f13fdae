//go:build unix

package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quire/engine"
	"quire/internal/powercut"
	"quire/kernels"
	"quire/ledger"
	"quire/testdata"
)

// long says whether the suites that CI alone runs are wanted.
var long = os.Getenv("QUIRE_LONG") == "1"

func TestMain(m *testing.M) {
	if os.Getenv("QUIRE_TEST_CHILD") != "" {
		os.Exit(child())
	}
	os.Exit(m.Run())
}

// job is a run that a child process does for a test.
type job struct {
	Model, Out  string
	Tokens      string
	Kill        int    // after this many acknowledged appends or, when negative, never
	KillAt      string // an instant of tripwire, e.g. "before finished"
	CutPower    string // the mount point whose power is cut at the moment of the kill
	Threads     int
	MaxMemory   string
	LoopOrder   string
	ExpertBatch int
	Dynamic     engine.Rules
	Samples     int
	SeqLen      int
	Lanes       int
	MinRows     string
	Fallback    string
	Routing     string
	Method      string
	Format      string
	Ignore      []string
	NoPrecheck  bool // random weights predict nothing
}

func ptr[T any](v T) *T { return &v }

func (j job) recipe() *engine.Recipe {
	r := &engine.Recipe{Model: &j.Model, Output: &j.Out, Bits: ptr(4), GroupSize: ptr(32), Calibration: []string{j.Tokens}, Samples: ptr(j.Samples), SeqLen: ptr(j.SeqLen),
		Lanes: ptr(j.Lanes), Threads: ptr(max(j.Threads, 1)), Dynamic: j.Dynamic, Ignore: j.Ignore}
	if j.Method == "rtn" {
		r.Calibration = nil
	}
	for _, f := range []struct {
		to **string
		v  string
	}{{&r.MaxMemory, j.MaxMemory}, {&r.LoopOrder, j.LoopOrder}, {&r.MinRows, j.MinRows}, {&r.Fallback, j.Fallback}, {&r.Routing, j.Routing}, {&r.Method, j.Method}, {&r.Format, j.Format}} {
		if f.v != "" {
			*f.to = ptr(f.v)
		}
	}
	if j.NoPrecheck {
		r.Precheck = ptr(false)
	}
	if j.ExpertBatch > 0 {
		r.ExpertBatch = &j.ExpertBatch
	}
	return r
}

func (j job) run(t *testing.T, o engine.RunOptions) *engine.Result {
	t.Helper()
	p, err := engine.BuildPlan(context.Background(), j.recipe())
	require.NoError(t, err)
	res, err := engine.Run(context.Background(), p, o)
	require.NoError(t, err)
	return res
}

// killer is a store that kills the process, as SIGKILL does, after a number of acknowledged appends.
type killer struct {
	*ledger.Ledger
	cut  string // see die
	left atomic.Int64
}

func (k *killer) count(f *ledger.Future, n int) *ledger.Future {
	go func() {
		if _, err := f.All(context.Background()); err == nil && k.left.Add(-int64(n)) <= 0 {
			die(k.cut)
		}
	}()
	return f
}

func (k *killer) Append(ctx context.Context, e ledger.Event) *ledger.Future {
	return k.count(k.Ledger.Append(ctx, e), 1)
}

func (k *killer) AppendAll(ctx context.Context, events []ledger.Event) *ledger.Future {
	return k.count(k.Ledger.AppendAll(ctx, events), len(events))
}

// child runs a job in a process of its own.
func child() int {
	var j job
	if err := json.Unmarshal([]byte(os.Getenv("QUIRE_TEST_CHILD")), &j); err != nil {
		return 99
	}
	p, err := engine.BuildPlan(context.Background(), j.recipe())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 98
	}
	o := engine.RunOptions{}
	if j.Kill >= 0 {
		o.OpenStore = func(l *ledger.Ledger) engine.Store {
			k := &killer{Ledger: l, cut: j.CutPower}
			k.left.Store(int64(j.Kill))
			return k
		}
	}
	if j.KillAt != "" {
		o.OpenStore = func(l *ledger.Ledger) engine.Store {
			return &tripwire{Ledger: l, at: func(instant string) {
				if instant == j.KillAt {
					die(j.CutPower)
				}
			}}
		}
	}
	if _, err := engine.Run(context.Background(), p, o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 97
	}
	return 0
}

// die ends the process as SIGKILL or, with a mount point of a powercut.Disk, as a power cut does.
func die(disk string) {
	if disk != "" {
		if err := powercut.Shutdown(disk); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(96)
		}
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// tripwire is a store that tells of instants of a run: "before append 7", "before sealed" (an append of that type),
// "after retire 2", "before relocate 1", "before stats 3". Numbers count calls from 1.
type tripwire struct {
	*ledger.Ledger
	at                                 func(instant string)
	appends, retires, relocates, stats atomic.Int64
}

func (w *tripwire) tell(when, what string, n int64) {
	w.at(fmt.Sprintf("%s %s %d", when, what, n))
}

func (w *tripwire) Append(ctx context.Context, e ledger.Event) *ledger.Future {
	w.tell("before", "append", w.appends.Add(1))
	w.at("before " + e.Type)
	f := w.Ledger.Append(ctx, e)
	if e.Type == engine.TypeSealed || e.Type == engine.TypeFinished {
		if _, err := f.All(ctx); err == nil {
			w.at("after " + e.Type)
		}
	}
	return f
}

func (w *tripwire) AppendAll(ctx context.Context, events []ledger.Event) *ledger.Future {
	w.tell("before", "append", w.appends.Add(1))
	for _, e := range events {
		w.at("before " + e.Type)
	}
	return w.Ledger.AppendAll(ctx, events)
}

func (w *tripwire) Retire(ctx context.Context, class ledger.Class, segmentKey, reason string) ([]ledger.Retirement, error) {
	n := w.retires.Add(1)
	w.tell("before", "retire", n)
	r, err := w.Ledger.Retire(ctx, class, segmentKey, reason)
	w.tell("after", "retire", n)
	return r, err
}

func (w *tripwire) Relocate(ctx context.Context, moves ...ledger.Relocation) error {
	n := w.relocates.Add(1)
	w.tell("before", "relocate", n)
	err := w.Ledger.Relocate(ctx, moves...)
	w.tell("after", "relocate", n)
	return err
}

func (w *tripwire) Stats() ledger.Stats {
	w.tell("before", "stats", w.stats.Add(1))
	return w.Ledger.Stats()
}

// spawn runs a job in a child and says whether it was killed.
func spawn(t *testing.T, j job) (killed bool) {
	t.Helper()
	b, err := json.Marshal(j)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "QUIRE_TEST_CHILD="+string(b))
	out, err := cmd.CombinedOutput()
	var ee *exec.ExitError
	if errors.As(err, &ee) && ee.ExitCode() == -1 {
		return true
	}
	require.NoError(t, err, string(out))
	return false
}

// tiny unpacks the embedded model and its token files.
func tiny(t testing.TB) (model, tokens string) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, fs.WalkDir(testdata.Demo, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return errors.Join(err, os.MkdirAll(filepath.Join(dir, path), 0o755))
		}
		b, err := testdata.Demo.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, path), b, 0o644)
	}))
	return filepath.Join(dir, "demo"), filepath.Join(dir, "tokens", "self_generated512.u16")
}

// small is a run of some hundred events in which GPTQ and the blend fallback both occur.
func small(t testing.TB) job {
	m, tok := tiny(t)
	return job{Model: m, Tokens: tok, Kill: -1, Samples: 3, SeqLen: 60, Lanes: 1, MinRows: "40", Dynamic: engine.Rules{{Pattern: `layers\.[123]\.`, Skip: true}}}
}

func TestRunFallsBackAndSaysSo(t *testing.T) {
	t.Parallel()
	j := small(t)
	j.Out = filepath.Join(t.TempDir(), "out")
	res := j.run(t, engine.RunOptions{})
	require.Positive(t, res.Modules.Fallback)
	require.Greater(t, res.Modules.Quantized, res.Modules.Fallback)
	require.LessOrEqual(t, res.Events, uint64(200))
	seen := 0
	for _, f := range res.Findings {
		if f.Code == "F_UNDERCALIBRATED" {
			seen++
		}
	}
	require.Positive(t, seen)
	again := j.run(t, engine.RunOptions{})
	require.True(t, again.AlreadyDone)
	require.Equal(t, res.SumsSHA256, again.SumsSHA256)
}

// TestKilledAfterEveryEvent kills a run after its n-th acknowledged event, resumes it, and compares the result with that of
// a run that was never killed. By default it looks at every 17th event; CI looks at all.
func TestKilledAfterEveryEvent(t *testing.T) {
	j := small(t)
	j.Out = filepath.Join(t.TempDir(), "whole")
	want := j.run(t, engine.RunOptions{})
	step := 17
	if long {
		step = 1
	}
	killed := 0
	for n := 1; n < int(want.Events); n += step {
		k := j
		k.Out, k.Kill = filepath.Join(t.TempDir(), "out"), n
		if !spawn(t, k) {
			break // more events than the stay appends by itself
		}
		killed++
		ran := map[string]int{}
		var mu sync.Mutex
		got := k.run(t, engine.RunOptions{Hooks: &engine.Hooks{Ran: func(what, where string) {
			mu.Lock()
			ran[what+" "+where]++
			mu.Unlock()
		}}})
		require.Equal(t, want.SumsSHA256, got.SumsSHA256, "killed after event %d", n)
		require.Equal(t, want.DecisionRoot, got.DecisionRoot, "killed after event %d", n)
		for w, times := range ran {
			require.Equal(t, 1, times, "%s after a kill at event %d", w, n)
		}
	}
	require.Greater(t, killed, 3)
}

// TestKilledTwice kills at random events, twice in a row, with other threads and memory limits at each resume.
func TestKilledTwice(t *testing.T) {
	j := small(t)
	j.Out = filepath.Join(t.TempDir(), "whole")
	want := j.run(t, engine.RunOptions{})
	rounds := 3
	if long {
		rounds = 50
	}
	seed := int64(os.Getpid())
	rng := rand.New(rand.NewSource(seed))
	for i := range rounds {
		k := j
		k.Out = filepath.Join(t.TempDir(), "out")
		k.Kill = 1 + rng.Intn(int(want.Events)*2/3)
		spawn(t, k)
		k.Kill, k.Threads, k.LoopOrder = 1+rng.Intn(20), 1+rng.Intn(3), "lane-outer"
		spawn(t, k)
		k.Threads, k.LoopOrder, k.ExpertBatch = 2, "", 1+rng.Intn(4)
		got := k.run(t, engine.RunOptions{})
		require.Equal(t, want.SumsSHA256, got.SumsSHA256, "seed %d, round %d", seed, i)
		require.Equal(t, want.DecisionRoot, got.DecisionRoot, "seed %d, round %d", seed, i)
	}
}

// TestSameBytes holds every way of doing the work to the same result.
func TestSameBytes(t *testing.T) {
	m, tok := tiny(t)
	base := job{Model: m, Tokens: tok, Kill: -1, Samples: 45, SeqLen: 117, Lanes: 2, Threads: 2}
	base.Out = filepath.Join(t.TempDir(), "base")
	want := base.run(t, engine.RunOptions{})
	require.Positive(t, want.Modules.Quantized)
	var rows int
	r, err := ledger.OpenReader(base.Out+".run", ledger.Options{})
	require.NoError(t, err)
	for e, err := range r.Scan("partial/") {
		require.NoError(t, err)
		var rec engine.StatisticRecord
		require.NoError(t, json.Unmarshal(e.Record, &rec))
		if rec.Expert >= 0 && rec.Rows%256 != 0 {
			rows = max(rows, int(rec.Rows))
		}
	}
	require.NoError(t, r.Close())
	require.Greater(t, rows, 768, "no (lane, expert) with more than three blocks and a ragged tail")
	for name, change := range map[string]func(*job){
		"one thread":        func(j *job) { j.Threads = 1 },
		"four threads":      func(j *job) { j.Threads = 4 },
		"expert by expert":  func(j *job) { j.ExpertBatch = 1 },
		"three experts":     func(j *job) { j.ExpertBatch, j.Threads = 3, 3 },
		"parked on disk":    func(j *job) { j.LoopOrder = "lane-outer" },
		"parked, by expert": func(j *job) { j.LoopOrder, j.ExpertBatch = "lane-outer", 1 },
		"scalar kernels":    nil,
	} {
		t.Run(name, func(t *testing.T) {
			j := base
			j.Out = filepath.Join(t.TempDir(), "out")
			if change == nil {
				if !long {
					j.Samples, j.Dynamic = 2, engine.Rules{{Pattern: `layers\.[123]\.`, Skip: true}}
				}
				vector := j
				vector.Out = filepath.Join(t.TempDir(), "vector")
				wantScalar := vector.run(t, engine.RunOptions{})
				restore := kernels.ForceLevel(kernels.LevelScalar)
				defer restore()
				require.Equal(t, wantScalar.SumsSHA256, j.run(t, engine.RunOptions{}).SumsSHA256)
				return
			}
			change(&j)
			var saw engine.Work
			got := j.run(t, engine.RunOptions{Hooks: &engine.Hooks{Work: func(w engine.Work) { saw = w }}})
			require.Equal(t, want.SumsSHA256, got.SumsSHA256)
			require.Equal(t, want.DecisionRoot, got.DecisionRoot)
			if j.ExpertBatch > 0 {
				require.Greater(t, saw.ExpertBatches, 1)
			}
			if j.LoopOrder == "lane-outer" {
				require.Positive(t, saw.SpilledBytes)
			}
		})
	}
}

func TestModesAndFallbacks(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*job){
		"all tokens":    func(j *job) { j.Routing = "all" },
		"wider top-k":   func(j *job) { j.Routing = "top-k=4" },
		"all-rows":      func(j *job) { j.Fallback = "all-rows" },
		"rtn fallback":  func(j *job) { j.Fallback = "rtn" },
		"copy":          func(j *job) { j.Fallback = "copy" },
		"rtn":           func(j *job) { j.Method = "rtn" },
		"gptq v2":       func(j *job) { j.Format = "gptq_v2" },
		"gptq":          func(j *job) { j.Format = "gptq" },
		"a module left": func(j *job) { j.Ignore = []string{"model.layers.0.self_attn.o_proj"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := small(t)
			j.Out = filepath.Join(t.TempDir(), "out")
			change(&j)
			res := j.run(t, engine.RunOptions{})
			checks, err := engine.VerifySums(context.Background(), res.Output)
			require.NoError(t, err)
			for _, c := range checks {
				require.True(t, c.OK, c.Name+c.What)
			}
			if strings.HasPrefix(name, "gptq") { // the config names what the bytes depend on, not the build that wrote them
				raw, err := os.ReadFile(filepath.Join(res.Output, "config.json"))
				require.NoError(t, err)
				require.Regexp(t, `"quire:quire-solver-[0-9]+\.cpu-1"`, string(raw))
			}
			v, err := engine.OpenRun(res.RunDir)
			require.NoError(t, err)
			defer v.Close()
			n := 0
			for e, err := range v.Scan("decision/") {
				require.NoError(t, err)
				n++
				var rec engine.DecisionRecord
				require.NoError(t, json.Unmarshal(e.Record, &rec))
				d, ok, err := engine.ReadDecision(context.Background(), v, rec.Layer, rec.Module, rec.Solver.Out, rec.Solver.In, true)
				require.NoError(t, err, "codes of %s", rec.Module)
				require.True(t, ok)
				require.Len(t, d.Codes, rec.Solver.Out*rec.Solver.In)
			}
			require.Equal(t, res.Modules.Quantized, n)
			if name == "copy" {
				require.Less(t, n, 28)
			}
		})
	}
}

func TestIdentityIsChecked(t *testing.T) {
	t.Parallel()
	j := small(t)
	j.Out, j.Kill = filepath.Join(t.TempDir(), "out"), 30
	require.True(t, spawn(t, j))
	other := j
	other.MinRows = "41"
	p, err := engine.BuildPlan(context.Background(), other.recipe())
	require.NoError(t, err)
	_, err = engine.Run(context.Background(), p, engine.RunOptions{})
	var e *engine.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, engine.ExitIdentity, e.Exit)
	require.Contains(t, e.Why, "settings.min_rows: 40, now 41")

	// A changed source file is caught.
	shard := filepath.Join(j.Model, "model.safetensors")
	b, err := os.ReadFile(shard)
	require.NoError(t, err)
	b[len(b)-5] ^= 1
	require.NoError(t, os.WriteFile(shard, b, 0o644))
	p, err = engine.BuildPlan(context.Background(), j.recipe())
	require.NoError(t, err)
	_, err = engine.Run(context.Background(), p, engine.RunOptions{})
	require.ErrorAs(t, err, &e)
	require.Equal(t, engine.ExitIdentity, e.Exit)
	require.Contains(t, e.Why, "contents of the source shards")
}

func TestStopsAtADurablePoint(t *testing.T) {
	t.Parallel()
	j := small(t)
	j.Out = filepath.Join(t.TempDir(), "whole")
	want := j.run(t, engine.RunOptions{})
	j.Out = filepath.Join(t.TempDir(), "out")
	p, err := engine.BuildPlan(context.Background(), j.recipe())
	require.NoError(t, err)
	for _, when := range []string{"at once", "during a decision"} {
		ctx, cancel := context.WithCancelCause(context.Background())
		if when == "at once" {
			cancel(errors.New("signal"))
		}
		hooks := &engine.Hooks{Ran: func(what, _ string) {
			if what == "decision" {
				cancel(errors.New("signal"))
				time.Sleep(50 * time.Millisecond) // the watcher hears of it beside us
			}
		}}
		_, err = engine.Run(ctx, p, engine.RunOptions{Hooks: hooks})
		var e *engine.Error
		require.ErrorAs(t, err, &e, when)
		require.Equal(t, engine.ExitStoppedDurably, e.Exit)
		require.ErrorIs(t, err, engine.ErrStopped)
		require.Equal(t, "signal", e.Why)
	}
	require.Equal(t, want.SumsSHA256, j.run(t, engine.RunOptions{}).SumsSHA256)
}

// TestDeathsInARow kills a run again and again at one place: it becomes more frugal and at last gives up.
func TestDeathsInARow(t *testing.T) {
	t.Parallel()
	j := small(t)
	j.Out, j.Kill = filepath.Join(t.TempDir(), "out"), 1
	for range 4 {
		require.True(t, spawn(t, j))
	}
	p, err := engine.BuildPlan(context.Background(), j.recipe())
	require.NoError(t, err)
	_, err = engine.Run(context.Background(), p, engine.RunOptions{})
	var e *engine.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, engine.ExitMemoryShort, e.Exit)
	require.Contains(t, e.What, "4 times")
}
