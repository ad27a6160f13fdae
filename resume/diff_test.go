package resume_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"quire/resume"
)

func TestDiffNamesFields(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, was, now string
		want           []string
	}{
		{"equal", `{"a":1,"b":[1,2]}`, `{"b":[1,2],"a":1}`, nil},
		{"changed", `{"settings":{"bits":4}}`, `{"settings":{"bits":3}}`, []string{"settings.bits: 4, now 3"}},
		{"gone and new", `{"a":1}`, `{"b":true}`, []string{"a: 1, now not there", "b: not there, now true"}},
		{"in a list", `{"f":[{"n":"x"}]}`, `{"f":[{"n":"y"}]}`, []string{"f[0].n: x, now y"}},
		{"large numbers keep their digits", `{"seed":12345678901234567890}`, `{"seed":12345678901234567891}`,
			[]string{"seed: 12345678901234567890, now 12345678901234567891"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, resume.Diff([]byte(c.was), []byte(c.now)))
		})
	}
}
