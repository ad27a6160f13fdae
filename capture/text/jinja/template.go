package jinja

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Template is a compiled template. It is immutable and safe for concurrent use.
type Template struct{ body []stmt }

// RaisedError is what raise_exception of a template raises; its text is the template's.
type RaisedError struct{ Msg string }

func (e *RaisedError) Error() string { return e.Msg }

// Compile reads a template.
func Compile(source string) (*Template, error) {
	body, err := parse(source)
	if err != nil {
		return nil, err
	}
	return &Template{body: body}, nil
}

// Output is a rendered text. Spans are the byte ranges that {% generation %} blocks wrote, in order of execution.
type Output struct {
	Text  string
	Spans [][2]int
}

// Render runs the template over variables. now is what strftime_now sees.
func (t *Template) Render(vars map[string]any, now time.Time) (out *Output, err error) {
	defer func() {
		if p := recover(); p != nil {
			too, ok := p.(tooMuch)
			if !ok {
				panic(p)
			}
			out, err = nil, too.error
		}
	}()
	r := &run{}
	r.out = &r.root
	globals := &scope{vars: globals(now)}
	sc := inner(globals)
	for k, v := range vars {
		sc.set(k, v)
	}
	// Variables of the caller and of the template itself share a frame, as in Jinja's context.
	if err := r.exec(t.body, sc); err != nil {
		return nil, err
	}
	return &Output{Text: r.root.String(), Spans: r.spans}, nil
}

// globals are the functions that every template sees.
func globals(now time.Time) map[string]any {
	return map[string]any{
		"raise_exception": &Func{name: "raise_exception", f: func(a args) (any, error) {
			if len(a.pos) != 1 {
				return nil, typeError("raise_exception takes one argument")
			}
			return nil, &RaisedError{str(a.pos[0])}
		}},
		"strftime_now": &Func{name: "strftime_now", f: func(a args) (any, error) {
			if len(a.pos) != 1 {
				return nil, typeError("strftime_now takes one argument")
			}
			return strftime(now, str(a.pos[0]))
		}},
		"range":     &Func{name: "range", f: pyRange},
		"namespace": &Func{name: "namespace", f: newNamespace},
		"dict": &Func{name: "dict", f: func(a args) (any, error) {
			return dictOf(a)
		}},
		"cycler": &Func{name: "cycler", f: newCycler},
		"joiner": &Func{name: "joiner", f: newJoiner},
		"lipsum": &Func{name: "lipsum", f: func(args) (any, error) { return nil, errors.New("lipsum is random and refused") }},
	}
}

func dictOf(a args) (*Dict, error) {
	d := NewDict()
	if len(a.pos) > 1 {
		return nil, typeError("dict expected at most 1 argument, got %d", len(a.pos))
	}
	if len(a.pos) == 1 {
		if src, ok := a.pos[0].(*Dict); ok {
			d = src.copy()
		} else {
			items, err := iterate(a.pos[0])
			if err != nil {
				return nil, err
			}
			for _, it := range items {
				p, err := iterate(it)
				if err != nil || len(p) != 2 {
					return nil, typeError("dict update sequence element is not a pair")
				}
				if err := d.Set(p[0], p[1]); err != nil {
					return nil, err
				}
			}
		}
	}
	if a.kw != nil {
		for i, k := range a.kw.keys {
			d.Set(k, a.kw.vals[i])
		}
	}
	return d, nil
}

func newNamespace(a args) (any, error) {
	d, err := dictOf(a)
	if err != nil {
		return nil, err
	}
	for _, k := range d.keys {
		if s, ok := k.(string); ok && strings.HasPrefix(s, "_") {
			return nil, fmt.Errorf("SecurityError: attribute %q of a namespace", s)
		}
	}
	return &Namespace{d}, nil
}

// maxRange is the sandbox's limit.
const maxRange = 100000

func pyRange(a args) (any, error) {
	var n [3]int64
	n[2] = 1
	if len(a.pos) < 1 || len(a.pos) > 3 || a.kw != nil {
		return nil, typeError("range expected 1 to 3 arguments")
	}
	for i, v := range a.pos {
		switch v := v.(type) {
		case int64:
			n[i] = v
		case bool:
			if v {
				n[i] = 1
			}
		default:
			return nil, typeError("'%s' object cannot be interpreted as an integer", typeName(v))
		}
	}
	if len(a.pos) == 1 {
		n[0], n[1] = 0, n[0]
	}
	if n[2] == 0 {
		return nil, errors.New("ValueError: range() arg 3 must not be zero")
	}
	out := &List{}
	for i := n[0]; n[2] > 0 && i < n[1] || n[2] < 0 && i > n[1]; i += n[2] {
		if len(out.Items) >= maxRange {
			return nil, fmt.Errorf("OverflowError: range too big, the sandbox allows %d", maxRange)
		}
		out.Items = append(out.Items, i)
	}
	return out, nil
}

func newCycler(a args) (any, error) {
	if len(a.pos) == 0 {
		return nil, typeError("at least one item has to be provided")
	}
	i := 0
	return &Func{name: "cycler", attr: func(name string) (any, bool) {
		switch name {
		case "next":
			return &Func{name: "next", f: func(args) (any, error) {
				v := a.pos[i]
				i = (i + 1) % len(a.pos)
				return v, nil
			}}, true
		case "reset":
			return &Func{name: "reset", f: func(args) (any, error) { i = 0; return nil, nil }}, true
		case "current":
			return a.pos[i], true
		}
		return nil, false
	}}, nil
}

func newJoiner(a args) (any, error) {
	sep := ", "
	if len(a.pos) > 0 {
		sep = str(a.pos[0])
	} else if a.kw != nil {
		if v, ok := a.kw.Get("sep"); ok {
			sep = str(v)
		}
	}
	used := false
	return &Func{name: "joiner", f: func(args) (any, error) {
		if !used {
			used = true
			return "", nil
		}
		return sep, nil
	}}, nil
}

// strftime formats a time as C's strftime in the C locale; '-' after the percent takes leading zeros off.
func strftime(t time.Time, format string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 >= len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		bare := format[i] == '-' && i+1 < len(format)
		if bare {
			i++
		}
		num := func(v, width int) string {
			if bare {
				return fmt.Sprint(v)
			}
			return fmt.Sprintf("%0*d", width, v)
		}
		hour12 := (t.Hour()+11)%12 + 1
		switch format[i] {
		case 'Y':
			b.WriteString(fmt.Sprint(t.Year()))
		case 'y':
			b.WriteString(num(t.Year()%100, 2))
		case 'C':
			b.WriteString(num(t.Year()/100, 2))
		case 'm':
			b.WriteString(num(int(t.Month()), 2))
		case 'd':
			b.WriteString(num(t.Day(), 2))
		case 'e':
			b.WriteString(fmt.Sprintf("%2d", t.Day()))
		case 'H':
			b.WriteString(num(t.Hour(), 2))
		case 'I':
			b.WriteString(num(hour12, 2))
		case 'M':
			b.WriteString(num(t.Minute(), 2))
		case 'S':
			b.WriteString(num(t.Second(), 2))
		case 'f':
			b.WriteString(fmt.Sprintf("%06d", t.Nanosecond()/1000))
		case 'j':
			b.WriteString(num(t.YearDay(), 3))
		case 'p':
			b.WriteString(t.Format("PM"))
		case 'A':
			b.WriteString(t.Format("Monday"))
		case 'a':
			b.WriteString(t.Format("Mon"))
		case 'B':
			b.WriteString(t.Format("January"))
		case 'b', 'h':
			b.WriteString(t.Format("Jan"))
		case 'w':
			b.WriteString(fmt.Sprint(int(t.Weekday())))
		case 'u':
			b.WriteString(fmt.Sprint((int(t.Weekday())+6)%7 + 1))
		case 'U':
			b.WriteString(num((t.YearDay()+6-int(t.Weekday()))/7, 2))
		case 'W':
			b.WriteString(num((t.YearDay()+6-(int(t.Weekday())+6)%7)/7, 2))
		case 'V':
			_, w := t.ISOWeek()
			b.WriteString(num(w, 2))
		case 'G':
			y, _ := t.ISOWeek()
			b.WriteString(fmt.Sprint(y))
		case 'F':
			b.WriteString(t.Format("2006-01-02"))
		case 'T':
			b.WriteString(t.Format("15:04:05"))
		case 'R':
			b.WriteString(t.Format("15:04"))
		case 'D', 'x':
			b.WriteString(t.Format("01/02/06"))
		case 'X':
			b.WriteString(t.Format("15:04:05"))
		case 'c':
			b.WriteString(t.Format("Mon Jan _2 15:04:05 2006"))
		case 's':
			b.WriteString(fmt.Sprint(t.Unix()))
		case 'z', 'Z': // the clock has no zone
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case '%':
			b.WriteByte('%')
		default:
			return "", fmt.Errorf("strftime_now: format %%%c is not known", format[i])
		}
	}
	return b.String(), nil
}
