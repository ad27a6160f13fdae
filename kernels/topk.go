package kernels

import "fmt"

// TopK writes the indices and values of the k largest elements of x, largest
// first. Equal values (also +0 and −0) are ordered by index, lower first; NaN
// comes after every number. k = len(idx) = len(val) at most len(x); val may be nil.
func TopK(idx []int32, val, x []float32, k int) {
	if k < 0 || k > len(x) || len(idx) != k || (val != nil && len(val) != k) {
		panic(fmt.Sprintf("kernels.TopK: %d of %d elements into %d indices and %d values", k, len(x), len(idx), len(val)))
	}
	if k == 0 {
		return
	}
	n := 0
	for i, v := range x {
		if n == k && !above(v, x[idx[k-1]]) {
			continue
		}
		// Insertion: i is greater than every index held, so it goes behind equals.
		at := n
		if n == k {
			at = k - 1
		} else {
			n++
		}
		for at > 0 && above(v, x[idx[at-1]]) {
			idx[at] = idx[at-1]
			at--
		}
		idx[at] = int32(i)
	}
	for j := range val {
		val[j] = x[idx[j]]
	}
}

// above reports whether a is strictly before b in the order of TopK, index apart.
func above(a, b float32) bool { return a > b || (b != b && a == a) }
