package tokenizer

import (
	"errors"
	"fmt"
)

// Options say how a text is encoded. The zero value is the reference's default: special tokens of the post-processor are
// added, special tokens written in the text are recognised.
type Options struct {
	NoSpecialTokens bool // leave the post-processor's tokens (BOS, EOS, [CLS] …) out
	SpecialsAsText  bool // do not recognise special tokens written in the text
	NoTruncation    bool // ignore the file's truncation section
	NoPadding       bool // ignore the file's padding section
	Offsets         bool // fill Encoding.Offsets
	Tokens          bool // fill Encoding.Tokens
}

// Encoding is an encoded text.
type Encoding struct {
	IDs     []int32
	Tokens  []string // with Options.Tokens
	Offsets [][2]int // with Options.Offsets: byte range of the text that each id stands for; [0,0) for added ones
	// TypeIDs is the sentence number of each id, Special marks ids of the post-processor and padding, Attention is 0 for padding.
	// They are nil when the tokenizer adds nothing: then all are 0, 0 and 1.
	TypeIDs   []int32
	Special   []bool
	Attention []bool
	// Overflow are the pieces cut by the file's truncation section.
	Overflow []*Encoding
}

// Tokenizer turns texts into token ids and back. It is immutable after Load and safe for concurrent use.
type Tokenizer struct {
	digest string
	bos    *bosToken
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

// ErrText marks a text that this tokenizer refuses (not UTF-8, a word-level model without an unknown token).
var ErrText = errors.New("the text cannot be encoded")

// UnsupportedError names a part of a tokenizer that is not implemented and therefore refused.
type UnsupportedError struct {
	Section string // normalizer, pre_tokenizer, model, post_processor, decoder
	Part    string
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s %q is not implemented", e.Section, e.Part)
}

// Load reads a tokenizer.
func Load(path string) (*Tokenizer, error) {
	return nil, &UnsupportedError{Section: "file", Part: path}
}

// Encode turns a text into ids.
func (t *Tokenizer) Encode(text string, o Options) (*Encoding, error) {
	return nil, ErrText
}
