package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"quire/engine"
	"quire/internal/powercut"
	"quire/ledger"
)

// exitOf is the exit code that the command line would give.
func exitOf(err error) int {
	var c interface{ ExitCode() int }
	switch {
	case err == nil:
		return 0
	case errors.As(err, &c):
		return c.ExitCode()
	}
	return engine.ExitFailure
}

// try is run without the demand that it succeeds.
func (j job) try(t *testing.T, o engine.RunOptions) (*engine.Result, error) {
	t.Helper()
	p, err := engine.BuildPlan(context.Background(), j.recipe())
	require.NoError(t, err)
	return engine.Run(context.Background(), p, o)
}

// instants lists those that a whole run passes.
func instants(t *testing.T, j job) (all []string, want *engine.Result) {
	t.Helper()
	var mu sync.Mutex
	j.Out = filepath.Join(t.TempDir(), "whole")
	want = j.run(t, engine.RunOptions{OpenStore: func(l *ledger.Ledger) engine.Store {
		return &tripwire{Ledger: l, at: func(instant string) {
			mu.Lock()
			all = append(all, instant)
			mu.Unlock()
		}}
	}})
	return all, want
}

// fill takes all space of the file system of dir.
func fill(t *testing.T, dir string) (free func()) {
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	require.NoError(t, err)
	var at int64
	for step := int64(64 << 20); step >= 4096; {
		if err := unix.Fallocate(int(f.Fd()), 0, at, step); err == nil {
			at += step
		} else {
			require.ErrorIs(t, err, unix.ENOSPC)
			step /= 2
		}
	}
	require.NoError(t, f.Close())
	return func() { require.NoError(t, os.Remove(path)) }
}

// TestDiskFullAnywhere fills the disk before one append of a run after the other: the run stops with the exit code of a run
// that can be gone on with, and after room was made the same command ends with the same bytes.
func TestDiskFullAnywhere(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.Mkdir(disk, 0o755))
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=256m"); err != nil {
		t.Logf("LEFT OUT: TestDiskFullAnywhere: a small file system cannot be mounted: %v", err)
		return
	}
	defer func() { require.NoError(t, unix.Unmount(disk, unix.MNT_DETACH)) }()
	j := small(t)
	all, want := instants(t, j)
	at := []string{"before decision", "before shard"}
	if long {
		for i := 0; i < len(all); i += 14 {
			at = append(at, all[i])
		}
		at = append(at, "before relocate 1", "before retire 2", "before sealed", "before finished")
	}
	stopped := 0
	for _, instant := range at {
		k := j
		k.Out = filepath.Join(disk, "out")
		var free func()
		_, err := k.try(t, engine.RunOptions{OpenStore: func(l *ledger.Ledger) engine.Store {
			var once sync.Once
			return &tripwire{Ledger: l, at: func(now string) {
				if now == instant {
					once.Do(func() { free = fill(t, disk) })
				}
			}}
		}})
		require.NotNil(t, free, "%s did not come", instant)
		if err != nil { // the last commits may fit into the reserve
			stopped++
			require.Equal(t, engine.ExitStoppedDurably, exitOf(err), "%s: %v", instant, err)
		}
		free()
		got := k.run(t, engine.RunOptions{})
		require.Equal(t, want.SumsSHA256, got.SumsSHA256, instant)
		require.Equal(t, want.DecisionRoot, got.DecisionRoot, instant)
		checks, err := engine.VerifySums(context.Background(), k.Out)
		require.NoError(t, err)
		for _, c := range checks {
			require.True(t, c.OK, "%s: %s %s", instant, c.Name, c.What)
		}
		for _, d := range []string{"out", "out.run"} {
			require.NoError(t, os.RemoveAll(filepath.Join(disk, d)))
		}
	}
	t.Logf("full before each of %d instants: %d runs stopped with exit code 75, all went on to the same bytes", len(at), stopped)
	require.Greater(t, stopped, len(at)/2)
}

// TestReadOnlyFileSystem makes the file system read-only under a run.
func TestReadOnlyFileSystem(t *testing.T) {
	if err := powercut.Available(); err != nil {
		t.Logf("LEFT OUT: TestReadOnlyFileSystem: %v", err)
		return
	}
	j := small(t)
	all, want := instants(t, j)
	at := []string{"before shard"}
	if long {
		for i := 5; i < len(all); i += len(all) / 10 {
			at = append(at, all[i])
		}
		at = append(at, "before capture", "before hessian", "before decision", "before relocate 1", "before retire 1", "before sealed", "before finished")
	}
	for _, instant := range at {
		d, err := powercut.New(t.TempDir(), 256<<20)
		require.NoError(t, err)
		k := j
		k.Out = filepath.Join(d.Dir(), "out")
		_, err = k.try(t, engine.RunOptions{OpenStore: func(l *ledger.Ledger) engine.Store {
			var once sync.Once
			return &tripwire{Ledger: l, at: func(now string) {
				if now == instant {
					once.Do(func() { require.NoError(t, d.Abort()) })
				}
			}}
		}})
		require.Equal(t, engine.ExitStoppedDurably, exitOf(err), "%s: %v", instant, err)
		require.NoError(t, d.Restore())
		got := k.run(t, engine.RunOptions{})
		require.Equal(t, want.SumsSHA256, got.SumsSHA256, instant)
		require.Equal(t, want.DecisionRoot, got.DecisionRoot, instant)
		require.NoError(t, d.Close())
	}
	t.Logf("read-only before each of %d instants: exit code 75, then the same bytes", len(at))
}

// TestKilledAtInstants kills where no event is appended: around the steps of publication, relocation and retirement.
func TestKilledAtInstants(t *testing.T) {
	j := small(t)
	all, want := instants(t, j)
	var at []string
	for _, instant := range all {
		if f := strings.Fields(instant); f[1] == "retire" || f[1] == "relocate" {
			at = append(at, instant)
		}
	}
	at = append(at, "before sealed", "before finished", "after finished", "after sealed")
	if !long {
		at = []string{"before retire 2", "after sealed"}
	}
	for _, instant := range at {
		k := j
		k.Out, k.KillAt = filepath.Join(t.TempDir(), "out"), instant
		require.True(t, spawn(t, k), instant)
		got := k.run(t, engine.RunOptions{})
		require.Equal(t, want.SumsSHA256, got.SumsSHA256, instant)
		require.Equal(t, want.DecisionRoot, got.DecisionRoot, instant)
	}
	t.Logf("killed at %d instants", len(at))
}

// TestPowerCutsOfWholeRuns cuts the power of the file system with run directory and output: at random events, and around
// the steps of publication.
func TestPowerCutsOfWholeRuns(t *testing.T) {
	if err := powercut.Available(); err != nil {
		t.Logf("LEFT OUT: TestPowerCutsOfWholeRuns: %v", err)
		return
	}
	j := small(t)
	all, want := instants(t, j)
	appends := 0
	for _, instant := range all {
		if strings.HasPrefix(instant, "before append ") {
			appends++
		}
	}
	rng := rand.New(rand.NewSource(8))
	at, rounds := []string{"after sealed"}, 1
	if long {
		at, rounds = []string{"before sealed", "after sealed", "before finished", "after finished", "before shard", "after relocate 1", "after retire 1", "before retire 3"}, 8
	}
	for range rounds {
		at = append(at, fmt.Sprintf("before append %d", 1+rng.Intn(appends)))
	}
	for _, instant := range at {
		d, err := powercut.New(t.TempDir(), 256<<20)
		require.NoError(t, err)
		k := j
		k.Out, k.KillAt, k.CutPower = filepath.Join(d.Dir(), "out"), instant, d.Dir()
		require.True(t, spawn(t, k), instant)
		require.NoError(t, d.Restore())
		k.KillAt, k.CutPower = fmt.Sprintf("before append %d", 1+rng.Intn(30)), d.Dir() // and once more
		cut := spawn(t, k)
		require.NoError(t, d.Restore())
		got := k.run(t, engine.RunOptions{})
		require.Equal(t, want.SumsSHA256, got.SumsSHA256, "%s, then %s (%v)", instant, k.KillAt, cut)
		require.Equal(t, want.DecisionRoot, got.DecisionRoot, "%s, then %s", instant, k.KillAt)
		checks, err := engine.VerifySums(context.Background(), k.Out)
		require.NoError(t, err)
		for _, c := range checks {
			require.True(t, c.OK, "%s: %s %s", instant, c.Name, c.What)
		}
		require.NoError(t, d.Close())
	}
	t.Logf("%d runs went through power cuts, most through two, and ended with the same bytes", len(at))
}

// dense lists places of a file where payload is: windows of many different bytes. The rest is pages and keys.
func dense(b []byte) (at []int) {
	for i := 0; i+256 <= len(b); i += 256 {
		seen := map[byte]bool{}
		for _, c := range b[i : i+256] {
			seen[c] = true
		}
		if len(seen) > 80 {
			at = append(at, i+128)
		}
	}
	return at
}

// rebuilt lists what a run's ledger says was stored anew, by type of event.
func rebuilt(t *testing.T, runDir string) map[string]int {
	t.Helper()
	r, err := ledger.OpenReader(runDir, ledger.Options{})
	require.NoError(t, err)
	defer r.Close()
	n := map[string]int{}
	for e, err := range r.Since(0) {
		require.NoError(t, err)
		if e.Type == ledger.TypeRebuilt {
			var rec struct{ Key string }
			require.NoError(t, json.Unmarshal(e.Record, &rec))
			kind, _, _ := strings.Cut(rec.Key, "/")
			n[kind]++
		}
	}
	return n
}

// TestDamageIsMended flips a bit in the payload of runs that were killed. What a resume needs and can derive is computed
// again, compared with the digest on record, and stored anew; what it cannot derive ends it with exit code 12 and the place. The
// result is never another one.
func TestDamageIsMended(t *testing.T) {
	j := small(t)
	j.Lanes = 2
	all, want := instants(t, j)
	// One death in the middle of layer 0's decisions, one when layer 2 is in work.
	decided, last := 0, ""
	for _, instant := range all {
		if instant == "before decision" {
			if decided++; decided == 20 {
				break
			}
		}
		last = instant
	}
	total := map[string]int{}
	flips, mended, refused := 0, 0, 0
	deaths, files := []string{last, "before relocate 3"}, "*.db"
	if !long {
		deaths, files = deaths[1:], "layer-L0003*.db"
	}
	for _, instant := range deaths {
		killed := j
		killed.Out, killed.KillAt = filepath.Join(t.TempDir(), "out"), instant
		require.True(t, spawn(t, killed), instant)
		require.NoError(t, os.RemoveAll(filepath.Join(killed.Out+".run", "ledger.sock"))) // sockets are not copied
		segments, err := filepath.Glob(filepath.Join(killed.Out+".run", "segments", files))
		require.NoError(t, err)
		for _, seg := range segments {
			b, err := os.ReadFile(seg)
			require.NoError(t, err)
			places := dense(b)
			step := max(1, len(places)/5)
			if !long {
				step = len(places)
			}
			for i := step / 2; i < len(places); i += step {
				k := killed
				k.Out, k.KillAt = filepath.Join(t.TempDir(), "out"), ""
				for _, part := range []string{".run", ".partial"} {
					require.NoError(t, os.CopyFS(k.Out+part, os.DirFS(killed.Out+part)))
				}
				c := bytes.Clone(b)
				c[places[i]] ^= 4
				where := fmt.Sprintf("%s at %d, killed %s", filepath.Base(seg), places[i], instant)
				require.NoError(t, os.WriteFile(filepath.Join(k.Out+".run", "segments", filepath.Base(seg)), c, 0o644))
				flips++
				got, err := k.try(t, engine.RunOptions{})
				if err != nil {
					refused++
					require.Equal(t, engine.ExitLedgerDamaged, exitOf(err), "%s: %v", where, err)
					require.Contains(t, err.Error(), filepath.Base(seg), "the place is named")
					t.Logf("refused: %s: %v", where, err)
					continue
				}
				require.Equal(t, want.SumsSHA256, got.SumsSHA256, where)
				require.Equal(t, want.DecisionRoot, got.DecisionRoot, where)
				n := rebuilt(t, k.Out+".run")
				if len(n) > 0 {
					mended++
					t.Logf("mended: %s: %v", where, n)
				}
				for kind, x := range n {
					total[kind] += x
				}
			}
		}
	}
	t.Logf("%d flips: %d runs rebuilt something (%v), %d ended with exit code 12, the others did not need the payload", flips, mended, total, refused)
	require.Positive(t, mended)
}
