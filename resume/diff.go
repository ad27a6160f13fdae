package resume

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sort"
)

// Diff lists the fields in which two JSON objects differ, as "path: was, now".
func Diff(was, now []byte) []string {
	flat := func(b []byte) map[string]string {
		out := map[string]string{}
		dec := json.NewDecoder(bytes.NewReader(b))
		dec.UseNumber()
		var v any
		if dec.Decode(&v) != nil {
			return out
		}
		flatten("", v, out)
		return out
	}
	a, b := flat(was), flat(now)
	keys := map[string]bool{}
	for k := range a {
		keys[k] = true
	}
	for k := range b {
		keys[k] = true
	}
	var out []string
	for k := range keys {
		x, okX := a[k]
		y, okY := b[k]
		switch {
		case !okX:
			out = append(out, fmt.Sprintf("%s: not there, now %s", k, y))
		case !okY:
			out = append(out, fmt.Sprintf("%s: %s, now not there", k, x))
		case x != y:
			out = append(out, fmt.Sprintf("%s: %s, now %s", k, x, y))
		}
	}
	sort.Strings(out)
	return out
}

func flatten(path string, v any, out map[string]string) {
	switch t := v.(type) {
	case map[string]any:
		for k, e := range t {
			p := k
			if path != "" {
				p = path + "." + k
			}
			flatten(p, e, out)
		}
	case []any:
		for i, e := range t {
			flatten(fmt.Sprintf("%s[%d]", path, i), e, out)
		}
	default:
		out[path] = fmt.Sprint(t)
	}
}
