package tokenizer

import (
	"errors"
	"fmt"
	"sync"
	"unicode/utf8"
)

// Options say how a text is encoded. The zero value is the reference's default: special tokens of the post-processor are
// added, special tokens written in the text are recognised.
type Options struct {
	NoSpecialTokens bool // leave the post-processor's tokens (BOS, EOS, [CLS] …) out
	SpecialsAsText  bool // do not recognise special tokens written in the text
	NoTruncation    bool // ignore the file's truncation section
	NoPadding       bool // ignore the file's padding section
	Offsets         bool // fill Encoding.Offsets, and Encoding.Tokens with them
	Tokens          bool // fill Encoding.Tokens
}

// Encoding is an encoded text.
type Encoding struct {
	IDs     []int32
	Tokens  []string // with Options.Tokens
	Offsets [][2]int // with Options.Offsets: byte range of the text that each id stands for; [0,0) for added ones
	// TypeIDs is the sentence number of each id, Special marks ids of the post-processor and padding, Attention is false for
	// padding. They are nil where all are 0, false and true: nothing was added.
	TypeIDs   []int32
	Special   []bool
	Attention []bool
	// Overflow are the pieces cut by the file's truncation section.
	Overflow []*Encoding
}

// Tokenizer turns texts into token ids and back. It is immutable after Load and safe for concurrent use.
type Tokenizer struct {
	digest     string
	bos        *bosToken
	normalizer normalizer
	onlyNFC    bool // normalizer is NFC
	pre        preTokenizer
	fast       []scanner // the whole pre-tokenizer as a chain of scanners over raw bytes, or nil
	model      model
	byteInput  bool
	post       postProcessor
	decoder    decoder
	truncation *truncation
	padding    *padding

	raw, normal *addedSet // tokens found before and after normalization
	added       map[string]*addedToken
	addedByID   map[int32]*addedToken
	maxID       int32

	spaces sync.Pool // of *workspace
}

type bosToken struct {
	id      int32
	content string
	added   bool // by the post-processor
}

// Digest is the SHA-256 (hex) of the tokenizer file.
func (t *Tokenizer) Digest() string { return t.digest }

// BOS is the token that starts a sequence: what the post-processor puts first, or bos_token where tokenizer_config.json asks for it.
func (t *Tokenizer) BOS() (id int32, content string, ok bool) {
	if t.bos == nil {
		return -1, "", false
	}
	return t.bos.id, t.bos.content, true
}

// AddsBOS says whether Encode adds BOS itself.
func (t *Tokenizer) AddsBOS() bool { return t.bos != nil && t.bos.added }

// Size is one more than the largest id.
func (t *Tokenizer) Size() int { return int(t.maxID) + 1 }

// ID gives the id of a token.
func (t *Tokenizer) ID(token string) (int32, bool) {
	if a, ok := t.added[token]; ok {
		return a.ID, true
	}
	return t.model.id(token)
}

// Token gives the token of an id.
func (t *Tokenizer) Token(id int32) (string, bool) {
	if a, ok := t.addedByID[id]; ok {
		return a.text, true
	}
	return t.model.token(id)
}

// ErrText marks a text that this tokenizer refuses (not UTF-8, a word-level model without an unknown token).
var ErrText = errors.New("the text cannot be encoded")

// UnsupportedError names a part of a tokenizer that is not implemented and therefore refused.
type UnsupportedError struct {
	Section string // normalizer, pre_tokenizer, model, post_processor, decoder, regex
	Part    string
	Why     string
}

func (e *UnsupportedError) Error() string {
	s := fmt.Sprintf("%s %q is not implemented", e.Section, e.Part)
	if e.Why != "" {
		s += ": " + e.Why
	}
	return s
}

// Encode turns a text into ids. It fails with ErrText.
func (t *Tokenizer) Encode(text string, o Options) (*Encoding, error) {
	o.Tokens = o.Tokens || o.Offsets
	e, err := t.encodeOne(text, o)
	if err != nil {
		return nil, err
	}
	e, err = t.finish(e, nil, o)
	if err != nil {
		return nil, err
	}
	if t.padding != nil && !o.NoPadding {
		t.padding.apply([]*Encoding{e}, o)
	}
	return e, nil
}

// EncodePair turns two texts into one sequence, as the post-processor joins them.
func (t *Tokenizer) EncodePair(a, b string, o Options) (*Encoding, error) {
	o.Tokens = o.Tokens || o.Offsets
	ea, err := t.encodeOne(a, o)
	if err != nil {
		return nil, err
	}
	eb, err := t.encodeOne(b, o)
	if err != nil {
		return nil, err
	}
	e, err := t.finish(ea, eb, o)
	if err != nil {
		return nil, err
	}
	if t.padding != nil && !o.NoPadding {
		t.padding.apply([]*Encoding{e}, o)
	}
	return e, nil
}

// EncodeBatch encodes texts together; the padding section of the file, if any, makes them equally long.
func (t *Tokenizer) EncodeBatch(texts []string, o Options) ([]*Encoding, error) {
	single := o
	single.NoPadding = true
	out := make([]*Encoding, len(texts))
	for i, s := range texts {
		var err error
		if out[i], err = t.Encode(s, single); err != nil {
			return nil, err
		}
	}
	if t.padding != nil && !o.NoPadding {
		t.padding.apply(out, o)
	}
	return out, nil
}

// finish truncates and adds what the post-processor adds.
func (t *Tokenizer) finish(a, b *Encoding, o Options) (*Encoding, error) {
	if t.truncation != nil && !o.NoTruncation {
		n := 0
		if !o.NoSpecialTokens {
			n = t.post.added(b != nil)
		}
		if err := t.truncation.apply(a, b, n, o); err != nil {
			return nil, err
		}
	}
	return t.post.process(a, b, !o.NoSpecialTokens, o)
}

// encodeOne runs added tokens, normalizer, pre-tokenizer and model over one text.
func (t *Tokenizer) encodeOne(text string, o Options) (out *Encoding, err error) {
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(tooLong); !ok {
				panic(p)
			}
			out, err = nil, fmt.Errorf("%w: its normalizer makes it more than 64 times as long", ErrText)
		}
	}()
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("%w: it is not valid UTF-8", ErrText)
	}
	if len(text) > 1<<31-1 {
		return nil, fmt.Errorf("%w: it is longer than 2 GiB", ErrText)
	}
	w, _ := t.spaces.Get().(*workspace)
	if w == nil {
		w = &workspace{}
	}
	defer t.spaces.Put(w)
	e := &Encoding{IDs: make([]int32, 0, len(text)/4+4)}
	run := encodeRun{t: t, e: e, o: o, w: w}
	for _, f := range t.raw.cut(nil, text, o.SpecialsAsText) {
		if f.t != nil {
			run.addedToken(f.t, text[f.lo:f.hi], f.lo, f.hi)
			continue
		}
		piece := nstr{s: text[f.lo:f.hi], base: int32(f.lo), origin: int32(f.lo)}
		if err := run.piece(piece); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// encodeRun is the encoding of one text under way.
type encodeRun struct {
	t      *Tokenizer
	e      *Encoding
	o      Options
	w      *workspace
	toks   []tok
	pieces []nstr
}

func (r *encodeRun) addedToken(a *addedToken, matched string, lo, hi int) {
	r.e.IDs = append(r.e.IDs, a.ID)
	if r.o.Tokens {
		r.e.Tokens = append(r.e.Tokens, matched)
	}
	if r.o.Offsets {
		r.e.Offsets = append(r.e.Offsets, [2]int{lo, hi})
	}
}

func (r *encodeRun) piece(n nstr) error {
	t := r.t
	switch {
	case t.onlyNFC && !r.o.Offsets && t.fast != nil:
		n.s = nfcText(n.s) // nobody asks for the alignment
	case t.normalizer != nil:
		var err error
		if n, err = t.normalizer(n); err != nil {
			return err
		}
	}
	if len(t.normal.tokens) == 0 {
		return r.words(n)
	}
	for _, f := range t.normal.cut(nil, n.s, r.o.SpecialsAsText) {
		part := n.slice(f.lo, f.hi)
		if f.lo == 0 && f.hi == len(n.s) {
			part.origin = max(part.origin, n.origin)
		}
		if f.t != nil {
			lo, hi := n.source(f.lo, f.hi)
			r.addedToken(f.t, part.s, lo, hi)
			continue
		}
		if err := r.words(part); err != nil {
			return err
		}
	}
	return nil
}

// words cuts a piece into words and runs the model over each.
func (r *encodeRun) words(n nstr) error {
	t := r.t
	if t.fast != nil {
		return r.scan(n, 0, len(n.s), 0)
	}
	if t.pre == nil {
		if n.s == "" {
			return nil
		}
		return r.word(n, 0, len(n.s))
	}
	var err error
	r.pieces, err = t.pre.cut(r.pieces[:0], n)
	if err != nil {
		return err
	}
	for _, p := range r.pieces {
		if err := r.word(p, 0, len(p.s)); err != nil {
			return err
		}
	}
	return nil
}

// scan runs the chain of scanners depth first, without storing pieces.
func (r *encodeRun) scan(n nstr, lo, hi, depth int) error {
	if depth == len(r.t.fast) {
		return r.word(n, lo, hi)
	}
	f := r.t.fast[depth]
	s := n.s[lo:hi]
	for at := 0; at < len(s); {
		end := f(s, at)
		if err := r.scan(n, lo+at, lo+end, depth+1); err != nil {
			return err
		}
		at = end
	}
	return nil
}

// word runs the model over bytes [lo, hi) of a piece.
func (r *encodeRun) word(n nstr, lo, hi int) error {
	var err error
	r.toks, err = r.t.model.tokenize(r.toks[:0], n.s[lo:hi], r.w)
	if err != nil {
		return err
	}
	for _, k := range r.toks {
		r.e.IDs = append(r.e.IDs, k.id)
	}
	if r.o.Offsets {
		for _, k := range r.toks {
			a, b := n.source(lo+int(k.lo), lo+int(k.hi))
			r.e.Offsets = append(r.e.Offsets, [2]int{a, b})
		}
	}
	if r.o.Tokens {
		for _, k := range r.toks {
			s, _ := r.t.model.token(k.id)
			r.e.Tokens = append(r.e.Tokens, s)
		}
	}
	return nil
}
