package capture

// Lane is a fixed slice of the batches.
type Lane struct {
	Index       int
	First, Last int // batches First..Last-1; equal when the lane is empty
	Rows        int64
}

// Lanes cuts batches of the given lengths into n lanes: lane(b) = ⌊n·rowsBefore(b)/rows⌋. All n lanes are returned, empty ones
// too.
func Lanes(lengths []int, n int) []Lane {
	var rows int64
	for _, l := range lengths {
		rows += int64(l)
	}
	out := make([]Lane, n)
	for i := range out {
		out[i].Index = i
	}
	var before int64
	at := 0
	for b, l := range lengths {
		i := 0
		if rows > 0 {
			i = min(int(int64(n)*before/rows), n-1) // an empty last batch has rowsBefore = rows
		}
		for at < i { // lanes without a batch
			at++
			out[at].First, out[at].Last = b, b
		}
		out[i].Last = b + 1
		out[i].Rows += int64(l)
		before += int64(l)
	}
	for at++; at < n; at++ {
		out[at].First, out[at].Last = len(lengths), len(lengths)
	}
	return out
}

// Range is batches First..Last-1.
type Range struct{ First, Last int }

// Spans cuts batches first..last-1 into ranges of at most maxRows rows, each at least one batch.
func Spans(lengths []int, first, last, maxRows int) []Range {
	var out []Range
	for a := first; a < last; {
		b, rows := a, 0
		for b < last && (b == a || rows+lengths[b] <= maxRows) {
			rows += lengths[b]
			b++
		}
		out = append(out, Range{a, b})
		a = b
	}
	return out
}
