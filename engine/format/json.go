package format

import (
	"bytes"
	"encoding/json"
)

// object is a JSON object whose keys keep their order: config files are read by people and compared byte for byte.
type object []field

type field struct {
	key   string
	value any
}

// MarshalJSON writes the fields in order.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, f := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := marshal(f.key)
		if err != nil {
			return nil, err
		}
		value, err := marshal(f.value)
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// marshal is json.Marshal without the escaping of <, > and & for HTML: patterns stay readable.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// config finishes a Config; file is the name of a copy that some loaders read instead of config.json, "" for none.
func (o object) config(file string) (*Config, error) {
	raw, err := marshal(o)
	if err != nil {
		return nil, err
	}
	c := &Config{QuantizationConfig: raw}
	if file != "" {
		var b bytes.Buffer
		if err := json.Indent(&b, raw, "", "  "); err != nil {
			return nil, err
		}
		b.WriteByte('\n')
		c.Files = map[string][]byte{file: b.Bytes()}
	}
	return c, nil
}
