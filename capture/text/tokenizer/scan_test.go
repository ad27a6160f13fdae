package tokenizer_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"quire/capture/text/tokenizer"
)

// TestScannersEqualTheirPatterns holds each hand-written scanner against the pattern it stands for, run by regexp2, on strings of
// characters chosen so that every alternative, look-ahead and class border occurs.
func TestScannersEqualTheirPatterns(t *testing.T) {
	alphabet := []string{"a", "Z", "s", "S", "t", "re", "LL", "'", "''", "1", "23", "٣", "Ⅷ", "½", " ", "  ", "\t", "\n", "\r\n", "\r", "\u00a0", "\u0085", "\u2028", "\u3000", ".", "!?", "_", "-", "€",
		"é", "e\u0301", "\u0301", "ß", "ſ", "\u212a", "中", "文字", "の", "カ", "ー", "ا", "ه", "नि", "😀", "👩\u200d👧", "\u200d", "\u200b", "\x00", "\x7f", "\x1c", "ǅ", "ʰ", "〆", "龥", "龦", "゠", "ヿ", "\ufeff", "\U000e0100", "𝐀", "+", "<", "|"}
	names := 0
	for pattern, scan := range tokenizer.Scanners() {
		names++
		t.Run(fmt.Sprintf("%.20s", pattern), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				s := strings.Join(rapid.SliceOfN(rapid.SampledFrom(alphabet), 1, 14).Draw(t, "parts"), "")
				want, err := tokenizer.Isolate(pattern, s)
				require.NoError(t, err)
				var got []string
				for at := 0; at < len(s); {
					end := scan(s, at)
					require.Greater(t, end, at)
					got = append(got, s[at:end])
					at = end
				}
				require.Equal(t, want, got, "%q", s)
			})
		})
	}
	require.GreaterOrEqual(t, names, 6)
}
