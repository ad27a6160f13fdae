package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
)

// conf reads config.json with types and collects what does not fit. A missing required key is a fault, so a family file
// can read on and all faults come out together.
type conf struct {
	m      map[string]any
	at     string // path prefix for messages
	faults *[]string
}

func parseConfig(raw []byte) (*conf, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		return nil, errAt(ErrConfig, "", "config.json is not a JSON object: %v", err)
	}
	return &conf{m: m, faults: new([]string)}, nil
}

func (c *conf) fault(format string, args ...any) {
	*c.faults = append(*c.faults, fmt.Sprintf(format, args...))
}

// has reports a key that is there and not null.
func (c *conf) has(key string) bool { return c.m[key] != nil }

// first gives the first of the keys that is there, else the first.
func (c *conf) first(keys ...string) string {
	for _, k := range keys {
		if c.has(k) {
			return k
		}
	}
	return keys[0]
}

// sub is a nested object, nil when absent.
func (c *conf) sub(key string) *conf {
	m, ok := c.m[key].(map[string]any)
	if !ok {
		if c.has(key) {
			c.fault("%s%s is not an object", c.at, key)
		}
		return nil
	}
	return &conf{m: m, at: c.at + key + ".", faults: c.faults}
}

func (c *conf) num(key string) (float64, bool) {
	n, ok := c.m[key].(json.Number)
	if !ok {
		if c.has(key) {
			c.fault("%s%s is not a number", c.at, key)
		}
		return 0, false
	}
	f, err := n.Float64()
	if err != nil || math.IsInf(f, 0) {
		c.fault("%s%s = %s is out of range", c.at, key, n)
		return 0, false
	}
	return f, true
}

// dim is a required size, 1..2^31-1.
func (c *conf) dim(keys ...string) int {
	key := c.first(keys...)
	if !c.has(key) {
		c.fault("%s%s is missing", c.at, key)
		return 1
	}
	return c.dimOr(key, 1)
}

// dimOr is a size with a default.
func (c *conf) dimOr(key string, def int) int {
	f, ok := c.num(key)
	if !ok {
		return def
	}
	if f < 1 || f > 1<<31-1 || f != math.Floor(f) {
		c.fault("%s%s = %v is no size", c.at, key, f)
		return def
	}
	return int(f)
}

// intOr is any integer with a default.
func (c *conf) intOr(key string, def int) int {
	f, ok := c.num(key)
	if !ok {
		return def
	}
	if math.Abs(f) > 1<<31-1 || f != math.Floor(f) {
		c.fault("%s%s = %v is no integer", c.at, key, f)
		return def
	}
	return int(f)
}

func (c *conf) floatOr(key string, def float64) float64 {
	if f, ok := c.num(key); ok {
		return f
	}
	return def
}

func (c *conf) float(key string) float64 {
	if !c.has(key) {
		c.fault("%s%s is missing", c.at, key)
		return 1
	}
	return c.floatOr(key, 1)
}

func (c *conf) boolOr(key string, def bool) bool {
	b, ok := c.m[key].(bool)
	if !ok {
		if c.has(key) {
			c.fault("%s%s is not true or false", c.at, key)
		}
		return def
	}
	return b
}

func (c *conf) strOr(key, def string) string {
	s, ok := c.m[key].(string)
	if !ok {
		if c.has(key) {
			c.fault("%s%s is not a string", c.at, key)
		}
		return def
	}
	return s
}

// floats is a list of numbers, nil when absent.
func (c *conf) floats(key string) []float64 {
	l, ok := c.m[key].([]any)
	if !ok {
		return nil
	}
	out := make([]float64, 0, len(l))
	for _, v := range l {
		n, ok := v.(json.Number)
		if !ok {
			c.fault("%s%s holds something that is not a number", c.at, key)
			return nil
		}
		f, err := n.Float64()
		if err != nil {
			c.fault("%s%s holds %s", c.at, key, n)
			return nil
		}
		out = append(out, f)
	}
	return out
}

// strs is a list of strings, nil when absent.
func (c *conf) strs(key string) []string {
	l, ok := c.m[key].([]any)
	if !ok {
		return nil
	}
	out := make([]string, 0, len(l))
	for _, v := range l {
		s, ok := v.(string)
		if !ok {
			c.fault("%s%s holds something that is not a string", c.at, key)
			return nil
		}
		out = append(out, s)
	}
	return out
}

// perLayer is a number given once or as a list with one entry a layer (hunyuan).
func (c *conf) perLayer(key string, layer, def int) int {
	if l := c.floats(key); l != nil {
		if layer < len(l) {
			return int(l[layer])
		}
		c.fault("%s%s has no entry for layer %d", c.at, key, layer)
		return def
	}
	return c.dimOr(key, def)
}

// want faults unless the value of a key is one of those that the forward knows.
func (c *conf) want(key, def string, known ...string) string {
	v := c.strOr(key, def)
	for _, k := range known {
		if v == k {
			return v
		}
	}
	c.fault("%s%s = %q is a variant that is not implemented (known: %q)", c.at, key, v, known)
	return v
}
