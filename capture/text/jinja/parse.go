package jinja

import (
	"fmt"
	"slices"
)

// expr is an expression of the tree.
type expr interface{}

type (
	constExpr struct{ v any }
	nameExpr  struct{ name string }
	listExpr  struct{ items []expr }
	tupleExpr struct{ items []expr }
	dictExpr  struct{ keys, vals []expr }
	unaryExpr struct {
		op string
		x  expr
	}
	binaryExpr struct {
		op   string
		a, b expr
	}
	concatExpr  struct{ parts []expr }
	compareExpr struct {
		first expr
		ops   []string
		rest  []expr
	}
	logicExpr struct {
		and  bool
		a, b expr
	}
	condExpr struct{ test, yes, no expr } // no nil: undefined
	attrExpr struct {
		x    expr
		name string
	}
	itemExpr  struct{ x, key expr }
	sliceExpr struct{ x, lo, hi, step expr }
	callExpr  struct {
		x expr
		a argList
	}
	filterExpr struct {
		x    expr // nil: the body of a filter block
		name string
		a    argList
	}
	testExpr struct {
		x    expr
		name string
		a    argList
		neg  bool
	}
	argList struct {
		pos       []expr
		names     []string
		kw        []expr
		star, dbl expr
	}
)

// stmt is a statement of the tree.
type stmt interface{}

type (
	textStmt   struct{ s string }
	outputStmt struct{ x expr }
	ifStmt     struct {
		tests  []expr
		bodies [][]stmt
		other  []stmt
	}
	forStmt struct {
		target    target
		iter      expr
		cond      expr
		recursive bool
		body      []stmt
		other     []stmt
	}
	setStmt struct {
		target target
		x      expr
	}
	setBlock struct {
		target target
		filter expr
		body   []stmt
	}
	macroStmt struct {
		name     string
		params   []string
		defaults map[string]expr
		body     []stmt
		varargs  bool
		kwargs   bool
		caller   bool
	}
	callBlock struct {
		macro *macroStmt
		call  expr
	}
	filterBlock struct {
		filter expr
		body   []stmt
	}
	withStmt struct {
		targets []target
		values  []expr
		body    []stmt
	}
	generationStmt struct{ body []stmt }
	loopCtl        struct{ brk bool }
)

// target is what an assignment writes to: a name, an attribute of a namespace, or a tuple of targets.
type target struct {
	name  string
	attr  string
	parts []target
}

type parser struct {
	toks  []token
	pos   int
	depth int
	macro *macroStmt // under construction, to see which special names it uses
}

const maxDepth = 200 // of nesting in the source

func parse(src string) ([]stmt, error) {
	toks, err := lex(src)
	if err != nil {
		return nil, err
	}
	p := &parser{toks: toks}
	body, err := p.body(nil)
	if err != nil {
		return nil, err
	}
	if p.cur().kind != tokEOF {
		return nil, p.fail("unexpected tag")
	}
	return body, nil
}

func (p *parser) cur() token  { return p.toks[p.pos] }
func (p *parser) next() token { t := p.toks[p.pos]; p.pos = min(p.pos+1, len(p.toks)-1); return t }

func (p *parser) fail(format string, a ...any) error {
	return &SyntaxError{Line: p.cur().line, Msg: fmt.Sprintf(format, a...)}
}

func (p *parser) isOp(s string) bool   { t := p.cur(); return t.kind == tokOp && t.text == s }
func (p *parser) isName(s string) bool { t := p.cur(); return t.kind == tokName && t.text == s }

func (p *parser) skipOp(s string) bool {
	if p.isOp(s) {
		p.next()
		return true
	}
	return false
}

func (p *parser) skipName(s string) bool {
	if p.isName(s) {
		p.next()
		return true
	}
	return false
}

func (p *parser) wantOp(s string) error {
	if !p.skipOp(s) {
		return p.fail("expected %q, found %q", s, p.cur().text)
	}
	return nil
}

func (p *parser) wantName() (string, error) {
	if p.cur().kind != tokName {
		return "", p.fail("expected a name, found %q", p.cur().text)
	}
	return p.next().text, nil
}

func (p *parser) blockEnd() error {
	if p.cur().kind != tokBlockEnd {
		return p.fail("expected the end of the tag, found %q", p.cur().text)
	}
	p.next()
	return nil
}

func (p *parser) enter() error {
	if p.depth++; p.depth > maxDepth {
		return p.fail("nested deeper than %d", maxDepth)
	}
	return nil
}

// body parses statements up to one of the ending tags, which stays: the tag's begin is consumed, its name is current.
func (p *parser) body(ends []string) ([]stmt, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	var out []stmt
	for {
		switch t := p.cur(); t.kind {
		case tokEOF:
			if ends != nil {
				return nil, p.fail("missing %s", ends[len(ends)-1])
			}
			return out, nil
		case tokData:
			p.next()
			out = append(out, textStmt{t.text})
		case tokVarBegin:
			p.next()
			x, err := p.tuple(true)
			if err != nil {
				return nil, err
			}
			if p.cur().kind != tokVarEnd {
				return nil, p.fail("expected the end of the expression, found %q", p.cur().text)
			}
			p.next()
			out = append(out, outputStmt{x})
		case tokBlockBegin:
			p.next()
			if p.cur().kind == tokName && slices.Contains(ends, p.cur().text) {
				return out, nil
			}
			s, err := p.statement()
			if err != nil {
				return nil, err
			}
			out = append(out, s)
		default:
			return nil, p.fail("unexpected %q", t.text)
		}
	}
}

// closed parses a body up to the given end tag and consumes it.
func (p *parser) closed(end string) ([]stmt, error) {
	if err := p.blockEnd(); err != nil {
		return nil, err
	}
	b, err := p.body([]string{end})
	if err != nil {
		return nil, err
	}
	p.next()
	return b, p.blockEnd()
}

func (p *parser) statement() (stmt, error) {
	kw, err := p.wantName()
	if err != nil {
		return nil, err
	}
	switch kw {
	case "if":
		return p.ifStatement()
	case "for":
		return p.forStatement()
	case "set":
		return p.setStatement()
	case "macro":
		return p.macroStatement()
	case "call":
		return p.callStatement()
	case "filter":
		f, err := p.filters(nil, true)
		if err != nil {
			return nil, err
		}
		b, err := p.closed("endfilter")
		return filterBlock{f, b}, err
	case "with":
		return p.withStatement()
	case "generation":
		b, err := p.closed("endgeneration")
		return generationStmt{b}, err
	case "break", "continue":
		return loopCtl{kw == "break"}, p.blockEnd()
	}
	return nil, p.fail("statement %q is not known", kw)
}

func (p *parser) ifStatement() (stmt, error) {
	var s ifStmt
	for {
		test, err := p.tuple(true)
		if err != nil {
			return nil, err
		}
		if err := p.blockEnd(); err != nil {
			return nil, err
		}
		b, err := p.body([]string{"elif", "else", "endif"})
		if err != nil {
			return nil, err
		}
		s.tests = append(s.tests, test)
		s.bodies = append(s.bodies, b)
		switch p.next().text {
		case "elif":
			continue
		case "else":
			s.other, err = p.closed("endif")
			return s, err
		}
		return s, p.blockEnd()
	}
}

func (p *parser) forStatement() (stmt, error) {
	var s forStmt
	var err error
	if s.target, err = p.target(true); err != nil {
		return nil, err
	}
	if !p.skipName("in") {
		return nil, p.fail("expected in")
	}
	if s.iter, err = p.tuple(false); err != nil {
		return nil, err
	}
	if p.skipName("if") {
		if s.cond, err = p.expression(); err != nil {
			return nil, err
		}
	}
	s.recursive = p.skipName("recursive")
	if err = p.blockEnd(); err != nil {
		return nil, err
	}
	if s.body, err = p.body([]string{"else", "endfor"}); err != nil {
		return nil, err
	}
	if p.next().text == "else" {
		s.other, err = p.closed("endfor")
		return s, err
	}
	return s, p.blockEnd()
}

// target parses a, a.b, (a, b) or a, b.
func (p *parser) target(many bool) (target, error) {
	one := func() (target, error) {
		if p.skipOp("(") {
			t, err := p.target(true)
			if err != nil {
				return t, err
			}
			return t, p.wantOp(")")
		}
		n, err := p.wantName()
		if err != nil {
			return target{}, err
		}
		if slices.Contains([]string{"true", "false", "none", "True", "False", "None"}, n) {
			return target{}, p.fail("cannot assign to %q", n)
		}
		t := target{name: n}
		if p.skipOp(".") {
			t.attr, err = p.wantName()
		}
		return t, err
	}
	first, err := one()
	if err != nil || !many || !p.isOp(",") {
		return first, err
	}
	t := target{parts: []target{first}}
	for p.skipOp(",") {
		if p.isName("in") || p.isOp("=") || p.isOp(")") {
			break
		}
		n, err := one()
		if err != nil {
			return t, err
		}
		t.parts = append(t.parts, n)
	}
	return t, nil
}

func (p *parser) setStatement() (stmt, error) {
	t, err := p.target(true)
	if err != nil {
		return nil, err
	}
	if p.skipOp("=") {
		x, err := p.tuple(true)
		if err != nil {
			return nil, err
		}
		return setStmt{t, x}, p.blockEnd()
	}
	var f expr
	if p.isOp("|") {
		if f, err = p.filters(nil, false); err != nil {
			return nil, err
		}
	}
	b, err := p.closed("endset")
	return setBlock{t, f, b}, err
}

func (p *parser) params(m *macroStmt) error {
	m.defaults = map[string]expr{}
	for !p.isOp(")") {
		if len(m.params) > 0 {
			if err := p.wantOp(","); err != nil {
				return err
			}
			if p.isOp(")") {
				break
			}
		}
		n, err := p.wantName()
		if err != nil {
			return err
		}
		m.params = append(m.params, n)
		if p.skipOp("=") {
			if m.defaults[n], err = p.expression(); err != nil {
				return err
			}
		} else if len(m.defaults) > 0 {
			return p.fail("parameter %q without default follows one with", n)
		}
	}
	return p.wantOp(")")
}

func (p *parser) macroBody(m *macroStmt, end string) error {
	outer := p.macro
	p.macro = m
	defer func() { p.macro = outer }()
	var err error
	m.body, err = p.closed(end)
	return err
}

func (p *parser) macroStatement() (stmt, error) {
	n, err := p.wantName()
	if err != nil {
		return nil, err
	}
	m := &macroStmt{name: n}
	if err := p.wantOp("("); err != nil {
		return nil, err
	}
	if err := p.params(m); err != nil {
		return nil, err
	}
	return m, p.macroBody(m, "endmacro")
}

func (p *parser) callStatement() (stmt, error) {
	m := &macroStmt{name: "caller"}
	if p.skipOp("(") {
		if err := p.params(m); err != nil {
			return nil, err
		}
	}
	x, err := p.expression()
	if err != nil {
		return nil, err
	}
	if _, ok := x.(callExpr); !ok {
		return nil, p.fail("call needs a call")
	}
	return callBlock{m, x}, p.macroBody(m, "endcall")
}

func (p *parser) withStatement() (stmt, error) {
	var s withStmt
	for p.cur().kind != tokBlockEnd {
		if len(s.targets) > 0 {
			if err := p.wantOp(","); err != nil {
				return nil, err
			}
		}
		t, err := p.target(false)
		if err != nil {
			return nil, err
		}
		if err := p.wantOp("="); err != nil {
			return nil, err
		}
		x, err := p.expression()
		if err != nil {
			return nil, err
		}
		s.targets = append(s.targets, t)
		s.values = append(s.values, x)
	}
	var err error
	s.body, err = p.closed("endwith")
	return s, err
}

// tuple parses expressions separated by commas; one alone stays itself.
func (p *parser) tuple(cond bool) (expr, error) {
	one := p.expression
	if !cond {
		one = p.or
	}
	first, err := one()
	if err != nil || !p.isOp(",") {
		return first, err
	}
	t := tupleExpr{[]expr{first}}
	for p.skipOp(",") {
		k := p.cur()
		if k.kind == tokVarEnd || k.kind == tokBlockEnd || p.isOp(")") || p.isOp("]") {
			break
		}
		x, err := one()
		if err != nil {
			return nil, err
		}
		t.items = append(t.items, x)
	}
	return t, nil
}

func (p *parser) expression() (expr, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	x, err := p.or()
	if err != nil {
		return nil, err
	}
	for p.skipName("if") {
		test, err := p.or()
		if err != nil {
			return nil, err
		}
		c := condExpr{test: test, yes: x}
		if p.skipName("else") {
			if c.no, err = p.expression(); err != nil {
				return nil, err
			}
		}
		x = c
	}
	return x, nil
}

func (p *parser) or() (expr, error)  { return p.logic(false, "or", p.and) }
func (p *parser) and() (expr, error) { return p.logic(true, "and", p.not) }

func (p *parser) logic(and bool, word string, sub func() (expr, error)) (expr, error) {
	x, err := sub()
	for err == nil && p.skipName(word) {
		var y expr
		if y, err = sub(); err == nil {
			x = logicExpr{and, x, y}
		}
	}
	return x, err
}

func (p *parser) not() (expr, error) {
	if !p.isName("not") {
		return p.compare()
	}
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	p.next()
	x, err := p.not()
	return unaryExpr{"not", x}, err
}

func (p *parser) compare() (expr, error) {
	first, err := p.sum()
	if err != nil {
		return nil, err
	}
	c := compareExpr{first: first}
	for {
		op := ""
		switch t := p.cur(); {
		case t.kind == tokOp && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text):
			op = t.text
			p.next()
		case p.isName("in"):
			op = "in"
			p.next()
		case p.isName("not") && p.toks[p.pos+1].kind == tokName && p.toks[p.pos+1].text == "in":
			op = "not in"
			p.next()
			p.next()
		}
		if op == "" {
			break
		}
		x, err := p.sum()
		if err != nil {
			return nil, err
		}
		c.ops = append(c.ops, op)
		c.rest = append(c.rest, x)
	}
	if len(c.ops) == 0 {
		return first, nil
	}
	return c, nil
}

func (p *parser) left(sub func() (expr, error), ops ...string) (expr, error) {
	x, err := sub()
	for err == nil && p.cur().kind == tokOp && slices.Contains(ops, p.cur().text) {
		op := p.next().text
		var y expr
		if y, err = sub(); err == nil {
			x = binaryExpr{op, x, y}
		}
	}
	return x, err
}

func (p *parser) sum() (expr, error) { return p.left(p.concat, "+", "-") }

func (p *parser) concat() (expr, error) {
	x, err := p.product()
	if err != nil || !p.isOp("~") {
		return x, err
	}
	c := concatExpr{[]expr{x}}
	for p.skipOp("~") {
		y, err := p.product()
		if err != nil {
			return nil, err
		}
		c.parts = append(c.parts, y)
	}
	return c, nil
}

func (p *parser) product() (expr, error) { return p.left(p.power, "*", "/", "//", "%") }

func (p *parser) power() (expr, error) {
	unary := func() (expr, error) { return p.unary(true) }
	return p.left(unary, "**")
}

func (p *parser) unary(withFilter bool) (expr, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	var x expr
	var err error
	switch {
	case p.isOp("-"), p.isOp("+"):
		op := p.next().text
		if x, err = p.unary(false); err == nil {
			x = unaryExpr{op, x}
		}
	default:
		x, err = p.primary()
	}
	if err == nil {
		x, err = p.postfix(x)
	}
	if err == nil && withFilter {
		x, err = p.filterChain(x)
	}
	return x, err
}

func (p *parser) primary() (expr, error) {
	t := p.cur()
	switch t.kind {
	case tokName:
		p.next()
		switch t.text {
		case "true", "True":
			return constExpr{true}, nil
		case "false", "False":
			return constExpr{false}, nil
		case "none", "None":
			return constExpr{nil}, nil
		}
		if p.macro != nil {
			switch t.text {
			case "varargs":
				p.macro.varargs = true
			case "kwargs":
				p.macro.kwargs = true
			case "caller":
				p.macro.caller = true
			}
		}
		return nameExpr{t.text}, nil
	case tokString:
		s := ""
		for p.cur().kind == tokString {
			s += p.next().text
		}
		return constExpr{s}, nil
	case tokNumber:
		p.next()
		return constExpr{t.num}, nil
	case tokOp:
		switch t.text {
		case "(":
			p.next()
			if p.skipOp(")") {
				return tupleExpr{}, nil
			}
			x, err := p.tuple(true)
			if err != nil {
				return nil, err
			}
			return x, p.wantOp(")")
		case "[":
			p.next()
			var l listExpr
			for !p.isOp("]") {
				if len(l.items) > 0 {
					if err := p.wantOp(","); err != nil {
						return nil, err
					}
					if p.isOp("]") {
						break
					}
				}
				x, err := p.expression()
				if err != nil {
					return nil, err
				}
				l.items = append(l.items, x)
			}
			return l, p.wantOp("]")
		case "{":
			p.next()
			var d dictExpr
			for !p.isOp("}") {
				if len(d.keys) > 0 {
					if err := p.wantOp(","); err != nil {
						return nil, err
					}
					if p.isOp("}") {
						break
					}
				}
				k, err := p.expression()
				if err != nil {
					return nil, err
				}
				if err := p.wantOp(":"); err != nil {
					return nil, err
				}
				v, err := p.expression()
				if err != nil {
					return nil, err
				}
				d.keys = append(d.keys, k)
				d.vals = append(d.vals, v)
			}
			return d, p.wantOp("}")
		}
	}
	return nil, p.fail("unexpected %q", t.text)
}

func (p *parser) postfix(x expr) (expr, error) {
	var err error
	for err == nil {
		switch {
		case p.skipOp("."):
			t := p.next()
			switch {
			case t.kind == tokName:
				x = attrExpr{x, t.text}
			case t.kind == tokNumber:
				x = itemExpr{x, constExpr{t.num}}
			default:
				return nil, p.fail("expected a name after the dot")
			}
		case p.skipOp("["):
			x, err = p.subscript(x)
		case p.isOp("("):
			x, err = p.call(x)
		default:
			return x, nil
		}
	}
	return nil, err
}

func (p *parser) subscript(x expr) (expr, error) {
	var lo expr
	var err error
	if !p.isOp(":") {
		if lo, err = p.tuple(true); err != nil {
			return nil, err
		}
		if p.skipOp("]") {
			return itemExpr{x, lo}, nil
		}
	}
	s := sliceExpr{x: x, lo: lo}
	part := func() (expr, error) {
		if p.isOp(":") || p.isOp("]") {
			return nil, nil
		}
		return p.expression()
	}
	if err = p.wantOp(":"); err != nil {
		return nil, err
	}
	if s.hi, err = part(); err != nil {
		return nil, err
	}
	if p.skipOp(":") {
		if s.step, err = part(); err != nil {
			return nil, err
		}
	}
	return s, p.wantOp("]")
}

func (p *parser) args() (argList, error) {
	var a argList
	if err := p.wantOp("("); err != nil {
		return a, err
	}
	first := true
	for !p.isOp(")") {
		if !first {
			if err := p.wantOp(","); err != nil {
				return a, err
			}
			if p.isOp(")") {
				break
			}
		}
		first = false
		var err error
		switch {
		case p.skipOp("*"):
			a.star, err = p.expression()
		case p.skipOp("**"):
			a.dbl, err = p.expression()
		case p.cur().kind == tokName && p.toks[p.pos+1].kind == tokOp && p.toks[p.pos+1].text == "=":
			n := p.next().text
			p.next()
			var x expr
			x, err = p.expression()
			a.names = append(a.names, n)
			a.kw = append(a.kw, x)
		default:
			if len(a.names) > 0 {
				return a, p.fail("positional argument after a named one")
			}
			var x expr
			x, err = p.expression()
			a.pos = append(a.pos, x)
		}
		if err != nil {
			return a, err
		}
	}
	return a, p.wantOp(")")
}

func (p *parser) call(x expr) (expr, error) {
	a, err := p.args()
	return callExpr{x, a}, err
}

// filterChain parses filters, tests and calls behind an expression.
func (p *parser) filterChain(x expr) (expr, error) {
	var err error
	for err == nil {
		switch {
		case p.isOp("|"):
			x, err = p.filters(x, false)
		case p.isName("is"):
			x, err = p.test(x)
		case p.isOp("("):
			x, err = p.call(x)
		default:
			return x, nil
		}
	}
	return nil, err
}

func (p *parser) dotted() (string, error) {
	n, err := p.wantName()
	for err == nil && p.skipOp(".") {
		var m string
		m, err = p.wantName()
		n += "." + m
	}
	return n, err
}

// filters parses |f|g(…); bare means that the first has no bar (a filter block).
func (p *parser) filters(x expr, bare bool) (expr, error) {
	for bare || p.skipOp("|") {
		bare = false
		n, err := p.dotted()
		if err != nil {
			return nil, err
		}
		f := filterExpr{x: x, name: n}
		if p.isOp("(") {
			if f.a, err = p.args(); err != nil {
				return nil, err
			}
		}
		if _, ok := filterTable[n]; !ok {
			return nil, p.fail("filter %q is not known", n)
		}
		x = f
	}
	return x, nil
}

func (p *parser) test(x expr) (expr, error) {
	p.next() // is
	t := testExpr{x: x, neg: p.skipName("not")}
	var err error
	if t.name, err = p.dotted(); err != nil {
		return nil, err
	}
	if _, ok := testTable[t.name]; !ok {
		return nil, p.fail("test %q is not known", t.name)
	}
	k := p.cur()
	switch {
	case p.isOp("("):
		t.a, err = p.args()
	case (k.kind == tokName && !slices.Contains([]string{"else", "or", "and", "is", "if", "in", "not", "recursive"}, k.text)) || k.kind == tokString || k.kind == tokNumber || p.isOp("[") || p.isOp("{"):
		var a expr
		if a, err = p.primary(); err == nil {
			a, err = p.postfix(a)
		}
		t.a = argList{pos: []expr{a}}
	}
	return t, err
}
