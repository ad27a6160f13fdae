package jinja

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind int

const (
	tokData tokenKind = iota
	tokVarBegin
	tokVarEnd
	tokBlockBegin
	tokBlockEnd
	tokName
	tokString
	tokNumber
	tokOp
	tokEOF
)

type token struct {
	kind tokenKind
	text string
	num  any // of tokNumber
	line int
}

// SyntaxError says where a template cannot be read.
type SyntaxError struct {
	Line int
	Msg  string
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("template line %d: %s", e.Line, e.Msg) }

// isPySpace is Python's str.isspace for one character.
func isPySpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1C && r <= 0x1F }

func rstrip(s string) string { return strings.TrimRightFunc(s, isPySpace) }

var (
	rawBegin = regexp.MustCompile(`^\{%([-+]?)\s*raw\s*(-%\}\s*|%\})`)
	rawEnd   = regexp.MustCompile(`(?s)^(.*?)\{%([-+]?)\s*endraw\s*(\+%\}|-%\}\s*|%\}\n?)`)
	name     = regexp.MustCompile(`^[\pL_][\pL\pN\pM_]*`)
	number   = regexp.MustCompile(`^(0[bB](_?[01])+|0[oO](_?[0-7])+|0[xX](_?[\da-fA-F])+|\d+(_\d+)*(\.\d+(_\d+)*)?([eE][+-]?\d+(_\d+)*)?)`)
)

var operators = []string{"**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", ".", ":", "|", ",", ";", "(", ")", "[", "]", "{", "}"}

// lexer cuts a template and resolves whitespace control: '-' strips, '+' keeps, otherwise one newline after a block and the indent before
// it go (trim_blocks, lstrip_blocks).
type lexer struct {
	src         string
	pos         int
	out         []token
	lineStart   bool // the last token ended a line
	lineCounted int
	line        int
}

// maxSource bounds a template; the longest published ones have some 50 KB.
const maxSource = 1 << 20

func lex(src string) ([]token, error) {
	if len(src) > maxSource {
		return nil, &SyntaxError{Line: 1, Msg: fmt.Sprintf("a template of %d bytes, more than %d", len(src), maxSource)}
	}
	src = strings.ReplaceAll(strings.ReplaceAll(src, "\r\n", "\n"), "\r", "\n")
	src = strings.TrimSuffix(src, "\n")
	l := &lexer{src: src, lineStart: true, line: 1}
	for l.pos < len(l.src) {
		if err := l.root(); err != nil {
			return nil, err
		}
	}
	l.add(tokEOF, "")
	return l.out, nil
}

func (l *lexer) at() int {
	l.line += strings.Count(l.src[l.lineCounted:l.pos], "\n")
	l.lineCounted = l.pos
	return l.line
}

func (l *lexer) add(k tokenKind, s string) {
	l.out = append(l.out, token{kind: k, text: s, line: l.at()})
}

func (l *lexer) fail(format string, args ...any) error {
	return &SyntaxError{Line: l.at(), Msg: fmt.Sprintf(format, args...)}
}

func (l *lexer) data(s string) {
	if s != "" {
		l.add(tokData, s)
	}
}

// before applies the whitespace control of a tag to the text in front of it.
func (l *lexer) before(text, sign string, variable bool) string {
	switch {
	case sign == "-":
		return rstrip(text)
	case sign != "+" && !variable:
		cut := strings.LastIndexByte(text, '\n') + 1
		if (cut > 0 || l.lineStart) && strings.TrimFunc(text[cut:], isPySpace) == "" {
			return text[:cut]
		}
	}
	return text
}

func (l *lexer) root() error {
	rest := l.src[l.pos:]
	i := 0
	for {
		k := strings.IndexByte(rest[i:], '{')
		if k < 0 || i+k+1 >= len(rest) {
			l.data(rest)
			l.pos = len(l.src)
			return nil
		}
		i += k
		if c := rest[i+1]; c == '{' || c == '%' || c == '#' {
			break
		}
		i++
	}
	text, tag := rest[:i], rest[i:]
	if m := rawBegin.FindStringSubmatch(tag); m != nil {
		l.data(l.before(text, m[1], false))
		l.pos += i + len(m[0])
		return l.raw(strings.HasSuffix(m[0], "\n"))
	}
	sign := ""
	if len(tag) > 2 && (tag[2] == '-' || tag[2] == '+') {
		sign = tag[2:3]
	}
	l.data(l.before(text, sign, tag[1] == '{'))
	l.pos += i + 2 + len(sign)
	switch tag[1] {
	case '#':
		end := strings.Index(l.src[l.pos:], "#}")
		if end < 0 {
			return l.fail("comment without end")
		}
		body := l.src[l.pos : l.pos+end]
		l.pos += end + 2
		l.after(strings.HasSuffix(body, "-"), strings.HasSuffix(body, "+"), true)
		return nil
	case '{':
		l.add(tokVarBegin, "")
		return l.expression("}}", tokVarEnd)
	}
	l.add(tokBlockBegin, "")
	return l.expression("%}", tokBlockEnd)
}

// after skips what the end of a tag takes with it.
func (l *lexer) after(strip, keep, block bool) {
	start := l.pos
	switch {
	case strip:
		l.pos = len(l.src) - len(strings.TrimLeftFunc(l.src[l.pos:], isPySpace))
	case block && !keep && l.pos < len(l.src) && l.src[l.pos] == '\n':
		l.pos++
	}
	l.lineStart = l.pos > start && l.src[l.pos-1] == '\n'
}

func (l *lexer) raw(lineStart bool) error {
	m := rawEnd.FindStringSubmatch(l.src[l.pos:])
	if m == nil {
		return l.fail("raw without endraw")
	}
	l.lineStart = lineStart
	l.data(l.before(m[1], m[2], false))
	l.pos += len(m[0])
	l.lineStart = strings.HasSuffix(m[0], "\n")
	return nil
}

// expression reads tokens up to the end of the tag.
func (l *lexer) expression(end string, endKind tokenKind) error {
	var open []byte
	for {
		l.pos = len(l.src) - len(strings.TrimLeftFunc(l.src[l.pos:], isPySpace))
		rest := l.src[l.pos:]
		if rest == "" {
			return l.fail("tag without end %q", end)
		}
		if len(open) == 0 {
			for _, sign := range []string{"-", "+", ""} {
				if sign == "+" && end == "}}" {
					continue
				}
				if strings.HasPrefix(rest, sign+end) {
					l.add(endKind, "")
					l.pos += len(sign) + len(end)
					l.after(sign == "-", sign == "+", end == "%}")
					return nil
				}
			}
		}
		switch c := rest[0]; {
		case c == '"' || c == '\'':
			n := 1
			for n < len(rest) && rest[n] != c {
				if rest[n] == '\\' {
					n++
				}
				n++
			}
			if n >= len(rest) {
				return l.fail("string without end")
			}
			s, err := unescape(rest[1:n])
			if err != nil {
				return l.fail("%v", err)
			}
			l.add(tokString, s)
			l.pos += n + 1
		case c >= '0' && c <= '9':
			text := number.FindString(rest)
			num, err := parseNumber(text)
			if err != nil {
				return l.fail("%v", err)
			}
			l.out = append(l.out, token{kind: tokNumber, text: text, num: num, line: l.at()})
			l.pos += len(text)
		default:
			if m := name.FindString(rest); m != "" {
				l.add(tokName, m)
				l.pos += len(m)
				break
			}
			op := ""
			for _, o := range operators {
				if strings.HasPrefix(rest, o) {
					op = o
					break
				}
			}
			if op == "" {
				r, _ := utf8.DecodeRuneInString(rest)
				return l.fail("unexpected character %q", r)
			}
			switch op {
			case "(", "[", "{":
				open = append(open, op[0])
			case ")", "]", "}":
				if len(open) == 0 || open[len(open)-1] != map[string]byte{")": '(', "]": '[', "}": '{'}[op] {
					return l.fail("unexpected %q", op)
				}
				open = open[:len(open)-1]
			}
			l.add(tokOp, op)
			l.pos += len(op)
		}
	}
}

func parseNumber(s string) (any, error) {
	if len(s) > maxDigits {
		return nil, fmt.Errorf("a number of %d digits", len(s))
	}
	s = strings.ReplaceAll(s, "_", "")
	lower := strings.ToLower(s)
	if !strings.HasPrefix(lower, "0x") && strings.ContainsAny(lower, ".e") {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil && !isInf(f) {
			return nil, err
		}
		return f, nil
	}
	base := 10
	if len(s) > 1 && s[0] == '0' && lower[1] > '9' {
		base = 0
	}
	b, ok := new(big.Int).SetString(s, base)
	if !ok {
		return nil, fmt.Errorf("number %q", s)
	}
	return normInt(b), nil
}

// unescape reads the escapes of a Python string literal. Unknown ones keep their backslash.
func unescape(s string) (string, error) {
	if !strings.ContainsRune(s, '\\') {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 >= len(s) {
			b.WriteByte(s[i])
			continue
		}
		i++
		c := s[i]
		if k := strings.IndexByte("abfnrtv\\'\"", c); k >= 0 {
			b.WriteByte("\a\b\f\n\r\t\v\\'\""[k])
			continue
		}
		switch {
		case c == '\n':
		case c == 'x' || c == 'u' || c == 'U':
			n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
			if i+n >= len(s)+0 && i+n > len(s)-1 {
				return "", fmt.Errorf("short escape \\%c", c)
			}
			v, err := strconv.ParseUint(s[i+1:i+1+n], 16, 32)
			if err != nil || v > unicode.MaxRune {
				return "", fmt.Errorf("bad escape \\%c", c)
			}
			b.WriteRune(rune(v))
			i += n
		case c >= '0' && c <= '7':
			v, n := 0, 0
			for n < 3 && i+n < len(s) && s[i+n] >= '0' && s[i+n] <= '7' {
				v = v*8 + int(s[i+n]-'0')
				n++
			}
			b.WriteRune(rune(v))
			i += n - 1
		default:
			b.WriteByte('\\')
			b.WriteByte(c)
		}
	}
	return b.String(), nil
}
