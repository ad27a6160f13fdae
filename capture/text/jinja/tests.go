package jinja

import (
	"math/big"
	"strings"
)

// testFunc is a test: its operand and arguments.
type testFunc func(v any, a args) (bool, error)

// testTable holds every test by name.
var testTable map[string]testFunc

func init() {
	is := func(f func(any) bool) testFunc { return func(v any, _ args) (bool, error) { return f(v), nil } }
	cmp := func(op string) testFunc {
		return func(v any, a args) (bool, error) {
			if len(a.pos) != 1 {
				return false, typeError("the test takes one argument")
			}
			return compareOp(op, v, a.pos[0])
		}
	}
	mod := func(n, want int64) testFunc {
		return func(v any, _ args) (bool, error) {
			m, err := binary("%", v, n)
			return err == nil && equals(m, want), err
		}
	}
	isNumber := func(v any) bool { _, _, _, ok := asNumber(v); return ok }
	isInt := func(v any) bool {
		switch v.(type) {
		case int64, *big.Int:
			return true
		}
		return false
	}
	isSeq := func(v any) bool {
		switch v.(type) {
		case string, *List, *Tuple, *Dict, Undefined:
			return true
		}
		return false
	}
	sameAs := func(v any, a args) (bool, error) {
		if len(a.pos) != 1 {
			return false, typeError("sameas takes one argument")
		}
		b := a.pos[0]
		if typeName(v) != typeName(b) {
			return false, nil
		}
		switch v.(type) {
		case *List, *Tuple, *Dict, *Namespace, *Func:
			return v == b, nil
		}
		return equals(v, b), nil
	}
	testTable = map[string]testFunc{
		"defined":   is(func(v any) bool { _, u := v.(Undefined); return !u }),
		"undefined": is(func(v any) bool { _, u := v.(Undefined); return u }),
		"none":      is(func(v any) bool { return v == nil }),
		"boolean":   is(func(v any) bool { _, ok := v.(bool); return ok }),
		"true":      is(func(v any) bool { return v == true }),
		"false":     is(func(v any) bool { return v == false }),
		"integer":   is(isInt),
		"float":     is(func(v any) bool { _, ok := v.(float64); return ok }),
		"number":    is(isNumber),
		"string":    is(func(v any) bool { _, ok := v.(string); return ok }),
		"mapping":   is(func(v any) bool { _, ok := v.(*Dict); return ok }),
		"sequence":  is(isSeq),
		"iterable":  is(isSeq),
		"callable": is(func(v any) bool {
			f, ok := v.(*Func)
			_, undef := v.(Undefined) // Python's Undefined has a __call__, which raises
			return ok && f.f != nil || undef
		}),
		"escaped": is(func(any) bool { return false }),
		"lower":   is(func(v any) bool { return isLower(str(v)) }),
		"upper":   is(func(v any) bool { return isUpper(str(v)) }),
		"filter": is(func(v any) bool {
			s, ok := v.(string)
			_, known := filterTable[s]
			return ok && known
		}),
		"test": is(func(v any) bool {
			s, ok := v.(string)
			_, known := testTable[s]
			return ok && known
		}),
		"odd": mod(2, 1), "even": mod(2, 0),
		"divisibleby": func(v any, a args) (bool, error) {
			if len(a.pos) != 1 {
				return false, typeError("divisibleby takes one argument")
			}
			m, err := binary("%", v, a.pos[0])
			return err == nil && equals(m, int64(0)), err
		},
		"sameas": sameAs,
		"in":     cmp("in"),
		"==":     cmp("=="), "eq": cmp("=="), "equalto": cmp("=="),
		"!=": cmp("!="), "ne": cmp("!="),
		">": cmp(">"), "gt": cmp(">"), "greaterthan": cmp(">"),
		">=": cmp(">="), "ge": cmp(">="),
		"<": cmp("<"), "lt": cmp("<"), "lessthan": cmp("<"),
		"<=": cmp("<="), "le": cmp("<="),
	}
}

// isLower is Python's str.islower: some cased character, and none of the other case.
func isLower(s string) bool { return strings.ToLower(s) == s && strings.ToUpper(s) != s }
func isUpper(s string) bool { return strings.ToUpper(s) == s && strings.ToLower(s) != s }
