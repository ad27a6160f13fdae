package lint

import (
	"regexp"
	"strings"
	"time"

	"github.com/dlclark/regexp2"
)

// pattern is a regular expression as Python's re.match applies it: from the start of the name, not to its end.
type pattern struct {
	fast *regexp.Regexp
	slow *regexp2.Regexp // what RE2 cannot say: look-around, back references
}

// compilePattern takes the RE2 engine where it can.
func compilePattern(expr string) (pattern, error) {
	if re, err := regexp.Compile("^(?:" + expr + ")"); err == nil {
		return pattern{fast: re}, nil
	}
	re, err := regexp2.Compile("^(?:"+expr+")", regexp2.None)
	if err != nil {
		return pattern{}, err
	}
	re.MatchTimeout = 100 * time.Millisecond // a pattern that explodes matches nothing
	return pattern{slow: re}, nil
}

func (p pattern) match(name string) bool {
	if p.fast != nil {
		return p.fast.MatchString(name)
	}
	if p.slow == nil {
		return false
	}
	ok, err := p.slow.MatchString(name)
	return ok && err == nil
}

// nameList is a list of compressed-tensors: exact names, and patterns behind "re:".
type nameList struct {
	exact    map[string]bool
	patterns []pattern
}

// compileList compiles the list once; entries that are no patterns hit nothing and are given back.
func compileList(entries []string) (l nameList, bad map[string]error) {
	l.exact = map[string]bool{}
	for _, e := range entries {
		expr, ok := strings.CutPrefix(e, "re:")
		if !ok {
			l.exact[e] = true
			continue
		}
		p, err := compilePattern(expr)
		if err != nil {
			if bad == nil {
				bad = map[string]error{}
			}
			bad[e] = err
			continue
		}
		l.patterns = append(l.patterns, p)
	}
	return l, bad
}

// hits says whether an entry is the name or matches it.
func (l nameList) hits(name string) bool {
	if l.exact[name] {
		return true
	}
	for _, p := range l.patterns {
		if p.match(name) {
			return true
		}
	}
	return false
}
