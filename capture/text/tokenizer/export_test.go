package tokenizer

// WithoutScanners gives the same tokenizer with every pattern run by regexp2.
func (t *Tokenizer) WithoutScanners() *Tokenizer {
	out := &Tokenizer{digest: t.digest, normalizer: t.normalizer, onlyNFC: t.onlyNFC, model: t.model, byteInput: t.byteInput, post: t.post, decoder: t.decoder,
		truncation: t.truncation, padding: t.padding, raw: t.raw, normal: t.normal, added: t.added, addedByID: t.addedByID, maxID: t.maxID}
	out.pre = slowly(t.pre)
	return out
}

func slowly(p preTokenizer) preTokenizer {
	switch p := p.(type) {
	case *splitter:
		q := *p
		q.fast = nil
		return &q
	case *byteLevel:
		q := *p
		if q.split != nil {
			q.split = slowly(q.split).(*splitter)
		}
		return &q
	case sequence:
		var out sequence
		for _, q := range p {
			out = append(out, slowly(q))
		}
		return out
	}
	return p
}

// Scanners gives the patterns with hand-written equals.
func Scanners() map[string]func(s string, i int) int {
	out := map[string]func(s string, i int) int{}
	for p, f := range scanners {
		out[p] = f
	}
	return out
}

// Isolate cuts s by a pattern run by regexp2, matches and what lies between.
func Isolate(pattern, s string) ([]string, error) {
	re, err := compileRegex(pattern)
	if err != nil {
		return nil, err
	}
	parts, err := (&splitter{pattern: re, how: isolated}).cut(nil, whole(s))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, p := range parts {
		out = append(out, p.s)
	}
	return out, nil
}
