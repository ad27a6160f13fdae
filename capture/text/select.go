package text

import "container/heap"

// candidate is a usable sample that may become part of the calibration.
type candidate struct {
	key    uint64 // draw order: the reading index, or a seeded permutation of it
	sample int    // reading index
	fate   int    // index in the list of fates
	ids    []int32
	mask   []bool
}

// before is the total order in which candidates are drawn: key, then reading index.
func (c *candidate) before(o *candidate) bool {
	if c.key != o.key {
		return c.key < o.key
	}
	return c.sample < o.sample
}

// draw keeps the candidates with the smallest keys that together reach the wanted weight: a sample weighs 1, or its number of
// tokens when samples are joined into blocks. It sees a data set of any size and holds what it keeps. What it keeps
// depends on the set of candidates alone, not on their order of arrival.
type draw struct {
	want  int // 0: everything
	byTok bool
	kept  candidateHeap
	sum   int
}

func (d *draw) weight(c *candidate) int {
	if d.byTok {
		return len(c.ids)
	}
	return 1
}

// full says that nothing with a key beyond the largest kept one can be drawn any more, and gives that candidate.
func (d *draw) full() (*candidate, bool) {
	if d.want == 0 || d.sum < d.want || len(d.kept) == 0 {
		return nil, false
	}
	return d.kept[0], true
}

// wants says whether a sample with this key can still be drawn.
func (d *draw) wants(key uint64, sample int) bool {
	last, full := d.full()
	return !full || (&candidate{key: key, sample: sample}).before(last)
}

// add takes a candidate in and gives back those that it pushes out, perhaps itself.
func (d *draw) add(c *candidate) []*candidate {
	if !d.wants(c.key, c.sample) {
		return []*candidate{c}
	}
	heap.Push(&d.kept, c)
	d.sum += d.weight(c)
	var out []*candidate
	for d.want > 0 && len(d.kept) > 1 && d.sum-d.weight(d.kept[0]) >= d.want {
		last := heap.Pop(&d.kept).(*candidate)
		d.sum -= d.weight(last)
		out = append(out, last)
	}
	return out
}

// sorted empties the draw in order of drawing.
func (d *draw) sorted() []*candidate {
	out := make([]*candidate, len(d.kept))
	for i := len(out) - 1; i >= 0; i-- {
		out[i] = heap.Pop(&d.kept).(*candidate)
	}
	return out
}

// candidateHeap has the candidate that is drawn last on top.
type candidateHeap []*candidate

func (h candidateHeap) Len() int           { return len(h) }
func (h candidateHeap) Less(i, j int) bool { return h[j].before(h[i]) }
func (h candidateHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *candidateHeap) Push(x any)        { *h = append(*h, x.(*candidate)) }
func (h *candidateHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return last
}

// shuffleKey is the place of a sample in the seeded permutation: the splitmix64 finaliser over seed and index, written out here so
// that no library version changes which samples a seed draws.
func shuffleKey(seed int64, sample int) uint64 {
	z := uint64(seed)*0x9E3779B97F4A7C15 + uint64(sample)*0xBF58476D1CE4E5B9 + 0x94D049BB133111EB
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
	z = (z ^ (z >> 27)) * 0x94D049BB133111EB
	return z ^ (z >> 31)
}
