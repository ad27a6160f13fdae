package jinja

import (
	"errors"
	"fmt"
	"strings"
)

// scope is a frame of variables inside another.
type scope struct {
	vars map[string]any
	up   *scope
}

func (s *scope) get(n string) (any, bool) {
	for ; s != nil; s = s.up {
		if v, ok := s.vars[n]; ok {
			return v, true
		}
	}
	return nil, false
}

func (s *scope) set(n string, v any) {
	if s.vars == nil {
		s.vars = map[string]any{}
	}
	s.vars[n] = v
}

func inner(s *scope) *scope { return &scope{up: s} }

// run is one rendering.
type run struct {
	root  strings.Builder // what the template itself wrote
	out   *strings.Builder
	spans [][2]int
	depth int
	steps int
	level int // of nested expressions
	made  int // bytes of values made so far
}

const (
	maxCalls = 500       // nested macro calls and loops
	maxSteps = 4_000_000 //  statements and expressions of one rendering
	maxLevel = 10_000    // expressions inside expressions
)

var (
	errBreak    = errors.New("break outside a loop")
	errContinue = errors.New("continue outside a loop")
)

func (r *run) tick() error {
	if r.steps++; r.steps > maxSteps {
		return errors.New("the template runs too long")
	}
	return nil
}

// charge counts the bytes of a new value.
func (r *run) charge(v any) error {
	switch v := v.(type) {
	case string:
		r.made += len(v)
	case *List:
		r.made += 16 * len(v.Items)
	case *Tuple:
		r.made += 16 * len(v.Items)
	case *Dict:
		r.made += 64 * v.Len()
	}
	if r.made > maxMade {
		return errTooMuch
	}
	return nil
}

func (r *run) write(s string) error {
	if r.out.Len()+len(s) > maxText {
		return errTooLarge
	}
	r.out.WriteString(s)
	return nil
}

// captured runs f with its output into a string.
func (r *run) captured(f func() error) (string, error) {
	outer := r.out
	r.out = &strings.Builder{}
	err := f()
	s := r.out.String()
	r.out = outer
	if err == nil {
		err = r.charge(s)
	}
	return s, err
}

func (r *run) exec(body []stmt, sc *scope) error {
	for _, s := range body {
		if err := r.tick(); err != nil {
			return err
		}
		if err := r.stmt(s, sc); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) stmt(s stmt, sc *scope) error {
	switch s := s.(type) {
	case textStmt:
		return r.write(s.s)
	case outputStmt:
		v, err := r.eval(s.x, sc)
		if err != nil {
			return err
		}
		return r.write(str(v))
	case ifStmt:
		for i, t := range s.tests {
			v, err := r.eval(t, sc)
			if err != nil {
				return err
			}
			if truthy(v) {
				return r.exec(s.bodies[i], sc)
			}
		}
		return r.exec(s.other, sc)
	case forStmt:
		v, err := r.eval(s.iter, sc)
		if err != nil {
			return err
		}
		return r.loop(&s, v, sc, 1)
	case setStmt:
		v, err := r.eval(s.x, sc)
		if err != nil {
			return err
		}
		return r.assign(s.target, v, sc)
	case setBlock:
		text, err := r.captured(func() error { return r.exec(s.body, inner(sc)) })
		if err != nil {
			return err
		}
		var v any = text
		if s.filter != nil {
			if v, err = r.applyFilters(s.filter, text, sc); err != nil {
				return err
			}
		}
		return r.assign(s.target, v, sc)
	case *macroStmt:
		sc.set(s.name, r.macro(s, sc))
		return nil
	case callBlock:
		c := s.call.(callExpr)
		f, err := r.eval(c.x, sc)
		if err != nil {
			return err
		}
		a, err := r.args(c.a, sc)
		if err != nil {
			return err
		}
		if a.kw == nil {
			a.kw = NewDict()
		}
		a.kw.Set("caller", r.macro(s.macro, sc))
		v, err := r.call(f, a)
		if err != nil {
			return err
		}
		return r.write(str(v))
	case filterBlock:
		text, err := r.captured(func() error { return r.exec(s.body, inner(sc)) })
		if err != nil {
			return err
		}
		v, err := r.applyFilters(s.filter, text, sc)
		if err != nil {
			return err
		}
		return r.write(str(v))
	case withStmt:
		in := inner(sc)
		for i, t := range s.targets {
			v, err := r.eval(s.values[i], sc)
			if err != nil {
				return err
			}
			if err := r.assign(t, v, in); err != nil {
				return err
			}
		}
		return r.exec(s.body, in)
	case generationStmt:
		text, err := r.captured(func() error { return r.exec(s.body, inner(sc)) })
		if err != nil {
			return err
		}
		start := r.root.Len()
		r.spans = append(r.spans, [2]int{start, start + len(text)})
		return r.write(text)
	case loopCtl:
		if s.brk {
			return errBreak
		}
		return errContinue
	}
	return fmt.Errorf("statement %T", s)
}

func (r *run) assign(t target, v any, sc *scope) error {
	switch {
	case t.parts != nil:
		items, err := iterate(v)
		if err != nil {
			return err
		}
		if len(items) != len(t.parts) {
			return fmt.Errorf("ValueError: expected %d values to unpack, got %d", len(t.parts), len(items))
		}
		for i, p := range t.parts {
			if err := r.assign(p, items[i], sc); err != nil {
				return err
			}
		}
		return nil
	case t.attr != "":
		cur, _ := sc.get(t.name)
		ns, ok := cur.(*Namespace)
		if !ok {
			return fmt.Errorf("cannot assign attribute on non-namespace object %q", t.name)
		}
		if strings.HasPrefix(t.attr, "_") {
			return fmt.Errorf("SecurityError: attribute %q of a namespace", t.attr)
		}
		return ns.d.Set(t.attr, v)
	}
	sc.set(t.name, v)
	return nil
}

// loop runs a for statement. depth is 1 for the outermost level of a recursive loop.
func (r *run) loop(s *forStmt, over any, sc *scope, depth int) error {
	if r.depth++; r.depth > maxCalls {
		return errors.New("RecursionError: loops and macros nested too deep")
	}
	defer func() { r.depth-- }()
	items, err := iterate(over)
	if err != nil {
		return err
	}
	if s.cond != nil {
		var kept []any
		for _, it := range items {
			in := inner(sc)
			if err := r.assign(s.target, it, in); err != nil {
				return err
			}
			v, err := r.eval(s.cond, in)
			if err != nil {
				return err
			}
			if truthy(v) {
				kept = append(kept, it)
			}
		}
		items = kept
	}
	if len(items) == 0 {
		return r.exec(s.other, inner(sc))
	}
	l := &loopState{items: items, depth: depth}
	for i, it := range items {
		if err := r.tick(); err != nil {
			return err
		}
		l.i = i
		in := inner(sc)
		in.set("loop", r.loopObject(l, s, sc, depth))
		if err := r.assign(s.target, it, in); err != nil {
			return err
		}
		switch err := r.exec(s.body, in); {
		case err == errBreak:
			return nil
		case err == errContinue:
		case err != nil:
			return err
		}
	}
	return nil
}

type loopState struct {
	items   []any
	i       int
	depth   int
	last    []any // of changed()
	changed bool
}

func (r *run) loopObject(l *loopState, s *forStmt, sc *scope, depth int) *Func {
	n := len(l.items)
	i := l.i
	return &Func{name: "loop", f: func(a args) (any, error) {
		if !s.recursive {
			return nil, typeError("the loop must have the 'recursive' marker to be called recursively")
		}
		if len(a.pos) != 1 {
			return nil, typeError("loop takes one iterable")
		}
		text, err := r.captured(func() error { return r.loop(s, a.pos[0], sc, depth+1) })
		return text, err
	}, attr: func(name string) (any, bool) {
		switch name {
		case "index":
			return int64(i + 1), true
		case "index0":
			return int64(i), true
		case "revindex":
			return int64(n - i), true
		case "revindex0":
			return int64(n - i - 1), true
		case "first":
			return i == 0, true
		case "last":
			return i == n-1, true
		case "length":
			return int64(n), true
		case "depth":
			return int64(l.depth), true
		case "depth0":
			return int64(l.depth - 1), true
		case "previtem":
			if i == 0 {
				return Undefined{name: "there is no previous item"}, true
			}
			return l.items[i-1], true
		case "nextitem":
			if i == n-1 {
				return Undefined{name: "there is no next item"}, true
			}
			return l.items[i+1], true
		case "cycle":
			return &Func{name: "cycle", f: func(a args) (any, error) {
				if len(a.pos) == 0 {
					return nil, typeError("no items for cycling given")
				}
				return a.pos[i%len(a.pos)], nil
			}}, true
		case "changed":
			return &Func{name: "changed", f: func(a args) (any, error) {
				if l.changed && equals(&Tuple{l.last}, &Tuple{a.pos}) {
					return false, nil
				}
				l.last, l.changed = a.pos, true
				return true, nil
			}}, true
		}
		return nil, false
	}}
}

// macro makes the callable of a macro.
func (r *run) macro(m *macroStmt, sc *scope) *Func {
	return &Func{name: m.name, f: func(a args) (any, error) {
		if r.depth++; r.depth > maxCalls {
			return nil, errors.New("RecursionError: macros nested too deep")
		}
		defer func() { r.depth-- }()
		in := inner(sc)
		kw := NewDict()
		if a.kw != nil {
			kw = a.kw.copy()
		}
		left := NewDict()
		given := map[string]any{}
		var caller any = Undefined{name: "'caller'"}
		for i, k := range kw.keys {
			name := k.(string)
			switch {
			case contains_(m.params, name):
				given[name] = kw.vals[i]
			case name == "caller":
				caller = kw.vals[i]
				if !m.caller {
					return nil, typeError("macro '%s' was invoked with two values for the special caller argument or takes none", m.name)
				}
			default:
				left.Set(k, kw.vals[i])
			}
		}
		for i, p := range m.params {
			switch v, named := given[p]; {
			case i < len(a.pos):
				if named {
					return nil, typeError("macro '%s' got two values for '%s'", m.name, p)
				}
				in.set(p, a.pos[i])
			case named:
				in.set(p, v)
			default:
				if d, ok := m.defaults[p]; ok {
					v, err := r.eval(d, in)
					if err != nil {
						return nil, err
					}
					in.set(p, v)
				} else {
					in.set(p, Undefined{name: "parameter '" + p + "'"})
				}
			}
		}
		if m.caller {
			in.set("caller", caller)
		}
		extra := a.pos[min(len(m.params), len(a.pos)):]
		if m.varargs {
			in.set("varargs", &Tuple{extra})
		} else if len(extra) > 0 {
			return nil, typeError("macro '%s' takes not more than %d argument(s)", m.name, len(m.params))
		}
		if m.kwargs {
			in.set("kwargs", left)
		} else if left.Len() > 0 {
			return nil, typeError("macro '%s' takes no keyword argument %s", m.name, repr(left.keys[0]))
		}
		return r.captured(func() error { return r.exec(m.body, in) })
	}, attr: func(name string) (any, bool) {
		if name == "name" {
			return m.name, true
		}
		return nil, false
	}}
}

func contains_(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func (r *run) args(l argList, sc *scope) (args, error) {
	var a args
	for _, x := range l.pos {
		v, err := r.eval(x, sc)
		if err != nil {
			return a, err
		}
		a.pos = append(a.pos, v)
	}
	if l.star != nil {
		v, err := r.eval(l.star, sc)
		if err != nil {
			return a, err
		}
		items, err := iterate(v)
		if err != nil {
			return a, err
		}
		a.pos = append(a.pos, items...)
	}
	if len(l.names) > 0 || l.dbl != nil {
		a.kw = NewDict()
	}
	for i, n := range l.names {
		v, err := r.eval(l.kw[i], sc)
		if err != nil {
			return a, err
		}
		a.kw.Set(n, v)
	}
	if l.dbl != nil {
		v, err := r.eval(l.dbl, sc)
		if err != nil {
			return a, err
		}
		d, ok := v.(*Dict)
		if !ok {
			return a, typeError("argument after ** must be a mapping")
		}
		for i, k := range d.keys {
			if _, ok := k.(string); !ok {
				return a, typeError("keywords must be strings")
			}
			a.kw.Set(k, d.vals[i])
		}
	}
	return a, nil
}

func (r *run) call(f any, a args) (any, error) {
	switch f := f.(type) {
	case *Func:
		if f.f == nil {
			return nil, typeError("'%s' object is not callable", f.name)
		}
		return f.f(a)
	case Undefined:
		return nil, undefinedError(f)
	}
	return nil, typeError("'%s' object is not callable", typeName(f))
}

// applyFilters runs a chain of filters whose innermost has no operand over a text.
func (r *run) applyFilters(x expr, text string, sc *scope) (any, error) {
	f := x.(filterExpr)
	var v any = text
	if f.x != nil {
		var err error
		if v, err = r.applyFilters(f.x, text, sc); err != nil {
			return nil, err
		}
	}
	a, err := r.args(f.a, sc)
	if err != nil {
		return nil, err
	}
	return filterTable[f.name](r, v, a)
}

func (r *run) evalAll(xs []expr, sc *scope) ([]any, error) {
	out := make([]any, len(xs))
	for i, x := range xs {
		var err error
		if out[i], err = r.eval(x, sc); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (r *run) eval(x expr, sc *scope) (any, error) {
	if err := r.tick(); err != nil {
		return nil, err
	}
	switch x := x.(type) { // what makes no value of its own
	case constExpr:
		return x.v, nil
	case nameExpr:
		if v, ok := sc.get(x.name); ok {
			return v, nil
		}
		return Undefined{name: "'" + x.name + "'"}, nil
	}
	if r.level++; r.level > maxLevel {
		return nil, fmt.Errorf("RecursionError: an expression nested deeper than %d", maxLevel)
	}
	v, err := r.evaluate(x, sc)
	r.level--
	if err != nil {
		return nil, err
	}
	switch x.(type) {
	case attrExpr, itemExpr, condExpr, logicExpr:
		return v, nil
	}
	return v, r.charge(v)
}

// evaluate computes an expression that has parts.
func (r *run) evaluate(x expr, sc *scope) (any, error) {
	switch x := x.(type) {
	case listExpr:
		items, err := r.evalAll(x.items, sc)
		return &List{items}, err
	case tupleExpr:
		items, err := r.evalAll(x.items, sc)
		return &Tuple{items}, err
	case dictExpr:
		d := NewDict()
		for i := range x.keys {
			k, err := r.eval(x.keys[i], sc)
			if err != nil {
				return nil, err
			}
			v, err := r.eval(x.vals[i], sc)
			if err != nil {
				return nil, err
			}
			if err := d.Set(k, v); err != nil {
				return nil, err
			}
		}
		return d, nil
	case unaryExpr:
		v, err := r.eval(x.x, sc)
		if err != nil {
			return nil, err
		}
		if x.op == "not" {
			return !truthy(v), nil
		}
		if f, ok := v.(float64); ok {
			if x.op == "-" {
				return -f, nil
			}
			return f, nil
		}
		if x.op == "-" {
			return binary("-", int64(0), v)
		}
		return binary("+", int64(0), v)
	case binaryExpr:
		a, err := r.eval(x.a, sc)
		if err != nil {
			return nil, err
		}
		b, err := r.eval(x.b, sc)
		if err != nil {
			return nil, err
		}
		return binary(x.op, a, b)
	case concatExpr:
		parts, err := r.evalAll(x.parts, sc)
		if err != nil {
			return nil, err
		}
		var b strings.Builder
		for _, p := range parts {
			b.WriteString(str(p))
			if b.Len() > maxText {
				return nil, errTooLarge
			}
		}
		return b.String(), nil
	case compareExpr:
		a, err := r.eval(x.first, sc)
		if err != nil {
			return nil, err
		}
		for i, op := range x.ops {
			b, err := r.eval(x.rest[i], sc)
			if err != nil {
				return nil, err
			}
			ok, err := compareOp(op, a, b)
			if err != nil || !ok {
				return false, err
			}
			a = b
		}
		return true, nil
	case logicExpr:
		a, err := r.eval(x.a, sc)
		if err != nil || truthy(a) != x.and {
			return a, err
		}
		return r.eval(x.b, sc)
	case condExpr:
		t, err := r.eval(x.test, sc)
		if err != nil {
			return nil, err
		}
		if truthy(t) {
			return r.eval(x.yes, sc)
		}
		if x.no == nil {
			return Undefined{name: "the inline if-expression without else"}, nil
		}
		return r.eval(x.no, sc)
	case attrExpr:
		v, err := r.eval(x.x, sc)
		if err != nil {
			return nil, err
		}
		return getattr(v, x.name)
	case itemExpr:
		v, err := r.eval(x.x, sc)
		if err != nil {
			return nil, err
		}
		k, err := r.eval(x.key, sc)
		if err != nil {
			return nil, err
		}
		return item(v, k)
	case sliceExpr:
		var parts [4]any
		for i, e := range []expr{x.x, x.lo, x.hi, x.step} {
			if e == nil {
				continue
			}
			var err error
			if parts[i], err = r.eval(e, sc); err != nil {
				return nil, err
			}
		}
		return sliceValue(parts[0], parts[1], parts[2], parts[3])
	case callExpr:
		f, err := r.eval(x.x, sc)
		if err != nil {
			return nil, err
		}
		a, err := r.args(x.a, sc)
		if err != nil {
			return nil, err
		}
		return r.call(f, a)
	case filterExpr:
		v, err := r.eval(x.x, sc)
		if err != nil {
			return nil, err
		}
		a, err := r.args(x.a, sc)
		if err != nil {
			return nil, err
		}
		return filterTable[x.name](r, v, a)
	case testExpr:
		v, err := r.eval(x.x, sc)
		if err != nil {
			return nil, err
		}
		a, err := r.args(x.a, sc)
		if err != nil {
			return nil, err
		}
		ok, err := testTable[x.name](v, a)
		return ok != x.neg, err
	}
	return nil, fmt.Errorf("expression %T", x)
}
