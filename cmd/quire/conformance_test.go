package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// shared finds the folder of large fixtures, or skips the test naming it.
func shared(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("QUIRE_SHARED")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared")
	}
	if _, err := os.Stat(filepath.Join(dir, "fixtures")); err != nil {
		t.Skip("needs shared/fixtures: set QUIRE_SHARED")
	}
	return dir
}

// ask runs a verb that answers line by line and gives its answers.
func ask(t *testing.T, in []byte, args ...string) [][]byte {
	t.Helper()
	var out, errw bytes.Buffer
	require.Equal(t, 0, Main(args, bytes.NewReader(in), &out, &errw), errw.String())
	lines := bytes.Split(bytes.TrimSuffix(out.Bytes(), []byte("\n")), []byte("\n"))
	if len(lines) == 1 && len(lines[0]) == 0 {
		return nil
	}
	return lines
}

func jsonLine(t *testing.T, v any) []byte {
	b, err := json.Marshal(v)
	require.NoError(t, err)
	return append(b, '\n')
}

// tokenizerCase is a line of a golden file that the verb can be asked: an encoding, a decoding or a file.
type tokenizerCase struct {
	Kind    string
	Text    string
	Add     bool `json:"add_special_tokens"`
	Error   string
	IDs     json.RawMessage `json:"ids"`
	Decoded *string
	Skip    *string `json:"decoded_skip"`
	File    string
	N       int    `json:"n_ids"`
	SHA     string `json:"ids_sha256"`
	Lines   *struct {
		N   int    `json:"n_ids"`
		SHA string `json:"ids_sha256"`
	}
}

// TestTokenizeConformance asks `quire tokenize` every text and decoding of the golden files; a file's ids are compared by digest, whole
// and line by line. QUIRE_LONG=1 takes all files of shared/text, else the shortest.
func TestTokenizeConformance(t *testing.T) {
	t.Parallel()
	dir := shared(t)
	fixtures := filepath.Join(dir, "fixtures", "tokenizer")
	paths := map[string]string{} // golden file → tokenizer
	synthetic, err := filepath.Glob(filepath.Join(fixtures, "synthetic", "*", "cases.jsonl"))
	require.NoError(t, err)
	require.Len(t, synthetic, 108)
	for _, c := range synthetic {
		paths[c] = filepath.Join(filepath.Dir(c), "tokenizer.json")
	}
	for _, name := range []string{"qwen3", "deepseek_v3", "books-bpe4096", "mistral_v1", "smollm2", "nepali_wordpiece", "mon_unigram"} {
		paths[filepath.Join(fixtures, name+".jsonl")] = filepath.Join(dir, "tokenizers", name+"-tokenizer.json")
	}
	paths[filepath.Join(fixtures, "tok512.jsonl")] = filepath.Join(dir, "models", "tiny-qwen3moe-stories")
	paths[filepath.Join(fixtures, "tok105.jsonl")] = filepath.Join(dir, "models", "babyllama105-moe4")
	for golden, tok := range paths {
		name, _ := filepath.Rel(fixtures, golden)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			askTokenizer(t, golden, tok, filepath.Join(dir, "text"))
		})
	}
}

func askTokenizer(t *testing.T, golden, tok, texts string) {
	f, err := os.Open(golden)
	require.NoError(t, err)
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 64<<20)
	var in bytes.Buffer
	var check []func(answer []byte)
	n := 0
	put := func(v any, f func([]byte)) {
		in.Write(jsonLine(t, v))
		check = append(check, f)
	}
	ids := func(b []byte) []int32 {
		var a struct {
			IDs    []int32
			Tokens []string
		}
		require.NoError(t, json.Unmarshal(b, &a))
		require.Len(t, a.Tokens, len(a.IDs))
		return a.IDs
	}
	for sc.Scan() {
		n++
		line := n
		var c tokenizerCase
		require.NoError(t, json.Unmarshal(sc.Bytes(), &c))
		decode := func(list json.RawMessage, skip bool, want string) {
			put(map[string]any{"ids": list, "skip_special_tokens": skip}, func(b []byte) {
				var a struct{ Text string }
				require.NoError(t, json.Unmarshal(b, &a))
				require.Equal(t, want, a.Text, "line %d", line)
			})
		}
		switch c.Kind {
		case "text":
			if c.Error != "" {
				continue
			}
			put(map[string]any{"text": c.Text, "add_special_tokens": c.Add}, func(b []byte) {
				var want []int32
				require.NoError(t, json.Unmarshal(c.IDs, &want))
				require.Equal(t, append([]int32{}, want...), ids(b), "line %d: %q", line, c.Text)
			})
		case "file":
			if os.Getenv("QUIRE_LONG") == "" && c.File != "tinystories-valid-30k.txt" {
				continue
			}
			data, err := os.ReadFile(filepath.Join(texts, c.File))
			require.NoError(t, err)
			put(map[string]any{"text": string(data), "add_special_tokens": c.Add}, func(b []byte) {
				got := ids(b)
				require.Equal(t, c.N, len(got), c.File)
				require.Equal(t, c.SHA, digestIDs(got), c.File)
			})
			// The library pads the lines of one call to the longest; the verb answers line by line.
			if c.Lines != nil && !strings.HasSuffix(golden, "nepali_wordpiece.jsonl") {
				var all []int32
				rows := strings.Split(string(data), "\n")
				for i, row := range rows {
					put(map[string]any{"text": row, "add_special_tokens": true}, func(b []byte) {
						if all = append(all, ids(b)...); i == len(rows)-1 {
							require.Equal(t, c.Lines.N, len(all), c.File)
							require.Equal(t, c.Lines.SHA, digestIDs(all), "lines of %s", c.File)
						}
					})
				}
			}
			continue
		case "decode":
		default:
			continue
		}
		if c.Decoded != nil {
			decode(c.IDs, false, *c.Decoded)
			if c.Skip != nil {
				decode(c.IDs, true, *c.Skip)
			}
		}
	}
	require.NoError(t, sc.Err())
	answers := ask(t, in.Bytes(), "tokenize", tok)
	require.Len(t, answers, len(check))
	for i, a := range answers {
		check[i](a)
	}
}

func digestIDs(ids []int32) string {
	b := make([]byte, 0, 4*len(ids))
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// TestRenderConformance asks `quire render` every conversation of the golden files: texts, generation spans in code points, and
// errors (by their text where the template raised them itself).
func TestRenderConformance(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(shared(t), "fixtures", "chat", "*.json"))
	require.NoError(t, err)
	require.Len(t, files, 16)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			var g struct {
				Template string
				BOS      *string `json:"bos_token"`
				EOS      *string `json:"eos_token"`
				Now      string
				Cases    []struct {
					Name      string
					Messages  json.RawMessage
					Tools     json.RawMessage            `json:",omitempty"`
					Documents json.RawMessage            `json:",omitempty"`
					Prompt    bool                       `json:"add_generation_prompt"`
					Kwargs    map[string]json.RawMessage `json:",omitempty"`
					Rendered  *string
					Error     *string
					ErrorType string   `json:"error_type"`
					Spans     [][2]int `json:"generation_spans"`
				}
			}
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(b, &g))
			bare := filepath.Join(t.TempDir(), "t.jinja")
			require.NoError(t, os.WriteFile(bare, []byte(g.Template), 0o644))
			args := []string{"render", "--template", bare, "--date", g.Now}
			if g.BOS != nil {
				args = append(args, "--bos-token="+*g.BOS)
			}
			if g.EOS != nil {
				args = append(args, "--eos-token="+*g.EOS)
			}
			var in bytes.Buffer
			for _, c := range g.Cases {
				line := map[string]any{"messages": c.Messages, "add_generation_prompt": c.Prompt, "kwargs": c.Kwargs}
				if c.Tools != nil {
					line["tools"] = c.Tools
				}
				if c.Documents != nil {
					line["documents"] = c.Documents
				}
				in.Write(jsonLine(t, line))
			}
			answers := ask(t, in.Bytes(), args...)
			require.Len(t, answers, len(g.Cases))
			for i, c := range g.Cases {
				var a struct {
					Text, Error *string
					Spans       [][2]int `json:"generation_spans"`
				}
				require.NoError(t, json.Unmarshal(answers[i], &a))
				if c.Error != nil {
					require.NotNil(t, a.Error, c.Name)
					if c.ErrorType == "TemplateError" {
						require.Equal(t, *c.Error, *a.Error, c.Name)
					}
					continue
				}
				require.Nil(t, a.Error, c.Name)
				require.Equal(t, *c.Rendered, *a.Text, c.Name)
				if len(c.Spans) > 0 || len(a.Spans) > 0 {
					require.Equal(t, c.Spans, a.Spans, c.Name)
				}
			}
		})
	}
}
