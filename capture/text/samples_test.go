package text_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"quire/capture/text"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testdata = "../../testdata/text"

// tokenizer gives a small one whose post-processor adds BOS and EOS.
func tokenizer(t testing.TB) *text.Tokenizer {
	tok, err := text.LoadTokenizer(filepath.Join(testdata, "tokenizer", "template_bos_eos", "tokenizer.json"))
	require.NoError(t, err)
	return tok
}

func file(t testing.TB, name, content string) string {
	p := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(p, []byte(content), 0o600))
	return p
}

func load(t testing.TB, tok *text.Tokenizer, tmpl *text.Template, o text.Options, files ...string) *text.Calibration {
	c, err := text.LoadSamples(context.Background(), tok, tmpl, files, o)
	require.NoError(t, err)
	adds := c.Counts.Used + c.Counts.Clipped + c.Counts.Merged + c.Counts.Dropped
	require.Equal(t, c.Counts.Samples, adds, "counts add up")
	sum := 0
	for _, n := range c.Counts.DroppedBy {
		sum += n
	}
	require.Equal(t, c.Counts.Dropped, sum)
	kept, tokens := 0, 0
	for i, f := range c.Fates {
		require.Equal(t, f.Outcome == text.Dropped, f.Batch < 0, "fate %d: %+v", i, f)
		kept += f.Kept
	}
	for _, b := range c.Batches {
		tokens += len(b.IDs)
		if b.Mask != nil {
			require.Len(t, b.Mask, len(b.IDs))
		}
	}
	require.Equal(t, tokens, kept, "every token of a batch is some sample's")
	return c
}

func reasons(c *text.Calibration) map[string]int { return c.Counts.DroppedBy }

// idLines gives n records of input_ids; record i holds i+1 ids.
func idLines(n int) string {
	var b strings.Builder
	for i := range n {
		ids := make([]int, i+1)
		for j := range ids {
			ids[j] = 100*i%400 + j%50
		}
		line, _ := json.Marshal(map[string]any{"input_ids": ids})
		b.Write(line)
		b.WriteByte('\n')
	}
	return b.String()
}

func TestFirstUsableSamplesInOrder(t *testing.T) {
	c := load(t, nil, nil, text.Options{Samples: 3, SeqLen: 8, MinLen: 4}, file(t, "a.jsonl", idLines(20)))
	require.Len(t, c.Batches, 3)
	require.Equal(t, []int{4, 5, 6}, []int{len(c.Batches[0].IDs), len(c.Batches[1].IDs), len(c.Batches[2].IDs)})
	require.Equal(t, map[string]int{text.ReasonShort: 3, text.ReasonBeyond: 14}, reasons(c))
	require.Equal(t, 20, c.Counts.Samples)
	require.Empty(t, c.Warnings)
	all := load(t, nil, nil, text.Options{SeqLen: 8, MinLen: 1}, file(t, "a.jsonl", idLines(20)))
	require.Equal(t, 12, all.Counts.Clipped)
	require.Equal(t, 8, all.Counts.Used)
}

func TestTooFewSamplesIsSaid(t *testing.T) {
	c := load(t, nil, nil, text.Options{Samples: 50, MinLen: 3}, file(t, "a.jsonl", idLines(10)))
	require.Len(t, c.Warnings, 1)
	require.Contains(t, c.Warnings[0], "8 of 50")
	_, err := text.LoadSamples(context.Background(), nil, nil, []string{file(t, "a.jsonl", idLines(2))}, text.Options{MinLen: 9})
	require.ErrorIs(t, err, text.ErrNoSamples)
}

// TestResultIndependentOfThreads compares whole results, over a set larger than what is in flight at once.
func TestResultIndependentOfThreads(t *testing.T) {
	var b strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&b, "{\"text\":\"sample %d %s\"}\n", i, strings.Repeat("word ", i%17))
	}
	path := file(t, "a.jsonl", b.String())
	for _, o := range []text.Options{{Samples: 40, SeqLen: 20, MinLen: 8}, {Samples: 40, SeqLen: 20, MinLen: 8, Shuffle: true, Seed: 7}, {Samples: 9, SeqLen: 32, Concat: true, Shuffle: true, Seed: 1}, {Samples: 25, SeqLen: 16, Concat: true, Sort: "desc"}} {
		o.Threads = 1
		one := load(t, tokenizer(t), nil, o, path)
		require.Equal(t, o.Samples, len(one.Batches))
		o.Threads = 5
		require.Equal(t, one, load(t, tokenizer(t), nil, o, path))
		require.Equal(t, text.DigestOf(one.Batches), one.Digest)
	}
}

// TestShuffleDrawsTheSmallestKeys holds the streaming draw against sorting everything.
func TestShuffleDrawsTheSmallestKeys(t *testing.T) {
	path := file(t, "a.jsonl", idLines(300))
	all := load(t, nil, nil, text.Options{MinLen: 50, Shuffle: true, Seed: 42}, path)
	some := load(t, nil, nil, text.Options{Samples: 20, MinLen: 50, Shuffle: true, Seed: 42}, path)
	require.Len(t, all.Batches, 251)
	require.Equal(t, all.Batches[:20], some.Batches)
	other := load(t, nil, nil, text.Options{Samples: 20, MinLen: 50, Shuffle: true, Seed: 43}, path)
	require.NotEqual(t, some.Digest, other.Digest)
}

func TestConcatCutsOneStream(t *testing.T) {
	c := load(t, nil, nil, text.Options{SeqLen: 16, MinLen: 4, Concat: true}, file(t, "a.jsonl", idLines(10))) // 55 ids
	require.Len(t, c.Batches, 4)
	require.Len(t, c.Batches[3].IDs, 7)
	require.Equal(t, 10, c.Counts.Merged)
	c = load(t, nil, nil, text.Options{SeqLen: 16, MinLen: 8, Concat: true}, file(t, "a.jsonl", idLines(10)))
	require.Len(t, c.Batches, 3)
	require.Equal(t, 9, c.Counts.Merged)
	require.Equal(t, 1, c.Counts.Clipped)
	c = load(t, nil, nil, text.Options{Samples: 2, SeqLen: 16, Concat: true}, file(t, "a.jsonl", idLines(10)))
	require.Len(t, c.Batches, 2)
	require.Equal(t, 7, c.Counts.Merged) // 1+…+7 = 28 ids
	require.Equal(t, 1, c.Counts.Clipped)
	require.Equal(t, map[string]int{text.ReasonBeyond: 2}, reasons(c))
}

func TestBadRecordsAreCountedByLine(t *testing.T) {
	content := `{"input_ids":[1,2,3]}
not json
{"input_ids":[[1,2]]}
{"input_ids":[1,-2]}
{"other":1}
[1]

{"input_ids":[]}
{"input_ids":[7,8,9,0],"attention_mask":[0,1,1,0]}
{"input_ids":[7,8,9],"attention_mask":[1,0,1]}
{"input_ids":[1,2],"mask":[1]}
{"input_ids":[1,900]}
`
	path := file(t, "a.jsonl", content)
	_, err := text.LoadSamples(context.Background(), nil, nil, []string{path}, text.Options{})
	require.ErrorIs(t, err, text.ErrTooManyBad)
	require.Contains(t, err.Error(), path+":2")
	c := load(t, nil, nil, text.Options{MaxBad: 1, VocabSize: 512}, path)
	require.Equal(t, map[string]int{text.ReasonBadRecord: 2, text.ReasonBadShape: 2, text.ReasonBadID: 2, text.ReasonNoColumn: 1, text.ReasonEmpty: 1, text.ReasonMaskLength: 1}, reasons(c))
	require.Equal(t, []text.Batch{{IDs: []int32{1, 2, 3}, Samples: []int{0}}, {IDs: []int32{8, 9}, Samples: []int{7}}}, c.Batches)
	require.Equal(t, 9, c.Fates[7].Record, "the empty line counts as a line")
}

func TestRawTokenFiles(t *testing.T) {
	ids := make([]uint32, 21)
	var u16, u32 []byte
	for i := range ids {
		u16 = binary.LittleEndian.AppendUint16(u16, uint16(i))
		u32 = binary.LittleEndian.AppendUint32(u32, uint32(i))
	}
	a, b := file(t, "a.u16", string(u16)), file(t, "a.u32", string(u32))
	ca := load(t, nil, nil, text.Options{SeqLen: 8, MinLen: 5}, a)
	cb := load(t, nil, nil, text.Options{SeqLen: 8, MinLen: 5}, b)
	require.Equal(t, ca.Digest, cb.Digest)
	require.Len(t, ca.Batches, 3)
	require.Len(t, ca.Batches[2].IDs, 5)
	seqs, err := text.ReadTokens(context.Background(), a)
	require.NoError(t, err)
	require.Len(t, seqs, 1)
	require.Len(t, seqs[0], 21)
	_, err = text.ReadTokens(context.Background(), file(t, "odd.u32", string(u32[:6])))
	require.ErrorIs(t, err, text.ErrDataset)
}

func TestCompressedAndArrays(t *testing.T) {
	plain := idLines(6)
	want := load(t, nil, nil, text.Options{}, file(t, "a.jsonl", plain)).Digest
	var gz bytes.Buffer
	zw := gzip.NewWriter(&gz)
	zw.Write([]byte(plain))
	require.NoError(t, zw.Close())
	require.Equal(t, want, load(t, nil, nil, text.Options{}, file(t, "a.jsonl.gz", gz.String())).Digest)
	var zs bytes.Buffer
	w, err := zstd.NewWriter(&zs)
	require.NoError(t, err)
	w.Write([]byte(plain))
	require.NoError(t, w.Close())
	require.Equal(t, want, load(t, nil, nil, text.Options{}, file(t, "a.jsonl.zst", zs.String())).Digest)
	array := "[" + strings.ReplaceAll(strings.TrimSpace(plain), "\n", ",\n") + "]"
	require.Equal(t, want, load(t, nil, nil, text.Options{}, file(t, "a.json", array)).Digest)
	require.Equal(t, want, load(t, nil, nil, text.Options{}, file(t, "a.json", "\ufeff"+plain)).Digest)
	_, err = text.LoadSamples(context.Background(), nil, nil, []string{file(t, "b.jsonl.gz", gz.String()[:gz.Len()-12])}, text.Options{})
	require.ErrorIs(t, err, text.ErrDataset)
}

func TestDirectoriesAndGlobs(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []string{"b.jsonl", "a.jsonl", "notes.pdf", ".hidden.jsonl", "sub/c.jsonl"} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, n)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, n), []byte(idLines(2)), 0o600))
	}
	got, err := text.ExpandFiles([]string{dir})
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(dir, "a.jsonl"), filepath.Join(dir, "b.jsonl"), filepath.Join(dir, "sub", "c.jsonl")}, got)
	got, err = text.ExpandFiles([]string{filepath.Join(dir, "*.jsonl")})
	require.NoError(t, err)
	require.Contains(t, got, filepath.Join(dir, "a.jsonl"))
	for _, bad := range []string{filepath.Join(dir, "none.jsonl"), filepath.Join(dir, "x*.jsonl"), filepath.Join(dir, "notes.pdf")} {
		_, err := text.ExpandFiles([]string{bad})
		var e *text.Error
		require.True(t, errors.As(err, &e), bad)
		require.NotEmpty(t, e.Remedy())
		require.Equal(t, 64, e.ExitCode())
	}
}

func TestTextAndBOS(t *testing.T) {
	tok := tokenizer(t)
	id, bos, ok := tok.BOS()
	require.True(t, ok)
	c := load(t, tok, nil, text.Options{}, file(t, "a.jsonl", `{"text":"Hello there"}`+"\n"+fmt.Sprintf("{\"text\":%q}\n", bos+"Hello there")))
	require.Len(t, c.Batches, 2)
	for _, b := range c.Batches {
		require.Equal(t, id, b.IDs[0])
		require.NotEqual(t, id, b.IDs[1], "BOS is never doubled")
	}
	require.Equal(t, 2, c.BOS.Starting)
	require.Equal(t, 1, c.BOS.Removed)
	lines := load(t, tok, nil, text.Options{}, file(t, "a.txt", "Hello there\n\n  \nfriend of mine\r\n"))
	require.Equal(t, 2, lines.Counts.Used)
	require.Equal(t, 4, lines.Fates[1].Record)
	require.Equal(t, 1, load(t, tok, nil, text.Options{TextSplit: "document"}, file(t, "a.txt", "Hello\n\nfriend\n")).Counts.Used)
	require.Equal(t, 2, load(t, tok, nil, text.Options{TextSplit: "paragraph"}, file(t, "a.txt", "Hello\nthere\n\nfriend\n")).Counts.Used)
	_, err := text.LoadSamples(context.Background(), nil, nil, []string{file(t, "a.txt", "x\n")}, text.Options{})
	require.ErrorIs(t, err, text.ErrNoTokenizer)
}

const chatTemplate = `{{ bos_token }}{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}
{% endfor %}`

func chatModel(t testing.TB) *text.Template {
	dir := t.TempDir()
	_, bos, _ := tokenizer(t).BOS()
	cfg, err := json.Marshal(map[string]any{"bos_token": bos, "chat_template": chatTemplate})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), cfg, 0o600))
	tmpl, err := text.LoadTemplate(dir, "")
	require.NoError(t, err)
	return tmpl
}

func TestConversationsAndMasks(t *testing.T) {
	tok, tmpl := tokenizer(t), chatModel(t)
	id, _, _ := tok.BOS()
	data := file(t, "a.jsonl", `{"messages":[{"role":"user","content":"Hello there"},{"role":"assistant","content":"friend"}]}
{"conversations":[{"from":"human","value":"Hello there"},{"from":"gpt","value":"friend"}]}
{"messages":[{"role":"user","content":"only a question"}]}
{"prompt":"Hello there","completion":" friend"}
{"prompt":[{"role":"user","content":"Hello there"}],"completion":[{"role":"assistant","content":"friend"}]}
`)
	all := load(t, tok, tmpl, text.Options{}, data)
	require.Len(t, all.Batches, 5)
	require.Equal(t, all.Batches[0].IDs, all.Batches[1].IDs)
	require.Equal(t, all.Batches[0].IDs, all.Batches[4].IDs)
	require.Equal(t, id, all.Batches[0].IDs[0])
	require.NotEqual(t, id, all.Batches[0].IDs[1])
	c := load(t, tok, tmpl, text.Options{Count: text.CountAssistant}, data)
	require.Len(t, c.Batches, 4)
	require.Equal(t, map[string]int{text.ReasonNoMask: 1}, reasons(c))
	for _, b := range c.Batches {
		var kept []int32
		for i, on := range b.Mask {
			if on {
				kept = append(kept, b.IDs[i])
			}
		}
		require.Equal(t, "friend", strings.TrimSpace(tok.Decode(kept, true)))
	}
	_, err := text.LoadSamples(context.Background(), tok, nil, []string{data}, text.Options{})
	require.ErrorIs(t, err, text.ErrNoTemplate)
	require.Contains(t, err.Error(), data+":1")
}

func TestExplicitMask(t *testing.T) {
	data := file(t, "a.jsonl", `{"input_ids":[5,6,7,8],"mask":[0,1,1,0]}
{"input_ids":[5,6,7,8],"labels":[-100,-100,7,8]}
{"input_ids":[5,6,7,8]}
{"input_ids":[5,6,7,8],"loss_mask":[false,false,false,true]}
`)
	c := load(t, nil, nil, text.Options{Count: text.CountMask, SeqLen: 3}, data)
	require.Equal(t, [][]bool{{false, true, true}, {false, false, true}}, [][]bool{c.Batches[0].Mask, c.Batches[1].Mask})
	require.Equal(t, map[string]int{text.ReasonNoMask: 1, text.ReasonNoRows: 1}, reasons(c))
	require.Equal(t, 3, c.Counts.Rows)
	plain := load(t, nil, nil, text.Options{SeqLen: 3}, data)
	require.Nil(t, plain.Batches[0].Mask)
	require.NotEqual(t, plain.Digest, c.Digest)
}

func TestParquetWrittenByPyarrow(t *testing.T) {
	tok, tmpl := tokenizer(t), chatModel(t)
	c := load(t, tok, tmpl, text.Options{MaxBad: 1}, filepath.Join(testdata, "messages.parquet"))
	require.Equal(t, 2, c.Counts.Used)
	require.Equal(t, map[string]int{text.ReasonBadShape: 1}, reasons(c)) // an empty list of messages
	require.Contains(t, tok.Decode(c.Batches[0].IDs, true), "assistant: Hi, friend")
	c = load(t, tok, nil, text.Options{MaxBad: 1}, filepath.Join(testdata, "text.parquet"))
	require.Equal(t, 1, c.Counts.Used)
	c = load(t, nil, nil, text.Options{Count: text.CountMask}, filepath.Join(testdata, "ids.parquet"))
	require.Equal(t, []int32{1, 2, 3}, c.Batches[0].IDs)
	require.Equal(t, []bool{false, true, true}, c.Batches[0].Mask)
	require.Equal(t, []int32{4, 5}, c.Batches[1].IDs)
	c = load(t, nil, nil, text.Options{Samples: 1}, filepath.Join(testdata, "ids.parquet"))
	require.Equal(t, map[string]int{text.ReasonBeyond: 2}, reasons(c))
}

func TestStandardInput(t *testing.T) {
	c := load(t, nil, nil, text.Options{Stdin: strings.NewReader(idLines(3))}, "-")
	require.Equal(t, load(t, nil, nil, text.Options{}, file(t, "a.jsonl", idLines(3))).Digest, c.Digest)
}

func TestContradictingOptions(t *testing.T) {
	for _, o := range []text.Options{{Samples: -1}, {SeqLen: 8, MinLen: 9}, {Concat: true}, {Sort: "up"}, {Count: "some"}, {MaxBad: 2}, {TextSplit: "word"}, {ApplyTemplate: "yes"}, {TemplateDate: "today"}} {
		_, err := text.LoadSamples(context.Background(), nil, chatModel(t), []string{file(t, "a.jsonl", idLines(2))}, o)
		require.ErrorIs(t, err, text.ErrOptions, "%+v", o)
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := text.LoadSamples(ctx, nil, nil, []string{file(t, "a.jsonl", idLines(2))}, text.Options{})
	require.ErrorIs(t, err, context.Canceled)
}

// TestLineWithoutEnd bounds the memory that one line may take.
func TestLineWithoutEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("-short leaves out what writes 65 MiB")
	}
	p := file(t, "a.jsonl", `{"text":"`+strings.Repeat("x", 64<<20)+"\"}\n{\"input_ids\":[1]}\n")
	c := load(t, nil, nil, text.Options{}, p)
	require.Equal(t, map[string]int{text.ReasonBadRecord: 1}, reasons(c))
	require.Len(t, c.Batches, 1)
}

func FuzzJSONLines(f *testing.F) {
	f.Add([]byte(idLines(3)))
	f.Add([]byte("[{\"input_ids\":[1]}, 3]"))
	f.Add([]byte("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}\n{\"text\":\"a\",\"mask\":[1]}"))
	tok, tmpl := tokenizer(f), chatModel(f)
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		p := filepath.Join(dir, "a.jsonl")
		require.NoError(t, os.WriteFile(p, data, 0o600))
		c, err := text.LoadSamples(context.Background(), tok, tmpl, []string{p}, text.Options{MaxBad: 1, SeqLen: 64, Count: text.CountAssistant})
		if err == nil {
			require.Equal(t, c.Counts.Samples, c.Counts.Used+c.Counts.Clipped+c.Counts.Dropped)
		}
	})
}

func FuzzParquet(f *testing.F) {
	for _, n := range []string{"messages.parquet", "ids.parquet"} {
		data, err := os.ReadFile(filepath.Join(testdata, n))
		require.NoError(f, err)
		f.Add(data)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		p := filepath.Join(dir, "a.parquet")
		require.NoError(t, os.WriteFile(p, data, 0o600))
		_, _ = text.LoadSamples(context.Background(), nil, nil, []string{p}, text.Options{MaxBad: 1})
	})
}
