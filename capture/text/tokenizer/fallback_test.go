package tokenizer_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quire/capture/text/tokenizer"
)

// TestSentencePieceEqualsItsConversion reads a tokenizer.model and holds it against the tokenizer.json made of it, whose ids are
// known to equal sentencepiece's on these texts (lines with runs of spaces apart, which sentencepiece squeezes).
func TestSentencePieceEqualsItsConversion(t *testing.T) {
	shared := sharedDir(t)
	for model, dir := range map[string]string{"tok512.model": "tiny-qwen3moe-stories", "tok105.model": "babyllama105-moe4"} {
		spm, err := tokenizer.Load(filepath.Join(shared, "models", model))
		require.NoError(t, err)
		converted, err := tokenizer.Load(filepath.Join(shared, "models", dir))
		require.NoError(t, err)
		data, err := os.ReadFile(filepath.Join(shared, "text", "exl3-cal-tiny.txt"))
		require.NoError(t, err)
		n := 0
		for line := range strings.SplitSeq(string(data), "\n") {
			if line = strings.TrimSpace(line); line == "" || strings.Contains(line, "  ") || strings.Contains(line, "<") {
				continue
			}
			n++
			a, err := spm.Encode(line, tokenizer.Options{NoSpecialTokens: true})
			require.NoError(t, err)
			b, err := converted.Encode(line, tokenizer.Options{NoSpecialTokens: true})
			require.NoError(t, err)
			require.Equal(t, b.IDs, a.IDs, "%s: %q", model, line)
			require.Equal(t, line, spm.Decode(a.IDs, true))
		}
		require.Greater(t, n, 100)
	}
}

// TestTiktokenNeedsAKnownClass: a tiktoken file does not hold its pattern.
func TestTiktokenNeedsAKnownClass(t *testing.T) {
	dir := t.TempDir()
	var b strings.Builder
	for i := range 256 {
		fmt.Fprintf(&b, "%s %d\n", base64.StdEncoding.EncodeToString([]byte{byte(i)}), i)
	}
	for i, w := range []string{"he", "ll", "llo", "hello", "中文"[:3], "中文"[3:], "中文"} {
		fmt.Fprintf(&b, "%s %d\n", base64.StdEncoding.EncodeToString([]byte(w)), 256+i)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tiktoken.model"), []byte(b.String()), 0o600))
	_, err := tokenizer.Load(dir)
	var unknown *tokenizer.UnsupportedError
	require.ErrorAs(t, err, &unknown)
	cfg := `{"tokenizer_class":"TikTokenTokenizer","added_tokens_decoder":{"300":{"content":"[BOS]","special":true}}}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), []byte(cfg), 0o600))
	tok, err := tokenizer.Load(dir)
	require.NoError(t, err)
	e, err := tok.Encode("[BOS]hello中文hello", tokenizer.Options{})
	require.NoError(t, err)
	require.Equal(t, []int32{300, 259, 259 + 3, 259}, e.IDs, "Han characters are words of their own")
	require.Equal(t, "[BOS]hello中文hello", tok.Decode(e.IDs, false))
	require.Equal(t, "hello中文hello", tok.Decode(e.IDs, true))
}
