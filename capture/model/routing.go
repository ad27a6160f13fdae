package model

// Routing is the router's choice for the rows of a span: a value that a caller may store, replace, or use for statistics
// only.
type Routing struct {
	Experts int       // E
	TopK    int       // k
	Choice  []int32   // [rows,k] chosen experts, ascending within a row
	Weight  []float32 // [rows,k] combine weights in the same order, renormalised and scaled by the family's rule
	Logits  []float32 // [rows,E] raw router output; nil when the routing came from elsewhere

	first []int32 // [E+1] offsets into ids of native rows by expert
	ids   []int32
	ws    []float32
}

// Rows is the number of rows.
func (r *Routing) Rows() int { return len(r.Choice) / max(r.TopK, 1) }

// NewRouting wraps choices that come from elsewhere (another stream, a ledger). choice must ascend within a row.
func NewRouting(experts, topK int, choice []int32, weight []float32) *Routing {
	r := &Routing{Experts: experts, TopK: topK, Choice: choice, Weight: weight}
	r.index()
	return r
}

// index sorts the row ids by expert, rows ascending.
func (r *Routing) index() {
	n := make([]int32, r.Experts+1)
	for _, e := range r.Choice {
		n[e+1]++
	}
	for e := range r.Experts {
		n[e+1] += n[e]
	}
	r.first = append([]int32{}, n...)
	r.ids = make([]int32, len(r.Choice))
	r.ws = make([]float32, len(r.Choice))
	for i, e := range r.Choice {
		r.ids[n[e]] = int32(i / r.TopK)
		r.ws[n[e]] = r.Weight[i]
		n[e]++
	}
}

// Native lists the rows that chose expert e, ascending, and their combine weights. The slices belong to the routing.
func (r *Routing) Native(e int) (ids []int32, weights []float32) {
	a, b := r.first[e], r.first[e+1]
	return r.ids[a:b], r.ws[a:b]
}

// Counts is the number of native rows of every expert.
func (r *Routing) Counts() []int {
	out := make([]int, r.Experts)
	for e := range out {
		out[e] = int(r.first[e+1] - r.first[e])
	}
	return out
}

// All lists every row: the all-tokens mode of statistics.
func (r *Routing) All() []int32 {
	ids := make([]int32, r.Rows())
	for i := range ids {
		ids[i] = int32(i)
	}
	return ids
}
