package lint

import (
	"regexp"
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
