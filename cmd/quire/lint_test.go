package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// brokenCheckpoint is a directory that holds one truncated shard.
func brokenCheckpoint(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), []byte("\xff\xff\xff\xff\x00\x00\x00\x00{}"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"quantization_config":{"quant_method":"magic"}}`), 0o644))
	return dir
}

func runLint(t *testing.T, c *LintCmd) (string, error) {
	t.Helper()
	var out, errw bytes.Buffer
	err := c.Run(context.Background(), &output{out: &out, err: &errw})
	require.Empty(t, errw.String())
	return out.String(), err
}

func wantExit3(t *testing.T, err error) {
	t.Helper()
	var c coded
	require.True(t, errors.As(err, &c), "%v", err)
	require.Equal(t, 3, c.ExitCode())
}

func TestLintText(t *testing.T) {
	out, err := runLint(t, &LintCmd{Dir: brokenCheckpoint(t)})
	wantExit3(t, err)
	for _, want := range []string{"error E_FILE model.safetensors: ", "error E_METHOD ", "    try: fetch the file again", " errors, "} {
		require.Contains(t, out, want)
	}
}

func TestLintJSON(t *testing.T) {
	out, err := runLint(t, &LintCmd{Dir: brokenCheckpoint(t), JSON: true, Profile: []string{"vllm"}})
	wantExit3(t, err)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var types []string
	for _, l := range lines {
		var v map[string]any
		require.NoError(t, json.Unmarshal([]byte(l), &v), l)
		types = append(types, v["type"].(string))
		switch v["type"] {
		case "finding":
			require.NotEmpty(t, v["code"])
			require.NotEmpty(t, v["remedy"])
		case "result":
			require.EqualValues(t, 3, v["exit"])
			require.EqualValues(t, []any{"vllm"}, v["profiles"])
			require.NotContains(t, v, "findings")
		}
	}
	require.Equal(t, "hello", types[0])
	require.Equal(t, "result", types[len(types)-1])
	require.Contains(t, types, "finding")
}

func TestLintSARIF(t *testing.T) {
	out, err := runLint(t, &LintCmd{Dir: brokenCheckpoint(t), SARIF: true})
	wantExit3(t, err)
	var doc map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &doc))
	require.Equal(t, "2.1.0", doc["version"])
}

func TestLintUsage(t *testing.T) {
	_, err := runLint(t, &LintCmd{Dir: t.TempDir(), Profile: []string{"tgi"}})
	var c coded
	require.True(t, errors.As(err, &c))
	require.Equal(t, 64, c.ExitCode())
}
