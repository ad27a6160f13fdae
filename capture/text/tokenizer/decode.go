package tokenizer

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

// decoder turns tokens into pieces of text that are joined.
type decoder func(tokens []string) []string

// Decode turns ids into text. Ids that no token has are left out. skipSpecial leaves special tokens out.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	tokens := make([]string, 0, len(ids))
	for _, id := range ids {
		s, ok := t.Token(id)
		if !ok {
			continue
		}
		if skipSpecial {
			if a, ok := t.added[s]; ok && a.Special {
				continue
			}
		}
		tokens = append(tokens, s)
	}
	if t.decoder == nil {
		return strings.Join(tokens, " ")
	}
	return strings.Join(t.decoder(tokens), "")
}

func parseDecoder(raw json.RawMessage) (decoder, error) {
	if isNull(raw) {
		return nil, nil
	}
	var c struct {
		Type          string
		Decoders      []json.RawMessage
		Content       string
		Start, Stop   int
		Prefix        *string
		Cleanup       *bool
		Suffix        *string
		Replacement   string
		AddPrefix     *bool   `json:"add_prefix_space"`
		Scheme        *string `json:"prepend_scheme"`
		Pad           string  `json:"pad_token"`
		WordDelimiter string  `json:"word_delimiter_token"`
	}
	if err := unmarshalSection("decoder", raw, &c); err != nil {
		return nil, err
	}
	switch c.Type {
	case "Sequence":
		var seq []decoder
		for _, r := range c.Decoders {
			d, err := parseDecoder(r)
			if err != nil {
				return nil, err
			}
			if d != nil {
				seq = append(seq, d)
			}
		}
		return func(tokens []string) []string {
			for _, d := range seq {
				tokens = d(tokens)
			}
			return tokens
		}, nil
	case "ByteLevel":
		return decodeByteLevel, nil
	case "ByteFallback":
		return decodeByteFallback, nil
	case "Fuse":
		return func(tokens []string) []string { return []string{strings.Join(tokens, "")} }, nil
	case "Replace":
		p, err := parsePattern("decoder", raw)
		if err != nil {
			return nil, err
		}
		return eachToken(func(_ int, s string) string {
			n, err := replaceAll(whole(s), p, c.Content)
			if err != nil {
				return s
			}
			return n.s
		}), nil
	case "Strip":
		if utf8.RuneCountInString(c.Content) != 1 {
			return nil, &UnsupportedError{Section: "decoder", Part: "Strip", Why: "content must be one character"}
		}
		return eachToken(func(_ int, s string) string {
			for k := 0; k < c.Start && strings.HasPrefix(s, c.Content); k++ {
				s = s[len(c.Content):]
			}
			for k := 0; k < c.Stop && strings.HasSuffix(s, c.Content); k++ {
				s = s[:len(s)-len(c.Content)]
			}
			return s
		}), nil
	case "Metaspace":
		never := c.AddPrefix != nil && !*c.AddPrefix || c.Scheme != nil && *c.Scheme == "never"
		return eachToken(func(i int, s string) string {
			if i == 0 && !never {
				s = strings.TrimPrefix(s, c.Replacement)
			}
			return strings.ReplaceAll(s, c.Replacement, " ")
		}), nil
	case "WordPiece":
		prefix := "##"
		if c.Prefix != nil {
			prefix = *c.Prefix
		}
		clean := orTrue(c.Cleanup)
		return eachToken(func(i int, s string) string {
			if i > 0 {
				if rest, ok := strings.CutPrefix(s, prefix); ok {
					s = rest
				} else {
					s = " " + s
				}
			}
			if clean {
				s = cleanup(s)
			}
			return s
		}), nil
	case "BPEDecoder":
		suffix := "</w>"
		if c.Suffix != nil {
			suffix = *c.Suffix
		}
		return func(tokens []string) []string {
			out := make([]string, len(tokens))
			for i, s := range tokens {
				repl := " "
				if i == len(tokens)-1 {
					repl = ""
				}
				out[i] = strings.ReplaceAll(s, suffix, repl)
			}
			return out
		}, nil
	case "CTC":
		clean := orTrue(c.Cleanup)
		return func(tokens []string) []string {
			var out []string
			last := ""
			for i, s := range tokens {
				if i > 0 && s == last {
					continue
				}
				last = s
				s = strings.ReplaceAll(s, c.Pad, "")
				if clean {
					s = strings.ReplaceAll(cleanup(s), c.WordDelimiter, " ")
				}
				if s != "" {
					out = append(out, s)
				}
			}
			return out
		}, nil
	}
	return nil, &UnsupportedError{Section: "decoder", Part: c.Type}
}

func eachToken(f func(i int, s string) string) decoder {
	return func(tokens []string) []string {
		out := make([]string, len(tokens))
		for i, s := range tokens {
			out[i] = f(i, s)
		}
		return out
	}
}

// cleanup undoes the spaces that word pieces put before punctuation and contractions.
func cleanup(s string) string {
	for _, p := range [][2]string{{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"}, {" n't", "n't"}, {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}} {
		s = strings.ReplaceAll(s, p[0], p[1])
	}
	return s
}

// decodeByteLevel turns byte characters into bytes; a token that has others stands for itself.
func decodeByteLevel(tokens []string) []string {
	var b []byte
	for _, s := range tokens {
		if raw, ok := bytesOf(s); ok {
			b = append(b, raw...)
		} else {
			b = append(b, s...)
		}
	}
	return []string{lossy(b)}
}

// lossy writes U+FFFD for each maximal invalid part, as Rust's String::from_utf8_lossy.
func lossy(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var out strings.Builder
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n <= 1 {
			out.WriteRune(utf8.RuneError)
			b = b[invalidPrefix(b):]
			continue
		}
		out.WriteRune(r)
		b = b[n:]
	}
	return out.String()
}

// invalidPrefix is the length of the maximal prefix of a well-formed sequence at the front of b, at least 1.
func invalidPrefix(b []byte) int {
	need, lo, hi := 0, byte(0x80), byte(0xBF)
	switch c := b[0]; {
	case c >= 0xC2 && c <= 0xDF:
		need = 1
	case c >= 0xE0 && c <= 0xEF:
		need = 2
		if c == 0xE0 {
			lo = 0xA0
		} else if c == 0xED {
			hi = 0x9F
		}
	case c >= 0xF0 && c <= 0xF4:
		need = 3
		if c == 0xF0 {
			lo = 0x90
		} else if c == 0xF4 {
			hi = 0x8F
		}
	default:
		return 1
	}
	n := 1
	for ; n <= need && n < len(b); n++ {
		if b[n] < lo || b[n] > hi {
			break
		}
		lo, hi = 0x80, 0xBF
	}
	return n
}

// decodeByteFallback joins runs of <0xNN>; a run that is not UTF-8 gives one U+FFFD a byte.
func decodeByteFallback(tokens []string) []string {
	var out []string
	var run []byte
	flush := func() {
		if len(run) == 0 {
			return
		}
		if utf8.Valid(run) {
			out = append(out, string(run))
		} else {
			for range run {
				out = append(out, "\uFFFD")
			}
		}
		run = run[:0]
	}
	for _, s := range tokens {
		if len(s) == 6 && strings.HasPrefix(s, "<0x") && s[5] == '>' {
			if b, err := strconv.ParseUint(s[3:5], 16, 8); err == nil {
				run = append(run, byte(b))
				continue
			}
		}
		flush()
		out = append(out, s)
	}
	flush()
	return out
}
