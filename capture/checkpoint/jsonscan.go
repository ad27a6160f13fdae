package checkpoint

import (
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner walks one JSON text strictly (RFC 8259) and keeps byte positions: headers, indexes and config edits need to know
// where a value lies and must refuse a repeated key, both of which encoding/json hides.
type scanner struct {
	b     []byte
	i     int
	depth int
}

const maxDepth = 200

type scanError struct {
	Pos   int
	Msg   string
	Twice bool // a key is repeated
}

func (e *scanError) Error() string { return fmt.Sprintf("byte %d: %s", e.Pos, e.Msg) }

func (s *scanner) fail(format string, a ...any) error {
	return &scanError{Pos: s.i, Msg: fmt.Sprintf(format, a...)}
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

func (s *scanner) peek() byte {
	s.space()
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

func (s *scanner) expect(c byte) error {
	if s.peek() != c || s.i >= len(s.b) {
		if s.i >= len(s.b) {
			return s.fail("text ends where %q is due", c)
		}
		return s.fail("%q where %q is due", s.b[s.i], c)
	}
	s.i++
	return nil
}

// object calls f for every member, positioned at its value; f must consume the value. A repeated key is an error.
func (s *scanner) object(f func(key string, keyPos int) error) error {
	if err := s.expect('{'); err != nil {
		return err
	}
	if s.depth++; s.depth > maxDepth {
		return s.fail("nested deeper than %d", maxDepth)
	}
	defer func() { s.depth-- }()
	if s.peek() == '}' {
		s.i++
		return nil
	}
	seen := map[string]bool{}
	for {
		s.space()
		pos := s.i
		key, err := s.str()
		if err != nil {
			return err
		}
		if seen[key] {
			return &scanError{Pos: pos, Msg: fmt.Sprintf("key %q comes twice", key), Twice: true}
		}
		seen[key] = true
		if err := s.expect(':'); err != nil {
			return err
		}
		s.space()
		if err := f(key, pos); err != nil {
			return err
		}
		switch s.peek() {
		case ',':
			s.i++
		case '}':
			s.i++
			return nil
		default:
			return s.expect('}')
		}
	}
}

// array calls f at every element; f must consume it.
func (s *scanner) array(f func() error) error {
	if err := s.expect('['); err != nil {
		return err
	}
	if s.depth++; s.depth > maxDepth {
		return s.fail("nested deeper than %d", maxDepth)
	}
	defer func() { s.depth-- }()
	if s.peek() == ']' {
		s.i++
		return nil
	}
	for {
		s.space()
		if err := f(); err != nil {
			return err
		}
		switch s.peek() {
		case ',':
			s.i++
		case ']':
			s.i++
			return nil
		default:
			return s.expect(']')
		}
	}
}

// str reads a string value.
func (s *scanner) str() (string, error) {
	if s.peek() != '"' || s.i >= len(s.b) {
		return "", s.fail("a string is due here")
	}
	start := s.i
	s.i++
	for s.i < len(s.b) {
		switch c := s.b[s.i]; {
		case c == '"':
			raw := s.b[start+1 : s.i]
			if !utf8.Valid(raw) {
				s.i = start
				return "", s.fail("string is not UTF-8")
			}
			s.i++
			return string(raw), nil
		case c == '\\':
			return s.escaped(start)
		case c < 0x20:
			return "", s.fail("control character in a string")
		default:
			s.i++
		}
	}
	return "", s.fail("text ends inside a string")
}

// escaped finishes a string that contains escapes; s.i is at the first backslash.
func (s *scanner) escaped(start int) (string, error) {
	out := append([]byte(nil), s.b[start+1:s.i]...)
	for s.i < len(s.b) {
		c := s.b[s.i]
		switch {
		case c == '"':
			s.i++
			if !utf8.Valid(out) {
				s.i = start
				return "", s.fail("string is not UTF-8")
			}
			return string(out), nil
		case c < 0x20:
			return "", s.fail("control character in a string")
		case c != '\\':
			out = append(out, c)
			s.i++
			continue
		}
		if s.i+1 >= len(s.b) {
			break
		}
		e := s.b[s.i+1]
		s.i += 2
		switch e {
		case '"', '\\', '/':
			out = append(out, e)
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r, err := s.hex4()
			if err != nil {
				return "", err
			}
			if utf16.IsSurrogate(r) {
				r2 := rune(-1)
				if s.i+6 <= len(s.b) && s.b[s.i] == '\\' && s.b[s.i+1] == 'u' {
					s.i += 2
					if r2, err = s.hex4(); err != nil {
						return "", err
					}
				}
				if r = utf16.DecodeRune(r, r2); r == utf8.RuneError {
					return "", s.fail("lone surrogate in a string")
				}
			}
			out = utf8.AppendRune(out, r)
		default:
			return "", s.fail("unknown escape \\%c", e)
		}
	}
	return "", s.fail("text ends inside a string")
}

func (s *scanner) hex4() (rune, error) {
	if s.i+4 > len(s.b) {
		return 0, s.fail("text ends inside an escape")
	}
	v, err := strconv.ParseUint(string(s.b[s.i:s.i+4]), 16, 32)
	if err != nil {
		return 0, s.fail("bad \\u escape")
	}
	s.i += 4
	return rune(v), nil
}

// natural reads a non-negative integer without sign, fraction or exponent.
func (s *scanner) natural() (int64, error) {
	s.space()
	start := s.i
	for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
		s.i++
	}
	raw := s.b[start:s.i]
	bad := len(raw) == 0 || (len(raw) > 1 && raw[0] == '0')
	if s.i < len(s.b) && (s.b[s.i] == '.' || s.b[s.i] == 'e' || s.b[s.i] == 'E') {
		bad = true
	}
	v, err := strconv.ParseInt(string(raw), 10, 64)
	if bad || err != nil {
		s.i = start
		return 0, s.fail("a non-negative integer is due here")
	}
	return v, nil
}

// value skips any value and gives its bytes.
func (s *scanner) value() ([]byte, error) {
	s.space()
	start := s.i
	var err error
	switch c := s.peek(); {
	case c == '{':
		seen := map[string]bool{}
		err = s.object(func(k string, pos int) error {
			if seen[k] {
				return &scanError{Pos: pos, Msg: fmt.Sprintf("key %q repeated", k)}
			}
			seen[k] = true
			_, err := s.value()
			return err
		})
	case c == '[':
		err = s.array(func() error { _, err := s.value(); return err })
	case c == '"':
		_, err = s.str()
	case c == 't':
		err = s.word("true")
	case c == 'f':
		err = s.word("false")
	case c == 'n':
		err = s.word("null")
	case c == 'N':
		err = s.word("NaN") // Python's json writes these three into config.json
	case c == 'I':
		err = s.word("Infinity")
	case c == '-' || (c >= '0' && c <= '9'):
		err = s.number()
	default:
		err = s.fail("a value is due here")
	}
	return s.b[start:s.i], err
}

func (s *scanner) word(w string) error {
	if s.i+len(w) > len(s.b) || string(s.b[s.i:s.i+len(w)]) != w {
		return s.fail("a value is due here")
	}
	s.i += len(w)
	return nil
}

func (s *scanner) number() error {
	if s.b[s.i] == '-' {
		s.i++
		if s.i < len(s.b) && s.b[s.i] == 'I' {
			return s.word("Infinity")
		}
	}
	digits := func() int {
		n := 0
		for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
			s.i++
			n++
		}
		return n
	}
	first := s.i
	n := digits()
	if n == 0 || (n > 1 && s.b[first] == '0') {
		return s.fail("bad number")
	}
	if s.i < len(s.b) && s.b[s.i] == '.' {
		s.i++
		if digits() == 0 {
			return s.fail("bad number")
		}
	}
	if s.i < len(s.b) && (s.b[s.i] == 'e' || s.b[s.i] == 'E') {
		s.i++
		if s.i < len(s.b) && (s.b[s.i] == '+' || s.b[s.i] == '-') {
			s.i++
		}
		if digits() == 0 {
			return s.fail("bad number")
		}
	}
	return nil
}

// end refuses anything but white space after the value.
func (s *scanner) end() error {
	if s.peek(); s.i < len(s.b) {
		return s.fail("text goes on after the value")
	}
	return nil
}
