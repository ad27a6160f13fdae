package checkpoint

import "bytes"

// pythonNumbers replaces NaN and Infinity, which Python writes into JSON, by null: for encoding/json only. Inside strings
// nothing changes.
func pythonNumbers(b []byte) []byte {
	if !bytes.Contains(b, []byte("NaN")) && !bytes.Contains(b, []byte("Infinity")) {
		return b
	}
	out := make([]byte, 0, len(b))
	inString := false
	for i := 0; i < len(b); i++ {
		c := b[i]
		switch {
		case inString && c == '\\' && i+1 < len(b):
			out = append(out, c)
			i++
			c = b[i]
		case c == '"':
			inString = !inString
		case inString:
		case bytes.HasPrefix(b[i:], []byte("NaN")):
			out = append(out, "null"...)
			i += 2
			continue
		case bytes.HasPrefix(b[i:], []byte("-Infinity")):
			out = append(out, "null"...)
			i += 8
			continue
		case bytes.HasPrefix(b[i:], []byte("Infinity")):
			out = append(out, "null"...)
			i += 7
			continue
		}
		out = append(out, c)
	}
	return out
}
