package tokenizer_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quire/capture/text/tokenizer"
)

// TestHostileFiles: lengths and ids in a tokenizer.json buy no memory. Each is refused when it is read or when a text is encoded, or
// costs what its text is long.
func TestHostileFiles(t *testing.T) {
	model := `"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}`
	doubling := func(n int) string {
		one := `{"type":"Replace","pattern":{"String":"a"},"content":"aa"}`
		return `{"normalizer":{"type":"Sequence","normalizers":[` + strings.TrimSuffix(strings.Repeat(one+",", n), ",") + `]},` + model + `}`
	}
	padding := func(strategy, multiple string) string {
		return fmt.Sprintf(`{"padding":{"strategy":%s,"direction":"Right","pad_to_multiple_of":%s,"pad_id":0,"pad_type_id":0,"pad_token":"a"},%s}`, strategy, multiple, model)
	}
	for name, file := range map[string]string{
		"padding to a billion":               padding(`{"Fixed":1000000000}`, "null"),
		"padding to a multiple of a billion": padding(`"BatchLongest"`, "1000000000"),
		"padding to a multiple of nothing":   padding(`"BatchLongest"`, "0"),
		"stride as long as the window":       `{"truncation":{"max_length":4,"stride":4,"strategy":"LongestFirst","direction":"Right"},` + model + `}`,
		"stride beyond the window":           `{"truncation":{"max_length":4,"stride":1000000000,"strategy":"LongestFirst","direction":"Right"},` + model + `}`,
		"largest id":                         `{"model":{"type":"BPE","vocab":{"a":2147483647,"b":1},"merges":[]}}`,
		"id beyond 32 bits":                  `{"model":{"type":"BPE","vocab":{"a":4294967296,"b":1},"merges":[]}}`,
		"negative id":                        `{"model":{"type":"BPE","vocab":{"a":-1,"b":1},"merges":[]}}`,
		"text doubled forty times":           doubling(40),
		"repetition of a billion":            `{"pre_tokenizer":{"type":"Split","pattern":{"Regex":"(a{1000000000}){1000000000}"},"behavior":"Isolated","invert":false},` + model + `}`,
		"nested groups":                      `{"pre_tokenizer":{"type":"Split","pattern":{"Regex":"` + strings.Repeat("(", 100000) + "a" + strings.Repeat(")", 100000) + `"},"behavior":"Isolated","invert":false},` + model + `}`,
		"nested sequences":                   `{"normalizer":` + strings.Repeat(`{"type":"Sequence","normalizers":[`, 9000) + strings.Repeat(`]}`, 9000) + `,` + model + `}`,
		"nested lists":                       `{"x":` + strings.Repeat("[", 1000000),
		"charsmap that claims more":          `{"normalizer":{"type":"Precompiled","precompiled_charsmap":"////fw=="},` + model + `}`,
		"decoder strips a billion":           `{"decoder":{"type":"Strip","content":"a","start":1000000000,"stop":1000000000},` + model + `}`,
		"metaspace prefix of megabytes":      `{"pre_tokenizer":{"type":"Metaspace","replacement":"` + strings.Repeat("x", 1<<20) + `","prepend_scheme":"always","split":true},` + model + `}`,
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			tok, err := tokenizer.Parse([]byte(file))
			if err == nil {
				var e *tokenizer.Encoding
				if e, err = tok.Encode(strings.Repeat("ab", 500), tokenizer.Options{Offsets: true}); err == nil {
					tok.Decode(e.IDs, false)
				}
			}
			runtime.ReadMemStats(&after)
			used := after.TotalAlloc - before.TotalAlloc
			t.Logf("%d KB: %.120v", used>>10, err)
			require.Less(t, used, uint64(512<<20), "bytes allocated in all")
		})
	}
}
