package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// addedToken is an entry of added_tokens with its flags.
type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
	text       string // what Decode gives: Content, normalized where Normalized is set
}

// addedSet finds added tokens in a text: the longest at each place, left to right.
type addedSet struct {
	trie   *trie
	first  [256]bool
	tokens []*addedToken
}

func newAddedSet() *addedSet { return &addedSet{trie: newTrie()} }

func (s *addedSet) add(text string, t *addedToken) {
	if text == "" {
		return
	}
	s.trie.add(text, int32(len(s.tokens)))
	s.tokens = append(s.tokens, t)
	s.first[text[0]] = true
}

// found is a stretch of text: an added token, or what lies between (t nil).
type found struct {
	lo, hi int
	t      *addedToken
}

// cut splits a text at the added tokens. skipSpecial leaves special ones as text.
func (s *addedSet) cut(dst []found, text string, skipSpecial bool) []found {
	done := 0
	for i := 0; len(s.tokens) > 0 && i < len(text); {
		if !s.first[text[i]] {
			i++
			continue
		}
		n, k := s.trie.longest(text[i:])
		if k < 0 {
			i++
			continue
		}
		lo, hi := i, i+n
		t := s.tokens[k]
		i = hi
		if skipSpecial && t.Special {
			continue
		}
		if t.SingleWord {
			before, _ := utf8.DecodeLastRuneInString(text[:lo])
			after, _ := utf8.DecodeRuneInString(text[hi:])
			if lo > 0 && isWord(before) || hi < len(text) && isWord(after) {
				continue
			}
		}
		if t.LStrip {
			lo = max(len(strings.TrimRightFunc(text[:lo], isSpace)), done)
		}
		if t.RStrip {
			hi = len(text) - len(strings.TrimLeftFunc(text[hi:], isSpace))
		}
		if lo < done { // swallowed by the right strip of the token before
			lo = done
		}
		if done < lo {
			dst = append(dst, found{done, lo, nil})
		}
		dst = append(dst, found{lo, hi, t})
		done = hi
	}
	if done < len(text) {
		dst = append(dst, found{done, len(text), nil})
	}
	return dst
}
