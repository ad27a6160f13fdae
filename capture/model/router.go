package model

import (
	"math"
	"slices"

	"quire/kernels"
)

// route runs the router on the block's rows, once.
func (s *Span) route() error {
	a := s.run.Layer.arch.moe
	x, _ := s.plane(SiteBlockIn)
	r := &Routing{Experts: a.experts, TopK: a.topK, Logits: make([]float32, s.rows*a.experts),
		Choice: make([]int32, s.rows*a.topK), Weight: make([]float32, s.rows*a.topK)}
	s.linear(s.run.Layer.Block.Router, x, r.Logits)
	if err := s.finite(r.Logits, a.experts, "router logits"); err != nil {
		return err
	}
	var bias []float32
	if a.router.correction != "" {
		bias = s.run.small[s.run.Layer.Prefix+a.router.correction]
	}
	blocks(s.run.r.pool, s.rows, 64, func(_, lo, hi int) {
		c := newChooser(&a.router, a.experts, a.topK, bias)
		for i := lo; i < hi; i++ {
			c.choose(r.Logits[i*a.experts:(i+1)*a.experts], r.Choice[i*a.topK:(i+1)*a.topK], r.Weight[i*a.topK:(i+1)*a.topK])
		}
	})
	r.index()
	s.routing = r
	s.block = make([]float32, s.rows*s.run.m.Hidden)
	s.next = 0
	return nil
}

// TopRows lists, per expert, the rows among whose n largest selection scores it is: wider routing for statistics. n at
// least k keeps the native choice a subset where the rule has no groups.
func (s *Span) TopRows(n int) [][]int32 {
	a := s.run.Layer.arch.moe
	r := s.routing
	out := make([][]int32, a.experts)
	n = min(n, a.experts)
	var bias []float32
	if a.router.correction != "" {
		bias = s.run.small[s.run.Layer.Prefix+a.router.correction]
	}
	c := newChooser(&a.router, a.experts, a.topK, bias)
	idx := make([]int32, n)
	for i := range s.rows {
		sel, _ := c.scores(r.Logits[i*a.experts : (i+1)*a.experts])
		kernels.TopK(idx, nil, sel, n)
		for _, e := range idx {
			out[e] = append(out[e], int32(i))
		}
	}
	return out
}

// chooser applies a router rule row by row.
type chooser struct {
	a          *routerArch
	experts, k int
	bias       []float32
	score, sel []float32
	group      []float32
	gidx       []int32
	idx        []int32
	val        []float32
}

func newChooser(a *routerArch, experts, k int, bias []float32) *chooser {
	return &chooser{a: a, experts: experts, k: k, bias: bias, score: make([]float32, experts), sel: make([]float32, experts),
		group: make([]float32, max(a.groups, 1)), gidx: make([]int32, max(a.topGroups, 1)), idx: make([]int32, k), val: make([]float32, k)}
}

// scores gives what the choice ranks by and what weights are made of.
func (c *chooser) scores(logits []float32) (sel, score []float32) {
	switch c.a.score {
	case scoreSoftmax:
		kernels.Softmax(c.score, logits, 1, c.experts)
	case scoreSigmoid:
		kernels.Sigmoid(c.score, logits)
	default:
		copy(c.score, logits)
	}
	if c.bias == nil {
		return c.score, c.score
	}
	kernels.Add(c.sel, c.score, c.bias)
	return c.sel, c.score
}

// choose writes the chosen experts, ascending, and their weights.
func (c *chooser) choose(logits []float32, choice []int32, weight []float32) {
	if c.a.score == scoreSparseMixer {
		c.sparseMixer(logits, choice, weight)
		return
	}
	sel, score := c.scores(logits)
	if c.a.groups > 1 {
		sel = c.limitGroups(sel)
	}
	kernels.TopK(c.idx, nil, sel, c.k)
	for i, e := range c.idx {
		c.val[i] = score[e]
	}
	switch c.a.score { // in order of rank, as the reference does
	case scoreTopKSoftmax:
		kernels.Softmax(c.val, c.val, 1, c.k)
	case scoreTopKSigmoid:
		kernels.Sigmoid(c.val, c.val)
	}
	if c.a.renorm {
		sum := float32(0)
		for _, v := range c.val {
			sum += v
		}
		sum = max(sum+c.a.renormEps, c.a.renormMin)
		for i := range c.val {
			c.val[i] /= sum
		}
	}
	if c.a.scale != 0 && c.a.scale != 1 {
		kernels.Scale(c.val, c.val, c.a.scale)
	}
	copy(choice, c.idx)
	slices.Sort(choice)
	for i, e := range c.idx {
		at, _ := slices.BinarySearch(choice, e)
		weight[at] = c.val[i]
	}
}

// limitGroups masks the experts outside the best groups.
func (c *chooser) limitGroups(sel []float32) []float32 {
	n := c.experts / c.a.groups
	for g := range c.a.groups {
		best, second := float32(math.Inf(-1)), float32(math.Inf(-1))
		for _, v := range sel[g*n : (g+1)*n] {
			if v > best {
				best, second = v, best
			} else if v > second {
				second = v
			}
		}
		c.group[g] = best
		if c.a.groupTop2 {
			c.group[g] = best + second
		}
	}
	kernels.TopK(c.gidx, nil, c.group, c.a.topGroups)
	if &sel[0] != &c.sel[0] {
		copy(c.sel, sel)
		sel = c.sel
	}
	for g := range c.a.groups {
		if !slices.Contains(c.gidx, int32(g)) {
			for i := g * n; i < (g+1)*n; i++ {
				sel[i] = float32(math.Inf(-1))
			}
		}
	}
	return sel
}

// sparseMixer is phimoe's rule without jitter: twice the largest logit, weighed by a softmax over the logits within
// 2·jitter (relative) of it; the second round leaves the first pick out.
func (c *chooser) sparseMixer(logits []float32, choice []int32, weight []float32) {
	left := c.sel
	copy(left, logits)
	first := int32(-1)
	for round := range 2 {
		kernels.TopK(c.idx[:1], c.val[:1], left, 1)
		top, at := c.val[0], c.idx[0]
		// The threshold compares with the raw logits; what was picked before stays out.
		for i, v := range logits {
			f := max(float32(math.Abs(float64(v))), top)
			if float32(top-v)/f > 2*c.a.jitter || int32(i) == first {
				c.score[i] = float32(math.Inf(-1))
			} else {
				c.score[i] = v
			}
		}
		kernels.Softmax(c.score, c.score, 1, c.experts)
		choice[round], weight[round] = at, c.score[at]
		left[at] = float32(math.Inf(-1))
		first = at
	}
	if choice[0] > choice[1] {
		choice[0], choice[1] = choice[1], choice[0]
		weight[0], weight[1] = weight[1], weight[0]
	}
}
