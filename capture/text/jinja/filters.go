package jinja

import (
	"errors"
	"fmt"
	"html"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// filter is a filter: its operand and arguments.
type filter func(r *run, v any, a args) (any, error)

// filterTable holds every filter by name. It is filled at start, since filters such as map look others up in it.
var filterTable map[string]filter

func init() {
	filterTable = map[string]filter{
		"abs": filterAbs, "attr": filterAttr, "batch": filterBatch, "capitalize": textFilter(capitalize), "center": filterCenter,
		"count": filterLength, "length": filterLength, "d": filterDefault, "default": filterDefault, "dictsort": filterDictsort,
		"e": textFilter(escape), "escape": textFilter(escape), "forceescape": textFilter(escape), "first": filterFirst, "float": filterFloat, "format": filterFormat,
		"groupby": filterGroupby, "indent": filterIndent, "int": filterInt, "items": filterItems, "join": filterJoin, "last": filterLast,
		"list": filterList, "lower": textFilter(lower), "map": filterMap, "max": extreme(1), "min": extreme(-1),
		"reject": selector(false, false), "rejectattr": selector(false, true), "select": selector(true, false), "selectattr": selector(true, true),
		"replace": filterReplace, "reverse": filterReverse, "round": filterRound, "safe": textFilter(func(s string) string { return s }), "slice": filterSlice,
		"sort": filterSort, "string": textFilter(func(s string) string { return s }), "striptags": textFilter(striptags), "sum": filterSum,
		"title": textFilter(titleFilter), "tojson": filterToJSON, "trim": filterTrim, "truncate": filterTruncate, "unique": filterUnique,
		"upper": textFilter(upper), "urlencode": filterURLEncode, "wordcount": filterWordcount, "pprint": func(_ *run, v any, _ args) (any, error) { return repr(v), nil },
	}
}

func textFilter(f func(string) string) filter {
	return func(_ *run, v any, _ args) (any, error) { return f(str(v)), nil }
}

func filterAbs(_ *run, v any, _ args) (any, error) {
	i, f, isFloat, ok := asNumber(v)
	switch {
	case !ok:
		return nil, typeError("bad operand type for abs(): '%s'", typeName(v))
	case isFloat:
		return math.Abs(f), nil
	}
	return normInt(new(big.Int).Abs(i)), nil
}

func filterAttr(_ *run, v any, a args) (any, error) {
	n, err := a.text(0, "name", "")
	if err != nil {
		return nil, err
	}
	if u, ok := v.(Undefined); ok {
		return nil, undefinedError(u)
	}
	if x, ok := attribute(v, n); ok {
		return x, nil
	}
	return Undefined{name: n}, nil
}

func filterBatch(_ *run, v any, a args) (any, error) {
	items, err := iterate(v)
	if err != nil {
		return nil, err
	}
	n, err := a.int(0, "linecount", 0)
	if err != nil {
		return nil, err
	}
	if n < 1 {
		return nil, errors.New("ValueError: batch needs a positive size")
	}
	fill := a.param(1, "fill_with", nil)
	if fill != nil && n > maxItems {
		return nil, errTooLarge
	}
	out := &List{}
	for chunk := range slices.Chunk(items, int(min(n, int64(len(items)+1)))) {
		row := append([]any{}, chunk...)
		for fill != nil && int64(len(row)) < n {
			row = append(row, fill)
		}
		out.Items = append(out.Items, &List{row})
	}
	return out, nil
}

func filterSlice(_ *run, v any, a args) (any, error) {
	items, err := iterate(v)
	if err != nil {
		return nil, err
	}
	n, err := a.int(0, "slices", 0)
	if err != nil {
		return nil, err
	}
	if n < 1 || n > 1<<20 {
		return nil, errors.New("ValueError: slice needs a positive number of columns")
	}
	fill := a.param(1, "fill_with", nil)
	per, extra := len(items)/int(n), len(items)%int(n)
	out := &List{}
	at := 0
	for i := range int(n) {
		end := at + per
		if i < extra {
			end++
		}
		row := append([]any{}, items[at:end]...)
		if fill != nil && i >= extra && extra > 0 {
			row = append(row, fill)
		}
		at = end
		out.Items = append(out.Items, &List{row})
	}
	return out, nil
}

func filterCenter(_ *run, v any, a args) (any, error) {
	w, err := a.int(0, "width", 80)
	if err != nil {
		return nil, err
	}
	return pad(str(v), int(w), " ", '^', true)
}

func filterLength(_ *run, v any, _ args) (any, error) {
	n, err := length(v)
	return int64(n), err
}

func filterDefault(_ *run, v any, a args) (any, error) {
	_, undef := v.(Undefined)
	if undef || a.flag(1, "boolean", false) && !truthy(v) {
		return a.param(0, "default_value", ""), nil
	}
	return v, nil
}

// ignoreCase makes strings compare without case.
func ignoreCase(v any) any {
	if s, ok := v.(string); ok {
		return strings.ToLower(s)
	}
	return v
}

func filterDictsort(_ *run, v any, a args) (any, error) {
	d, ok := v.(*Dict)
	if !ok {
		return nil, typeError("dictsort needs a mapping")
	}
	at := 0
	switch a.param(1, "by", "key") {
	case "key":
	case "value":
		at = 1
	default:
		return nil, errors.New(`you can only sort by either "key" or "value"`)
	}
	cased := a.flag(0, "case_sensitive", false)
	items, err := sortValues(d.items(), func(it any) (any, error) {
		k := it.(*Tuple).Items[at]
		if !cased {
			k = ignoreCase(k)
		}
		return k, nil
	}, a.flag(2, "reverse", false))
	return &List{items}, err
}

func filterFirst(_ *run, v any, _ args) (any, error) {
	items, err := iterate(v)
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return Undefined{name: "No first item, sequence was empty."}, nil
	}
	return items[0], nil
}

func filterLast(_ *run, v any, _ args) (any, error) {
	items, err := iterate(v)
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return Undefined{name: "No last item, sequence was empty."}, nil
	}
	return items[len(items)-1], nil
}

// toFloat is Python's float().
func toFloat(v any) (float64, bool) {
	if s, ok := v.(string); ok {
		s = strings.TrimFunc(s, isPySpace)
		switch strings.ToLower(strings.TrimLeft(s, "+-")) {
		case "inf", "infinity", "nan":
		default:
			if strings.ContainsAny(s, "xXpPiInN") {
				return 0, false
			}
		}
		f, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
		return f, err == nil || math.IsInf(f, 0)
	}
	_, f, _, ok := asNumber(v)
	return f, ok
}

func filterFloat(_ *run, v any, a args) (any, error) {
	if f, ok := toFloat(v); ok {
		return f, nil
	}
	return a.param(0, "default", 0.0), nil
}

func filterInt(_ *run, v any, a args) (any, error) {
	def := a.param(0, "default", int64(0))
	base, err := a.int(1, "base", 10)
	if err != nil {
		return nil, err
	}
	if s, ok := v.(string); ok {
		s = strings.ReplaceAll(strings.TrimFunc(s, isPySpace), "_", "")
		if len(s) > maxDigits { // Python refuses such text, and the filter gives its default
			return def, nil
		}
		if base >= 2 && base <= 36 || base == 0 {
			if base != 10 && base != 0 {
				s = strings.TrimPrefix(strings.TrimPrefix(strings.ToLower(s), "0x"), "0b")
			}
			if b, ok := new(big.Int).SetString(s, int(base)); ok {
				return normInt(b), nil
			}
		}
		f, ok := toFloat(s)
		if !ok || math.IsInf(f, 0) || math.IsNaN(f) {
			return def, nil
		}
		v = f
	}
	i, f, isFloat, ok := asNumber(v)
	switch {
	case !ok:
		return def, nil
	case isFloat:
		if math.IsInf(f, 0) || math.IsNaN(f) {
			return def, nil
		}
		b, _ := big.NewFloat(math.Trunc(f)).Int(nil)
		return normInt(b), nil
	}
	return normInt(i), nil
}

func filterFormat(_ *run, v any, a args) (any, error) {
	if a.kw != nil && a.kw.Len() > 0 {
		if len(a.pos) > 0 {
			return nil, errors.New("can't handle positional and keyword arguments at the same time")
		}
		return percentFormat(str(v), a.kw)
	}
	return percentFormat(str(v), &Tuple{a.pos})
}

// attrGetter reads 'a.b.0' of an item.
func attrGetter(path any, def any) func(any) (any, error) {
	return func(v any) (any, error) {
		if i, ok := path.(int64); ok {
			return item(v, i)
		}
		for part := range strings.SplitSeq(str(path), ".") {
			var err error
			var k any = part
			if n, err := strconv.ParseInt(part, 10, 64); err == nil {
				k = n
			}
			if v, err = item(v, k); err != nil {
				return nil, err
			}
			if _, undef := v.(Undefined); undef && def != nil {
				v = def
			}
		}
		return v, nil
	}
}

func filterGroupby(_ *run, v any, a args) (any, error) {
	items, err := iterate(v)
	if err != nil {
		return nil, err
	}
	get := attrGetter(a.param(0, "attribute", ""), a.param(1, "default", nil))
	cased := a.flag(2, "case_sensitive", false)
	keyOf := func(it any) (any, error) {
		k, err := get(it)
		if err == nil && !cased {
			k = ignoreCase(k)
		}
		return k, err
	}
	sorted, err := sortValues(items, keyOf, false)
	if err != nil {
		return nil, err
	}
	out := &List{}
	var last any
	for i, it := range sorted {
		k, err := keyOf(it)
		if err != nil {
			return nil, err
		}
		if i > 0 && equals(k, last) {
			l := out.Items[len(out.Items)-1].(*Tuple).Items[1].(*List)
			l.Items = append(l.Items, it)
			continue
		}
		last = k
		shown, err := get(it)
		if err != nil {
			return nil, err
		}
		out.Items = append(out.Items, &Tuple{[]any{shown, &List{[]any{it}}}})
	}
	return out, nil
}

func filterIndent(_ *run, v any, a args) (any, error) {
	pad := ""
	switch w := a.param(0, "width", int64(4)).(type) {
	case string:
		pad = w
	case int64:
		if w > maxText {
			return nil, errTooLarge
		}
		pad = strings.Repeat(" ", int(max(0, w)))
	default:
		return nil, typeError("width must be a number or a string")
	}
	first, blank := a.flag(1, "first", false), a.flag(2, "blank", false)
	s := str(v)
	// Jinja adds a newline and splits lines: a final newline stays.
	lines := splitLines(s+"\n", false)
	var b strings.Builder
	for i, l := range lines {
		if i > 0 {
			b.WriteByte('\n')
			if l != "" || blank {
				b.WriteString(pad)
			}
		} else if first {
			b.WriteString(pad)
		}
		b.WriteString(l)
		if b.Len() > maxText {
			return nil, errTooLarge
		}
	}
	return b.String(), nil
}

func filterItems(_ *run, v any, _ args) (any, error) {
	switch d := v.(type) {
	case Undefined:
		return &List{}, nil
	case *Dict:
		return &List{d.items()}, nil
	}
	return nil, typeError("can only get item pairs from a mapping")
}

func filterJoin(_ *run, v any, a args) (any, error) {
	items, err := iterate(v)
	if err != nil {
		return nil, err
	}
	sep := str(a.param(0, "d", ""))
	attr := a.param(1, "attribute", nil)
	var b strings.Builder
	for i, it := range items {
		if attr != nil {
			if it, err = attrGetter(attr, nil)(it); err != nil {
				return nil, err
			}
		}
		if i > 0 {
			b.WriteString(sep)
		}
		b.WriteString(str(it))
		if b.Len() > maxText {
			return nil, errTooLarge
		}
	}
	return b.String(), nil
}

func filterList(_ *run, v any, _ args) (any, error) {
	items, err := iterate(v)
	return &List{append([]any{}, items...)}, err
}

func filterMap(r *run, v any, a args) (any, error) {
	items, err := iterate(v)
	if err != nil {
		return nil, err
	}
	var f func(any) (any, error)
	if len(a.pos) == 0 && a.kw != nil {
		attr, ok := a.kw.Get("attribute")
		if !ok {
			return nil, errors.New("FilterArgumentError: map requires a filter argument")
		}
		def, has := a.kw.Get("default")
		if !has {
			def = nil
		}
		f = attrGetter(attr, def)
	} else {
		if len(a.pos) == 0 {
			return nil, errors.New("FilterArgumentError: map requires a filter argument")
		}
		g, ok := filterTable[str(a.pos[0])]
		if !ok {
			return nil, fmt.Errorf("no filter named %q", str(a.pos[0]))
		}
		rest := args{pos: a.pos[1:], kw: a.kw}
		f = func(it any) (any, error) { return g(r, it, rest) }
	}
	out := &List{}
	for _, it := range items {
		w, err := f(it)
		if err != nil {
			return nil, err
		}
		out.Items = append(out.Items, w)
	}
	return out, nil
}

func extreme(sign int) filter {
	return func(_ *run, v any, a args) (any, error) {
		items, err := iterate(v)
		if err != nil {
			return nil, err
		}
		if len(items) == 0 {
			return Undefined{name: "No aggregated item, sequence was empty."}, nil
		}
		cased := a.flag(0, "case_sensitive", false)
		attr := a.param(1, "attribute", nil)
		keyOf := func(it any) (any, error) {
			var err error
			if attr != nil {
				if it, err = attrGetter(attr, nil)(it); err != nil {
					return nil, err
				}
			}
			if !cased {
				it = ignoreCase(it)
			}
			return it, nil
		}
		best := items[0]
		bestKey, err := keyOf(best)
		if err != nil {
			return nil, err
		}
		for _, it := range items[1:] {
			k, err := keyOf(it)
			if err != nil {
				return nil, err
			}
			c, err := compare(k, bestKey)
			if err != nil {
				return nil, err
			}
			if c*sign > 0 {
				best, bestKey = it, k
			}
		}
		return best, nil
	}
}

// selector is select, reject, selectattr and rejectattr.
func selector(keep, byAttr bool) filter {
	return func(_ *run, v any, a args) (any, error) {
		items, err := iterate(v)
		if err != nil {
			return nil, err
		}
		get := func(it any) (any, error) { return it, nil }
		pos := a.pos
		if byAttr {
			if len(pos) == 0 {
				return nil, errors.New("FilterArgumentError: missing parameter for attribute name")
			}
			get = attrGetter(pos[0], nil)
			pos = pos[1:]
		}
		test := func(x any) (bool, error) { return truthy(x), nil }
		if len(pos) > 0 {
			f, ok := testTable[str(pos[0])]
			if !ok {
				return nil, fmt.Errorf("no test named %q", str(pos[0]))
			}
			rest := args{pos: pos[1:], kw: a.kw}
			test = func(x any) (bool, error) { return f(x, rest) }
		}
		out := &List{}
		for _, it := range items {
			x, err := get(it)
			if err != nil {
				return nil, err
			}
			ok, err := test(x)
			if err != nil {
				return nil, err
			}
			if ok == keep {
				out.Items = append(out.Items, it)
			}
		}
		return out, nil
	}
}

func filterReplace(_ *run, v any, a args) (any, error) {
	old, new := str(a.param(0, "old", "")), str(a.param(1, "new", ""))
	n := -1
	if c := a.param(2, "count", nil); c != nil {
		k, err := a.int(2, "count", -1)
		if err != nil {
			return nil, err
		}
		n = int(k)
	}
	return replaceText(str(v), old, new, n)
}

func replaceText(s, old, new string, n int) (any, error) {
	if grow := len(new) - len(old); grow > 0 && (strings.Count(s, old)+1)*grow+len(s) > maxText {
		return nil, errTooLarge
	}
	return strings.Replace(s, old, new, n), nil
}

func filterReverse(_ *run, v any, _ args) (any, error) {
	if s, ok := v.(string); ok {
		r := []rune(s)
		slices.Reverse(r)
		return string(r), nil
	}
	items, err := iterate(v)
	if err != nil {
		return nil, err
	}
	out := append([]any{}, items...)
	slices.Reverse(out)
	return &List{out}, nil
}

func filterRound(_ *run, v any, a args) (any, error) {
	_, f, _, ok := asNumber(v)
	if !ok {
		return nil, typeError("type %s doesn't define __round__ method", typeName(v))
	}
	p, err := a.int(0, "precision", 0)
	if err != nil {
		return nil, err
	}
	if p > 300 || p < -300 {
		return nil, errTooLarge
	}
	scale, err := strconv.ParseFloat("1e"+strconv.FormatInt(p, 10), 64)
	if err != nil {
		return nil, err
	}
	switch a.param(1, "method", "common") {
	case "common":
		if p >= 0 {
			out, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(p), 64), 64)
			return out, err
		}
		return math.RoundToEven(f*scale) / scale, nil
	case "ceil":
		return math.Ceil(f*scale) / scale, nil
	case "floor":
		return math.Floor(f*scale) / scale, nil
	}
	return nil, errors.New("FilterArgumentError: method must be common, ceil or floor")
}

func filterSort(_ *run, v any, a args) (any, error) {
	items, err := iterate(v)
	if err != nil {
		return nil, err
	}
	cased := a.flag(1, "case_sensitive", false)
	attr := a.param(2, "attribute", nil)
	out, err := sortValues(items, func(it any) (any, error) {
		if attr == nil {
			if !cased {
				it = ignoreCase(it)
			}
			return it, nil
		}
		k := &Tuple{}
		for part := range strings.SplitSeq(str(attr), ",") {
			x, err := attrGetter(part, nil)(it)
			if err != nil {
				return nil, err
			}
			if !cased {
				x = ignoreCase(x)
			}
			k.Items = append(k.Items, x)
		}
		return k, nil
	}, a.flag(0, "reverse", false))
	return &List{out}, err
}

func filterSum(_ *run, v any, a args) (any, error) {
	items, err := iterate(v)
	if err != nil {
		return nil, err
	}
	attr := a.param(0, "attribute", nil)
	total := a.param(1, "start", int64(0))
	for _, it := range items {
		if attr != nil {
			if it, err = attrGetter(attr, nil)(it); err != nil {
				return nil, err
			}
		}
		if total, err = binary("+", total, it); err != nil {
			return nil, err
		}
	}
	return total, nil
}

func filterTrim(_ *run, v any, a args) (any, error) {
	c := a.param(0, "chars", nil)
	if c == nil {
		return strings.TrimFunc(str(v), isPySpace), nil
	}
	return strings.Trim(str(v), str(c)), nil
}

func filterTruncate(_ *run, v any, a args) (any, error) {
	n, err := a.int(0, "length", 255)
	if err != nil {
		return nil, err
	}
	kill := a.flag(1, "killwords", false)
	end := str(a.param(2, "end", "..."))
	leeway, err := a.int(3, "leeway", 5)
	if err != nil {
		return nil, err
	}
	r := []rune(str(v))
	if int64(len(r)) <= n+leeway {
		return string(r), nil
	}
	cut := int(n) - utf8.RuneCountInString(end)
	if cut < 0 {
		return nil, errors.New("expected length >= that of the end")
	}
	head := string(r[:cut])
	if !kill {
		if i := strings.LastIndexByte(head, ' '); i >= 0 {
			head = head[:i]
		}
	}
	return head + end, nil
}

func filterUnique(_ *run, v any, a args) (any, error) {
	items, err := iterate(v)
	if err != nil {
		return nil, err
	}
	cased := a.flag(0, "case_sensitive", false)
	attr := a.param(1, "attribute", nil)
	seen := NewDict()
	out := &List{}
	for _, it := range items {
		k := it
		if attr != nil {
			if k, err = attrGetter(attr, nil)(it); err != nil {
				return nil, err
			}
		}
		if !cased {
			k = ignoreCase(k)
		}
		if _, ok := seen.Get(k); ok {
			continue
		}
		if err := seen.Set(k, true); err != nil {
			return nil, err
		}
		out.Items = append(out.Items, it)
	}
	return out, nil
}

func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;").Replace(s)
}

var (
	comment = regexp.MustCompile(`(?s)<!--.*?-->`)
	tag     = regexp.MustCompile(`(?s)<.*?>`)
)

func striptags(s string) string {
	s = tag.ReplaceAllString(comment.ReplaceAllString(s, ""), "")
	return html.UnescapeString(strings.Join(strings.FieldsFunc(s, isPySpace), " "))
}

func urlQuote(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c < 0x80 && (unicode.IsLetter(rune(c)) || unicode.IsDigit(rune(c))) || strings.IndexByte("_.-~/", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func filterURLEncode(_ *run, v any, _ args) (any, error) {
	if s, ok := v.(string); ok {
		return urlQuote(s), nil
	}
	var pairs []any
	if d, ok := v.(*Dict); ok {
		pairs = d.items()
	} else if l, ok := v.(*List); ok {
		pairs = l.Items
	} else {
		return urlQuote(str(v)), nil
	}
	var parts []string
	for _, p := range pairs {
		kv, err := iterate(p)
		if err != nil || len(kv) != 2 {
			return nil, typeError("urlencode needs pairs")
		}
		quote := func(x any) string { return strings.ReplaceAll(urlQuote(str(x)), "/", "%2F") }
		parts = append(parts, quote(kv[0])+"="+quote(kv[1]))
	}
	return strings.Join(parts, "&"), nil
}

var word = regexp.MustCompile(`[\pL\pN\pM_]+`)

func filterWordcount(_ *run, v any, _ args) (any, error) {
	return int64(len(word.FindAllString(str(v), -1))), nil
}
