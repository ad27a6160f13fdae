package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// pattern finds matches in a text.
type pattern interface {
	// find calls emit for every match in order, empty ones included.
	find(s string, emit func(lo, hi int)) error
}

// literal matches a fixed string, left to right without overlap.
type literal string

func (l literal) find(s string, emit func(lo, hi int)) error {
	if l == "" {
		return nil
	}
	for at := 0; ; {
		i := strings.Index(s[at:], string(l))
		if i < 0 {
			return nil
		}
		emit(at+i, at+i+len(l))
		at += i + len(l)
	}
}

// runeClass matches single characters.
type runeClass func(rune) bool

func (c runeClass) find(s string, emit func(lo, hi int)) error {
	for i, r := range s {
		if c(r) {
			emit(i, i+utf8.RuneLen(r))
		}
	}
	return nil
}

// regex is an Oniguruma pattern (Ruby syntax) run on regexp2.
type regex struct {
	source string
	re     *regexp2.Regexp
}

// compileRegex translates what the two dialects write differently and refuses what regexp2 cannot do.
func compileRegex(source string) (*regex, error) {
	t := translator{in: []rune(source), flags: []caseFlags{{}}}
	out, err := t.run()
	if err != nil {
		return nil, &UnsupportedError{Section: "regex", Part: source, Why: err.Error()}
	}
	re, err := regexp2.Compile(out, regexp2.None)
	if err != nil {
		return nil, &UnsupportedError{Section: "regex", Part: source, Why: err.Error()}
	}
	return &regex{source: source, re: re}, nil
}

func (x *regex) find(s string, emit func(lo, hi int)) error {
	runes := []rune(s)
	at, pos := 0, 0 // byte and rune offset reached
	offset := func(rune int) int {
		for pos < rune {
			at += utf8.RuneLen(runes[pos])
			pos++
		}
		return at
	}
	next, last := 0, -1
	for next <= len(runes) {
		m, err := x.re.FindRunesMatchStartingAt(runes, next)
		if err != nil {
			return fmt.Errorf("%w: pattern %q: %v", ErrText, x.source, err)
		}
		if m == nil {
			return nil
		}
		if m.Length == 0 && m.Index == last { // no empty match right behind a match
			next++
			if m.Index >= len(runes) {
				return nil
			}
			continue
		}
		lo := offset(m.Index)
		hi := offset(m.Index + m.Length)
		emit(lo, hi)
		next = m.Index + m.Length
		last = next
	}
	return nil
}

// caseFlags are the options in force inside a group.
type caseFlags struct{ fold, extended bool }

// translator rewrites Ruby syntax as .NET syntax.
type translator struct {
	in    []rune
	pos   int
	out   strings.Builder
	flags []caseFlags
	opens []int // where in out each open group began
	atom  int   // where in out the last atom began, -1 if none
}

func (t *translator) fold() bool { return t.flags[len(t.flags)-1].fold }

func (t *translator) emitAtom(s string) {
	t.atom = t.out.Len()
	t.out.WriteString(s)
}

func (t *translator) run() (string, error) {
	t.atom = -1
	for t.pos < len(t.in) {
		c := t.in[t.pos]
		switch c {
		case '\\':
			s, err := t.escape(false)
			if err != nil {
				return "", err
			}
			t.emitAtom(s)
		case '[':
			s, err := t.class()
			if err != nil {
				return "", err
			}
			t.emitAtom(s)
		case '(':
			if err := t.open(); err != nil {
				return "", err
			}
		case ')':
			if len(t.opens) == 0 {
				return "", fmt.Errorf("unmatched )")
			}
			t.out.WriteByte(')')
			t.atom = t.opens[len(t.opens)-1]
			t.opens = t.opens[:len(t.opens)-1]
			t.flags = t.flags[:len(t.flags)-1]
			t.pos++
		case '^':
			t.emitAtom(`(?:\A|(?<=\n)(?!\z))`)
			t.pos++
		case '$':
			t.emitAtom(`(?=\n|\z)`)
			t.pos++
		case '*', '+', '?', '{':
			t.quantifier()
		case '|':
			t.out.WriteByte('|')
			t.atom = -1
			t.pos++
		default:
			t.emitAtom(t.char(c))
			t.pos++
		}
	}
	if len(t.opens) != 0 {
		return "", fmt.Errorf("unmatched (")
	}
	return t.out.String(), nil
}

// char writes a literal character; under (?i) the letters whose Unicode fold leaves ASCII are written out.
func (t *translator) char(c rune) string {
	if t.fold() {
		switch unicode.ToLower(c) {
		case 's', 'ſ':
			return "[sSſ]"
		case 'k', 'K':
			return "[kK\u212A]"
		}
	}
	if c == '#' || c == ' ' {
		return string(c)
	}
	return string(c)
}

func (t *translator) open() error {
	start := t.out.Len()
	f := t.flags[len(t.flags)-1]
	t.pos++
	if t.pos >= len(t.in) || t.in[t.pos] != '?' {
		t.out.WriteString("(?:")
		t.push(start, f)
		return nil
	}
	rest := string(t.in[t.pos:])
	for _, p := range []string{"?:", "?=", "?!", "?>", "?<=", "?<!"} {
		if strings.HasPrefix(rest, p) {
			t.out.WriteString("(" + p)
			t.pos += len(p)
			t.push(start, f)
			return nil
		}
	}
	if strings.HasPrefix(rest, "?#") {
		for t.pos < len(t.in) && t.in[t.pos] != ')' {
			t.pos++
		}
		t.pos++
		return nil
	}
	if strings.HasPrefix(rest, "?<") {
		for t.pos < len(t.in) && t.in[t.pos] != '>' {
			t.pos++
		}
		t.pos++
		t.out.WriteString("(?:") // names are of no use: back references are refused
		t.push(start, f)
		return nil
	}
	// options: (?imx-imx) or (?imx-imx:…)
	t.pos++
	on, set := true, ""
	var net strings.Builder
	for t.pos < len(t.in) {
		c := t.in[t.pos]
		t.pos++
		switch c {
		case '-':
			on = false
			net.WriteByte('-')
		case 'i':
			f.fold = on
			net.WriteByte('i')
		case 'm': // Ruby's m lets the dot match line ends
			net.WriteByte('s')
		case 'x':
			f.extended = on
			net.WriteByte('x')
		case ':':
			t.out.WriteString("(?" + net.String() + ":")
			t.push(start, f)
			return nil
		case ')':
			t.out.WriteString("(?" + net.String() + ")")
			t.flags[len(t.flags)-1] = f
			t.atom = -1
			return nil
		default:
			return fmt.Errorf("group option %q", set+string(c))
		}
	}
	return fmt.Errorf("unfinished group")
}

func (t *translator) push(start int, f caseFlags) {
	t.opens = append(t.opens, start)
	t.flags = append(t.flags, f)
	t.atom = -1
}

// quantifier copies a quantifier and turns possessive ones into atomic groups.
func (t *translator) quantifier() {
	c := t.in[t.pos]
	q := string(c)
	end := t.pos + 1
	if c == '{' {
		for end < len(t.in) && (unicode.IsDigit(t.in[end]) || t.in[end] == ',') {
			end++
		}
		if end >= len(t.in) || t.in[end] != '}' || end == t.pos+1 || t.atom < 0 {
			t.emitAtom(`\{`)
			t.pos++
			return
		}
		end++
		q = string(t.in[t.pos:end])
		if strings.HasPrefix(q, "{,") { // Ruby: from zero
			q = "{0" + q[1:]
		}
	}
	t.pos = end
	if t.atom < 0 {
		t.emitAtom(`\` + q)
		return
	}
	full := t.out.String()
	atom := full[t.atom:]
	next := rune(0)
	if t.pos < len(t.in) {
		next = t.in[t.pos]
	}
	switch {
	case next == '?':
		t.pos++
		t.out.WriteString(q + "?")
	case next == '+' && c != '{':
		t.pos++
		t.out.Reset()
		t.out.WriteString(full[:t.atom] + "(?>" + atom + q + ")")
	default:
		t.out.Reset()
		t.out.WriteString(full[:t.atom] + "(?:" + atom + q + ")")
	}
}

// escape translates \x outside a class, or inside one.
func (t *translator) escape(inClass bool) (string, error) {
	if t.pos+1 >= len(t.in) {
		return "", fmt.Errorf("trailing backslash")
	}
	c := t.in[t.pos+1]
	t.pos += 2
	wrap := func(body string) string {
		if inClass {
			return body
		}
		return "[" + body + "]"
	}
	const word = `\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}`
	const notWord = `\P{L}`
	switch c {
	case 'p', 'P':
		if t.pos >= len(t.in) || t.in[t.pos] != '{' {
			return "", fmt.Errorf(`\%c without braces`, c)
		}
		end := t.pos
		for end < len(t.in) && t.in[end] != '}' {
			end++
		}
		if end >= len(t.in) {
			return "", fmt.Errorf(`unfinished \%c{`, c)
		}
		name := string(t.in[t.pos+1 : end])
		t.pos = end + 1
		neg := c == 'P'
		if strings.HasPrefix(name, "^") {
			neg, name = !neg, name[1:]
		}
		body, ok := property(name)
		if !ok {
			return "", fmt.Errorf("property %q", name)
		}
		if len(body) > 1 {
			if inClass && neg {
				return "", fmt.Errorf("negated property %q inside a class", name)
			}
			if neg {
				return "[^" + strings.Join(body, "") + "]", nil
			}
			return wrap(strings.Join(body, "")), nil
		}
		if neg {
			return strings.Replace(body[0], `\p`, `\P`, 1), nil
		}
		return body[0], nil
	case 'w':
		return wrap(word), nil
	case 'W':
		if inClass {
			return "", fmt.Errorf(`\W inside a class`)
		}
		_ = notWord
		return "[^" + word + "]", nil
	case 'h':
		return wrap("0-9a-fA-F"), nil
	case 'H':
		if inClass {
			return "", fmt.Errorf(`\H inside a class`)
		}
		return "[^0-9a-fA-F]", nil
	case 'R':
		return `(?>\r\n|[\n\v\f\r\u0085\u2028\u2029])`, nil
	case 'd', 'D', 's', 'S', 'A', 'z', 'Z', 'b', 'B', 'G', 'n', 'r', 't', 'f', 'v', 'e', 'a':
		return `\` + string(c), nil
	case 'u':
		if t.pos+4 > len(t.in) {
			return "", fmt.Errorf(`short \u`)
		}
		s := `\u` + string(t.in[t.pos:t.pos+4])
		t.pos += 4
		return s, nil
	case 'x':
		if t.pos < len(t.in) && t.in[t.pos] == '{' {
			end := t.pos
			for end < len(t.in) && t.in[end] != '}' {
				end++
			}
			if end >= len(t.in) {
				return "", fmt.Errorf(`unfinished \x{`)
			}
			var v rune
			if _, err := fmt.Sscanf(string(t.in[t.pos+1:end]), "%x", &v); err != nil || v > unicode.MaxRune {
				return "", fmt.Errorf(`bad \x{`)
			}
			t.pos = end + 1
			return quoteRune(v), nil
		}
		end := t.pos
		for end < len(t.in) && end < t.pos+2 && strings.ContainsRune("0123456789abcdefABCDEF", t.in[end]) {
			end++
		}
		var v rune
		fmt.Sscanf(string(t.in[t.pos:end]), "%x", &v)
		t.pos = end
		return quoteRune(v), nil
	case '0':
		return quoteRune(0), nil
	}
	if c >= '1' && c <= '9' || unicode.IsLetter(c) {
		return "", fmt.Errorf(`escape \%c`, c)
	}
	return quoteRune(c), nil
}

func quoteRune(r rune) string {
	if r < 0x80 && (r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z') {
		return string(r)
	}
	if r < 0x20 || r == 0x7f {
		return fmt.Sprintf(`\x%02x`, r)
	}
	if r < 0x80 {
		return `\` + string(r)
	}
	return string(r)
}

// property gives the .NET spelling of a Unicode property; more than one part is a union.
func property(name string) ([]string, bool) {
	long := map[string][]string{
		"letter": {`\p{L}`}, "mark": {`\p{M}`}, "number": {`\p{N}`}, "punctuation": {`\p{P}`}, "symbol": {`\p{S}`}, "separator": {`\p{Z}`}, "other": {`\p{C}`},
		"alpha": {`\p{L}`, `\p{M}`, `\p{Nl}`}, "alphabetic": {`\p{L}`, `\p{M}`, `\p{Nl}`}, "digit": {`\p{Nd}`}, "space": {`\s`}, "upper": {`\p{Lu}`}, "lower": {`\p{Ll}`},
		"punct": {`\p{P}`}, "alnum": {`\p{L}`, `\p{M}`, `\p{Nd}`}, "cntrl": {`\p{Cc}`}, "word": {`\p{L}`, `\p{M}`, `\p{Nd}`, `\p{Pc}`},
		"uppercase_letter": {`\p{Lu}`}, "lowercase_letter": {`\p{Ll}`}, "titlecase_letter": {`\p{Lt}`}, "modifier_letter": {`\p{Lm}`}, "other_letter": {`\p{Lo}`},
		"decimal_number": {`\p{Nd}`}, "space_separator": {`\p{Zs}`}, "xdigit": {`0-9a-fA-F`},
	}
	if p, ok := long[strings.ToLower(strings.ReplaceAll(name, " ", "_"))]; ok {
		return p, true
	}
	if _, ok := unicode.Categories[name]; ok {
		return []string{`\p{` + name + `}`}, true
	}
	for script := range unicode.Scripts {
		if strings.EqualFold(script, name) {
			return []string{`\p{` + script + `}`}, true
		}
	}
	return nil, false
}

// class translates a bracket expression. Ruby knows nested classes (a union) and intersections; .NET reads both as
// literals in silence, so they are written as alternatives and look-aheads.
func (t *translator) class() (string, error) {
	t.pos++ // [
	neg := false
	if t.pos < len(t.in) && t.in[t.pos] == '^' {
		neg = true
		t.pos++
	}
	var parts []string // classes of one operand, to be united
	var operands []string
	var body strings.Builder
	flush := func() {
		if body.Len() > 0 {
			parts = append(parts, "["+body.String()+"]")
			body.Reset()
		}
	}
	operand := func() {
		flush()
		operands = append(operands, union(parts))
		parts = nil
	}
	first := true
	for {
		if t.pos >= len(t.in) {
			return "", fmt.Errorf("unfinished class")
		}
		c := t.in[t.pos]
		switch {
		case c == ']' && !first:
			t.pos++
			operand()
			return finishClass(operands, neg), nil
		case c == '[' && t.pos+1 < len(t.in) && t.in[t.pos+1] == ':':
			end := strings.Index(string(t.in[t.pos:]), ":]")
			if end < 0 {
				return "", errors.New("a POSIX class is not closed")
			}
			name := []rune(string(t.in[t.pos:])[2:end])
			p, ok := property(string(name))
			if !ok {
				return "", fmt.Errorf("class [:%s:]", string(name))
			}
			body.WriteString(strings.Join(p, ""))
			t.pos += len(name) + 4
		case c == '[':
			flush()
			inner, err := t.class()
			if err != nil {
				return "", err
			}
			parts = append(parts, inner)
		case c == '&' && t.pos+1 < len(t.in) && t.in[t.pos+1] == '&':
			t.pos += 2
			operand()
		case c == '\\':
			s, err := t.escape(true)
			if err != nil {
				return "", err
			}
			body.WriteString(s)
		case c == '-':
			t.pos++
			// a range if something stands on both sides, else a literal
			if body.Len() == 0 || t.pos < len(t.in) && t.in[t.pos] == ']' {
				body.WriteString(`\-`)
			} else if t.pos < len(t.in) && t.in[t.pos] == '[' {
				body.WriteString(`\-`)
			} else {
				body.WriteByte('-')
			}
		default:
			t.pos++
			if t.fold() {
				switch unicode.ToLower(c) {
				case 's':
					body.WriteString("sSſ")
					first = false
					continue
				case 'k':
					body.WriteString("kK\u212A")
					first = false
					continue
				}
			}
			body.WriteString(quoteRune(c))
		}
		first = false
	}
}

func union(parts []string) string {
	switch len(parts) {
	case 0:
		return `(?!)`
	case 1:
		return parts[0]
	}
	return "(?:" + strings.Join(parts, "|") + ")"
}

func finishClass(operands []string, neg bool) string {
	if len(operands) == 1 {
		one := operands[0]
		if !neg {
			return one
		}
		if strings.HasPrefix(one, "[") && !strings.HasPrefix(one, "[^") {
			return "[^" + one[1:]
		}
		return `(?:(?!` + one + `)[\s\S])`
	}
	var b strings.Builder
	for _, o := range operands[:len(operands)-1] {
		b.WriteString("(?=" + o + ")")
	}
	b.WriteString(operands[len(operands)-1])
	if neg {
		return `(?:(?!` + b.String() + `)[\s\S])`
	}
	return `(?:` + b.String() + `)`
}
