package checkpoint

import (
	"bytes"
	"errors"
)

// checkConfig says whether config.json is one JSON object without repeated keys.
func checkConfig(b []byte) Errors {
	sc := &scanner{b: b}
	err := sc.object(func(string, int) error { _, err := sc.value(); return err })
	if err == nil {
		err = sc.end()
	}
	if err == nil {
		return nil
	}
	at := int64(-1)
	var se *scanError
	if errors.As(err, &se) {
		at = int64(se.Pos)
	}
	return Errors{fail(codeConfigJSON, configName, "", at, "fetch config.json again, or correct the place named", "config.json is not valid: %v", err)}
}

// ReplaceQuantization gives config with quantization as its quantization_config and without the source's own, wherever that
// stood: at the top under either name, or in text_config. Every other byte stays. A nil value only removes.
func ReplaceQuantization(config, quantization []byte) ([]byte, error) {
	out, err := SetConfigKey(config, "compression_config", nil)
	if err != nil {
		return nil, err
	}
	var text []byte
	sc := &scanner{b: out}
	err = sc.object(func(k string, _ int) error {
		v, err := sc.value()
		if k == "text_config" && len(v) > 0 && v[0] == '{' {
			text = v
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if text != nil {
		inner, err := SetConfigKey(text, "quantization_config", nil)
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(inner, text) {
			if out, err = SetConfigKey(out, "text_config", inner); err != nil {
				return nil, err
			}
		}
	}
	return SetConfigKey(out, "quantization_config", quantization)
}

// SetConfigKey gives config with the value of a top-level key replaced, or appended when it is not there; every other
// byte stays. A nil value removes the key.
func SetConfigKey(config []byte, key string, value []byte) ([]byte, error) {
	if es := checkConfig(config); len(es) > 0 {
		return nil, es.asError()
	}
	type member struct{ keyAt, valueAt, end int }
	var all []member
	found := -1
	sc := &scanner{b: config}
	err := sc.object(func(k string, pos int) error {
		sc.space()
		m := member{keyAt: pos, valueAt: sc.i}
		if _, err := sc.value(); err != nil {
			return err
		}
		m.end = sc.i
		if k == key {
			found = len(all)
		}
		all = append(all, m)
		return nil
	})
	if err != nil {
		return nil, err
	}
	splice := func(from, to int, with []byte) []byte {
		return append(append(append([]byte(nil), config[:from]...), with...), config[to:]...)
	}
	switch {
	case found >= 0 && value != nil:
		return splice(all[found].valueAt, all[found].end, value), nil
	case found >= 0: // remove, with one of the commas beside it
		if found > 0 {
			return splice(all[found-1].end, all[found].end, nil), nil
		}
		if len(all) > 1 {
			return splice(all[0].keyAt, all[1].keyAt, nil), nil
		}
		return splice(all[0].keyAt, all[0].end, nil), nil
	case value == nil:
		return config, nil
	case len(all) == 0:
		open := bytes.IndexByte(config, '{')
		return splice(open+1, open+1, []byte(`"`+key+`": `+string(value))), nil
	}
	// Behind the last member, with the white space that stands before it.
	last := all[len(all)-1]
	gap := all[len(all)-1].keyAt
	for gap > 0 && (config[gap-1] == ' ' || config[gap-1] == '\t' || config[gap-1] == '\n' || config[gap-1] == '\r') {
		gap--
	}
	return splice(last.end, last.end, append(append([]byte(","), config[gap:last.keyAt]...), []byte(`"`+key+`": `+string(value))...)), nil
}
