package tokenizer

import (
	"encoding/json"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// preTokenizer cuts pieces into smaller ones.
type preTokenizer interface {
	cut(dst []nstr, n nstr) ([]nstr, error)
}

// behavior says what becomes of the matches of a pattern.
type behavior string

const (
	isolated           behavior = "Isolated"
	removed            behavior = "Removed"
	contiguous         behavior = "Contiguous"
	mergedWithPrevious behavior = "MergedWithPrevious"
	mergedWithNext     behavior = "MergedWithNext"
)

func (b behavior) known() bool {
	return slices.Contains([]behavior{isolated, removed, contiguous, mergedWithPrevious, mergedWithNext}, b)
}

// splitter cuts at the matches of a pattern.
type splitter struct {
	pattern pattern
	fast    scanner // hand-written equal of pattern for behavior Isolated, or nil
	how     behavior
	invert  bool
}

// part is a piece of a text that matched or not.
type part struct {
	lo, hi int
	match  bool
}

func (sp *splitter) cut(dst []nstr, n nstr) ([]nstr, error) {
	if sp.fast != nil {
		for at := 0; at < len(n.s); {
			end := sp.fast(n.s, at)
			dst = append(dst, n.slice(at, end))
			at = end
		}
		return dst, nil
	}
	if n.s == "" {
		return dst, nil
	}
	var parts []part
	prev := 0
	err := sp.pattern.find(n.s, func(lo, hi int) {
		if prev != lo {
			parts = append(parts, part{prev, lo, false})
		}
		parts = append(parts, part{lo, hi, true})
		prev = hi
	})
	if err != nil {
		return dst, err
	}
	if prev != len(n.s) {
		parts = append(parts, part{prev, len(n.s), false})
	}
	if sp.invert {
		for i := range parts {
			parts[i].match = !parts[i].match
		}
	}
	for _, p := range arrange(parts, sp.how) {
		if p.lo < p.hi {
			dst = append(dst, n.slice(p.lo, p.hi))
		}
	}
	return dst, nil
}

// arrange joins or removes matches. The folds are the reference's, their treatment of neighbours included.
func arrange(parts []part, how behavior) []part {
	var out []part
	prev := false
	switch how {
	case isolated:
		return parts
	case removed:
		for _, p := range parts {
			if !p.match {
				out = append(out, p)
			}
		}
	case contiguous:
		for _, p := range parts {
			if p.match == prev && len(out) > 0 {
				out[len(out)-1].hi = p.hi
			} else {
				out = append(out, p)
			}
			prev = p.match
		}
	case mergedWithPrevious:
		for _, p := range parts {
			if p.match && !prev && len(out) > 0 {
				out[len(out)-1].hi = p.hi
			} else {
				out = append(out, p)
			}
			prev = p.match
		}
	case mergedWithNext:
		for i := len(parts) - 1; i >= 0; i-- {
			p := parts[i]
			if p.match && !prev && len(out) > 0 {
				out[len(out)-1].lo = p.lo
			} else {
				out = append(out, p)
			}
			prev = p.match
		}
		slices.Reverse(out)
	}
	return out
}

// sequence applies pre-tokenizers one after the other.
type sequence []preTokenizer

func (q sequence) cut(dst []nstr, n nstr) ([]nstr, error) {
	pieces := []nstr{n}
	for _, p := range q {
		var next []nstr
		for _, piece := range pieces {
			var err error
			if next, err = p.cut(next, piece); err != nil {
				return dst, err
			}
		}
		pieces = next
	}
	return append(dst, pieces...), nil
}

// byteLevel is GPT-2's: an optional space in front, its pattern, then bytes as characters. raw leaves the last step out: the model
// then works on bytes.
type byteLevel struct {
	prefix bool
	split  *splitter // nil: use_regex false
	raw    bool
}

func (b *byteLevel) cut(dst []nstr, n nstr) ([]nstr, error) {
	if b.prefix && !strings.HasPrefix(n.s, " ") {
		n = prepend(n, " ")
	}
	start := len(dst)
	if b.split != nil {
		var err error
		if dst, err = b.split.cut(dst, n); err != nil {
			return dst, err
		}
	} else if n.s != "" {
		dst = append(dst, n)
	}
	if !b.raw {
		for i := start; i < len(dst); i++ {
			dst[i] = byteLevelForm(dst[i])
		}
	}
	return dst, nil
}

// metaspace writes spaces as a visible character and cuts before it.
type metaspace struct {
	char   string
	scheme string // always, first, never
	split  *splitter
}

func (m *metaspace) cut(dst []nstr, n nstr) ([]nstr, error) {
	n, err := replaceAll(n, literal(" "), m.char)
	if err != nil {
		return dst, err
	}
	if !strings.HasPrefix(n.s, m.char) && (m.scheme == "always" || m.scheme == "first" && n.origin == 0) {
		origin := n.origin
		n = prepend(n, m.char)
		n.origin = origin
	}
	if m.split != nil {
		return m.split.cut(dst, n)
	}
	if n.s == "" {
		return dst, nil
	}
	return append(dst, n), nil
}

// fixedLength cuts every so many characters.
type fixedLength int

func (f fixedLength) cut(dst []nstr, n nstr) ([]nstr, error) {
	count, lo := 0, 0
	for i := range n.s {
		if count == int(f) {
			dst = append(dst, n.slice(lo, i))
			lo, count = i, 0
		}
		count++
	}
	if lo < len(n.s) {
		dst = append(dst, n.slice(lo, len(n.s)))
	}
	return dst, nil
}

// scripts cuts where the script changes, kana and kanji being one, spaces belonging to what stands before.
type scripts struct{}

func (scripts) cut(dst []nstr, n nstr) ([]nstr, error) {
	// The reference makes pieces between the places of change only: what stands before the first script is lost.
	last, lo := "", -1
	for i, r := range n.s {
		script := scriptOf(r)
		if script != anyScript && last != script {
			if lo >= 0 {
				dst = append(dst, n.slice(lo, i))
			}
			lo = i
		}
		if script != anyScript {
			last = script
		}
	}
	if lo >= 0 && lo < len(n.s) {
		dst = append(dst, n.slice(lo, len(n.s)))
	}
	return dst, nil
}

const anyScript = "Any"

func scriptOf(r rune) string {
	switch {
	case r == 0x30FC:
		return "Han"
	case r == ' ', r >= 0x1FAD7 && r <= 0x1FAFF: // the reference's script table is older than these pictographs
		return anyScript
	}
	if r < 0x80 {
		if isLetter(r) {
			return "Latin"
		}
		return "Common"
	}
	for name, table := range unicode.Scripts {
		if unicode.Is(table, r) {
			if name == "Hiragana" || name == "Katakana" {
				return "Han"
			}
			return name
		}
	}
	return anyScript
}

func parsePattern(section string, raw json.RawMessage) (pattern, error) {
	var c struct{ Pattern json.RawMessage }
	if err := unmarshalSection(section, raw, &c); err != nil {
		return nil, err
	}
	var p struct{ String, Regex *string }
	if err := json.Unmarshal(c.Pattern, &p); err != nil {
		var s string
		if json.Unmarshal(c.Pattern, &s) != nil {
			return nil, &UnsupportedError{Section: section, Part: "pattern", Why: "neither String nor Regex"}
		}
		p.String = &s
	}
	switch {
	case p.String != nil:
		return literal(*p.String), nil
	case p.Regex != nil:
		return compileRegex(*p.Regex)
	}
	return nil, &UnsupportedError{Section: section, Part: "pattern", Why: "neither String nor Regex"}
}

// parsePreTokenizer builds a pre-tokenizer from its section of tokenizer.json; nil for none.
func parsePreTokenizer(raw json.RawMessage) (preTokenizer, error) {
	if isNull(raw) {
		return nil, nil
	}
	var c struct {
		Type          string
		PreTokenizers []json.RawMessage `json:"pretokenizers"`
		AddPrefix     *bool             `json:"add_prefix_space"`
		UseRegex      *bool             `json:"use_regex"`
		Delimiter     string
		Individual    bool    `json:"individual_digits"`
		Replacement   string  `json:"replacement"`
		Scheme        *string `json:"prepend_scheme"`
		Split         *bool   `json:"split"`
		Behavior      behavior
		Invert        bool
		Length        int
	}
	if err := unmarshalSection("pre_tokenizer", raw, &c); err != nil {
		return nil, err
	}
	switch c.Type {
	case "Sequence":
		var seq sequence
		for _, r := range c.PreTokenizers {
			p, err := parsePreTokenizer(r)
			if err != nil {
				return nil, err
			}
			if p != nil {
				seq = append(seq, p)
			}
		}
		switch len(seq) {
		case 0:
			return nil, nil
		case 1:
			return seq[0], nil
		}
		return seq, nil
	case "ByteLevel":
		b := &byteLevel{prefix: orTrue(c.AddPrefix)}
		if orTrue(c.UseRegex) {
			sp, err := newSplit(gpt2Pattern)
			if err != nil {
				return nil, err
			}
			b.split = sp
		}
		return b, nil
	case "Split":
		p, err := parsePattern("pre_tokenizer", raw)
		if err != nil {
			return nil, err
		}
		if !c.Behavior.known() {
			return nil, &UnsupportedError{Section: "pre_tokenizer", Part: "Split behavior " + string(c.Behavior)}
		}
		sp := &splitter{pattern: p, how: c.Behavior, invert: c.Invert}
		if re, ok := p.(*regex); ok && c.Behavior == isolated {
			sp.fast = scanners[re.source]
		}
		return sp, nil
	case "Metaspace":
		m := &metaspace{char: c.Replacement, scheme: "always"}
		if utf8.RuneCountInString(m.char) != 1 {
			return nil, &UnsupportedError{Section: "pre_tokenizer", Part: "Metaspace", Why: "the replacement must be one character"}
		}
		if c.AddPrefix != nil && !*c.AddPrefix {
			m.scheme = "never"
		}
		if c.Scheme != nil {
			m.scheme = *c.Scheme
		}
		if !slices.Contains([]string{"always", "first", "never"}, m.scheme) {
			return nil, &UnsupportedError{Section: "pre_tokenizer", Part: "Metaspace prepend_scheme " + m.scheme}
		}
		if orTrue(c.Split) {
			m.split = &splitter{pattern: literal(m.char), how: mergedWithNext}
		}
		return m, nil
	case "Whitespace":
		return &splitter{pattern: wordsOrSymbols{}, how: removed, invert: true}, nil
	case "WhitespaceSplit":
		return &splitter{pattern: runeClass(isSpace), how: removed}, nil
	case "BertPreTokenizer":
		return sequence{&splitter{pattern: runeClass(isSpace), how: removed}, &splitter{pattern: runeClass(isBertPunct), how: isolated}}, nil
	case "Punctuation":
		if c.Behavior == "" {
			c.Behavior = isolated
		}
		if !c.Behavior.known() {
			return nil, &UnsupportedError{Section: "pre_tokenizer", Part: "Punctuation behavior " + string(c.Behavior)}
		}
		return &splitter{pattern: runeClass(isBertPunct), how: c.Behavior}, nil
	case "Digits":
		if c.Individual {
			return &splitter{pattern: runeClass(isNumeric), how: isolated, fast: scanDigits(1)}, nil
		}
		return &splitter{pattern: runeClass(isNumeric), how: contiguous}, nil
	case "CharDelimiterSplit":
		if utf8.RuneCountInString(c.Delimiter) != 1 {
			return nil, &UnsupportedError{Section: "pre_tokenizer", Part: "CharDelimiterSplit", Why: "the delimiter must be one character"}
		}
		return &splitter{pattern: literal(c.Delimiter), how: removed}, nil
	case "FixedLength":
		if c.Length < 1 {
			return nil, &UnsupportedError{Section: "pre_tokenizer", Part: "FixedLength", Why: "the length must be 1 or more"}
		}
		return fixedLength(c.Length), nil
	case "UnicodeScripts":
		return scripts{}, nil
	}
	return nil, &UnsupportedError{Section: "pre_tokenizer", Part: c.Type}
}

// newSplit is Split with behavior Isolated over a pattern of our own.
func newSplit(source string) (*splitter, error) {
	re, err := compileRegex(source)
	if err != nil {
		return nil, err
	}
	return &splitter{pattern: re, how: isolated, fast: scanners[source]}, nil
}

// wordsOrSymbols matches \w+|[^\w\s]+ with Rust's meaning of \w.
type wordsOrSymbols struct{}

func (wordsOrSymbols) find(s string, emit func(lo, hi int)) error {
	kind := func(r rune) int {
		switch {
		case isWord(r):
			return 1
		case isSpace(r):
			return 0
		}
		return 2
	}
	lo, cur := 0, 0
	for i, r := range s {
		if k := kind(r); k != cur {
			if cur != 0 {
				emit(lo, i)
			}
			lo, cur = i, k
		}
	}
	if cur != 0 {
		emit(lo, len(s))
	}
	return nil
}
