package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// bpe merges neighbouring symbols in order of rank, the leftmost first (Sennrich et al. 2016, with the reference's queue).
type bpe struct {
	vocabulary
	o      bpeOptions
	merges mergeTable
	unk    int32 // -1: none
	fall   [256]int32
	// In byte mode pieces are raw bytes: single[b] is the id of byte b, words the vocabulary by bytes (for ignoreMerges).
	single [256]int32
	words  map[string]int32
}

type bpeOptions struct {
	unk            *string
	prefix, suffix string // continuing_subword_prefix, end_of_word_suffix
	fuseUnk        bool
	fallback       bool // byte_fallback
	ignoreMerges   bool
	bytes          bool
}

func newBPE(ids map[string]int32, merges []mergePair, o bpeOptions) (*bpe, error) {
	m := &bpe{vocabulary: newVocabulary(ids), o: o, unk: -1}
	if o.unk != nil {
		id, ok := ids[*o.unk]
		if ok {
			m.unk = id
		}
	}
	m.merges = newMergeTable(len(merges))
	for rank, p := range merges {
		a, okA := ids[p[0]]
		b, okB := ids[p[1]]
		whole := p[0] + strings.TrimPrefix(p[1], o.prefix)
		c, okC := ids[whole]
		if !okA || !okB || !okC {
			return nil, fmt.Errorf("merge %d (%q %q) uses a token that the vocabulary lacks", rank, p[0], p[1])
		}
		m.merges.put(a, b, int32(rank), c)
	}
	m.fall = m.byteTokens()
	if o.bytes {
		for b := range 256 {
			m.single[b] = -1
			if id, ok := ids[string(byteRunes[b])]; ok {
				m.single[b] = id
			}
		}
		if o.ignoreMerges {
			m.words = make(map[string]int32, len(ids))
			for t, id := range ids {
				if raw, ok := bytesOf(t); ok {
					m.words[raw] = id
				}
			}
		}
	}
	return m, nil
}

// byteInputPossible says whether a BPE model can work on raw bytes instead of byte characters with the same result.
func byteInputPossible(prefix, suffix *string, fallback bool) bool {
	return (prefix == nil || *prefix == "") && (suffix == nil || *suffix == "") && !fallback
}

func (m *bpe) tokenize(dst []tok, piece string, w *workspace) ([]tok, error) {
	if piece == "" {
		return dst, nil
	}
	if m.o.ignoreMerges {
		words := m.ids
		if m.o.bytes {
			words = m.words
		}
		if id, ok := words[piece]; ok {
			return append(dst, tok{id, 0, int32(len(piece))}), nil
		}
	}
	if len(piece) <= cacheWordSize {
		if hit, ok := w.cache[piece]; ok {
			return append(dst, hit...), nil
		}
	}
	start := len(dst)
	m.symbols(piece, w)
	m.merge(w)
	at := int32(0)
	for i := int32(0); i >= 0 && len(w.symbols) > 0; i = w.symbols[i].next {
		s := &w.symbols[i]
		dst = append(dst, tok{s.id, at, at + s.n})
		at += s.n
	}
	if len(piece) <= cacheWordSize {
		if w.cache == nil || len(w.cache) >= cacheWords {
			w.cache = make(map[string][]tok, 1024)
		}
		w.cache[strings.Clone(piece)] = append([]tok(nil), dst[start:]...)
	}
	return dst, nil
}

// symbolNode is a symbol of the word under merge, in a doubly linked list; n is 0 once it was merged away.
type symbolNode struct{ id, n, prev, next int32 }

// symbols fills w.symbols with the word's first symbols: characters or bytes, unknown ones by fallback or as unknown.
func (m *bpe) symbols(piece string, w *workspace) {
	out := w.symbols[:0]
	add := func(id int32, n int) {
		k := int32(len(out))
		if k > 0 {
			out[k-1].next = k
		}
		out = append(out, symbolNode{id: id, n: int32(n), prev: k - 1, next: -1})
	}
	unkLen := 0 // bytes of a pending unknown, 0: none
	pending := false
	flush := func() {
		if pending {
			add(m.unk, unkLen)
			pending, unkLen = false, 0
		}
	}
	unknown := func(n int) {
		if m.unk < 0 {
			return // without an unknown token the reference leaves the character out
		}
		if pending && m.o.fuseUnk {
			unkLen += n
			return
		}
		flush()
		pending, unkLen = true, n
	}
	if m.o.bytes {
		// An unknown byte is an unknown byte character.
		for i := range len(piece) {
			if id := m.single[piece[i]]; id >= 0 {
				flush()
				add(id, 1)
			} else {
				unknown(1)
			}
		}
		flush()
		w.symbols = out
		return
	}
	for i := 0; i < len(piece); {
		_, n := utf8.DecodeRuneInString(piece[i:])
		s := piece[i : i+n]
		if m.o.prefix != "" && i > 0 {
			s = m.o.prefix + s
		}
		if m.o.suffix != "" && i+n == len(piece) {
			s += m.o.suffix
		}
		i += n
		if id, ok := m.ids[s]; ok {
			flush()
			add(id, n)
			continue
		}
		if m.o.fallback {
			all := true
			for j := range len(s) {
				all = all && m.fall[s[j]] >= 0
			}
			if all {
				// The reference does not flush a pending unknown here: it comes out after the bytes.
				for j := range len(s) {
					add(m.fall[s[j]], 1)
				}
				continue
			}
		}
		unknown(n)
	}
	flush()
	w.symbols = out
}

// mergeEntry is a possible merge of the symbol at pos with its successor.
type mergeEntry struct{ rank, pos, id int32 }

func (a mergeEntry) before(b mergeEntry) bool {
	return a.rank < b.rank || a.rank == b.rank && a.pos < b.pos
}

// merge runs the queue of the reference: smallest rank, then leftmost; an entry whose pair has changed meanwhile counts
// only if it still makes the same token.
func (m *bpe) merge(w *workspace) {
	sy := w.symbols
	q := w.queue[:0]
	push := func(e mergeEntry) {
		q = append(q, e)
		for i := len(q) - 1; i > 0; {
			up := (i - 1) / 2
			if !q[i].before(q[up]) {
				break
			}
			q[i], q[up] = q[up], q[i]
			i = up
		}
	}
	pop := func() mergeEntry {
		top := q[0]
		last := len(q) - 1
		q[0] = q[last]
		q = q[:last]
		for i := 0; ; {
			c := 2*i + 1
			if c >= last {
				break
			}
			if c+1 < last && q[c+1].before(q[c]) {
				c++
			}
			if !q[c].before(q[i]) {
				break
			}
			q[i], q[c] = q[c], q[i]
			i = c
		}
		return top
	}
	for i := 0; i+1 < len(sy); i++ {
		if rank, id, ok := m.merges.get(sy[i].id, sy[i+1].id); ok {
			push(mergeEntry{rank, int32(i), id})
		}
	}
	for len(q) > 0 {
		e := pop()
		cur := &sy[e.pos]
		if cur.n == 0 || cur.next < 0 {
			continue
		}
		right := &sy[cur.next]
		if _, id, ok := m.merges.get(cur.id, right.id); !ok || id != e.id {
			continue
		}
		cur.id = e.id
		cur.n += right.n
		right.n = 0
		cur.next = right.next
		if cur.next >= 0 {
			sy[cur.next].prev = e.pos
			if rank, id, ok := m.merges.get(cur.id, sy[cur.next].id); ok {
				push(mergeEntry{rank, e.pos, id})
			}
		}
		if cur.prev >= 0 {
			if rank, id, ok := m.merges.get(sy[cur.prev].id, cur.id); ok {
				push(mergeEntry{rank, cur.prev, id})
			}
		}
	}
	w.queue = q[:0]
}

// mergeTable is an open-addressing table from a pair of ids to rank and merged id.
type mergeTable struct {
	slots []mergeSlot
	mask  uint64
}

type mergeSlot struct {
	a, b, rank, id int32
}

func newMergeTable(n int) mergeTable {
	size := 16
	for size < 2*n {
		size *= 2
	}
	t := mergeTable{slots: make([]mergeSlot, size), mask: uint64(size - 1)}
	for i := range t.slots {
		t.slots[i].a = -1
	}
	return t
}

func (t *mergeTable) slot(a, b int32) *mergeSlot {
	h := (uint64(uint32(a))<<32 | uint64(uint32(b))) * 0x9E3779B97F4A7C15
	for i := h >> 32 & t.mask; ; i = (i + 1) & t.mask {
		s := &t.slots[i]
		if s.a < 0 || s.a == a && s.b == b {
			return s
		}
	}
}

// put records a merge; a repeated pair takes the later rank, as in the reference's map.
func (t *mergeTable) put(a, b, rank, id int32) { *t.slot(a, b) = mergeSlot{a, b, rank, id} }

func (t *mergeTable) get(a, b int32) (rank, id int32, ok bool) {
	s := t.slot(a, b)
	return s.rank, s.id, s.a >= 0
}
