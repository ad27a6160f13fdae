package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// quire runs a command line and gives its exit code and what it wrote.
func quire(args ...string) (exit int, stdout, stderr string) {
	var out, errw bytes.Buffer
	exit = Main(args, strings.NewReader(""), &out, &errw)
	return exit, out.String(), errw.String()
}

// TestStatusAndWatchTellHowARunEnded: both end at once on a run that nobody writes, and the exit code of watch says
// whether the same command has something left to do.
func TestStatusAndWatchTellHowARunEnded(t *testing.T) {
	dir := bed(t)
	out := filepath.Join(dir, "out")
	run := []string{"run", filepath.Join(dir, "demo"), "-o", out, "--group-size", "32", "--calibration", filepath.Join(dir, "tokens", "self_generated512.u16"), "--samples", "2", "--quiet"}

	exit, _, stderr := quire(append(run, "--stop-after-layer", "0")...)
	require.Equal(t, 75, exit, stderr)
	_, stdout, _ := quire("status", out+".run")
	require.Contains(t, stdout, "--stop-after-layer 0")
	require.Contains(t, stdout, "layer 1 of 4")
	exit, stdout, _ = quire("watch", out+".run")
	require.Equal(t, 75, exit)
	require.Contains(t, stdout, "--stop-after-layer 0")

	exit, stdout, stderr = quire(run...)
	require.Equal(t, 0, exit, stderr)
	require.Contains(t, stdout, "112 quantized")
	_, stdout, _ = quire("status", out+".run")
	require.Contains(t, stdout, ": finished")
	exit, stdout, _ = quire("watch", out+".run", "--json")
	require.Equal(t, 0, exit)
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	var last struct {
		Type   string `json:"type"`
		Status struct {
			Engine struct {
				State string `json:"state"`
			} `json:"engine"`
		} `json:"status"`
	}
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &last))
	require.Equal(t, "result", last.Type)
	require.Equal(t, "finished", last.Status.Engine.State)
	require.Contains(t, lines[0], `"hello"`)

	exit, _, stderr = quire("watch", dir)
	require.Equal(t, 10, exit, stderr)
}

// TestDoctor: every look ends in ok on a machine that runs these tests, and a directory that is not there is an error.
func TestDoctor(t *testing.T) {
	dir := t.TempDir()
	exit, stdout, stderr := quire("doctor", dir)
	require.Equal(t, 0, exit, stderr)
	for _, what := range []string{"cpu", "memory", "disk"} {
		require.Contains(t, stdout, what)
	}
	require.Contains(t, stdout, "read back equal")
	left, err := filepath.Glob(filepath.Join(dir, ".quire*"))
	require.NoError(t, err)
	require.Empty(t, left, "the probe is removed")
	exit, stdout, _ = quire("doctor", filepath.Join(dir, "missing"), "--json")
	require.Equal(t, 1, exit)
	require.Contains(t, stdout, `"state":"error"`)
}

// TestCompletion: shells get the verbs and flags of the command line as it is.
func TestCompletion(t *testing.T) {
	t.Setenv("COMP_LINE", "quire run --group")
	exit, stdout, _ := quire()
	require.Equal(t, 0, exit)
	require.Equal(t, "--group-size", strings.TrimSpace(stdout))
	t.Setenv("COMP_LINE", "")
	exit, stdout, _ = quire("completion", "-c", "bash")
	require.Equal(t, 0, exit)
	require.Contains(t, stdout, "complete -o default")
}
