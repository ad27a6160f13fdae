package tokenizer_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"quire/capture/text/tokenizer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testdata = "../../../testdata/text/tokenizer"

// TestPlainCloneTokenizers runs the small golden files that lie in the repository.
func TestPlainCloneTokenizers(t *testing.T) {
	dirs, err := os.ReadDir(testdata)
	require.NoError(t, err)
	require.NotEmpty(t, dirs)
	for _, d := range dirs {
		t.Run(d.Name(), func(t *testing.T) {
			tok, err := tokenizer.Load(filepath.Join(testdata, d.Name(), "tokenizer.json"))
			require.NoError(t, err)
			checkGolden(t, tok, filepath.Join(testdata, d.Name(), "cases.jsonl"), "")
		})
	}
}

// TestUnknownPartsAreRefusedByName plants an unknown part in each section.
func TestUnknownPartsAreRefusedByName(t *testing.T) {
	model := `"model":{"type":"WordLevel","vocab":{"a":0},"unk_token":"a"}`
	for name, doc := range map[string]string{
		"Frobnicate": `{"normalizer":{"type":"Frobnicate"},` + model + `}`,
		"Wiggle":     `{"pre_tokenizer":{"type":"Wiggle"},` + model + `}`,
		"Guess":      `{"model":{"type":"Guess","vocab":{}}}`,
		"Glue":       `{"decoder":{"type":"Glue"},` + model + `}`,
		"Stamp":      `{"post_processor":{"type":"Stamp"},` + model + `}`,
		"dropout":    `{"model":{"type":"BPE","dropout":0.1,"vocab":{"a":0},"merges":[]}}`,
		`\\Q`:        `{"pre_tokenizer":{"type":"Split","pattern":{"Regex":"\\Qx"},"behavior":"Isolated","invert":false},` + model + `}`,
	} {
		_, err := tokenizer.Parse([]byte(doc))
		var unknown *tokenizer.UnsupportedError
		require.ErrorAs(t, err, &unknown, name)
		if name != `\\Q` {
			require.Contains(t, err.Error(), name)
		}
	}
	for _, doc := range []string{``, `{}`, `[]`, `{"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}}`, `{"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}}`, `{"model":{"type":"Unigram","vocab":[["a",1]],"unk_id":9}}`} {
		_, err := tokenizer.Parse([]byte(doc))
		require.Error(t, err, doc)
	}
}

// TestClassIntersection is the trap of Kimi-K2's pattern: && must not be read as two literal ampersands.
func TestClassIntersection(t *testing.T) {
	got, err := tokenizer.Isolate(`[\p{Lo}\p{Ll}&&[^\p{Han}]]+`, "ab中&c")
	require.NoError(t, err)
	require.Equal(t, []string{"ab", "中&", "c"}, got)
	got, err = tokenizer.Isolate(`\p{N}++x|\h`, "12x3g")
	require.NoError(t, err)
	require.Equal(t, []string{"12x", "3", "g"}, got)
}

func FuzzTokenizerJSON(f *testing.F) {
	dirs, err := os.ReadDir(testdata)
	require.NoError(f, err)
	for _, d := range dirs {
		data, err := os.ReadFile(filepath.Join(testdata, d.Name(), "tokenizer.json"))
		require.NoError(f, err)
		f.Add(data, "Hello there, 12 friend's\n\u00e9")
	}
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		tok, err := tokenizer.Parse(data)
		if err != nil {
			return
		}
		if e, err := tok.Encode(text, tokenizer.Options{Offsets: true}); err == nil {
			tok.Decode(e.IDs, true)
		}
	})
}
