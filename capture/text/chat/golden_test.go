package chat_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"quire/capture/text/chat"
)

func sharedDir(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv("QUIRE_SHARED"); dir != "" {
		return dir
	}
	dir, err := os.Getwd()
	require.NoError(t, err)
	for range 6 {
		if info, err := os.Stat(filepath.Join(dir, "..", "shared", "fixtures")); err == nil && info.IsDir() {
			return filepath.Join(dir, "..", "shared")
		}
		dir = filepath.Dir(dir)
	}
	t.Skip("needs shared/fixtures: set QUIRE_SHARED")
	return ""
}

type goldenFile struct {
	Name, Template string
	BOS            *string `json:"bos_token"`
	EOS            *string `json:"eos_token"`
	Now            string
	Cases          []struct {
		Name                string
		Messages            json.RawMessage
		Tools               json.RawMessage
		Documents           json.RawMessage
		AddGenerationPrompt bool `json:"add_generation_prompt"`
		Kwargs              map[string]json.RawMessage
		Rendered            *string
		Error               *string
		ErrorType           string   `json:"error_type"`
		Spans               [][2]int `json:"generation_spans"`
		RawRendered         *string  `json:"rendered_without_cleanup"`
		RawError            *string  `json:"error_without_cleanup"`
	}
}

// TestGoldenRenderings holds every template of the golden files against what transformers rendered.
func TestGoldenRenderings(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(sharedDir(t), "fixtures", "chat", "*.json"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".json"), func(t *testing.T) { checkGolden(t, f) })
	}
}

func checkGolden(t *testing.T, file string) {
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	var g goldenFile
	require.NoError(t, json.Unmarshal(data, &g))
	tokens := map[string]string{}
	if g.BOS != nil {
		tokens["bos_token"] = *g.BOS
	}
	if g.EOS != nil {
		tokens["eos_token"] = *g.EOS
	}
	tmpl, err := chat.Compile(g.Template, tokens)
	require.NoError(t, err)
	tmpl, err = tmpl.At(g.Now)
	require.NoError(t, err)
	for _, c := range g.Cases {
		check := func(raw bool, want, wantErr *string) {
			req := chat.Request{Messages: c.Messages, Tools: c.Tools, Documents: c.Documents, AddGenerationPrompt: c.AddGenerationPrompt, Kwargs: c.Kwargs, Raw: raw}
			out, err := tmpl.Render(req)
			if wantErr != nil {
				if err == nil {
					t.Errorf("%s: rendered %q, want error %s", c.Name, out.Text, *wantErr)
				} else if c.ErrorType == "TemplateError" && err.Error() != *wantErr {
					t.Errorf("%s: error %q, want %q", c.Name, err, *wantErr)
				}
				return
			}
			if err != nil {
				t.Errorf("%s: %v", c.Name, err)
				return
			}
			if out.Text != *want {
				i := 0
				for i < min(len(out.Text), len(*want)) && out.Text[i] == (*want)[i] {
					i++
				}
				lo := max(0, i-60)
				t.Errorf("%s: differs at byte %d\n got …%q\nwant …%q", c.Name, i, out.Text[lo:min(len(out.Text), i+80)], (*want)[lo:min(len(*want), i+80)])
				return
			}
			if c.Spans != nil && !raw {
				got := [][2]int{}
				for _, s := range out.Spans {
					got = append(got, [2]int{utf8.RuneCountInString(out.Text[:s[0]]), utf8.RuneCountInString(out.Text[:s[1]])})
				}
				require.Equal(t, c.Spans, got, c.Name)
			}
		}
		check(false, c.Rendered, c.Error)
		if c.RawRendered != nil || c.RawError != nil {
			check(true, c.RawRendered, c.RawError)
		}
	}
}
