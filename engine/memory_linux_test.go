package engine_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quire/engine"
)

var largeDir = flag.String("large", "", "directory for TestModelLargerThanMemory at full size: 4 GiB of weights under a limit of 1 GiB")

// measured runs a job in a child, in a memory cgroup if one is given, and gives the most anonymous and shared memory that it held, looked
// at from outside.
func measured(t *testing.T, j job, group string) (peak int64) {
	t.Helper()
	b, err := json.Marshal(j)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0])
	if group != "" {
		cmd = exec.Command("sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$1"`, group, os.Args[0])
	}
	cmd.Env = append(os.Environ(), "QUIRE_TEST_CHILD="+string(b))
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			require.NoError(t, err, out.String())
			return peak
		case <-tick.C:
			peak = max(peak, held(cmd.Process.Pid))
		}
	}
}

// held is RssAnon + RssShmem of a process in bytes.
func held(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	var sum int64
	for _, line := range strings.Split(string(b), "\n") {
		if f := strings.Fields(line); len(f) == 3 && (f[0] == "RssAnon:" || f[0] == "RssShmem:") {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return 0
			}
			sum += n << 10
		}
	}
	return sum
}

// memoryGroup makes a cgroup that lets its processes have so many bytes, without swap.
func memoryGroup(t *testing.T, bytes int64) (dir string, err error) {
	name := fmt.Sprintf("quire-test-%d", os.Getpid())
	for _, v := range []struct{ root, limit, swap string }{
		{"/sys/fs/cgroup", "memory.max", "memory.swap.max"},
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.swappiness"},
	} {
		dir = filepath.Join(v.root, name)
		if err = os.Mkdir(dir, 0o755); err != nil {
			continue
		}
		if _, err = os.Stat(filepath.Join(dir, v.limit)); err != nil {
			_ = os.Remove(dir) // a directory that is no cgroup, or one without this controller
			continue
		}
		if err = os.WriteFile(filepath.Join(dir, v.limit), fmt.Append(nil, bytes), 0o644); err != nil {
			_ = os.Remove(dir)
			continue
		}
		if werr := os.WriteFile(filepath.Join(dir, v.swap), []byte("0"), 0o644); werr != nil {
			t.Logf("swap stays on: %v", werr)
		}
		t.Cleanup(func() { require.NoError(t, os.Remove(dir)) })
		return dir, nil
	}
	return "", err
}

func sumsOf(t *testing.T, out string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(out, engine.SumsFile))
	require.NoError(t, err)
	return string(b)
}

// TestMemoryLimitIsKept gives a run 60 % of the memory that it took without a limit: measured from outside it stays below that + 5 %, and
// it completes in a cgroup of that size. The bytes are the same.
func TestMemoryLimitIsKept(t *testing.T) {
	if !long {
		t.Log("LEFT OUT: TestMemoryLimitIsKept runs with QUIRE_LONG=1")
		return
	}
	_, tokens := tiny(t)
	dir := t.TempDir()
	stack{layers: 1, hidden: 512, inter: 384, experts: 32, topK: 2}.write(t, filepath.Join(dir, "model"))
	j := job{Model: filepath.Join(dir, "model"), Tokens: tokens, Kill: -1, Samples: 120, SeqLen: 250, Lanes: 2, Threads: 2, NoPrecheck: true}
	j.Out = filepath.Join(dir, "free")
	free := measured(t, j, "")
	limit := free / 10 * 6
	j.MaxMemory = fmt.Sprintf("%dKiB", limit>>10)
	j.Out = filepath.Join(dir, "limited")
	peak := measured(t, j, "")
	t.Logf("without a limit %d MiB, limit %d MiB, peak RssAnon+RssShmem %d MiB (%.0f %%)", free>>20, limit>>20, peak>>20, 100*float64(peak)/float64(limit))
	require.Equal(t, sumsOf(t, filepath.Join(dir, "free")), sumsOf(t, j.Out))
	require.LessOrEqual(t, peak, limit/100*105)

	group, err := memoryGroup(t, limit/100*105)
	if err != nil {
		t.Logf("LEFT OUT: TestMemoryLimitIsKept in a cgroup: %v", err)
		return
	}
	j.Out = filepath.Join(dir, "confined")
	peak = measured(t, j, group)
	t.Logf("in a cgroup of %d MiB: completed, peak %d MiB", limit/100*105>>20, peak>>20)
	require.Equal(t, sumsOf(t, filepath.Join(dir, "free")), sumsOf(t, j.Out))
}

// TestModelLargerThanMemory quantizes a model under a limit that is a fraction of its weights. By default the model is small; with
// -large DIR it has 4 GiB and the limit is 1 GiB.
func TestModelLargerThanMemory(t *testing.T) {
	if !long && *largeDir == "" {
		t.Log("LEFT OUT: TestModelLargerThanMemory runs with QUIRE_LONG=1, or at full size with -large DIR")
		return
	}
	_, tokens := tiny(t)
	dir, s, limit := t.TempDir(), stack{layers: 6, hidden: 512, inter: 512, experts: 24, topK: 2}, int64(150<<20)
	if *largeDir != "" {
		dir, s, limit = *largeDir, stack{layers: 44, hidden: 512, inter: 512, experts: 64, topK: 2}, 1<<30
	}
	model := filepath.Join(dir, "model")
	if _, err := os.Stat(filepath.Join(model, "config.json")); err != nil {
		t.Logf("%d bytes of weights", s.write(t, model))
	}
	j := job{Model: model, Out: filepath.Join(dir, "out"), Tokens: tokens, Kill: -1, Samples: 8, SeqLen: 250, Lanes: 1, Threads: 2, MinRows: "16", NoPrecheck: true,
		MaxMemory: fmt.Sprintf("%dMiB", limit>>20)}
	began := time.Now()
	peak := measured(t, j, "")
	t.Logf("limit %d MiB, peak RssAnon+RssShmem %d MiB, %.0f s", limit>>20, peak>>20, time.Since(began).Seconds())
	require.LessOrEqual(t, peak, limit/100*105)
	checks, err := engine.VerifySums(context.Background(), j.Out)
	require.NoError(t, err)
	var bytes int64
	for _, c := range checks {
		require.True(t, c.OK, c.Name)
	}
	for l := range s.layers {
		st, err := os.Stat(filepath.Join(model, fmt.Sprintf("layer-%03d.safetensors", l)))
		require.NoError(t, err)
		bytes += st.Size()
	}
	require.Greater(t, bytes, limit)
}
