package tokenizer

import (
	"sort"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// The normal forms here follow the Unicode standard annex 15 to the letter. x/text's streaming forms insert U+034F after 30
// combining marks (the stream-safe format), which the reference does not; only its character tables are used.

// isNumeric is Rust's char::is_numeric and regex \p{N}.
func isNumeric(r rune) bool {
	if r < 0x80 {
		return '0' <= r && r <= '9'
	}
	return unicode.Is(unicode.N, r)
}

func isLetter(r rune) bool {
	if r < 0x80 {
		return 'a' <= r|0x20 && r|0x20 <= 'z'
	}
	return unicode.IsLetter(r)
}

// isSpace is the White_Space property: regex \s and Rust's char::is_whitespace.
func isSpace(r rune) bool { return unicode.IsSpace(r) }

// isWord is \w of Rust's regex crate.
func isWord(r rune) bool {
	if r < 0x80 {
		return isLetter(r) || '0' <= r && r <= '9' || r == '_'
	}
	return unicode.IsLetter(r) || unicode.Is(unicode.M, r) || unicode.Is(unicode.Nd, r) || unicode.Is(unicode.Nl, r) ||
		unicode.Is(unicode.Pc, r) || unicode.Is(unicode.Other_Alphabetic, r) || r == 0x200C || r == 0x200D
}

// isBertPunct is ASCII punctuation (with its symbols) or category P.
func isBertPunct(r rune) bool {
	if r < 0x80 {
		return r >= '!' && r <= '/' || r >= ':' && r <= '@' || r >= '[' && r <= '`' || r >= '{' && r <= '~'
	}
	return unicode.Is(unicode.P, r)
}

// isControl is BERT's: category C, but tab, line feed and carriage return count as space.
func isControl(r rune) bool {
	if r == '\t' || r == '\n' || r == '\r' {
		return false
	}
	return unicode.Is(unicode.Cc, r) || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Co, r)
}

func isChinese(r rune) bool {
	return r >= 0x4E00 && r <= 0x9FFF || r >= 0x3400 && r <= 0x4DBF || r >= 0x20000 && r <= 0x2A6DF || r >= 0x2A700 && r <= 0x2B73F ||
		r >= 0x2B740 && r <= 0x2B81F || r >= 0x2B920 && r <= 0x2CEAF || r >= 0xF900 && r <= 0xFAFF || r >= 0x2F800 && r <= 0x2FA1F
}

// lowerRunes is Rust's char::to_lowercase: one character gives two.
func lowerRunes(r rune) (rune, rune) {
	if r == 0x130 {
		return 'i', 0x307
	}
	return unicode.ToLower(r), -1
}

const (
	hangulS, hangulL, hangulV, hangulT = 0xAC00, 0x1100, 0x1161, 0x11A7
	hangulLs, hangulVs, hangulTs       = 19, 21, 28
	hangulSs                           = hangulLs * hangulVs * hangulTs
)

// compositions maps pairs to their primary composite, built once from x/text's decompositions.
var compositions = sync.OnceValue(func() map[[2]rune]rune {
	m := make(map[[2]rune]rune, 1024)
	for r := rune(0xC0); r <= 0x2FA1F; r++ {
		if r >= 0xD800 && r <= 0xF8FF || r >= hangulS && r < hangulS+hangulSs {
			continue
		}
		s := string(r)
		d := norm.NFD.PropertiesString(s).Decomposition()
		if d == nil || norm.NFC.String(s) != s {
			continue // not a composite, or excluded from composition
		}
		full := []rune(string(d))
		if len(full) < 2 {
			continue
		}
		// The table holds full decompositions; the pair is the composite of all but the last with the last.
		first := full[0]
		if len(full) > 2 {
			c := []rune(norm.NFC.String(string(full[:len(full)-1])))
			if len(c) != 1 {
				continue
			}
			first = c[0]
		}
		m[[2]rune{first, full[len(full)-1]}] = r
	}
	return m
})

func compose(a, b rune) (rune, bool) {
	if a >= hangulL && a < hangulL+hangulLs && b >= hangulV && b < hangulV+hangulVs {
		return hangulS + ((a-hangulL)*hangulVs+(b-hangulV))*hangulTs, true
	}
	if a >= hangulS && a < hangulS+hangulSs && (a-hangulS)%hangulTs == 0 && b > hangulT && b < hangulT+hangulTs {
		return a + b - hangulT, true
	}
	if b < 0x300 { // no composition ends in a character below
		return 0, false
	}
	r, ok := compositions()[[2]rune{a, b}]
	return r, ok
}

func decompose(dst []rune, r rune, compat bool) []rune {
	if r >= hangulS && r < hangulS+hangulSs {
		i := r - hangulS
		dst = append(dst, hangulL+i/(hangulVs*hangulTs), hangulV+i%(hangulVs*hangulTs)/hangulTs)
		if t := i % hangulTs; t != 0 {
			dst = append(dst, hangulT+t)
		}
		return dst
	}
	if r < 0xA0 {
		return append(dst, r)
	}
	var buf [utf8.UTFMax]byte
	b := buf[:utf8.EncodeRune(buf[:], r)]
	form := norm.NFD
	if compat {
		form = norm.NFKD
	}
	if d := form.Properties(b).Decomposition(); d != nil {
		for _, c := range string(d) {
			dst = append(dst, c)
		}
		return dst
	}
	return append(dst, r)
}

func combiningClass(r rune) uint8 {
	if r < 0x300 {
		return 0
	}
	var buf [utf8.UTFMax]byte
	return norm.NFD.Properties(buf[:utf8.EncodeRune(buf[:], r)]).CCC()
}

// normChar is a character of a normal form.
type normChar struct {
	r    rune
	ccc  uint8
	more bool // not the first of its source character
	gone bool // joined with an earlier one
	// absorbed counts source characters that were joined with this one.
	absorbed int
}

// normalForm applies NFC, NFD, NFKC or NFKD.
func normalForm(n nstr, compat, composed bool) nstr {
	if normalAlready(n.s, compat, composed) {
		return n
	}
	e := edit(n)
	var buf []normChar
	eachSegment(n.s, composed && !compat, func(seg string, clean bool) {
		if clean {
			for range seg {
				e.keep()
			}
			return
		}
		buf = normChars(buf[:0], seg, compat, composed)
		// The reference aligns by position: a reordered mark keeps the place, not the source.
		for _, c := range buf {
			switch {
			case c.gone:
			case c.more:
				e.replace(c.r, c.absorbed)
			default:
				e.replace(c.r, 1+c.absorbed)
			}
		}
	})
	return e.done()
}

// nfcText is NFC without alignment.
func nfcText(s string) string {
	if normalAlready(s, false, true) {
		return s
	}
	var out strings.Builder
	out.Grow(len(s))
	var buf []normChar
	eachSegment(s, true, func(seg string, clean bool) {
		if clean {
			out.WriteString(seg)
			return
		}
		buf = normChars(buf[:0], seg, false, true)
		for _, c := range buf {
			if !c.gone {
				out.WriteRune(c.r)
			}
		}
	})
	return out.String()
}

// eachSegment cuts a text where nothing composes or reorders across. With quick, stretches that x/text's tables show to be NFC
// already are given as clean.
func eachSegment(s string, quick bool, f func(seg string, clean bool)) {
	for len(s) > 0 {
		if quick {
			if n := norm.NFC.QuickSpanString(s); n > 0 {
				f(s[:n], true)
				s = s[n:]
				continue
			}
		}
		end := 0
		for { // x/text also cuts after 30 marks: go on while a mark follows
			k := norm.NFKC.NextBoundaryInString(s[end:], true)
			if k <= 0 {
				end = len(s)
				break
			}
			end += k
			if end >= len(s) {
				break
			}
			if r, _ := utf8.DecodeRuneInString(s[end:]); combiningClass(r) == 0 {
				break
			}
		}
		f(s[:end], false)
		s = s[end:]
	}
}

// normChars decomposes, orders and, if asked, composes a segment.
func normChars(chars []normChar, s string, compat, composed bool) []normChar {
	var buf []rune
	for _, r := range s {
		if r < 0xA0 {
			chars = append(chars, normChar{r: r})
			continue
		}
		buf = decompose(buf[:0], r, compat)
		for k, d := range buf {
			chars = append(chars, normChar{r: d, ccc: combiningClass(d), more: k > 0})
		}
	}
	for lo := 0; lo < len(chars); {
		if chars[lo].ccc == 0 {
			lo++
			continue
		}
		hi := lo
		for hi < len(chars) && chars[hi].ccc != 0 {
			hi++
		}
		part := chars[lo:hi]
		sort.SliceStable(part, func(a, b int) bool { return part[a].ccc < part[b].ccc })
		lo = hi
	}
	if composed {
		composeChars(chars)
	}
	return chars
}

// composeChars is the canonical composition algorithm: each character joins the last starter unless blocked.
func composeChars(chars []normChar) {
	starter, last := -1, uint8(0)
	for i := range chars {
		c := &chars[i]
		if starter >= 0 && (last == 0 && prevKept(chars, i) == starter || last != 0 && last < c.ccc) {
			if r, ok := compose(chars[starter].r, c.r); ok {
				chars[starter].r = r
				c.gone = true
				if !c.more {
					chars[starter].absorbed++
				}
				continue
			}
		}
		if c.ccc == 0 {
			starter = i
		}
		last = c.ccc
	}
}

func prevKept(chars []normChar, i int) int {
	for i--; i >= 0; i-- {
		if !chars[i].gone {
			return i
		}
	}
	return -1
}

// normalAlready is a quick check that never says yes wrongly. (x/text's check says no to more than 30 marks in a row, which only
// costs time.)
func normalAlready(s string, compat, composed bool) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= 0x80 {
			return composed && !compat && norm.NFC.QuickSpanString(s[i:]) == len(s)-i
		}
	}
	return true
}
