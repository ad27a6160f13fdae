package jinja

import (
	"errors"
	"math"
	"math/big"
	"strings"
)

// Bounds of what a template makes: bytes of one text, items of one list, digits of one number (Python's own), and bytes of all values
// of one rendering together.
const (
	maxText   = 16 << 20
	maxItems  = 1 << 20
	maxDigits = 4300
	maxMade   = 256 << 20
)

var (
	errTooLarge = errors.New("the template makes a value of more than 16 MiB, a million items or 4,300 digits")
	errTooMuch  = errors.New("the template makes values of more than 256 MiB together")
)

func binary(op string, a, b any) (any, error) {
	switch op {
	case "+":
		switch x := a.(type) {
		case string:
			if y, ok := b.(string); ok {
				if len(x)+len(y) > maxText {
					return nil, errTooLarge
				}
				return x + y, nil
			}
		case *List:
			if y, ok := b.(*List); ok {
				if len(x.Items)+len(y.Items) > maxItems {
					return nil, errTooLarge
				}
				return &List{append(append([]any{}, x.Items...), y.Items...)}, nil
			}
		case *Tuple:
			if y, ok := b.(*Tuple); ok {
				if len(x.Items)+len(y.Items) > maxItems {
					return nil, errTooLarge
				}
				return &Tuple{append(append([]any{}, x.Items...), y.Items...)}, nil
			}
		}
	case "*":
		if v, ok, err := repeat(a, b); ok || err != nil {
			return v, err
		}
		if v, ok, err := repeat(b, a); ok || err != nil {
			return v, err
		}
	case "%":
		if s, ok := a.(string); ok {
			return percentFormat(s, b)
		}
	}
	ia, fa, floatA, okA := asNumber(a)
	ib, fb, floatB, okB := asNumber(b)
	if !okA || !okB {
		if u, ok := a.(Undefined); ok {
			return nil, undefinedError(u)
		}
		if u, ok := b.(Undefined); ok {
			return nil, undefinedError(u)
		}
		return nil, typeError("unsupported operand type(s) for %s: '%s' and '%s'", op, typeName(a), typeName(b))
	}
	if floatA || floatB || op == "/" {
		return floatOp(op, fa, fb)
	}
	z := new(big.Int)
	switch op {
	case "+":
		return normInt(z.Add(ia, ib)), nil
	case "-":
		return normInt(z.Sub(ia, ib)), nil
	case "*":
		if ia.BitLen()+ib.BitLen() > 1<<16 {
			return nil, errTooLarge
		}
		return normInt(z.Mul(ia, ib)), nil
	case "//", "%":
		if ib.Sign() == 0 {
			return nil, errors.New("ZeroDivisionError: integer division or modulo by zero")
		}
		q, r := new(big.Int).QuoRem(ia, ib, new(big.Int)) // Python floors
		if r.Sign() != 0 && (r.Sign() < 0) != (ib.Sign() < 0) {
			q.Sub(q, big.NewInt(1))
			r.Add(r, ib)
		}
		if op == "//" {
			return normInt(q), nil
		}
		return normInt(r), nil
	case "**":
		if ib.Sign() < 0 {
			return floatOp(op, fa, fb)
		}
		if !ib.IsInt64() || ib.Int64() > 1<<16 || int64(ia.BitLen())*ib.Int64() > 1<<16 {
			return nil, errTooLarge
		}
		return normInt(z.Exp(ia, ib, nil)), nil
	}
	return nil, typeError("operator %s", op)
}

func floatOp(op string, a, b float64) (any, error) {
	switch op {
	case "+":
		return a + b, nil
	case "-":
		return a - b, nil
	case "*":
		return a * b, nil
	case "/":
		if b == 0 {
			return nil, errors.New("ZeroDivisionError: division by zero")
		}
		return a / b, nil
	case "//", "%":
		if b == 0 {
			return nil, errors.New("ZeroDivisionError: float floor division by zero")
		}
		m := math.Mod(a, b)
		if m != 0 && (m < 0) != (b < 0) {
			m += b
		}
		if op == "%" {
			return m, nil
		}
		return math.Floor((a-m)/b + 0.5), nil
	case "**":
		if b == math.Trunc(b) && math.Abs(b) <= 1024 { // exact powers without a transcendental function
			v := 1.0
			for range int(math.Abs(b)) {
				v *= a
			}
			if b < 0 {
				if a == 0 {
					return nil, errors.New("ZeroDivisionError: 0.0 cannot be raised to a negative power")
				}
				v = 1 / v
			}
			return v, nil
		}
		if b == 0.5 && a >= 0 {
			return math.Sqrt(a), nil
		}
	}
	return nil, typeError("operator %s on floats", op)
}

func repeat(v, n any) (any, bool, error) {
	count, ok := n.(int64)
	if b, isBool := n.(bool); isBool {
		ok = true
		if b {
			count = 1
		}
	}
	if !ok {
		return nil, false, nil
	}
	count = max(count, 0)
	switch x := v.(type) {
	case string:
		if int64(len(x)) > 0 && count > maxText/int64(len(x)) {
			return nil, true, errTooLarge
		}
		return strings.Repeat(x, int(count)), true, nil
	case *List, *Tuple:
		items, _ := iterate(x)
		if int64(len(items)) > 0 && count > maxItems/int64(len(items)) {
			return nil, true, errTooLarge
		}
		var out []any
		for range count {
			out = append(out, items...)
		}
		if _, isTuple := v.(*Tuple); isTuple {
			return &Tuple{out}, true, nil
		}
		return &List{out}, true, nil
	}
	return nil, false, nil
}

func undefinedError(u Undefined) error {
	return errors.New("UndefinedError: " + u.name + " is undefined")
}

func compareOp(op string, a, b any) (bool, error) {
	switch op {
	case "==":
		return equals(a, b), nil
	case "!=":
		return !equals(a, b), nil
	case "in":
		return contains(b, a)
	case "not in":
		ok, err := contains(b, a)
		return !ok, err
	}
	for _, v := range []any{a, b} {
		if u, ok := v.(Undefined); ok {
			return false, undefinedError(u)
		}
	}
	c, err := compare(a, b)
	if err != nil {
		return false, err
	}
	switch op {
	case "<":
		return c < 0, nil
	case "<=":
		return c <= 0, nil
	case ">":
		return c > 0, nil
	}
	return c >= 0, nil
}

// slice is a[start:stop:step] over n items: the indices taken.
func sliceIndices(n int, start, stop, step any) ([]int, error) {
	num := func(v any, def int) (int, error) {
		switch v := v.(type) {
		case nil:
			return def, nil
		case bool:
			if v {
				return 1, nil
			}
			return 0, nil
		case int64:
			return int(max(min(v, 1<<40), -1<<40)), nil
		}
		return 0, typeError("slice indices must be integers or None")
	}
	st, err := num(step, 1)
	if err != nil {
		return nil, err
	}
	if st == 0 {
		return nil, errors.New("ValueError: slice step cannot be zero")
	}
	clamp := func(i, lo, hi int) int {
		if i < 0 {
			i += n
		}
		return max(lo, min(hi, i))
	}
	var lo, hi int
	if st > 0 {
		if lo, err = num(start, 0); err != nil {
			return nil, err
		}
		if hi, err = num(stop, n); err != nil {
			return nil, err
		}
		lo, hi = clamp(lo, 0, n), clamp(hi, 0, n)
	} else {
		lo, hi = n-1, -1
		if start != nil {
			if lo, err = num(start, 0); err != nil {
				return nil, err
			}
			lo = clamp(lo, -1, n-1)
		}
		if stop != nil {
			if hi, err = num(stop, 0); err != nil {
				return nil, err
			}
			hi = clamp(hi, -1, n-1)
		}
	}
	var out []int
	for i := lo; st > 0 && i < hi || st < 0 && i > hi; i += st {
		out = append(out, i)
	}
	return out, nil
}

func sliceValue(v, start, stop, step any) (any, error) {
	switch x := v.(type) {
	case string:
		runes := []rune(x)
		idx, err := sliceIndices(len(runes), start, stop, step)
		if err != nil {
			return nil, err
		}
		out := make([]rune, len(idx))
		for i, k := range idx {
			out[i] = runes[k]
		}
		return string(out), nil
	case *List, *Tuple:
		items, _ := iterate(x)
		idx, err := sliceIndices(len(items), start, stop, step)
		if err != nil {
			return nil, err
		}
		out := make([]any, len(idx))
		for i, k := range idx {
			out[i] = items[k]
		}
		if _, ok := v.(*Tuple); ok {
			return &Tuple{out}, nil
		}
		return &List{out}, nil
	case Undefined:
		return nil, undefinedError(x)
	}
	return Undefined{name: typeName(v) + " slice"}, nil
}

// item is obj[key] as Jinja does it: an item, else an attribute of that name, else undefined.
func item(obj, k any) (any, error) {
	switch o := obj.(type) {
	case Undefined:
		return nil, undefinedError(o)
	case *Dict:
		if v, ok := o.Get(k); ok {
			return v, nil
		}
	case *List, *Tuple, string:
		i, ok := k.(int64)
		if b, isBool := k.(bool); isBool {
			ok = true
			if b {
				i = 1
			}
		}
		if ok {
			var items []any
			if s, isStr := o.(string); isStr {
				items, _ = iterate(s)
			} else {
				items, _ = iterate(o)
			}
			if i < 0 {
				i += int64(len(items))
			}
			if i >= 0 && i < int64(len(items)) {
				return items[i], nil
			}
			return Undefined{name: typeName(obj) + " item"}, nil
		}
	}
	if s, ok := k.(string); ok {
		if v, ok := attribute(obj, s); ok {
			return v, nil
		}
		return Undefined{name: "'" + typeName(obj) + " object' attribute '" + s + "'"}, nil
	}
	return Undefined{name: typeName(obj) + " item"}, nil
}

// getattr is obj.name as Jinja does it: an attribute, else an item of that name, else undefined.
func getattr(obj any, name string) (any, error) {
	if u, ok := obj.(Undefined); ok {
		return nil, undefinedError(u)
	}
	if v, ok := attribute(obj, name); ok {
		return v, nil
	}
	if d, ok := obj.(*Dict); ok {
		if v, ok := d.Get(name); ok {
			return v, nil
		}
	}
	return Undefined{name: "'" + typeName(obj) + " object' attribute '" + name + "'"}, nil
}
