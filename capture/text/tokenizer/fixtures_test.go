package tokenizer_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quire/capture/text/tokenizer"
)

// sharedDir finds the folder of large fixtures, or skips the test naming it.
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

// goldenCase is one line of a golden file; kind says which fields it has.
type goldenCase struct {
	Kind      string
	Text      string
	Pair      string
	Texts     []string
	Add       bool `json:"add_special_tokens"`
	Error     string
	Decoded   *string
	Skip      *string         `json:"decoded_skip"`
	IDs       json.RawMessage `json:"ids"`
	Attention json.RawMessage `json:"attention_mask"`
	TypeIDs   json.RawMessage `json:"type_ids"`
	Special   json.RawMessage `json:"special_tokens_mask"`
	Offsets   [][2]int
	Overflow  [][]int32 `json:"overflowing"`
	Gen       *generator
	TextSHA   string `json:"text_sha256"`
	NIDs      int    `json:"n_ids"`
	IDsSHA    string `json:"ids_sha256"`
	DecSHA    string `json:"decoded_sha256"`
	File      string
	Lines     *struct {
		N   int    `json:"n_ids"`
		SHA string `json:"ids_sha256"`
		Add *bool  `json:"add_special_tokens"`
	}
	Tokenizer string
}

// generator describes a long text (fixtures/tokenizer/README.md).
type generator struct {
	Type  string
	Kind  string
	Unit  json.RawMessage
	Times int
	Parts []json.RawMessage
	Items []string
	N     int
	Seed  uint64
}

func generate(t *testing.T, raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var g map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(raw, &g))
	var b strings.Builder
	num := func(r json.RawMessage) uint64 {
		var v uint64
		require.NoError(t, json.Unmarshal(r, &v))
		return v
	}
	var kind string
	for _, k := range []string{"op"} {
		if r, ok := g[k]; ok {
			require.NoError(t, json.Unmarshal(r, &kind))
		}
	}
	switch kind {
	case "repeat":
		unit := generate(t, g["unit"])
		for range num(g["times"]) {
			b.WriteString(unit)
		}
	case "concat":
		var parts []json.RawMessage
		require.NoError(t, json.Unmarshal(g["parts"], &parts))
		for _, p := range parts {
			b.WriteString(generate(t, p))
		}
	case "lcg":
		var items []string
		require.NoError(t, json.Unmarshal(g["items"], &items))
		x := num(g["seed"])
		for range num(g["n"]) {
			x = x*6364136223846793005 + 1442695040888963407
			b.WriteString(items[(x>>33)%uint64(len(items))])
		}
	default:
		t.Fatalf("generator %s", raw)
	}
	return b.String()
}

func sumIDs(ids []int32) string {
	h := sha256.New()
	var b [4]byte
	for _, id := range ids {
		binary.LittleEndian.PutUint32(b[:], uint32(id))
		h.Write(b[:])
	}
	return hex.EncodeToString(h.Sum(nil))
}

func sumText(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// checkGolden runs every case of a golden file.
func checkGolden(t *testing.T, tok *tokenizer.Tokenizer, cases, textDir string) {
	f, err := os.Open(cases)
	require.NoError(t, err)
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 64<<20)
	failed, line := 0, 0
	report := func(format string, args ...any) {
		failed++
		if failed <= 8 {
			t.Errorf("%s:%d: %s", filepath.Base(filepath.Dir(cases))+"/"+filepath.Base(cases), line, fmt.Sprintf(format, args...))
		}
	}
	for sc.Scan() {
		line++
		var c goldenCase
		require.NoError(t, json.Unmarshal(sc.Bytes(), &c), sc.Text())
		o := tokenizer.Options{NoSpecialTokens: !c.Add, Offsets: true, Tokens: true}
		one := func() (ids []int32) { require.NoError(t, json.Unmarshal(c.IDs, &ids)); return ids }
		decoded := func(ids []int32) {
			if c.Decoded != nil {
				if got := tok.Decode(ids, false); got != *c.Decoded {
					report("%s %q: decoded %q, want %q", c.Kind, c.Text, got, *c.Decoded)
				}
				want := *c.Decoded
				if c.Skip != nil {
					want = *c.Skip
				}
				if got := tok.Decode(ids, true); got != want {
					report("%s %q: decoded without specials %q, want %q", c.Kind, c.Text, got, want)
				}
			}
		}
		switch c.Kind {
		case "header":
		case "text", "pair":
			var e *tokenizer.Encoding
			var err error
			if c.Kind == "pair" {
				e, err = tok.EncodePair(c.Text, c.Pair, o)
			} else {
				e, err = tok.Encode(c.Text, o)
			}
			if c.Error != "" {
				if err == nil {
					report("%q: want error %s", c.Text, c.Error)
				}
				continue
			}
			if err != nil {
				report("%q: %v", c.Text, err)
				continue
			}
			want := one()
			if !equal(e.IDs, want) {
				report("%s %q %v: ids %v, want %v", c.Kind, c.Text, c.Add, e.IDs, want)
				continue
			}
			decoded(want)
			if c.Offsets != nil && c.Kind == "text" {
				if got := pointOffsets(c.Text, e.Offsets); fmt.Sprint(got) != fmt.Sprint(c.Offsets) {
					report("%q: offsets %v, want %v", c.Text, got, c.Offsets)
				}
			}
			if e.TypeIDs == nil {
				e.TypeIDs = make([]int32, len(e.IDs))
				e.Special = make([]bool, len(e.IDs))
				e.Attention = slices.Repeat([]bool{true}, len(e.IDs))
			}
			bit := func(name string, got []bool, want json.RawMessage) {
				if want == nil {
					return
				}
				var w []int
				require.NoError(t, json.Unmarshal(want, &w))
				for i := range w {
					if got[i] != (w[i] != 0) {
						report("%q: %s %v, want %v", c.Text, name, got, w)
						return
					}
				}
			}
			bit("attention", e.Attention, c.Attention)
			bit("special", e.Special, c.Special)
			if c.TypeIDs != nil {
				var w []int32
				require.NoError(t, json.Unmarshal(c.TypeIDs, &w))
				if !equal(e.TypeIDs, w) {
					report("%q: type ids %v, want %v", c.Text, e.TypeIDs, w)
				}
			}
			if c.Overflow != nil {
				if len(e.Overflow) != len(c.Overflow) {
					report("%q: %d overflowing, want %d", c.Text, len(e.Overflow), len(c.Overflow))
				} else {
					for i, w := range c.Overflow {
						if !equal(e.Overflow[i].IDs, w) {
							report("%q: overflow %d %v, want %v", c.Text, i, e.Overflow[i].IDs, w)
						}
					}
				}
			}
		case "batch":
			all, err := tok.EncodeBatch(c.Texts, o)
			require.NoError(t, err)
			var want [][]int32
			require.NoError(t, json.Unmarshal(c.IDs, &want))
			for i := range want {
				if !equal(all[i].IDs, want[i]) {
					report("batch %q: ids %v, want %v", c.Texts[i], all[i].IDs, want[i])
				}
			}
		case "decode":
			decoded(one())
		case "gen", "file":
			var text string
			if c.Kind == "gen" {
				var g struct{ Gen json.RawMessage }
				require.NoError(t, json.Unmarshal(sc.Bytes(), &g))
				text = generate(t, g.Gen)
				require.Equal(t, c.TextSHA, sumText(text))
			} else {
				data, err := os.ReadFile(filepath.Join(textDir, c.File))
				require.NoError(t, err)
				text = string(data)
			}
			if len(text) > 100_000 && os.Getenv("QUIRE_LONG") != "1" {
				continue // megabytes: with the long suites
			}
			o.Offsets, o.Tokens = false, false
			e, err := tok.Encode(text, o)
			require.NoError(t, err)
			if len(e.IDs) != c.NIDs || sumIDs(e.IDs) != c.IDsSHA {
				report("%s %s: %d ids, want %d", c.Kind, c.File, len(e.IDs), c.NIDs)
			}
			if c.DecSHA != "" && sumText(tok.Decode(e.IDs, false)) != c.DecSHA {
				report("%s: decoded text differs", c.Kind)
			}
			if c.Lines != nil {
				var ids []int32
				o.NoSpecialTokens = false
				all, err := tok.EncodeBatch(strings.Split(text, "\n"), o) // one batch: padding acts on it
				require.NoError(t, err)
				for _, e := range all {
					ids = append(ids, e.IDs...)
				}
				if len(ids) != c.Lines.N || sumIDs(ids) != c.Lines.SHA {
					report("lines of %s: %d ids, want %d", c.File, len(ids), c.Lines.N)
				}
			}
		default:
			t.Fatalf("kind %q", c.Kind)
		}
	}
	require.NoError(t, sc.Err())
	if failed > 0 {
		t.Errorf("%d differences in %d cases", failed, line)
	}
}

func equal(a, b []int32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// pointOffsets turns byte offsets into code points.
func pointOffsets(s string, offs [][2]int) [][2]int {
	points := make([]int, len(s)+1)
	n := 0
	for i := range s {
		points[i] = n
		n++
	}
	points[len(s)] = n
	out := make([][2]int, len(offs))
	for i, o := range offs {
		out[i] = [2]int{points[o[0]], points[o[1]]}
	}
	return out
}

func TestSyntheticTokenizers(t *testing.T) {
	root := filepath.Join(sharedDir(t), "fixtures", "tokenizer", "synthetic")
	dirs, err := os.ReadDir(root)
	require.NoError(t, err)
	require.NotEmpty(t, dirs)
	for _, d := range dirs {
		t.Run(d.Name(), func(t *testing.T) {
			t.Parallel()
			tok, err := tokenizer.Load(filepath.Join(root, d.Name(), "tokenizer.json"))
			require.NoError(t, err)
			checkGolden(t, tok, filepath.Join(root, d.Name(), "cases.jsonl"), "")
		})
	}
}

func TestRealTokenizers(t *testing.T) {
	shared := sharedDir(t)
	for name, file := range map[string]string{
		"qwen3": "tokenizers/qwen3-tokenizer.json", "deepseek_v3": "tokenizers/deepseek_v3-tokenizer.json", "books-bpe4096": "tokenizers/books-bpe4096-tokenizer.json",
		"mistral_v1": "tokenizers/mistral_v1-tokenizer.json", "smollm2": "tokenizers/smollm2-tokenizer.json", "nepali_wordpiece": "tokenizers/nepali_wordpiece-tokenizer.json",
		"mon_unigram": "tokenizers/mon_unigram-tokenizer.json", "tok512": "models/tiny-qwen3moe-stories/tokenizer.json", "tok105": "models/babyllama105-moe4/tokenizer.json",
	} {
		if os.Getenv("QUIRE_LONG") == "" && !slices.Contains([]string{"qwen3", "mistral_v1", "nepali_wordpiece", "tok512"}, name) {
			continue // one of each kind; all with the long suites, and through the verb (cmd/quire)
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(filepath.Join(shared, file))
			require.NoError(t, err)
			tok, err := tokenizer.Parse(data)
			require.NoError(t, err)
			checkGolden(t, tok, filepath.Join(shared, "fixtures", "tokenizer", name+".jsonl"), filepath.Join(shared, "text"))
		})
	}
}
