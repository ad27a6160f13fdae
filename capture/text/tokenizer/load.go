package tokenizer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxFile bounds a tokenizer file; the largest published ones have some 30 MB.
const maxFile = 256 << 20

// Load reads the tokenizer of a model directory (tokenizer.json, else a SentencePiece tokenizer.model, else a tiktoken file),
// or the given file. Errors are *UnsupportedError for parts that are not implemented, else say what is wrong with the file.
func Load(path string) (*Tokenizer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return loadFile(path)
	}
	for _, name := range []string{"tokenizer.json", "tokenizer.model", "tiktoken.model", "qwen.tiktoken"} {
		file := filepath.Join(path, name)
		if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		return loadFile(file)
	}
	return nil, fmt.Errorf("%w: the directory has no tokenizer.json, tokenizer.model or tiktoken.model", fs.ErrNotExist)
}

func loadFile(path string) (*Tokenizer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s has %d bytes, more than the %d that a tokenizer may have", path, info.Size(), maxFile)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	cfg, err := readConfig(filepath.Join(filepath.Dir(path), "tokenizer_config.json"))
	if err != nil {
		return nil, err
	}
	var t *Tokenizer
	switch trimmed := strings.TrimLeft(string(data[:min(len(data), 64)]), " \t\r\n\ufeff"); {
	case strings.HasPrefix(trimmed, "{"):
		t, err = Parse(data)
	case looksTiktoken(data):
		t, err = parseTiktoken(data, cfg)
	default:
		t, err = parseSentencePiece(data)
	}
	if err != nil {
		return nil, err
	}
	t.findBOS(cfg)
	return t, nil
}

// config is what tokenizer_config.json says beyond tokenizer.json.
type config struct {
	Class  string          `json:"tokenizer_class"`
	AddBOS *bool           `json:"add_bos_token"`
	BOS    json.RawMessage `json:"bos_token"`
	Added  map[string]struct {
		Content string `json:"content"`
		Special bool   `json:"special"`
		LStrip  bool   `json:"lstrip"`
		RStrip  bool   `json:"rstrip"`
		Single  bool   `json:"single_word"`
		Normal  bool   `json:"normalized"`
	} `json:"added_tokens_decoder"`
}

func (c *config) bosText() string {
	if c == nil || isNull(c.BOS) {
		return ""
	}
	var s string
	if json.Unmarshal(c.BOS, &s) == nil {
		return s
	}
	var o struct{ Content string }
	if json.Unmarshal(c.BOS, &o) == nil {
		return o.Content
	}
	return ""
}

func readConfig(path string) (*config, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c := &config{}
	if err := json.Unmarshal(data, c); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// findBOS sets the beginning-of-sequence token: the special token that the post-processor puts before a text; or, where it puts none,
// bos_token if the configuration says add_bos_token and names the Llama class, which rebuilds its post-processor from that.
func (t *Tokenizer) findBOS(cfg *config) {
	if tp := templateOf(t.post); tp != nil && len(tp.single) > 0 && tp.single[0].seq < 0 && len(tp.single[0].ids) > 0 {
		el := tp.single[0]
		t.bos = &bosToken{id: el.ids[0], content: el.tokens[0], added: true}
		return
	}
	if cfg == nil || cfg.AddBOS == nil || !*cfg.AddBOS || !strings.HasPrefix(cfg.Class, "Llama") {
		return
	}
	if s := cfg.bosText(); s != "" {
		if id, ok := t.ID(s); ok {
			t.bos = &bosToken{id: id, content: s}
		}
	}
}

// templateOf is the part of a post-processor that adds tokens.
func templateOf(p postProcessor) *template {
	switch p := p.(type) {
	case *template:
		return p
	case postSequence:
		for _, q := range p {
			if t := templateOf(q); t != nil && t.added(false) > 0 {
				return t
			}
		}
	}
	return nil
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

func unmarshalSection(section string, raw json.RawMessage, v any) error {
	if err := json.Unmarshal(raw, v); err != nil {
		return fmt.Errorf("%s: %w", section, err)
	}
	return nil
}

// Parse reads a tokenizer.json.
func Parse(data []byte) (*Tokenizer, error) {
	var f struct {
		Added         []addedToken    `json:"added_tokens"`
		Truncation    json.RawMessage `json:"truncation"`
		Padding       json.RawMessage `json:"padding"`
		Normalizer    json.RawMessage `json:"normalizer"`
		PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
		Model         json.RawMessage `json:"model"`
		PostProcessor json.RawMessage `json:"post_processor"`
		Decoder       json.RawMessage `json:"decoder"`
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("not a tokenizer.json: %w", err)
	}
	if isNull(f.Model) {
		return nil, errors.New("not a tokenizer.json: it has no model")
	}
	sum := sha256.Sum256(data)
	t := &Tokenizer{digest: hex.EncodeToString(sum[:])}
	var err error
	if t.normalizer, err = parseNormalizer(f.Normalizer); err != nil {
		return nil, err
	}
	var nf struct{ Type string }
	if !isNull(f.Normalizer) && json.Unmarshal(f.Normalizer, &nf) == nil {
		t.onlyNFC = nf.Type == "NFC"
	}
	if t.pre, err = parsePreTokenizer(f.PreTokenizer); err != nil {
		return nil, err
	}
	var m struct {
		Type     string
		Prefix   *string `json:"continuing_subword_prefix"`
		Suffix   *string `json:"end_of_word_suffix"`
		Fallback bool    `json:"byte_fallback"`
	}
	if err := unmarshalSection("model", f.Model, &m); err != nil {
		return nil, err
	}
	if (m.Type == "BPE" || m.Type == "") && byteInputPossible(m.Prefix, m.Suffix, m.Fallback) {
		t.byteInput = rawBytes(t.pre)
	}
	if t.model, err = parseModel(f.Model, t.byteInput); err != nil {
		return nil, err
	}
	if t.post, err = parsePost(f.PostProcessor); err != nil {
		return nil, err
	}
	if t.decoder, err = parseDecoder(f.Decoder); err != nil {
		return nil, err
	}
	if t.truncation, err = parseTruncation(f.Truncation); err != nil {
		return nil, err
	}
	if t.padding, err = parsePadding(f.Padding); err != nil {
		return nil, err
	}
	if err := t.setAdded(f.Added); err != nil {
		return nil, err
	}
	t.fast = chain(t.pre, t.byteInput)
	return t, nil
}

// rawBytes makes a pre-tokenizer that ends in ByteLevel hand over raw bytes, and says whether it could.
func rawBytes(p preTokenizer) bool {
	switch p := p.(type) {
	case *byteLevel:
		p.raw = true
		return true
	case sequence:
		for _, q := range p[:len(p)-1] {
			if _, ok := q.(*byteLevel); ok {
				return false
			}
		}
		return rawBytes(p[len(p)-1])
	}
	return false
}

// chain gives a pre-tokenizer as scanners, if all of its parts are.
func chain(p preTokenizer, bytes bool) []scanner {
	switch p := p.(type) {
	case *splitter:
		if p.fast != nil {
			return []scanner{p.fast}
		}
	case *byteLevel:
		if !bytes || p.prefix {
			return nil
		}
		if p.split == nil {
			return []scanner{}
		}
		return chain(p.split, bytes)
	case sequence:
		out := []scanner{}
		for _, q := range p {
			c := chain(q, bytes)
			if c == nil {
				return nil
			}
			out = append(out, c...)
		}
		return out
	}
	return nil
}

func (t *Tokenizer) setAdded(list []addedToken) error {
	t.raw, t.normal = newAddedSet(), newAddedSet()
	t.added, t.addedByID = map[string]*addedToken{}, map[int32]*addedToken{}
	for i := range list {
		a := &list[i]
		if a.Content == "" {
			continue
		}
		if id, ok := t.model.id(a.Content); ok {
			a.ID = id // the reference asks the model first
		}
		if a.ID < 0 {
			return fmt.Errorf("added token %q has the negative id %d", a.Content, a.ID)
		}
		t.added[a.Content] = a
		t.addedByID[a.ID] = a
		t.maxID = max(t.maxID, a.ID)
		a.text = a.Content
		if !a.Normalized {
			t.raw.add(a.Content, a)
			continue
		}
		text := a.Content
		if t.normalizer != nil {
			n, err := t.normalizer(whole(text))
			if err != nil {
				return err
			}
			text = n.s
		}
		a.text = text
		t.normal.add(text, a)
	}
	if v, ok := t.model.(interface{ largest() int32 }); ok {
		t.maxID = max(t.maxID, v.largest())
	}
	return nil
}

func (v vocabulary) largest() int32 {
	var m int32
	for id := range v.tokens {
		m = max(m, id)
	}
	return m
}
