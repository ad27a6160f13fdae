package tokenizer

import "unicode/utf8"

// span is a byte range [lo, hi) of the original text.
type span struct{ lo, hi int32 }

// nstr is a piece of normalized text that knows which original bytes each of its bytes came from. align is nil while nothing
// was changed: byte i then came from original byte base+i.
type nstr struct {
	s     string
	align []span
	base  int32
	// origin is where the piece starts in the original; Metaspace's "first" asks for it.
	origin int32
}

func whole(s string) nstr { return nstr{s: s} }

// slice cuts bytes [lo, hi) out.
func (n nstr) slice(lo, hi int) nstr {
	out := nstr{s: n.s[lo:hi]}
	if n.align == nil {
		out.base = n.base + int32(lo)
		out.origin = out.base
		return out
	}
	out.align = n.align[lo:hi]
	if lo < hi {
		out.origin = n.align[lo].lo
	} else {
		out.origin = n.origin
	}
	return out
}

// source is the original byte range of bytes [lo, hi), widened to whole characters.
func (n nstr) source(lo, hi int) (int, int) {
	if lo >= hi {
		if n.align == nil {
			return int(n.base) + lo, int(n.base) + lo
		}
		if lo < len(n.align) {
			return int(n.align[lo].lo), int(n.align[lo].lo)
		}
		if len(n.align) > 0 {
			return int(n.align[len(n.align)-1].hi), int(n.align[len(n.align)-1].hi)
		}
		return int(n.origin), int(n.origin)
	}
	if n.align == nil {
		for lo > 0 && !utf8.RuneStart(n.s[lo]) {
			lo--
		}
		for hi < len(n.s) && !utf8.RuneStart(n.s[hi]) {
			hi++
		}
		return int(n.base) + lo, int(n.base) + hi
	}
	return int(n.align[lo].lo), int(n.align[hi-1].hi)
}

// at is the alignment of the character that starts at byte i.
func (n *nstr) at(i int) span {
	if n.align != nil {
		return n.align[i]
	}
	_, size := utf8.DecodeRuneInString(n.s[i:])
	return span{n.base + int32(i), n.base + int32(i+size)}
}

// editor builds the normalized successor of a text character by character.
type editor struct {
	from nstr
	out  []byte
	al   []span
	pos  int // bytes of from consumed
	most int // bytes that out may have
	prev span
}

func edit(n nstr) *editor {
	return &editor{from: n, out: make([]byte, 0, len(n.s)+8), al: make([]span, 0, len(n.s)+8), prev: span{n.origin, n.origin}, most: mostOf(len(n.s))}
}

// mostOf bounds what normalization may make of a text of n bytes. Published normalizers stay below 20 times; a file that asks for
// more does so to exhaust memory.
func mostOf(n int) int { return 1<<20 + 64*n }

// tooLong ends an encoding from a place that has no error to give.
type tooLong struct{}

func (e *editor) put(r rune, at span) {
	before := len(e.out)
	if before >= e.most {
		panic(tooLong{})
	}
	e.out = utf8.AppendRune(e.out, r)
	for range len(e.out) - before {
		e.al = append(e.al, at)
	}
	e.prev = at
}

// replace writes r in the place of the next n characters (n may be 0: r is inserted and belongs to what stands before).
func (e *editor) replace(r rune, n int) {
	at := e.prev
	for i := range n {
		if e.pos >= len(e.from.s) {
			break
		}
		sp := e.from.at(e.pos)
		if i == 0 {
			at = sp
		}
		_, size := utf8.DecodeRuneInString(e.from.s[e.pos:])
		e.pos += size
	}
	e.put(r, at)
}

// keep copies the next character.
func (e *editor) keep() {
	r, _ := utf8.DecodeRuneInString(e.from.s[e.pos:])
	e.replace(r, 1)
}

// drop leaves the next character out.
func (e *editor) drop() {
	_, size := utf8.DecodeRuneInString(e.from.s[e.pos:])
	e.pos += size
}

// replaceString writes the characters of repl in the place of size source bytes. All stand for the last replaced
// character: the reference removes first and aligns what it inserts with its predecessor.
func (e *editor) replaceString(repl string, size int) {
	if size == 0 {
		for _, r := range repl {
			e.replace(r, 0)
		}
		return
	}
	end := e.pos + size
	for e.pos < end {
		e.prev = e.from.at(e.pos)
		e.drop()
	}
	for _, r := range repl {
		e.put(r, e.prev)
	}
}

// substitute writes repl in the place of n characters, one for one; the last one takes what is left over on either side.
func (e *editor) substitute(repl string, n int) {
	k := utf8.RuneCountInString(repl)
	if k == 0 {
		for range n {
			e.drop()
		}
		return
	}
	i := 0
	for _, r := range repl {
		switch {
		case i == k-1 && n >= k:
			e.replace(r, n-k+1)
		case i < n:
			e.replace(r, 1)
		default:
			e.replace(r, 0)
		}
		i++
	}
}

func (e *editor) done() nstr {
	out := nstr{s: string(e.out), align: e.al, origin: e.from.origin}
	if out.align == nil {
		out.align = []span{}
	}
	return out
}

// mapRunes applies a character map that keeps the number of characters; -1 drops one.
func (n nstr) mapRunes(f func(rune) rune) nstr {
	changed := false
	for _, r := range n.s {
		if f(r) != r {
			changed = true
			break
		}
	}
	if !changed {
		return n
	}
	e := edit(n)
	for _, r := range n.s {
		switch m := f(r); {
		case m < 0:
			e.drop()
		default:
			e.replace(m, 1)
		}
	}
	return e.done()
}
