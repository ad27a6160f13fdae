package jinja

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// percentFormat is Python's s % values.
func percentFormat(s string, values any) (any, error) {
	var pos []any
	d, byName := values.(*Dict)
	if t, ok := values.(*Tuple); ok {
		pos = t.Items
	} else if !byName {
		pos = []any{values}
	}
	used := 0
	take := func() (any, error) {
		if used >= len(pos) {
			return nil, typeError("not enough arguments for format string")
		}
		used++
		return pos[used-1], nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		i++
		if i < len(s) && s[i] == '%' {
			b.WriteByte('%')
			continue
		}
		var v any
		have := false
		if i < len(s) && s[i] == '(' {
			end := strings.IndexByte(s[i:], ')')
			if end < 0 || !byName {
				return nil, typeError("format requires a mapping")
			}
			var ok bool
			if v, ok = d.Get(s[i+1 : i+end]); !ok {
				return nil, fmt.Errorf("KeyError: %q", s[i+1:i+end])
			}
			have = true
			i += end + 1
		}
		sp := spec{align: '>', fill: " "}
		for ; i < len(s) && strings.IndexByte("-+ 0#", s[i]) >= 0; i++ {
			switch s[i] {
			case '-':
				sp.align = '<'
			case '+', ' ':
				sp.sign = s[i]
			case '0':
				sp.zero = true
			case '#':
				sp.alt = true
			}
		}
		num := func() (int, error) {
			if i < len(s) && s[i] == '*' {
				i++
				w, err := take()
				if err != nil {
					return 0, err
				}
				n, ok := w.(int64)
				if !ok || n < 0 || n > 1<<20 {
					return 0, typeError("* wants a small int")
				}
				return int(n), nil
			}
			n := 0
			for ; i < len(s) && s[i] >= '0' && s[i] <= '9'; i++ {
				if n = n*10 + int(s[i]-'0'); n > 1<<20 {
					return 0, errTooLarge
				}
			}
			return n, nil
		}
		var err error
		if sp.width, err = num(); err != nil {
			return nil, err
		}
		sp.prec = -1
		if i < len(s) && s[i] == '.' {
			i++
			if sp.prec, err = num(); err != nil {
				return nil, err
			}
		}
		if i >= len(s) {
			return nil, errors.New("ValueError: incomplete format")
		}
		if !have {
			if v, err = take(); err != nil {
				return nil, err
			}
		}
		text := ""
		switch c := s[i]; c {
		case 's', 'r', 'a':
			text = str(v)
			if c != 's' {
				text = repr(v)
			}
			if sp.prec >= 0 {
				r := []rune(text)
				text = string(r[:min(len(r), sp.prec)])
			}
			sp.zero = false
		case 'd', 'i', 'u', 'x', 'X', 'o':
			n, f, isFloat, ok := asNumber(v)
			if !ok || isFloat && c != 'd' && c != 'i' && c != 'u' {
				return nil, typeError("%%%c format: a real number is required, not %s", c, typeName(v))
			}
			if isFloat {
				n, _ = big.NewFloat(math.Trunc(f)).Int(nil)
			}
			if c == 'i' || c == 'u' {
				c = 'd'
			}
			text = intText(n, c, sp)
		case 'f', 'F', 'e', 'E', 'g', 'G':
			_, f, _, ok := asNumber(v)
			if !ok {
				return nil, typeError("must be real number, not %s", typeName(v))
			}
			text = floatText(f, c, sp)
		case 'c':
			text = str(v)
			if n, ok := v.(int64); ok {
				text = string(rune(n))
			}
		default:
			return nil, fmt.Errorf("ValueError: unsupported format character %q", c)
		}
		if sp.zero && sp.align != '<' {
			text = zeroPad(text, sp.width)
		}
		out, err := pad(text, sp.width, " ", sp.align, false)
		if err != nil {
			return nil, err
		}
		b.WriteString(out.(string))
		if b.Len() > maxText {
			return nil, errTooLarge
		}
	}
	if !byName && used < len(pos) {
		return nil, typeError("not all arguments converted during string formatting")
	}
	return b.String(), nil
}

// spec is a format specification.
type spec struct {
	fill  string
	align byte
	sign  byte
	alt   bool
	zero  bool
	width int
	comma byte
	prec  int // -1: none
	kind  byte
}

func signed(neg bool, sp spec, digits string) string {
	switch {
	case neg:
		return "-" + digits
	case sp.sign == '+' || sp.sign == ' ':
		return string(sp.sign) + digits
	}
	return digits
}

func zeroPad(s string, width int) string {
	n := width - utf8.RuneCountInString(s)
	if n <= 0 {
		return s
	}
	head := 0
	if s != "" && strings.IndexByte("+- ", s[0]) >= 0 {
		head = 1
	}
	return s[:head] + strings.Repeat("0", n) + s[head:]
}

func intText(n *big.Int, kind byte, sp spec) string {
	base, prefix := 10, ""
	switch kind {
	case 'x', 'X':
		base, prefix = 16, "0"+string(kind)
	case 'o':
		base, prefix = 8, "0o"
	case 'b':
		base, prefix = 2, "0b"
	}
	d := new(big.Int).Abs(n).Text(base)
	if kind == 'X' {
		d = strings.ToUpper(d)
	}
	for sp.prec > len(d) {
		d = "0" + d
	}
	if sp.comma != 0 {
		d = group(d, sp.comma)
	}
	if sp.alt {
		d = prefix + d
	}
	return signed(n.Sign() < 0, sp, d)
}

func group(digits string, sep byte) string {
	var b strings.Builder
	for i := range len(digits) {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(sep)
		}
		b.WriteByte(digits[i])
	}
	return b.String()
}

func floatText(f float64, kind byte, sp spec) string {
	prec := sp.prec
	if prec < 0 {
		prec = 6
	}
	neg := math.Signbit(f)
	f = math.Abs(f)
	low := kind | 0x20
	var d string
	switch {
	case math.IsInf(f, 0):
		d = "inf"
	case math.IsNaN(f):
		d, neg = "nan", false
	case low == 'g':
		prec = max(prec, 1)
		d = strconv.FormatFloat(f, 'e', prec-1, 64)
		exp, _ := strconv.Atoi(d[strings.IndexByte(d, 'e')+1:])
		if exp < -4 || exp >= prec {
			m, e, _ := strings.Cut(d, "e")
			if strings.Contains(m, ".") && !sp.alt {
				m = strings.TrimRight(strings.TrimRight(m, "0"), ".")
			}
			d = m + "e" + e
		} else {
			d = strconv.FormatFloat(f, 'f', prec-1-exp, 64)
			if strings.Contains(d, ".") && !sp.alt {
				d = strings.TrimRight(strings.TrimRight(d, "0"), ".")
			}
		}
	default:
		d = strconv.FormatFloat(f, low, prec, 64)
	}
	if kind < 'a' {
		d = strings.ToUpper(d)
	}
	if sp.comma != 0 {
		whole, rest, dot := strings.Cut(d, ".")
		d = group(whole, sp.comma)
		if dot {
			d += "." + rest
		}
	}
	return signed(neg, sp, d)
}

// strFormat is str.format with the fields that the sandbox allows.
func strFormat(s string, a args) (any, error) {
	return formatFields(s, a, new(int), 0)
}

func formatFields(s string, a args, auto *int, depth int) (string, error) {
	if depth > 2 {
		return "", errors.New("ValueError: max string recursion exceeded")
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case (c == '{' || c == '}') && i+1 < len(s) && s[i+1] == c:
			b.WriteByte(c)
			i++
		case c == '}':
			return "", errors.New("ValueError: single '}' encountered in format string")
		case c == '{':
			level, end := 1, i+1
			for ; end < len(s); end++ {
				if s[end] == '{' {
					level++
				} else if s[end] == '}' {
					if level--; level == 0 {
						break
					}
				}
			}
			if end >= len(s) {
				return "", errors.New("ValueError: expected '}' before end of string")
			}
			out, err := formatField(s[i+1:end], a, auto, depth)
			if err != nil {
				return "", err
			}
			b.WriteString(out)
			i = end
		default:
			b.WriteByte(c)
		}
		if b.Len() > maxText {
			return "", errTooLarge
		}
	}
	return b.String(), nil
}

func formatField(field string, a args, auto *int, depth int) (string, error) {
	head, sp, _ := strings.Cut(field, ":")
	head, conv, _ := strings.Cut(head, "!")
	end := strings.IndexAny(head, ".[")
	first, rest := head, ""
	if end >= 0 {
		first, rest = head[:end], head[end:]
	}
	var v any
	if first == "" {
		first = strconv.Itoa(*auto)
		*auto++
	}
	if n, err := strconv.Atoi(first); err == nil {
		if n >= len(a.pos) || n < 0 {
			return "", errors.New("IndexError: replacement index out of range for positional args tuple")
		}
		v = a.pos[n]
	} else {
		ok := false
		if a.kw != nil {
			v, ok = a.kw.Get(first)
		}
		if !ok {
			return "", fmt.Errorf("KeyError: %q", first)
		}
	}
	for rest != "" {
		var err error
		if rest[0] == '.' {
			end := strings.IndexAny(rest[1:], ".[")
			name := rest[1:]
			rest = ""
			if end >= 0 {
				name, rest = name[:end], name[end:]
			}
			v, err = getattr(v, name)
		} else {
			end := strings.IndexByte(rest, ']')
			if end < 0 {
				return "", errors.New("ValueError: missing ']' in format string")
			}
			var k any = rest[1:end]
			if n, err := strconv.ParseInt(rest[1:end], 10, 64); err == nil {
				k = n
			}
			rest = rest[end+1:]
			v, err = item(v, k)
		}
		if err != nil {
			return "", err
		}
	}
	switch conv {
	case "r", "a":
		v = repr(v)
	case "s":
		v = str(v)
	}
	sp, err := formatFields(sp, a, auto, depth+1)
	if err != nil {
		return "", err
	}
	return formatValue(v, sp)
}

// formatValue is format(v, spec).
func formatValue(v any, s string) (string, error) {
	if s == "" {
		return str(v), nil
	}
	sp := spec{fill: " ", prec: -1}
	r := []rune(s)
	i := 0
	isAlign := func(k int) bool { return k < len(r) && strings.ContainsRune("<>^=", r[k]) }
	if isAlign(1) {
		sp.fill, sp.align = string(r[0]), byte(r[1])
		i = 2
	} else if isAlign(0) {
		sp.align = byte(r[0])
		i = 1
	}
	get := func(set string) byte {
		if i < len(r) && strings.ContainsRune(set, r[i]) {
			i++
			return byte(r[i-1])
		}
		return 0
	}
	num := func() int {
		n := 0
		for ; i < len(r) && r[i] >= '0' && r[i] <= '9' && n < 1<<20; i++ {
			n = n*10 + int(r[i]-'0')
		}
		return n
	}
	sp.sign = get("+- ")
	sp.alt = get("#") != 0
	if get("0") != 0 && sp.align == 0 {
		sp.zero, sp.fill, sp.align = true, "0", '='
	}
	sp.width = num()
	sp.comma = get(",_")
	if get(".") != 0 {
		sp.prec = num()
	}
	if i < len(r) {
		sp.kind = byte(r[i])
		i++
	}
	if i != len(r) {
		return "", errors.New("ValueError: invalid format specifier")
	}
	n, f, isFloat, isNum := asNumber(v)
	if _, isBool := v.(bool); isBool && sp.kind == 0 {
		isNum = false
	}
	text := ""
	switch {
	case isNum && sp.kind == '%':
		p := sp
		text = floatText(f*100, 'f', p) + "%"
	case isNum && (isFloat || strings.IndexByte("eEfFgG", sp.kind) >= 0 && sp.kind != 0):
		k := sp.kind
		if k == 0 {
			if sp.prec < 0 {
				text = signed(math.Signbit(f), sp, strings.TrimPrefix(floatRepr(f), "-"))
				break
			}
			k = 'g'
		}
		if strings.IndexByte("eEfFgG", k) < 0 {
			return "", fmt.Errorf("ValueError: unknown format code %q for float", k)
		}
		text = floatText(f, k, sp)
	case isNum:
		k := sp.kind
		if k == 'c' {
			text = string(rune(n.Int64()))
			break
		}
		if k == 0 || k == 'n' {
			k = 'd'
		}
		if strings.IndexByte("dxXob", k) < 0 {
			return "", fmt.Errorf("ValueError: unknown format code %q for int", k)
		}
		text = intText(n, k, sp)
	default:
		if sp.kind != 0 && sp.kind != 's' {
			return "", fmt.Errorf("ValueError: unknown format code %q for %s", sp.kind, typeName(v))
		}
		text = str(v)
		if sp.prec >= 0 {
			t := []rune(text)
			text = string(t[:min(len(t), sp.prec)])
		}
		if sp.align == 0 {
			sp.align = '<'
		}
	}
	if sp.align == '=' && isNum {
		if sp.fill == "0" {
			return zeroPad(text, sp.width), nil
		}
		head := ""
		if text != "" && strings.IndexByte("+- ", text[0]) >= 0 {
			head, text = text[:1], text[1:]
		}
		out, err := pad(text, sp.width-len(head), sp.fill, '>', false)
		if err != nil {
			return "", err
		}
		return head + out.(string), nil
	}
	if sp.align == 0 {
		sp.align = '>'
	}
	out, err := pad(text, sp.width, sp.fill, sp.align, false)
	if err != nil {
		return "", err
	}
	return out.(string), nil
}
