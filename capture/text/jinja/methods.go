package jinja

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

func upper(s string) string { return cases.Upper(language.Und).String(s) }
func lower(s string) string { return cases.Lower(language.Und).String(s) }

func capitalize(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	return cases.Title(language.Und, cases.NoLower).String(s[:n]) + lower(s)[len(lower(s[:n])):]
}

// titleFilter is Jinja's title: words are cut at spaces, hyphens and opening brackets.
func titleFilter(s string) string {
	var b strings.Builder
	start := 0
	cut := func(r rune) bool { return isPySpace(r) || strings.ContainsRune("-({[<", r) }
	flush := func(end int) {
		w := s[start:end]
		if w == "" {
			return
		}
		_, n := utf8.DecodeRuneInString(w)
		b.WriteString(upper(w[:n]) + lower(w[n:]))
	}
	for i, r := range s {
		if cut(r) {
			flush(i)
			b.WriteRune(r)
			start = i + utf8.RuneLen(r)
		}
	}
	flush(len(s))
	return b.String()
}

// titleMethod is str.title: a letter behind a letter is lower, any other upper.
func titleMethod(s string) string {
	var b strings.Builder
	prev := false
	for _, r := range s {
		cased := unicode.IsLetter(r) && (unicode.ToUpper(r) != r || unicode.ToLower(r) != r)
		switch {
		case prev:
			b.WriteString(lower(string(r)))
		default:
			b.WriteString(cases.Title(language.Und, cases.NoLower).String(string(r)))
		}
		prev = cased
	}
	return b.String()
}

func swapcase(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case unicode.IsUpper(r):
			b.WriteString(lower(string(r)))
		case unicode.IsTitle(r):
			b.WriteRune(r)
		default:
			b.WriteString(upper(string(r)))
		}
	}
	return b.String()
}

// splitLines is str.splitlines.
func splitLines(s string, keep bool) []string {
	var out []string
	start := 0
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		end := i
		i += n
		switch r {
		case '\r':
			if i < len(s) && s[i] == '\n' {
				i++
			}
		case '\n', '\v', '\f', 0x1C, 0x1D, 0x1E, 0x85, 0x2028, 0x2029:
		default:
			continue
		}
		if keep {
			end = i
		}
		out = append(out, s[start:end])
		start = i
	}
	if start < len(s) {
		out = append(out, s[start:])
	}
	return out
}

func texts(ss []string) *List {
	l := &List{Items: make([]any, len(ss))}
	for i, s := range ss {
		l.Items[i] = s
	}
	return l
}

// split is str.split and str.rsplit.
func split(s string, a args, fromRight bool) (any, error) {
	most, err := a.int(1, "maxsplit", -1)
	if err != nil {
		return nil, err
	}
	sep := a.param(0, "sep", nil)
	if sep == nil {
		var out []string
		rest := strings.TrimFunc(s, isPySpace)
		for n := int64(0); rest != ""; n++ {
			if most >= 0 && n == most {
				out = append(out, rest)
				break
			}
			if fromRight {
				i := strings.LastIndexFunc(rest, isPySpace)
				if i < 0 {
					out = append(out, rest)
					break
				}
				_, w := utf8.DecodeRuneInString(rest[i:])
				out = append(out, rest[i+w:])
				rest = rstrip(rest[:i])
				continue
			}
			i := strings.IndexFunc(rest, isPySpace)
			if i < 0 {
				out = append(out, rest)
				break
			}
			out = append(out, rest[:i])
			rest = strings.TrimLeftFunc(rest[i:], isPySpace)
		}
		if most >= 0 && !fromRight && len(out) > 0 { // the last part keeps its trailing space
			if int64(len(out)) == most+1 {
				tail := strings.TrimLeftFunc(s, isPySpace)
				for range most {
					i := strings.IndexFunc(tail, isPySpace)
					tail = strings.TrimLeftFunc(tail[i:], isPySpace)
				}
				out[len(out)-1] = tail
			}
		}
		if fromRight {
			reverseStrings(out)
		}
		return texts(out), nil
	}
	d, ok := sep.(string)
	if !ok {
		return nil, typeError("must be str or None, not %s", typeName(sep))
	}
	if d == "" {
		return nil, errors.New("ValueError: empty separator")
	}
	if !fromRight {
		n := -1
		if most >= 0 {
			n = int(most) + 1
		}
		return texts(strings.SplitN(s, d, n)), nil
	}
	var out []string
	for n := int64(0); most < 0 || n < most; n++ {
		i := strings.LastIndex(s, d)
		if i < 0 {
			break
		}
		out = append(out, s[i+len(d):])
		s = s[:i]
	}
	out = append(out, s)
	reverseStrings(out)
	return texts(out), nil
}

func reverseStrings(s []string) {
	for i, j := 0, len(s)-1; i < j; i, j = i+1, j-1 {
		s[i], s[j] = s[j], s[i]
	}
}

// pad fills a string to a width: align is '<', '>' or '^'. Python's center puts the odd one by the parity of the width.
func pad(s string, width int, fill string, align byte, center bool) (any, error) {
	n := width - utf8.RuneCountInString(s)
	if n <= 0 {
		return s, nil
	}
	if n > maxText/8 { // the fill may have several bytes
		return nil, errTooLarge
	}
	left := 0
	switch align {
	case '>':
		left = n
	case '^':
		left = n / 2
		if center {
			left = n/2 + n&width&1
		}
	}
	return strings.Repeat(fill, left) + s + strings.Repeat(fill, n-left), nil
}

// mutators are the methods that the immutable sandbox refuses.
var mutators = map[string][]string{
	"list": {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"},
	"dict": {"clear", "pop", "popitem", "setdefault", "update"},
}

// attribute gives a method or attribute of a value. Names that begin with an underscore do not exist.
func attribute(obj any, name string) (any, bool) {
	if strings.HasPrefix(name, "_") {
		return nil, false
	}
	if contains_(mutators[typeName(obj)], name) {
		return &Func{name: name, f: func(args) (any, error) {
			return nil, fmt.Errorf("SecurityError: access to method %q of %s is unsafe", name, typeName(obj))
		}}, true
	}
	method := func(f func(a args) (any, error)) (any, bool) { return &Func{name: name, f: f}, true }
	switch o := obj.(type) {
	case string:
		if m, ok := stringMethods[name]; ok {
			return method(func(a args) (any, error) { return m(o, a) })
		}
	case *Namespace:
		return o.d.Get(name)
	case *Func:
		if o.attr != nil {
			return o.attr(name)
		}
	case *Tuple, *List:
		items, _ := iterate(o)
		switch name {
		case "index":
			return method(func(a args) (any, error) {
				for i, it := range items {
					if len(a.pos) > 0 && equals(it, a.pos[0]) {
						return int64(i), nil
					}
				}
				return nil, errors.New("ValueError: not in list")
			})
		case "count":
			return method(func(a args) (any, error) {
				n := int64(0)
				for _, it := range items {
					if len(a.pos) > 0 && equals(it, a.pos[0]) {
						n++
					}
				}
				return n, nil
			})
		case "copy":
			if _, ok := o.(*List); ok {
				return method(func(args) (any, error) { return &List{append([]any{}, items...)}, nil })
			}
		case "grouper", "list": // the pairs of groupby
			if t, ok := o.(*Tuple); ok && len(items) == 2 {
				if _, isList := items[1].(*List); isList {
					if name == "grouper" {
						return t.Items[0], true
					}
					return t.Items[1], true
				}
			}
		}
	case *Dict:
		switch name {
		case "get":
			return method(func(a args) (any, error) {
				if len(a.pos) == 0 {
					return nil, typeError("get expected at least 1 argument, got 0")
				}
				if _, err := key(a.pos[0]); err != nil {
					return nil, err
				}
				if v, ok := o.Get(a.pos[0]); ok {
					return v, nil
				}
				return a.param(1, "default", nil), nil
			})
		case "items":
			return method(func(args) (any, error) { return &List{o.items()}, nil })
		case "keys":
			return method(func(args) (any, error) { return &List{o.keys}, nil })
		case "values":
			return method(func(args) (any, error) { return &List{o.vals}, nil })
		case "copy":
			return method(func(args) (any, error) { return o.copy(), nil })
		}
	}
	return nil, false
}

var stringMethods map[string]func(s string, a args) (any, error)

func init() {
	plain := func(f func(string) string) func(string, args) (any, error) {
		return func(s string, _ args) (any, error) { return f(s), nil }
	}
	strip := func(left, right bool) func(string, args) (any, error) {
		return func(s string, a args) (any, error) {
			set := a.param(0, "chars", nil)
			in := isPySpace
			if set != nil {
				c, err := a.text(0, "chars", "")
				if err != nil {
					return nil, err
				}
				in = func(r rune) bool { return strings.ContainsRune(c, r) }
			}
			if left {
				s = strings.TrimLeftFunc(s, in)
			}
			if right {
				s = strings.TrimRightFunc(s, in)
			}
			return s, nil
		}
	}
	all := func(in func(rune) bool) func(string, args) (any, error) {
		return func(s string, _ args) (any, error) {
			return s != "" && strings.IndexFunc(s, func(r rune) bool { return !in(r) }) < 0, nil
		}
	}
	find := func(last, must bool) func(string, args) (any, error) {
		return func(s string, a args) (any, error) {
			sub, err := a.text(0, "sub", "")
			if err != nil {
				return nil, err
			}
			runes := []rune(s)
			idx, err := sliceIndices(len(runes), a.param(1, "start", nil), a.param(2, "end", nil), nil)
			if err != nil {
				return nil, err
			}
			lo := 0
			if len(idx) > 0 {
				lo = idx[0]
				s = string(runes[lo : idx[len(idx)-1]+1])
			} else {
				s = ""
			}
			i := strings.Index(s, sub)
			if last {
				i = strings.LastIndex(s, sub)
			}
			if i < 0 {
				if must {
					return nil, errors.New("ValueError: substring not found")
				}
				return int64(-1), nil
			}
			return int64(lo + utf8.RuneCountInString(s[:i])), nil
		}
	}
	affix := func(has func(s, p string) bool) func(string, args) (any, error) {
		return func(s string, a args) (any, error) {
			if len(a.pos) == 0 {
				return nil, typeError("expected at least 1 argument, got 0")
			}
			if t, ok := a.pos[0].(*Tuple); ok {
				for _, p := range t.Items {
					x, ok := p.(string)
					if !ok {
						return nil, typeError("tuple must contain str")
					}
					if has(s, x) {
						return true, nil
					}
				}
				return false, nil
			}
			p, err := a.text(0, "prefix", "")
			return err == nil && has(s, p), err
		}
	}
	just := func(align byte) func(string, args) (any, error) {
		return func(s string, a args) (any, error) {
			w, err := a.int(0, "width", 0)
			if err != nil {
				return nil, err
			}
			fill, err := a.text(1, "fillchar", " ")
			if err != nil {
				return nil, err
			}
			return pad(s, int(max(min(w, maxText), 0)), fill, align, true)
		}
	}
	part := func(last bool) func(string, args) (any, error) {
		return func(s string, a args) (any, error) {
			sep, err := a.text(0, "sep", "")
			if err != nil {
				return nil, err
			}
			if sep == "" {
				return nil, errors.New("ValueError: empty separator")
			}
			i := strings.Index(s, sep)
			if last {
				if i = strings.LastIndex(s, sep); i < 0 {
					return &Tuple{[]any{"", "", s}}, nil
				}
			}
			if i < 0 {
				return &Tuple{[]any{s, "", ""}}, nil
			}
			return &Tuple{[]any{s[:i], sep, s[i+len(sep):]}}, nil
		}
	}
	stringMethods = map[string]func(string, args) (any, error){
		"upper": plain(upper), "lower": plain(lower), "casefold": plain(lower), "title": plain(titleMethod), "capitalize": plain(capitalize), "swapcase": plain(swapcase),
		"strip": strip(true, true), "lstrip": strip(true, false), "rstrip": strip(false, true),
		"split":  func(s string, a args) (any, error) { return split(s, a, false) },
		"rsplit": func(s string, a args) (any, error) { return split(s, a, true) },
		"splitlines": func(s string, a args) (any, error) {
			return texts(splitLines(s, a.flag(0, "keepends", false))), nil
		},
		"partition": part(false), "rpartition": part(true),
		"startswith": affix(strings.HasPrefix), "endswith": affix(strings.HasSuffix),
		"find": find(false, false), "rfind": find(true, false), "index": find(false, true), "rindex": find(true, true),
		"count": func(s string, a args) (any, error) {
			sub, err := a.text(0, "sub", "")
			return int64(strings.Count(s, sub)), err
		},
		"replace": func(s string, a args) (any, error) {
			if len(a.pos) < 2 {
				return nil, typeError("replace expected at least 2 arguments")
			}
			n, err := a.int(2, "count", -1)
			if err != nil {
				return nil, err
			}
			old, err := a.text(0, "old", "")
			if err != nil {
				return nil, err
			}
			with, err := a.text(1, "new", "")
			if err != nil {
				return nil, err
			}
			return replaceText(s, old, with, int(n))
		},
		"isdigit": all(unicode.IsDigit), "isdecimal": all(unicode.IsDigit), "isnumeric": all(unicode.IsNumber), "isalpha": all(unicode.IsLetter),
		"isspace": all(isPySpace), "isalnum": all(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }),
		"isascii": func(s string, _ args) (any, error) {
			return strings.IndexFunc(s, func(r rune) bool { return r > 0x7f }) < 0, nil
		},
		"islower": func(s string, _ args) (any, error) { return isLower(s), nil },
		"isupper": func(s string, _ args) (any, error) { return isUpper(s), nil },
		"istitle": func(s string, _ args) (any, error) { return titleMethod(s) == s && (isUpper(s) || lower(s) != s), nil },
		"ljust":   just('<'), "rjust": just('>'), "center": just('^'),
		"zfill": func(s string, a args) (any, error) {
			w, err := a.int(0, "width", 0)
			if err != nil {
				return nil, err
			}
			if w > maxText {
				return nil, errTooLarge
			}
			n := int(w) - utf8.RuneCountInString(s)
			if n <= 0 {
				return s, nil
			}
			if strings.HasPrefix(s, "-") || strings.HasPrefix(s, "+") {
				return s[:1] + strings.Repeat("0", n) + s[1:], nil
			}
			return strings.Repeat("0", n) + s, nil
		},
		"removeprefix": func(s string, a args) (any, error) {
			p, err := a.text(0, "prefix", "")
			return strings.TrimPrefix(s, p), err
		},
		"removesuffix": func(s string, a args) (any, error) {
			p, err := a.text(0, "suffix", "")
			return strings.TrimSuffix(s, p), err
		},
		"join": func(s string, a args) (any, error) {
			if len(a.pos) != 1 {
				return nil, typeError("join() takes exactly one argument")
			}
			items, err := iterate(a.pos[0])
			if err != nil {
				return nil, err
			}
			parts := make([]string, len(items))
			size := 0
			for i, it := range items {
				x, ok := it.(string)
				if !ok {
					return nil, typeError("sequence item %d: expected str instance, %s found", i, typeName(it))
				}
				parts[i] = x
				if size += len(x) + len(s); size > maxText {
					return nil, errTooLarge
				}
			}
			return strings.Join(parts, s), nil
		},
		"expandtabs": func(s string, a args) (any, error) {
			n, err := a.int(0, "tabsize", 8)
			if err != nil {
				return nil, err
			}
			var b strings.Builder
			col := int64(0)
			for _, r := range s {
				switch {
				case r == '\t' && n > 0:
					k := n - col%n
					if k > 1<<16 {
						return nil, errTooLarge
					}
					b.WriteString(strings.Repeat(" ", int(k)))
					col += k
				case r == '\t':
				default:
					b.WriteRune(r)
					col++
					if r == '\n' || r == '\r' {
						col = 0
					}
				}
			}
			return b.String(), nil
		},
		"format": func(s string, a args) (any, error) { return strFormat(s, a) },
	}
}
