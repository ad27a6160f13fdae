package jinja

import "math/big"

// param gives the i-th argument, or the keyword name, or def.
func (a args) param(i int, name string, def any) any {
	if i >= 0 && i < len(a.pos) {
		return a.pos[i]
	}
	if a.kw != nil {
		if v, ok := a.kw.Get(name); ok {
			return v
		}
	}
	return def
}

func (a args) int(i int, name string, def int64) (int64, error) {
	switch v := a.param(i, name, def).(type) {
	case int64:
		return v, nil
	case bool:
		if v {
			return 1, nil
		}
		return 0, nil
	case *big.Int:
		return 0, errTooLarge
	default:
		return 0, typeError("argument %s must be an integer, not '%s'", name, typeName(v))
	}
}

func (a args) text(i int, name, def string) (string, error) {
	switch v := a.param(i, name, def).(type) {
	case string:
		return v, nil
	default:
		return "", typeError("argument %s must be a string, not '%s'", name, typeName(v))
	}
}

func (a args) flag(i int, name string, def bool) bool { return truthy(a.param(i, name, def)) }
