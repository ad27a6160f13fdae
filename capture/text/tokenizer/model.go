package tokenizer

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// tok is one token of a piece: its id and the bytes [lo, hi) of the piece that it stands for.
type tok struct{ id, lo, hi int32 }

// model turns a piece into tokens.
type model interface {
	// tokenize appends the tokens of a piece; w is scratch of the calling goroutine.
	tokenize(dst []tok, piece string, w *workspace) ([]tok, error)
	id(token string) (int32, bool)
	token(id int32) (string, bool)
	size() int
}

// workspace is what one goroutine needs: a bounded cache of words, merge queues.
type workspace struct {
	cache   map[string][]tok
	symbols []symbolNode
	queue   []mergeEntry
	best    []pathNode
}

const (
	cacheWords    = 1 << 16
	cacheWordSize = 48 // bytes; longer words are rare and not kept
)

// vocabulary maps tokens to ids both ways.
type vocabulary struct {
	ids    map[string]int32
	tokens map[int32]string
}

func newVocabulary(ids map[string]int32) vocabulary {
	v := vocabulary{ids: ids, tokens: make(map[int32]string, len(ids))}
	for t, id := range ids {
		if old, ok := v.tokens[id]; !ok || t < old { // two names of one id: the smaller, whatever the order of the map
			v.tokens[id] = t
		}
	}
	return v
}

func (v vocabulary) id(t string) (int32, bool)     { id, ok := v.ids[t]; return id, ok }
func (v vocabulary) token(id int32) (string, bool) { t, ok := v.tokens[id]; return t, ok }
func (v vocabulary) size() int                     { return len(v.ids) }

// byteTokens is <0x00> … <0xFF>; -1 where the vocabulary lacks one.
func (v vocabulary) byteTokens() (out [256]int32) {
	for b := range out {
		out[b] = -1
		if id, ok := v.ids[fmt.Sprintf("<0x%02X>", b)]; ok {
			out[b] = id
		}
	}
	return out
}

// wordLevel knows whole words.
type wordLevel struct {
	vocabulary
	unk int32 // -1: none
}

func (m *wordLevel) tokenize(dst []tok, piece string, _ *workspace) ([]tok, error) {
	id, ok := m.ids[piece]
	if !ok {
		if m.unk < 0 {
			return dst, fmt.Errorf("%w: the word %q is not in the vocabulary and the model has no unknown token", ErrText, piece)
		}
		id = m.unk
	}
	return append(dst, tok{id, 0, int32(len(piece))}), nil
}

// wordPiece takes the longest known prefix again and again; a word with an unknown rest is unknown as a whole.
type wordPiece struct {
	vocabulary
	unk      int32
	prefix   string
	maxChars int
	maxBytes int // of a token
}

func (m *wordPiece) tokenize(dst []tok, piece string, _ *workspace) ([]tok, error) {
	unknown := func() ([]tok, error) {
		if m.unk < 0 {
			return dst, fmt.Errorf("%w: %q has an unknown part and the model has no unknown token", ErrText, piece)
		}
		return append(dst, tok{m.unk, 0, int32(len(piece))}), nil
	}
	if utf8.RuneCountInString(piece) > m.maxChars {
		return unknown()
	}
	out := dst
	for lo := 0; lo < len(piece); {
		hi := min(len(piece), lo+m.maxBytes)
		for hi < len(piece) && !utf8.RuneStart(piece[hi]) {
			hi--
		}
		id, ok := int32(0), false
		for hi > lo {
			part := piece[lo:hi]
			if lo > 0 {
				part = m.prefix + part
			}
			if id, ok = m.ids[part]; ok {
				break
			}
			for hi--; hi > lo && !utf8.RuneStart(piece[hi]); hi-- {
			}
		}
		if !ok {
			return unknown()
		}
		out = append(out, tok{id, int32(lo), int32(hi)})
		lo = hi
	}
	return out, nil
}

// unigram finds the best path through scored pieces (Viterbi).
type unigram struct {
	vocabulary
	scores   []float64
	names    []string
	trie     *trie
	unk      int32 // -1: none
	unkScore float64
	fallback bool
	bytes    [256]int32
}

type pathNode struct {
	id    int32
	score float64
	from  int32 // -1: not reached
}

// unkPenalty is how far an unknown character lies below the worst piece (SentencePiece's kUnkPenalty).
const unkPenalty = 10.0

func newUnigram(names []string, scores []float64, unk int32, fallback bool) *unigram {
	ids := make(map[string]int32, len(names))
	m := &unigram{names: names, scores: scores, unk: unk, fallback: fallback, trie: newTrie()}
	low := math.Inf(1)
	for i, n := range names {
		ids[n] = int32(i)
		if n != "" {
			m.trie.add(n, int32(i))
		}
		low = min(low, scores[i])
	}
	m.vocabulary = newVocabulary(ids)
	m.unkScore = low - unkPenalty
	m.bytes = m.byteTokens()
	return m
}

func (m *unigram) size() int { return len(m.names) }

func (m *unigram) token(id int32) (string, bool) {
	if id < 0 || int(id) >= len(m.names) {
		return "", false
	}
	return m.names[id], true
}

func (m *unigram) tokenize(dst []tok, piece string, w *workspace) ([]tok, error) {
	if piece == "" {
		return dst, nil
	}
	best := w.best[:0]
	for range len(piece) + 1 {
		best = append(best, pathNode{from: -1})
	}
	w.best = best
	for at := 0; at < len(piece); {
		here := best[at].score
		_, size := utf8.DecodeRuneInString(piece[at:])
		single := false
		m.trie.prefixes(piece[at:], func(n int, id int32) {
			score := m.scores[id] + here
			if t := &best[at+n]; t.from < 0 || score > t.score {
				*t = pathNode{id: id, score: score, from: int32(at)}
			}
			single = single || n == size
		})
		if !single {
			score := m.unkScore + here
			if t := &best[at+size]; t.from < 0 || score > t.score {
				if m.unk < 0 {
					return dst, fmt.Errorf("%w: %q is not in the vocabulary and the model has no unknown token", ErrText, piece[at:at+size])
				}
				*t = pathNode{id: m.unk, score: score, from: int32(at)}
			}
		}
		at += size
	}
	start := len(dst)
	for end := len(piece); end > 0; {
		n := best[end]
		lo := int(n.from)
		if last := len(dst) - 1; n.id == m.unk && last >= start && dst[last].id == m.unk {
			dst[last].lo = n.from // neighbouring unknowns are one
		} else {
			dst = append(dst, tok{n.id, n.from, int32(end)})
		}
		end = lo
	}
	for i, j := start, len(dst)-1; i < j; i, j = i+1, j-1 {
		dst[i], dst[j] = dst[j], dst[i]
	}
	if m.unk < 0 {
		return dst, nil
	}
	return m.bytesForUnknown(dst, start, piece), nil
}

// bytesForUnknown looks every piece up by its text, as the reference does, and writes unknown ones as byte tokens where
// all of their bytes have one.
func (m *unigram) bytesForUnknown(dst []tok, start int, piece string) []tok {
	var out []tok
	for i := start; i < len(dst); i++ {
		t := dst[i]
		text := piece[t.lo:t.hi]
		if id, ok := m.ids[text]; ok {
			t.id = id
			if out != nil {
				out = append(out, t)
			} else {
				dst[i] = t
			}
			continue
		}
		expanded := false
		if m.fallback {
			expanded = true
			for j := range len(text) {
				expanded = expanded && m.bytes[text[j]] >= 0
			}
		}
		if expanded {
			if out == nil {
				out = append(out, dst[start:i]...)
			}
			for j := range len(text) {
				out = append(out, tok{m.bytes[text[j]], t.lo, t.hi})
			}
			continue
		}
		t.id = m.unk
		if out != nil {
			out = append(out, t)
		} else {
			dst[i] = t
		}
	}
	if out == nil {
		return dst
	}
	return append(dst[:start], out...)
}

// trie is a byte trie. Edges are one open-addressing table from (node, byte) to node.
type trie struct {
	ids   []int32 // of each node, -1: none
	edges []trieEdge
	used  int
}

type trieEdge struct {
	key  uint64 // node<<8 | byte, plus 1; 0: free
	next int32
}

func newTrie() *trie { return &trie{ids: []int32{-1}, edges: make([]trieEdge, 64)} }

func (t *trie) edge(key uint64) *trieEdge {
	mask := uint64(len(t.edges) - 1)
	for i := key * 0x9E3779B97F4A7C15 >> 32 & mask; ; i = (i + 1) & mask {
		if e := &t.edges[i]; e.key == key || e.key == 0 {
			return e
		}
	}
}

func (t *trie) add(s string, id int32) {
	cur := int32(0)
	for i := range len(s) {
		key := (uint64(cur)<<8 | uint64(s[i])) + 1
		e := t.edge(key)
		if e.key == 0 {
			if 2*t.used >= len(t.edges) {
				old := t.edges
				t.edges = make([]trieEdge, 2*len(old))
				for _, o := range old {
					if o.key != 0 {
						*t.edge(o.key) = o
					}
				}
				e = t.edge(key)
			}
			*e = trieEdge{key, int32(len(t.ids))}
			t.ids = append(t.ids, -1)
			t.used++
		}
		cur = e.next
	}
	t.ids[cur] = id
}

// prefixes calls f for every entry that s begins with, shortest first.
func (t *trie) prefixes(s string, f func(n int, id int32)) {
	cur := int32(0)
	for i := range len(s) {
		e := t.edge((uint64(cur)<<8 | uint64(s[i])) + 1)
		if e.key == 0 {
			return
		}
		cur = e.next
		if id := t.ids[cur]; id >= 0 {
			f(i+1, id)
		}
	}
}

// longest gives the longest entry that s begins with.
func (t *trie) longest(s string) (n int, id int32) {
	id = -1
	t.prefixes(s, func(k int, v int32) { n, id = k, v })
	return n, id
}

// parseModel builds the model section. byteInput says that pieces come as raw bytes, not as byte characters.
func parseModel(raw json.RawMessage, byteInput bool) (model, error) {
	var c struct {
		Type     string
		Vocab    json.RawMessage
		Merges   []mergePair
		Dropout  *float64
		Unk      *string `json:"unk_token"`
		UnkID    *int32  `json:"unk_id"`
		Prefix   *string `json:"continuing_subword_prefix"`
		Suffix   *string `json:"end_of_word_suffix"`
		FuseUnk  bool    `json:"fuse_unk"`
		Fallback bool    `json:"byte_fallback"`
		Ignore   bool    `json:"ignore_merges"`
		MaxChars *int    `json:"max_input_chars_per_word"`
	}
	if err := unmarshalSection("model", raw, &c); err != nil {
		return nil, err
	}
	kind := c.Type
	if kind == "" { // old files leave the type out
		switch {
		case c.Merges != nil:
			kind = "BPE"
		case c.MaxChars != nil:
			kind = "WordPiece"
		case len(c.Vocab) > 0 && c.Vocab[0] == '[':
			kind = "Unigram"
		default:
			kind = "WordLevel"
		}
	}
	if kind == "Unigram" {
		var entries []unigramEntry
		if err := json.Unmarshal(c.Vocab, &entries); err != nil {
			return nil, fmt.Errorf("model vocab: %w", err)
		}
		names, scores := make([]string, len(entries)), make([]float64, len(entries))
		for i, e := range entries {
			names[i], scores[i] = e.name, e.score
		}
		unk := int32(-1)
		if c.UnkID != nil {
			unk = *c.UnkID
			if int(unk) >= len(names) || unk < 0 {
				return nil, fmt.Errorf("model unk_id %d lies outside the vocabulary of %d", unk, len(names))
			}
		}
		return newUnigram(names, scores, unk, c.Fallback), nil
	}
	ids := map[string]int32{}
	if err := json.Unmarshal(c.Vocab, &ids); err != nil {
		return nil, fmt.Errorf("model vocab: %w", err)
	}
	for t, id := range ids {
		if id < 0 {
			return nil, fmt.Errorf("model vocab: %q has the negative id %d", t, id)
		}
	}
	unk := int32(-1)
	if c.Unk != nil {
		if id, ok := ids[*c.Unk]; ok {
			unk = id
		}
	}
	switch kind {
	case "WordLevel":
		return &wordLevel{vocabulary: newVocabulary(ids), unk: unk}, nil
	case "WordPiece":
		m := &wordPiece{vocabulary: newVocabulary(ids), unk: unk, prefix: "##", maxChars: 100}
		if c.Prefix != nil {
			m.prefix = *c.Prefix
		}
		if c.MaxChars != nil {
			m.maxChars = *c.MaxChars
		}
		for t := range ids {
			m.maxBytes = max(m.maxBytes, len(t))
		}
		return m, nil
	case "BPE":
		if c.Dropout != nil && *c.Dropout != 0 {
			return nil, &UnsupportedError{Section: "model", Part: "BPE dropout", Why: "encoding would be random"}
		}
		o := bpeOptions{unk: c.Unk, fuseUnk: c.FuseUnk, fallback: c.Fallback, ignoreMerges: c.Ignore, bytes: byteInput}
		if c.Prefix != nil {
			o.prefix = *c.Prefix
		}
		if c.Suffix != nil {
			o.suffix = *c.Suffix
		}
		return newBPE(ids, c.Merges, o)
	}
	return nil, &UnsupportedError{Section: "model", Part: kind}
}

// mergePair is one merge, written as "a b" or as ["a","b"].
type mergePair [2]string

// UnmarshalJSON reads both spellings. The string form is cut at its only space.
func (m *mergePair) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		var pair []string
		if err := json.Unmarshal(b, &pair); err != nil {
			return err
		}
		if len(pair) != 2 {
			return fmt.Errorf("a merge of %d parts", len(pair))
		}
		*m = mergePair{pair[0], pair[1]}
		return nil
	}
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	a, c, ok := strings.Cut(s, " ")
	if !ok || strings.Contains(c, " ") {
		return fmt.Errorf("merge %q is not two tokens with one space between", s)
	}
	*m = mergePair{a, c}
	return nil
}

// unigramEntry is [piece, score].
type unigramEntry struct {
	name  string
	score float64
}

// UnmarshalJSON reads the pair.
func (u *unigramEntry) UnmarshalJSON(b []byte) error {
	var pair []json.RawMessage
	err := json.Unmarshal(b, &pair)
	if err != nil {
		return err
	}
	if len(pair) != 2 {
		return fmt.Errorf("a vocabulary entry of %d parts", len(pair))
	}
	if err := json.Unmarshal(pair[0], &u.name); err != nil {
		return err
	}
	u.score, err = referenceFloat(string(pair[1]))
	return err
}

// referenceFloat reads a number as the reference's JSON reader does: all digits as one integer, rounded to float64, then divided by
// a power of ten, rounded again. It differs from the nearest float64 in the last bit at times, which decides ties between
// paths of the same pieces in another order.
func referenceFloat(s string) (float64, error) {
	exact, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, err
	}
	rest, neg := strings.CutPrefix(s, "-")
	mantissa, exponent, hasExp := strings.Cut(strings.ToLower(rest), "e")
	exp := 0
	if hasExp {
		if exp, err = strconv.Atoi(exponent); err != nil {
			return 0, err
		}
	}
	var sig uint64
	seenDot := false
	for i := range len(mantissa) {
		c := mantissa[i]
		if c == '.' {
			seenDot = true
			continue
		}
		d := uint64(c - '0')
		if sig > (math.MaxUint64-d)/10 {
			if !seenDot {
				return exact, nil
			}
			break // further decimals are ignored
		}
		sig = sig*10 + d
		if seenDot {
			exp--
		}
	}
	if exp > 22 || exp < -300 {
		return exact, nil
	}
	f := float64(sig)
	pow, err := strconv.ParseFloat("1e"+strconv.Itoa(max(exp, -exp)), 64)
	if err != nil {
		return 0, err
	}
	if exp >= 0 {
		f *= pow
	} else {
		f /= pow
	}
	if neg {
		f = -f
	}
	return f, nil
}
