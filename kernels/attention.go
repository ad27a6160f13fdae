package kernels

import (
	"fmt"
	"math"
)

// AttentionKeyBlock is the number of keys between two rescalings. Blocks are
// aligned to absolute positions in the sequence; the size is part of the contract.
const AttentionKeyBlock = 128

// AttentionSpec describes one attention layer.
type AttentionSpec struct {
	// Heads query heads share KVHeads key and value heads (Heads is a multiple).
	Heads, KVHeads int
	// QKDim is the size of a query or key head, VDim of a value head.
	QKDim, VDim int
	// Scale multiplies the scores.
	Scale float32
	// Window: a query at position p sees keys p−Window+1..p; 0 is no limit.
	Window int
	// Chunk: a query at position p sees keys from ⌊p/Chunk⌋·Chunk; 0 is no limit.
	Chunk int
	// SoftCap replaces a score s by SoftCap·tanh(s/SoftCap); 0 is none.
	SoftCap float32
	// Sinks holds one further logit per query head without a value; nil is none.
	Sinks []float32
}

// Seq is one sequence: rows Start..Start+Len−1 of the flattened batch.
type Seq struct{ Start, Len int }

// firstKey is the first position that the query at position p sees.
func (s *AttentionSpec) firstKey(p int) int {
	first := 0
	if s.Window > 0 {
		first = max(first, p-s.Window+1)
	}
	if s.Chunk > 0 {
		first = max(first, p/s.Chunk*s.Chunk)
	}
	return first
}

func (s *AttentionSpec) check(ldq, ldk, ldv, ldo int) {
	switch {
	case s.Heads <= 0 || s.KVHeads <= 0 || s.Heads%s.KVHeads != 0 || s.QKDim <= 0 || s.VDim <= 0:
		panic(fmt.Sprintf("kernels.Attention: %d heads of %d over %d key heads, values of %d", s.Heads, s.QKDim, s.KVHeads, s.VDim))
	case ldq < s.Heads*s.QKDim || ldo < s.Heads*s.VDim || ldk < s.KVHeads*s.QKDim || ldv < s.KVHeads*s.VDim:
		panic(fmt.Sprintf("kernels.Attention: rows of %d, %d, %d, %d are too short for the heads", ldq, ldk, ldv, ldo))
	case s.Sinks != nil && len(s.Sinks) != s.Heads:
		panic(fmt.Sprintf("kernels.Attention: %d sinks for %d heads", len(s.Sinks), s.Heads))
	}
}

// waveRows bounds how many rows of keys and values are packed at a time (a
// longer sequence is one wave by itself).
const waveRows = 4096

// groupPanels is how many panels of one head a task takes: they share the key
// and value tiles that the cache holds.
const groupPanels = 4

// Attention is causal softmax attention, each sequence by itself. Row r of q, at
// q[r·ldq:], holds Heads·QKDim elements, of k and v KVHeads heads, of dst
// Heads·VDim. dst may not overlap the operands.
//
// Queries are handled in panels of 32 consecutive positions of one head, keys in
// blocks of [AttentionKeyBlock]. Scores, weights and the running sums exist for
// one panel and block at a time: memory is that of the packed keys and values of
// at most max(4096, longest sequence) rows plus a fixed amount per worker. The
// order of all operations is in docs/contract-cpu-1.md, "Attention".
func Attention(p *Pool, dst, q, k, v []float32, ldq, ldk, ldv, ldo int, seqs []Seq, s AttentionSpec) {
	s.check(ldq, ldk, ldv, ldo)
	a := &attention{spec: s, q: q, k: k, v: v, dst: dst, ldq: ldq, ldk: ldk, ldv: ldv, ldo: ldo, micro: micro(), elem: elem()}
	for len(seqs) > 0 {
		n, rows := 0, 0
		for n < len(seqs) && (n == 0 || rows+seqs[n].Len <= waveRows) {
			rows += seqs[n].Len
			n++
		}
		a.wave(p, seqs[:n])
		seqs = seqs[n:]
	}
}

// attention is one call.
type attention struct {
	spec               AttentionSpec
	q, k, v, dst       []float32
	ldq, ldk, ldv, ldo int
	micro              *microTable
	elem               *elemTable
}

// packedSeq is one sequence of a wave with the place of its packed keys and values.
type packedSeq struct {
	Seq
	keys, values int // offsets of the first key head; head stride is Len·QKDim, Len·VDim
	groups       int // groups of panels per head
}

func (a *attention) wave(p *Pool, seqs []Seq) {
	s := &a.spec
	rows, tasks := 0, 0
	list := make([]packedSeq, 0, len(seqs))
	for _, q := range seqs {
		if q.Len <= 0 {
			continue
		}
		g := (q.Len + panelWidth*groupPanels - 1) / (panelWidth * groupPanels)
		list = append(list, packedSeq{Seq: q, keys: rows * s.KVHeads * s.QKDim, values: rows * s.KVHeads * s.VDim, groups: g})
		rows += q.Len
		tasks += g * s.Heads
	}
	if rows == 0 {
		return
	}
	const slack = 8 // the transposers write whole groups of eight
	keys := borrowLanes(rows*s.KVHeads*s.QKDim + slack)
	values := borrowLanes(rows*s.KVHeads*s.VDim + slack)
	defer keys.giveBack()
	defer values.giveBack()

	// Packing tasks own whole (sequence, key head) ranges; the spill of a
	// transposer could reach the next range, so it never runs at a range's end.
	p.Do(len(list)*s.KVHeads, func(_, task int) {
		q, h := &list[task/s.KVHeads], task%s.KVHeads
		a.packKeys(floats(keys.lanes)[q.keys+h*q.Len*s.QKDim:][:q.Len*s.QKDim], q.Seq, h)
		a.packValues(floats(values.lanes)[q.values+h*q.Len*s.VDim:][:q.Len*s.VDim], q.Seq, h)
	})

	work := make([]*attentionWork, p.Threads())
	p.Do(tasks, func(worker, task int) {
		w := work[worker]
		if w == nil {
			w = newAttentionWork(s)
			work[worker] = w
		}
		// Longest first: the last groups of a sequence see the most keys.
		i := 0
		for task >= list[i].groups*s.Heads {
			task -= list[i].groups * s.Heads
			i++
		}
		q := &list[i]
		head := task % s.Heads
		group := q.groups - 1 - task/s.Heads
		kv := head / (s.Heads / s.KVHeads)
		w.run(a, q, head, group,
			floats(keys.lanes)[q.keys+kv*q.Len*s.QKDim:][:q.Len*s.QKDim],
			floats(values.lanes)[q.values+kv*q.Len*s.VDim:][:q.Len*s.VDim])
	})
	for _, w := range work {
		if w != nil {
			w.lanes.giveBack()
		}
	}
}

// tileRows cuts n rows into tiles of nearly equal height that the level has.
func tileRows(n, rows int) (tiles, low, extra int) {
	tiles = (n + rows - 1) / rows
	return tiles, n / tiles, n % tiles // the first extra tiles have low+1 rows
}

// packKeys writes the keys of one head as tiles [d][h] of h adjacent keys, key
// block by key block: a key block starts at its position · QKDim.
func (a *attention) packKeys(dst []float32, q Seq, head int) {
	d := a.spec.QKDim
	for b := 0; b < q.Len; b += AttentionKeyBlock {
		n := min(AttentionKeyBlock, q.Len-b)
		tiles, low, extra := tileRows(n, a.micro.rows)
		at := b
		for i := range tiles {
			h := low
			if i < extra {
				h++
			}
			tile := dst[at*d:][:h*d]
			for r := range h {
				row := a.k[(q.Start+at+r)*a.ldk+head*d:][:d]
				for j, x := range row {
					tile[j*h+r] = x
				}
			}
			at += h
		}
	}
}

// packValues writes the values of one head key block by key block as tiles
// [key][h] of h adjacent value elements: a key block starts at its position · VDim.
func (a *attention) packValues(dst []float32, q Seq, head int) {
	d := a.spec.VDim
	tiles, low, extra := tileRows(d, a.micro.rows)
	for b := 0; b < q.Len; b += AttentionKeyBlock {
		n := min(AttentionKeyBlock, q.Len-b)
		for j := range n {
			row := a.v[(q.Start+b+j)*a.ldv+head*d:][:d]
			c := 0
			for i := range tiles {
				h := low
				if i < extra {
					h++
				}
				copy(dst[b*d+c*n+j*h:][:h], row[c:])
				c += h
			}
		}
	}
}

// attentionWork is the room of one worker: queries, output, running maximum and
// sum of groupPanels panels, and one tile of scores.
type attentionWork struct {
	lanes  *laneBuffer
	q, o   []float32 // [panel][d][32]
	scores []float32 // [key][32]
	m, l   []float32 // [panel][32]
	alpha  []float32 // [32]
}

func newAttentionWork(s *AttentionSpec) *attentionWork {
	const w = groupPanels * panelWidth
	b := borrowLanes(w*s.QKDim + w*s.VDim + AttentionKeyBlock*panelWidth + 2*w + panelWidth)
	f := floats(b.lanes)
	take := func(n int) []float32 {
		p := f[:n:n]
		f = f[n:]
		return p
	}
	return &attentionWork{lanes: b, q: take(w * s.QKDim), o: take(w * s.VDim), scores: take(AttentionKeyBlock * panelWidth),
		m: take(w), l: take(w), alpha: take(panelWidth)}
}

// run computes one group of panels of one head.
func (w *attentionWork) run(a *attention, q *packedSeq, head, group int, keys, values []float32) {
	s := &a.spec
	p0 := group * groupPanels * panelWidth
	p1 := min(q.Len, p0+groupPanels*panelWidth)
	panels := (p1 - p0 + panelWidth - 1) / panelWidth
	clear(w.o[:panels*panelWidth*s.VDim])
	start, sum := float32(lowest), float32(0)
	if s.Sinks != nil {
		start, sum = s.Sinks[head], 1
	}
	for i := range panels * panelWidth {
		w.m[i], w.l[i] = start, sum
	}
	for i := range panels {
		w.packQueries(a, q, head, p0+i*panelWidth, w.q[i*panelWidth*s.QKDim:][:panelWidth*s.QKDim])
	}
	for b := s.firstKey(p0) / AttentionKeyBlock * AttentionKeyBlock; b < p1; b += AttentionKeyBlock {
		n := min(AttentionKeyBlock, q.Len-b)
		for i := range panels {
			first := p0 + i*panelWidth
			last := min(q.Len, first+panelWidth) - 1
			if b > last || b+n <= s.firstKey(first) {
				continue // no query of the panel sees the block
			}
			seen := min(n, last-b+1)
			w.block(a, i, first, b, n, seen, keys[b*s.QKDim:], values[b*s.VDim:])
		}
	}
	for i := range panels {
		o := w.o[i*panelWidth*s.VDim:][:panelWidth*s.VDim]
		a.elem.divRows(&o[0], &w.l[i*panelWidth], s.VDim)
		first := p0 + i*panelWidth
		for r := range min(panelWidth, q.Len-first) {
			out := a.dst[(q.Start+first+r)*a.ldo+head*s.VDim:][:s.VDim]
			for c := range out {
				out[c] = o[c*panelWidth+r]
			}
		}
	}
}

// packQueries writes a panel as [d][32]; missing queries are zero.
func (w *attentionWork) packQueries(a *attention, q *packedSeq, head, first int, dst []float32) {
	d := a.spec.QKDim
	n := min(panelWidth, q.Len-first)
	if n < panelWidth {
		clear(dst)
	}
	for r := range n {
		row := a.q[(q.Start+first+r)*a.ldq+head*d:][:d]
		for j, x := range row {
			dst[j*panelWidth+r] = x
		}
	}
}

// block joins one key block, n keys at position b of which the first seen may be
// visible, with panel i whose first query has position first.
func (w *attentionWork) block(a *attention, i, first, b, n, seen int, keys, values []float32) {
	s := &a.spec
	qp := w.q[i*panelWidth*s.QKDim:]
	// Scores, transposed: [key][32 queries], chains over QKDim in blocks of 256.
	tiles, low, extra := tileRows(n, a.micro.rows)
	at := 0
	for t := range tiles {
		h := low
		if t < extra {
			h++
		}
		if at >= seen {
			break
		}
		tile := keys[at*s.QKDim:]
		c := &w.scores[at*panelWidth]
		for d := 0; d < s.QKDim; d += kBlock {
			mode := modeStore
			if d > 0 {
				mode = modeAdd
			}
			a.micro.f32[h](min(kBlock, s.QKDim-d), &tile[d*h], h, &qp[d*panelWidth], panelWidth/2, c, panelWidth, mode, 1, &tile[0], 0)
		}
		at += h
	}
	scores := w.scores[:seen*panelWidth]
	scale := s.Scale
	if s.SoftCap > 0 {
		// (s·scale)/cap → tanh → ·cap, each rounded.
		a.elem.scale(&scores[0], &scores[0], scale, len(scores))
		a.elem.div(&scores[0], &scores[0], s.SoftCap, len(scores))
		a.elem.tanh(&scores[0], &scores[0], len(scores))
		scale = s.SoftCap
	}
	w.mask(s, scores, first, b, scale)
	m, l := &w.m[i*panelWidth], &w.l[i*panelWidth]
	a.elem.attnSoftmax(&scores[0], seen, scale, m, l, &w.alpha[0])
	o := w.o[i*panelWidth*s.VDim:]
	for _, f := range w.alpha {
		if f != 1 {
			a.elem.mulRows(&o[0], &w.alpha[0], s.VDim)
			break
		}
	}
	tiles, low, extra = tileRows(s.VDim, a.micro.rows)
	c := 0
	for t := range tiles {
		h := low
		if t < extra {
			h++
		}
		a.micro.f32[h](seen, &values[c*n], h, &scores[0], panelWidth/2, &o[c*panelWidth], panelWidth, modeChain, 1, &values[c*n], 0)
		c += h
	}
}

// mask sets the scores of keys that a query does not see to −Inf (with the sign
// that a multiplication by scale keeps). Queries are in order of position, so for one key the
// hidden ones are a prefix (they come before it) and a suffix (too far behind).
func (w *attentionWork) mask(s *AttentionSpec, scores []float32, first, b int, scale float32) {
	ninf := float32(math.Inf(-1))
	if scale < 0 {
		ninf = -ninf
	}
	seen := len(scores) / panelWidth
	bounded := s.Window > 0 || s.Chunk > 0
	if !bounded && b+seen-1 <= first {
		return
	}
	for j := range seen {
		row := scores[j*panelWidth:][:panelWidth]
		key := b + j
		for r := range min(panelWidth, max(0, key-first)) {
			row[r] = ninf
		}
		if bounded {
			for r := panelWidth - 1; r >= 0 && s.firstKey(first+r) > key; r-- {
				row[r] = ninf
			}
		}
	}
}
