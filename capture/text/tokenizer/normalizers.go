package tokenizer

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/clipperhouse/uax29/v2/graphemes"
)

// normalizer rewrites a text before it is cut.
type normalizer func(nstr) (nstr, error)

func pure(f func(nstr) nstr) normalizer { return func(n nstr) (nstr, error) { return f(n), nil } }

// parseNormalizer builds a normalizer from its section of tokenizer.json; nil for none.
func parseNormalizer(raw json.RawMessage) (normalizer, error) {
	if isNull(raw) {
		return nil, nil
	}
	var c struct {
		Type               string
		Normalizers        []json.RawMessage
		Clean              *bool   `json:"clean_text"`
		Chinese            *bool   `json:"handle_chinese_chars"`
		StripAccents       *bool   `json:"strip_accents"`
		Lowercase          *bool   `json:"lowercase"`
		Left               *bool   `json:"strip_left"`
		Right              *bool   `json:"strip_right"`
		Prepend            *string `json:"prepend"`
		Pattern            json.RawMessage
		Content            string
		PrecompiledCharmap string `json:"precompiled_charsmap"`
	}
	if err := unmarshalSection("normalizer", raw, &c); err != nil {
		return nil, err
	}
	switch c.Type {
	case "Sequence":
		var seq []normalizer
		for _, r := range c.Normalizers {
			n, err := parseNormalizer(r)
			if err != nil {
				return nil, err
			}
			if n != nil {
				seq = append(seq, n)
			}
		}
		switch len(seq) {
		case 0:
			return nil, nil
		case 1:
			return seq[0], nil
		}
		return func(n nstr) (nstr, error) {
			most := mostOf(len(n.s))
			for _, f := range seq {
				if len(n.s) > most {
					panic(tooLong{})
				}
				var err error
				if n, err = f(n); err != nil {
					return n, err
				}
			}
			return n, nil
		}, nil
	case "NFC":
		return pure(func(n nstr) nstr { return normalForm(n, false, true) }), nil
	case "NFD":
		return pure(func(n nstr) nstr { return normalForm(n, false, false) }), nil
	case "NFKC":
		return pure(func(n nstr) nstr { return normalForm(n, true, true) }), nil
	case "NFKD":
		return pure(func(n nstr) nstr { return normalForm(n, true, false) }), nil
	case "Lowercase":
		return pure(lowercase), nil
	case "StripAccents":
		return pure(func(n nstr) nstr {
			return dropRunes(n, func(r rune) bool { return r >= 0x300 && unicode.Is(unicode.M, r) })
		}), nil
	case "Strip":
		left, right := orTrue(c.Left), orTrue(c.Right)
		return pure(func(n nstr) nstr { return strip(n, left, right) }), nil
	case "Nmt":
		return pure(nmt), nil
	case "Prepend":
		if c.Prepend == nil {
			return nil, &UnsupportedError{Section: "normalizer", Part: "Prepend", Why: "no prepend string"}
		}
		p := *c.Prepend
		return pure(func(n nstr) nstr { return prepend(n, p) }), nil
	case "Replace":
		p, err := parsePattern("normalizer", raw)
		if err != nil {
			return nil, err
		}
		content := c.Content
		return func(n nstr) (nstr, error) { return replaceAll(n, p, content) }, nil
	case "ByteLevel":
		return pure(byteLevelForm), nil
	case "BertNormalizer":
		clean, chinese, lower := orTrue(c.Clean), orTrue(c.Chinese), orTrue(c.Lowercase)
		accents := lower
		if c.StripAccents != nil {
			accents = *c.StripAccents
		}
		return pure(func(n nstr) nstr { return bertForm(n, clean, chinese, accents, lower) }), nil
	case "Precompiled":
		p, err := parseCharsmap(c.PrecompiledCharmap)
		if err != nil {
			return nil, err
		}
		return pure(p.normalize), nil
	}
	return nil, &UnsupportedError{Section: "normalizer", Part: c.Type}
}

func orTrue(b *bool) bool { return b == nil || *b }

func lowercase(n nstr) nstr {
	same := true
	for _, r := range n.s {
		if a, b := lowerRunes(r); a != r || b >= 0 {
			same = false
			break
		}
	}
	if same {
		return n
	}
	e := edit(n)
	for _, r := range n.s {
		a, b := lowerRunes(r)
		e.replace(a, 1)
		if b >= 0 {
			e.replace(b, 0)
		}
	}
	return e.done()
}

func dropRunes(n nstr, gone func(rune) bool) nstr {
	return n.mapRunes(func(r rune) rune {
		if gone(r) {
			return -1
		}
		return r
	})
}

func strip(n nstr, left, right bool) nstr {
	lo, hi := 0, len(n.s)
	if left {
		lo = len(n.s) - len(strings.TrimLeftFunc(n.s, isSpace))
	}
	if right {
		hi = len(strings.TrimRightFunc(n.s, isSpace))
	}
	if lo >= hi {
		return nstr{origin: n.origin, base: n.base}
	}
	origin := n.origin
	out := n.slice(lo, hi)
	out.origin = origin // the reference keeps where the uncut piece began
	return out
}

func nmt(n nstr) nstr {
	return n.mapRunes(func(r rune) rune {
		switch {
		case r >= 1 && r <= 8, r == 0xB, r >= 0xE && r <= 0x1F, r == 0x7F, r == 0x8F, r == 0x9F:
			return -1
		case r == 9, r == 0xA, r == 0xC, r == 0xD, r == 0x1680, r >= 0x200B && r <= 0x200F, r == 0x2028, r == 0x2029, r == 0x2581, r == 0xFEFF, r == 0xFFFD:
			return ' '
		}
		return r
	})
}

// prepend writes p before a text that is not empty; what is inserted stands for the first character's place.
func prepend(n nstr, p string) nstr {
	if n.s == "" {
		return n
	}
	e := edit(n)
	at := n.at(0)
	for _, r := range p {
		e.put(r, at)
	}
	for e.pos < len(n.s) {
		e.keep()
	}
	return e.done()
}

func replaceAll(n nstr, p pattern, content string) (nstr, error) {
	var hits [][2]int
	if err := p.find(n.s, func(lo, hi int) { hits = append(hits, [2]int{lo, hi}) }); err != nil {
		return n, err
	}
	if len(hits) == 0 {
		return n, nil
	}
	e := edit(n)
	for _, h := range hits {
		for e.pos < h[0] {
			e.keep()
		}
		e.replaceString(content, h[1]-h[0])
	}
	for e.pos < len(n.s) {
		e.keep()
	}
	return e.done(), nil
}

// byteLevelForm writes every byte as the printable character GPT-2 gave it.
func byteLevelForm(n nstr) nstr {
	e := edit(n)
	for i := 0; i < len(n.s); {
		at := n.at(i)
		_, size := utf8.DecodeRuneInString(n.s[i:])
		for j := range size {
			e.put(byteRunes[n.s[i+j]], at)
		}
		i += size
	}
	return e.done()
}

func bertForm(n nstr, clean, chinese, accents, lower bool) nstr {
	if clean {
		n = n.mapRunes(func(r rune) rune {
			switch {
			case r == 0 || r == 0xFFFD || isControl(r):
				return -1
			case isSpace(r):
				return ' '
			}
			return r
		})
	}
	if chinese && strings.ContainsFunc(n.s, isChinese) {
		e := edit(n)
		for i, r := range n.s {
			if !isChinese(r) {
				e.keep()
				continue
			}
			at := n.at(i)
			e.put(' ', at)
			e.keep()
			e.put(' ', at)
		}
		n = e.done()
	}
	if accents {
		n = normalForm(n, false, false)
		n = dropRunes(n, func(r rune) bool { return r >= 0x300 && unicode.Is(unicode.Mn, r) })
	}
	if lower {
		n = lowercase(n)
	}
	return n
}

// charsmap is SentencePiece's precompiled normalization: a double-array trie from byte strings to replacement texts.
type charsmap struct {
	trie []uint32
	text string
}

func parseCharsmap(b64 string) (*charsmap, error) {
	data, err := base64.StdEncoding.DecodeString(b64)
	if err != nil {
		return nil, &UnsupportedError{Section: "normalizer", Part: "Precompiled", Why: err.Error()}
	}
	return newCharsmap(data)
}

func newCharsmap(data []byte) (*charsmap, error) {
	if len(data) == 0 {
		return &charsmap{}, nil
	}
	if len(data) < 4 {
		return nil, &UnsupportedError{Section: "normalizer", Part: "Precompiled", Why: "the map is cut short"}
	}
	size := binary.LittleEndian.Uint32(data)
	if int64(size)+4 > int64(len(data)) || size%4 != 0 {
		return nil, &UnsupportedError{Section: "normalizer", Part: "Precompiled", Why: "the map is cut short"}
	}
	c := &charsmap{trie: make([]uint32, size/4), text: string(data[4+size:])}
	for i := range c.trie {
		c.trie[i] = binary.LittleEndian.Uint32(data[4+4*i:])
	}
	return c, nil
}

// lookup gives the replacement of the shortest prefix of s that has one, as the reference takes it.
func (c *charsmap) lookup(s string) (string, bool) {
	if len(c.trie) == 0 {
		return "", false
	}
	offset := func(u uint32) uint32 { return (u >> 10) << ((u & (1 << 9)) >> 6) }
	pos := offset(c.trie[0])
	for i := 0; i < len(s); i++ {
		if s[i] == 0 {
			break
		}
		pos ^= uint32(s[i])
		if pos >= uint32(len(c.trie)) {
			return "", false
		}
		unit := c.trie[pos]
		if unit&(1<<31|0xff) != uint32(s[i]) {
			return "", false
		}
		pos ^= offset(unit)
		if unit>>8&1 == 1 {
			if pos >= uint32(len(c.trie)) {
				return "", false
			}
			at := c.trie[pos] & (1<<31 - 1)
			if at > uint32(len(c.text)) {
				return "", false
			}
			out := c.text[at:]
			if end := strings.IndexByte(out, 0); end >= 0 {
				out = out[:end]
			}
			return out, true
		}
	}
	return "", false
}

func (c *charsmap) normalize(n nstr) nstr {
	e := edit(n)
	changed := false
	seg := graphemes.FromString(n.s)
	for seg.Next() {
		g := seg.Value()
		if len(g) < 6 {
			if repl, ok := c.lookup(g); ok {
				changed = true
				e.substitute(repl, utf8.RuneCountInString(g))
				continue
			}
		}
		for _, r := range g {
			size := utf8.RuneLen(r)
			if repl, ok := c.lookup(n.s[e.pos : e.pos+size]); ok {
				changed = true
				e.substitute(repl, 1)
			} else {
				e.keep()
			}
		}
	}
	if !changed {
		return n
	}
	return e.done()
}
