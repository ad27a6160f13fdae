package jinja

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"sort"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Undefined is what a name or attribute that does not exist gives: false, empty, printed as nothing, an error in arithmetic.
type Undefined struct{ name string }

// List is a Python list.
type List struct{ Items []any }

// Tuple is a Python tuple.
type Tuple struct{ Items []any }

// Dict is a Python dict: it keeps the order of insertion. Keys are hashable values.
type Dict struct {
	keys  []any
	vals  []any
	index map[any]int
}

// Namespace is the object of namespace(): the only thing a template can assign to.
type Namespace struct{ d *Dict }

// Func is a callable.
type Func struct {
	name string
	f    func(a args) (any, error)
	attr func(name string) (any, bool) // attributes of objects such as cycler
}

// args are the arguments of a call.
type args struct {
	pos []any
	kw  *Dict // nil: none
}

var errType = errors.New("TypeError")

func typeError(format string, a ...any) error {
	return fmt.Errorf("%w: %s", errType, fmt.Sprintf(format, a...))
}

// NewDict gives an empty dict.
func NewDict() *Dict { return &Dict{index: map[any]int{}} }

// key makes a value comparable as Python hashes it: 1, 1.0 and True are one key.
func key(v any) (any, error) {
	switch v := v.(type) {
	case nil:
		return struct{}{}, nil
	case bool:
		if v {
			return int64(1), nil
		}
		return int64(0), nil
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<62 {
			return int64(v), nil
		}
		return v, nil
	case *big.Int:
		return "big:" + v.String(), nil
	case string:
		return "s" + v, nil
	case *Tuple:
		var b strings.Builder
		b.WriteString("t")
		for _, it := range v.Items {
			k, err := key(it)
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&b, "%T%v,", k, k)
		}
		return b.String(), nil
	case *List, *Dict:
		return nil, typeError("unhashable type: '%s'", typeName(v))
	}
	return v, nil
}

// Get looks a key up.
func (d *Dict) Get(k any) (any, bool) {
	h, err := key(k)
	if err != nil {
		return nil, false
	}
	i, ok := d.index[h]
	if !ok {
		return nil, false
	}
	return d.vals[i], true
}

// Set adds or replaces a key.
func (d *Dict) Set(k, v any) error {
	h, err := key(k)
	if err != nil {
		return err
	}
	if i, ok := d.index[h]; ok {
		d.vals[i] = v
		return nil
	}
	d.index[h] = len(d.keys)
	d.keys = append(d.keys, k)
	d.vals = append(d.vals, v)
	return nil
}

// Len is the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

func (d *Dict) copy() *Dict {
	out := NewDict()
	for i, k := range d.keys {
		out.Set(k, d.vals[i])
	}
	return out
}

func (d *Dict) items() []any {
	out := make([]any, len(d.keys))
	for i := range d.keys {
		out[i] = &Tuple{[]any{d.keys[i], d.vals[i]}}
	}
	return out
}

func isInf(f float64) bool { return math.IsInf(f, 0) }

func normInt(b *big.Int) any {
	if b.IsInt64() {
		return b.Int64()
	}
	return b
}

func typeName(v any) string {
	switch v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64, *big.Int:
		return "int"
	case float64:
		return "float"
	case string:
		return "str"
	case *List:
		return "list"
	case *Tuple:
		return "tuple"
	case *Dict:
		return "dict"
	case Undefined:
		return "Undefined"
	case *Namespace:
		return "Namespace"
	}
	return "function"
}

func truthy(v any) bool {
	switch v := v.(type) {
	case nil, Undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case *big.Int:
		return v.Sign() != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case *List:
		return len(v.Items) > 0
	case *Tuple:
		return len(v.Items) > 0
	case *Dict:
		return v.Len() > 0
	}
	return true
}

// str is Python's str().
func str(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case Undefined:
		return ""
	}
	return repr(v)
}

// floatRepr is Python's repr of a float: the shortest text that reads back, exponents from 1e16 and below 1e-4.
func floatRepr(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	exp, _ := strconv.Atoi(s[strings.IndexByte(s, 'e')+1:])
	if f != 0 && (exp < -4 || exp >= 16) {
		return s
	}
	s = strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// strRepr is Python's repr of a string.
func strRepr(s string) string {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	var b strings.Builder
	b.WriteByte(quote)
	for _, r := range s {
		switch {
		case r == rune(quote) || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x7f || unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	b.WriteByte(quote)
	return b.String()
}

func repr(v any) string {
	var b strings.Builder
	writeRepr(&b, v, 0)
	return b.String()
}

// tooMuch ends a rendering from a place that has no error to give: Render turns it into one.
type tooMuch struct{ error }

// maxNested bounds how deep a value may be nested where it is walked, and maxEqual how many pairs one comparison looks at: a value may
// hold another one twice, so a few statements make one that takes for ever to walk.
const (
	maxNested = 1000
	maxEqual  = 4 << 20
)

func writeRepr(b *strings.Builder, v any, level int) {
	if level > maxNested || b.Len() > maxText {
		panic(tooMuch{errTooLarge})
	}
	join := func(items []any) {
		for i, it := range items {
			if i > 0 {
				b.WriteString(", ")
			}
			writeRepr(b, it, level+1)
		}
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case bool:
		if v {
			b.WriteString("True")
		} else {
			b.WriteString("False")
		}
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case *big.Int:
		b.WriteString(v.String())
	case float64:
		b.WriteString(floatRepr(v))
	case string:
		b.WriteString(strRepr(v))
	case Undefined:
		b.WriteString("Undefined")
	case *List:
		b.WriteByte('[')
		join(v.Items)
		b.WriteByte(']')
	case *Tuple:
		b.WriteByte('(')
		join(v.Items)
		if len(v.Items) == 1 {
			b.WriteByte(',')
		}
		b.WriteByte(')')
	case *Dict:
		b.WriteByte('{')
		for i, k := range v.keys {
			if i > 0 {
				b.WriteString(", ")
			}
			writeRepr(b, k, level+1)
			b.WriteString(": ")
			writeRepr(b, v.vals[i], level+1)
		}
		b.WriteByte('}')
	case *Namespace:
		b.WriteString("<Namespace ")
		writeRepr(b, v.d, level+1)
		b.WriteByte('>')
	case *Func:
		b.WriteString("<function " + v.name + ">")
	default:
		fmt.Fprintf(b, "<%s>", typeName(v))
	}
}

// iterate gives the items of an iterable.
func iterate(v any) ([]any, error) {
	switch v := v.(type) {
	case *List:
		return v.Items, nil
	case *Tuple:
		return v.Items, nil
	case *Dict:
		return v.keys, nil
	case string:
		out := make([]any, 0, len(v))
		for _, r := range v {
			out = append(out, string(r))
		}
		return out, nil
	case Undefined:
		return nil, nil
	}
	return nil, typeError("'%s' object is not iterable", typeName(v))
}

func length(v any) (int, error) {
	switch v := v.(type) {
	case string:
		return utf8.RuneCountInString(v), nil
	case *List, *Tuple, *Dict, Undefined:
		items, err := iterate(v)
		return len(items), err
	}
	return 0, typeError("object of type '%s' has no len()", typeName(v))
}

// asNumber gives a value as int (big) or float; booleans are ints.
func asNumber(v any) (i *big.Int, f float64, isFloat, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return big.NewInt(1), 1, false, true
		}
		return big.NewInt(0), 0, false, true
	case int64:
		return big.NewInt(v), float64(v), false, true
	case *big.Int:
		f, _ := new(big.Float).SetInt(v).Float64()
		return v, f, false, true
	case float64:
		return nil, v, true, true
	}
	return nil, 0, false, false
}

func equals(a, b any) bool {
	left := maxEqual
	return equalTo(a, b, &left, 0)
}

// equalTo is equals with the number of pairs left to look at.
func equalTo(a, b any, left *int, level int) bool {
	if *left--; *left < 0 || level > maxNested {
		panic(tooMuch{errTooLarge})
	}
	ia, fa, floatA, okA := asNumber(a)
	ib, fb, floatB, okB := asNumber(b)
	if okA && okB {
		if floatA || floatB {
			return fa == fb
		}
		return ia.Cmp(ib) == 0
	}
	seq := func(x, y []any) bool {
		if len(x) != len(y) {
			return false
		}
		for i := range x {
			if !equalTo(x[i], y[i], left, level+1) {
				return false
			}
		}
		return true
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case string:
		s, ok := b.(string)
		return ok && s == a
	case Undefined:
		_, ok := b.(Undefined)
		return ok
	case *List:
		l, ok := b.(*List)
		return ok && seq(a.Items, l.Items)
	case *Tuple:
		l, ok := b.(*Tuple)
		return ok && seq(a.Items, l.Items)
	case *Dict:
		d, ok := b.(*Dict)
		if !ok || a.Len() != d.Len() {
			return false
		}
		for i, k := range a.keys {
			v, ok := d.Get(k)
			if !ok || !equalTo(a.vals[i], v, left, level+1) {
				return false
			}
		}
		return true
	}
	return a == b
}

// compare orders two values: negative, zero, positive.
func compare(a, b any) (int, error) {
	ia, fa, floatA, okA := asNumber(a)
	ib, fb, floatB, okB := asNumber(b)
	if okA && okB {
		if floatA || floatB {
			switch {
			case fa < fb:
				return -1, nil
			case fa > fb:
				return 1, nil
			}
			return 0, nil
		}
		return ia.Cmp(ib), nil
	}
	seq := func(x, y []any) (int, error) {
		for i := range min(len(x), len(y)) {
			if !equals(x[i], y[i]) { // which bounds the depth as well
				return compare(x[i], y[i])
			}
		}
		return len(x) - len(y), nil
	}
	switch a := a.(type) {
	case string:
		if s, ok := b.(string); ok {
			return strings.Compare(a, s), nil
		}
	case *List:
		if l, ok := b.(*List); ok {
			return seq(a.Items, l.Items)
		}
	case *Tuple:
		if l, ok := b.(*Tuple); ok {
			return seq(a.Items, l.Items)
		}
	}
	return 0, typeError("'<' not supported between instances of '%s' and '%s'", typeName(a), typeName(b))
}

func contains(container, item any) (bool, error) {
	switch c := container.(type) {
	case string:
		s, ok := item.(string)
		if !ok {
			return false, typeError("'in <string>' requires string as left operand, not %s", typeName(item))
		}
		return strings.Contains(c, s), nil
	case *Dict:
		if _, err := key(item); err != nil {
			return false, err
		}
		_, ok := c.Get(item)
		return ok, nil
	}
	items, err := iterate(container)
	if err != nil {
		return false, typeError("argument of type '%s' is not iterable", typeName(container))
	}
	for _, it := range items {
		if equals(it, item) {
			return true, nil
		}
	}
	return false, nil
}

// sortValues sorts stably by keys.
func sortValues(items []any, keyOf func(any) (any, error), reverse bool) ([]any, error) {
	type pair struct{ k, v any }
	pairs := make([]pair, len(items))
	for i, it := range items {
		k, err := keyOf(it)
		if err != nil {
			return nil, err
		}
		pairs[i] = pair{k, it}
	}
	var failed error
	sort.SliceStable(pairs, func(i, j int) bool {
		c, err := compare(pairs[i].k, pairs[j].k)
		if err != nil && failed == nil {
			failed = err
		}
		if reverse {
			return c > 0
		}
		return c < 0
	})
	if failed != nil {
		return nil, failed
	}
	out := make([]any, len(pairs))
	for i, p := range pairs {
		out[i] = p.v
	}
	return out, nil
}

// Each calls f for every key in order.
func (d *Dict) Each(f func(k, v any)) {
	for i, k := range d.keys {
		f(k, d.vals[i])
	}
}
