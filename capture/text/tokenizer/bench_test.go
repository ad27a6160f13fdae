package tokenizer_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quire/capture/text/tokenizer"
)

// BenchmarkQwen3 encodes English text with the Qwen3 tokenizer on one core. The metric x_regexp2 is its speed over that of the same
// tokenizer with its patterns run by regexp2, measured in the same process.
func BenchmarkQwen3(b *testing.B) {
	shared := sharedDir(b)
	tok, err := tokenizer.Load(filepath.Join(shared, "tokenizers", "qwen3-tokenizer.json"))
	require.NoError(b, err)
	slow := tok.WithoutScanners()
	data, err := os.ReadFile(filepath.Join(shared, "text", "exl3-cal-c4.txt"))
	require.NoError(b, err)
	text := string(data)
	encode := func(t *tokenizer.Tokenizer) time.Duration {
		start := time.Now()
		_, err := t.Encode(text, tokenizer.Options{})
		require.NoError(b, err)
		return time.Since(start)
	}
	b.SetBytes(int64(len(text)))
	var fast, reference time.Duration
	b.ResetTimer()
	for range b.N {
		fast += encode(tok)
		b.StopTimer()
		reference += encode(slow)
		b.StartTimer()
	}
	b.ReportMetric(reference.Seconds()/fast.Seconds(), "x_regexp2")
}
