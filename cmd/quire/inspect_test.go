package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestInspect describes the embedded model in both forms, and an unreadable one with its remedy.
func TestInspect(t *testing.T) {
	demo := filepath.Join("..", "..", "testdata", "demo")
	var out, errw bytes.Buffer
	require.Equal(t, 0, Main([]string{"inspect", demo}, strings.NewReader(""), &out, &errw))
	for _, want := range []string{"qwen3_moe", "8, 2 per token", "routed experts", "grouped-query", "unclaimed tensors: none", "BF16"} {
		require.Contains(t, out.String(), want)
	}
	out.Reset()
	require.Equal(t, 0, Main([]string{"inspect", demo, "--json"}, strings.NewReader(""), &out, &errw))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 2)
	var hello, result map[string]any
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &hello))
	require.NoError(t, json.Unmarshal([]byte(lines[1]), &result))
	require.Equal(t, "hello", hello["type"])
	require.Equal(t, "result", result["type"])
	require.EqualValues(t, 8, result["experts"])
	require.Empty(t, result["unclaimed"])
	out.Reset()
	require.Equal(t, 64, Main([]string{"inspect", t.TempDir()}, strings.NewReader(""), &out, &errw))
	require.Contains(t, errw.String(), "E1102")
	require.Contains(t, errw.String(), "try:")
}
