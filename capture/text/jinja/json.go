package jinja

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/big"
	"strings"
	"unicode/utf16"
)

// FromJSON reads a JSON text with its key order; integers of any size stay integers.
func FromJSON(raw []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	v, err := readJSON(d, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("text behind the JSON value")
	}
	return v, nil
}

func readJSON(d *json.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("JSON nested deeper than %d", maxDepth)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Delim:
		if t == '[' {
			l := &List{}
			for d.More() {
				v, err := readJSON(d, depth+1)
				if err != nil {
					return nil, err
				}
				l.Items = append(l.Items, v)
			}
			_, err := d.Token()
			return l, err
		}
		o := NewDict()
		for d.More() {
			k, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := readJSON(d, depth+1)
			if err != nil {
				return nil, err
			}
			if err := o.Set(k, v); err != nil {
				return nil, err
			}
		}
		_, err := d.Token()
		return o, err
	case json.Number:
		s := string(t)
		if !strings.ContainsAny(s, ".eE") {
			if len(s) > maxDigits {
				return nil, fmt.Errorf("a number of %d digits", len(s))
			}
			if b, ok := new(big.Int).SetString(s, 10); ok {
				return normInt(b), nil
			}
		}
		f, err := t.Float64()
		if err != nil && !math.IsInf(f, 0) {
			return nil, err
		}
		return f, nil
	}
	return t, nil // nil, bool, string
}

// jsonStyle are the options of tojson.
type jsonStyle struct {
	ascii     bool
	indent    string
	indented  bool
	item, key string
	sorted    bool
}

// filterToJSON is the tojson that transformers installs: json.dumps with ensure_ascii False.
func filterToJSON(_ *run, v any, a args) (any, error) {
	st := jsonStyle{item: ", ", key: ": ", ascii: a.flag(0, "ensure_ascii", false), sorted: a.flag(3, "sort_keys", false)}
	switch in := a.param(1, "indent", nil).(type) {
	case nil:
	case int64:
		if in > maxText {
			return nil, errTooLarge
		}
		st.indented, st.indent, st.item = true, strings.Repeat(" ", int(max(0, in))), ","
	case string:
		st.indented, st.indent, st.item = true, in, ","
	default:
		return nil, typeError("indent must be a number or a string")
	}
	if sep := a.param(2, "separators", nil); sep != nil {
		p, err := iterate(sep)
		if err != nil || len(p) != 2 {
			return nil, typeError("separators must be a pair")
		}
		st.item, st.key = str(p[0]), str(p[1])
	}
	var b strings.Builder
	if err := st.write(&b, v, 0); err != nil {
		return nil, err
	}
	return b.String(), nil
}

func (st jsonStyle) line(b *strings.Builder, level int) {
	if st.indented {
		b.WriteByte('\n')
		for range level {
			b.WriteString(st.indent)
			if b.Len() > maxText {
				panic(tooMuch{errTooLarge})
			}
		}
	}
}

func (st jsonStyle) write(b *strings.Builder, v any, level int) error {
	if level > maxDepth {
		return fmt.Errorf("tojson: nested deeper than %d", maxDepth)
	}
	if b.Len() > maxText {
		return errTooLarge
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("null")
	case bool:
		fmt.Fprint(b, v)
	case int64, *big.Int:
		b.WriteString(repr(v))
	case float64:
		b.WriteString(jsonFloat(v))
	case string:
		st.text(b, v)
	case *List, *Tuple:
		items, _ := iterate(v)
		if len(items) == 0 {
			b.WriteString("[]")
			return nil
		}
		b.WriteByte('[')
		for i, it := range items {
			if i > 0 {
				b.WriteString(st.item)
			}
			st.line(b, level+1)
			if err := st.write(b, it, level+1); err != nil {
				return err
			}
		}
		st.line(b, level)
		b.WriteByte(']')
	case *Dict:
		if v.Len() == 0 {
			b.WriteString("{}")
			return nil
		}
		pairs := v.items()
		if st.sorted {
			var err error
			if pairs, err = sortValues(pairs, func(p any) (any, error) { return p.(*Tuple).Items[0], nil }, false); err != nil {
				return err
			}
		}
		b.WriteByte('{')
		for i, p := range pairs {
			if i > 0 {
				b.WriteString(st.item)
			}
			st.line(b, level+1)
			kv := p.(*Tuple).Items
			switch k := kv[0].(type) {
			case string:
				st.text(b, k)
			case nil:
				b.WriteString(`"null"`)
			case bool:
				fmt.Fprintf(b, `"%v"`, k)
			case int64, *big.Int:
				b.WriteString(`"` + repr(k) + `"`)
			case float64:
				b.WriteString(`"` + jsonFloat(k) + `"`)
			default:
				return typeError("keys must be str, int, float, bool or None, not %s", typeName(k))
			}
			b.WriteString(st.key)
			if err := st.write(b, kv[1], level+1); err != nil {
				return err
			}
		}
		st.line(b, level)
		b.WriteByte('}')
	default:
		return typeError("Object of type %s is not JSON serializable", typeName(v))
	}
	return nil
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return floatRepr(f)
}

func (st jsonStyle) text(b *strings.Builder, s string) {
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\b':
			b.WriteString(`\b`)
		case r == '\f':
			b.WriteString(`\f`)
		case r < ' ' || st.ascii && r >= 0x7f && r < 0x10000:
			if r == 0x7f {
				b.WriteRune(r)
				break
			}
			fmt.Fprintf(b, `\u%04x`, r)
		case st.ascii && r >= 0x10000:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(b, `\u%04x\u%04x`, hi, lo)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
}
