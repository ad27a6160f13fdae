package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// scanner is a hand-written equal of a well-known Split pattern: it gives the end of the piece that begins at byte i. A run of
// characters that the pattern does not match is one piece, as the Isolated behavior makes it.
type scanner func(s string, i int) int

const (
	gpt2Pattern     = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	qwenPattern     = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	llama3Pattern   = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	deepseekDigits  = `\p{N}{1,3}`
	deepseekCJK     = `[一-龥぀-ゟ゠-ヿ]+`
	deepseekPattern = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
)

// scanners maps patterns to their hand-written equals. Tests hold each against the pattern run by regexp2.
var scanners = map[string]scanner{
	gpt2Pattern:     scanGPT2,
	qwenPattern:     func(s string, i int) int { return scanLlama(s, i, 1) },
	llama3Pattern:   func(s string, i int) int { return scanLlama(s, i, 3) },
	deepseekDigits:  scanDigits(3),
	deepseekCJK:     scanCJK,
	deepseekPattern: scanDeepSeek,
}

type class uint8

const (
	other class = iota
	letter
	number
	space
	newline // \r or \n
	mark    // told apart from other only where asked for
	symbol  // punctuation and symbols, likewise
)

var asciiClass = func() (t [128]class) {
	for r := range rune(128) {
		switch {
		case isLetter(r):
			t[r] = letter
		case isNumeric(r):
			t[r] = number
		case r == '\r' || r == '\n':
			t[r] = newline
		case isSpace(r):
			t[r] = space
		}
	}
	return t
}()

// classAt gives the class of the character at i and its length.
func classAt(s string, i int) (class, int) {
	if c := s[i]; c < 0x80 {
		return asciiClass[c], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	switch {
	case unicode.IsLetter(r):
		return letter, n
	case isNumeric(r):
		return number, n
	case isSpace(r):
		return space, n
	}
	return other, n
}

// runOf is the end of the run of one class that begins at i.
func runOf(s string, i int, want class) int {
	for i < len(s) {
		c, n := classAt(s, i)
		if c != want {
			break
		}
		i += n
	}
	return i
}

// scanSpaces is \s*[\r\n]+|\s+(?!\S)|\s+ (the first alternative only with lines) at a space.
func scanSpaces(s string, i int, lines bool) int {
	end, lastLine, lastStart := i, -1, i
	for end < len(s) {
		c, n := classAt(s, end)
		if c != space && c != newline {
			break
		}
		lastStart = end
		end += n
		if c == newline {
			lastLine = end
		}
	}
	switch {
	case lines && lastLine >= 0:
		return lastLine
	case end == len(s) || lastStart == i:
		return end
	}
	return lastStart
}

// contraction is the length of an English contraction at an apostrophe, 0 if none. fold ignores case; U+017F folds to s.
func contraction(s string, i int, fold bool) int {
	at := func(k int) byte {
		if i+k >= len(s) {
			return 0
		}
		c := s[i+k]
		if fold && c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		return c
	}
	switch at(1) {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if at(2) == 'e' {
			return 3
		}
	case 'l':
		if at(2) == 'l' {
			return 3
		}
	case 0xC5:
		if fold && at(2) == 0xBF {
			return 3
		}
	}
	return 0
}

func scanGPT2(s string, i int) int {
	if s[i] == '\'' {
		if n := contraction(s, i, false); n > 0 {
			return i + n
		}
	}
	j := i
	if s[i] == ' ' && i+1 < len(s) {
		j = i + 1
	}
	c, _ := classAt(s, j)
	switch c {
	case letter, number, other:
		return runOf(s, j, c)
	}
	return scanSpaces(s, i, false)
}

// scanLlama is the pattern of Llama 3 and cl100k, and with single digits that of Qwen.
func scanLlama(s string, i, digits int) int {
	if s[i] == '\'' {
		if n := contraction(s, i, true); n > 0 {
			return i + n
		}
	}
	c, n := classAt(s, i)
	switch c {
	case letter:
		return runOf(s, i+n, letter)
	case number:
		end := i + n
		for k := 1; k < digits && end < len(s); k++ {
			c, n := classAt(s, end)
			if c != number {
				break
			}
			end += n
		}
		return end
	case space, other:
		if i+n < len(s) {
			if d, m := classAt(s, i+n); d == letter {
				return runOf(s, i+n+m, letter)
			}
		}
	}
	j := i
	if s[i] == ' ' && i+1 < len(s) {
		if d, _ := classAt(s, i+1); d == other {
			j = i + 1
			c = other
		}
	}
	if c == other {
		end := runOf(s, j, other)
		for end < len(s) && (s[end] == '\r' || s[end] == '\n') {
			end++
		}
		return end
	}
	return scanSpaces(s, i, true)
}

// scanDigits isolates up to most numeric characters; what lies between is one piece.
func scanDigits(most int) scanner {
	return func(s string, i int) int {
		k := 0
		for i < len(s) && k < most {
			c, n := classAt(s, i)
			if c != number {
				break
			}
			i += n
			k++
		}
		if k > 0 {
			return i
		}
		for i < len(s) {
			c, n := classAt(s, i)
			if c == number {
				break
			}
			i += n
		}
		return i
	}
}

func isDeepSeekCJK(r rune) bool { return r >= 0x4E00 && r <= 0x9FA5 || r >= 0x3040 && r <= 0x30FF }

func scanCJK(s string, i int) int {
	r, n := utf8.DecodeRuneInString(s[i:])
	want := isDeepSeekCJK(r)
	for i += n; i < len(s); {
		if s[i] < 0x80 {
			if want {
				break
			}
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if isDeepSeekCJK(r) != want {
			break
		}
		i += n
	}
	return i
}

// fineClass is classAt with marks, punctuation and symbols told apart.
func fineClass(s string, i int) (class, int) {
	c, n := classAt(s, i)
	if c != other {
		return c, n
	}
	if b := s[i]; b < 0x80 {
		if b > ' ' && b < 0x7f {
			return symbol, 1
		}
		return other, 1
	}
	r, _ := utf8.DecodeRuneInString(s[i:])
	switch {
	case unicode.Is(unicode.M, r):
		return mark, n
	case unicode.Is(unicode.P, r), unicode.Is(unicode.S, r):
		return symbol, n
	}
	return other, n
}

func lettersAndMarks(s string, i int) int {
	for i < len(s) {
		c, n := fineClass(s, i)
		if c != letter && c != mark {
			break
		}
		i += n
	}
	return i
}

func scanDeepSeek(s string, i int) int {
	if end := matchDeepSeek(s, i); end > i {
		return end
	}
	for { // a run without a match is one piece
		_, n := utf8.DecodeRuneInString(s[i:])
		i += n
		if i >= len(s) || matchDeepSeek(s, i) > i {
			return i
		}
	}
}

// matchDeepSeek gives the end of the match at i, or i if the pattern does not match there.
func matchDeepSeek(s string, i int) int {
	asciiLetter := func(k int) bool { return k < len(s) && s[k] < 0x80 && asciiClass[s[k]] == letter }
	c, n := fineClass(s, i)
	if c == symbol && s[i] < 0x80 && asciiLetter(i+1) {
		end := i + 1
		for asciiLetter(end) {
			end++
		}
		return end
	}
	switch c {
	case letter, mark:
		return lettersAndMarks(s, i)
	case space, other, number:
		if end := lettersAndMarks(s, i+n); end > i+n {
			return end
		}
	}
	j := i
	if s[i] == ' ' && i+1 < len(s) {
		if d, _ := fineClass(s, i+1); d == symbol {
			j, c = i+1, symbol
		}
	}
	if c == symbol {
		for j < len(s) {
			d, m := fineClass(s, j)
			if d != symbol {
				break
			}
			j += m
		}
		for j < len(s) && (s[j] == '\r' || s[j] == '\n') {
			j++
		}
		return j
	}
	if c == space || c == newline {
		return scanSpaces(s, i, true)
	}
	return i
}
