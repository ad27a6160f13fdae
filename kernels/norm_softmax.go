package kernels

import "math"

// lowest starts every maximum of a softmax: a row of nothing but −Inf then has
// e^(−Inf−lowest) = 0 everywhere instead of NaN.
const lowest = -math.MaxFloat32

// Softmax of each of the rows of x, [rows,n]:
//
//	m = max x, p = e^(x−m), s = Σp in 16 lanes, dst = p/s
//
// A row of −Inf only gives zeros. A NaN or +Inf makes its row NaN.
func Softmax(dst, x []float32, rows, n int) { softmax("Softmax", dst, x, nil, nil, rows, n) }

// SoftmaxSink is [Softmax] with one further logit per row that takes part in
// the maximum and, last, in the sum, but has no output. sink has rows elements.
func SoftmaxSink(dst, x, sink []float32, rows, n int) {
	softmax("SoftmaxSink", dst, x, nil, sink, rows, n)
}

// SoftmaxMasked is [Softmax] over the elements with keep true; the others are
// −Inf and get 0. keep is [rows,n]; sink may be nil.
func SoftmaxMasked(dst, x []float32, keep []bool, sink []float32, rows, n int) {
	softmax("SoftmaxMasked", dst, x, keep, sink, rows, n)
}

func softmax(op string, dst, x []float32, keep []bool, sink []float32, rows, n int) {
	checkRows(op, rows, n, len(dst), len(x))
	if keep != nil {
		sameLength(op, rows*n, len(keep))
	}
	if sink != nil {
		sameLength(op, rows, len(sink))
	}
	t, r := elem(), new(reduction)
	ninf := float32(math.Inf(-1))
	full := n &^ (laneWidth - 1)
	for i := range rows {
		xr, d := x[i*n:(i+1)*n], dst[i*n:(i+1)*n]
		if keep != nil {
			for j, k := range keep[i*n : (i+1)*n] {
				if k {
					d[j] = xr[j]
				} else {
					d[j] = ninf
				}
			}
			xr = d
		}
		start := float32(lowest)
		if sink != nil && sink[i] > start {
			start = sink[i]
		}
		m := r.largest(t, xr, start)
		r.lanes = lanes16{}
		if full > 0 {
			t.expSub(&d[0], &xr[0], m, &r.lanes[0], full)
		}
		if full < n {
			t.expSub(&r.out[0], pad(&r.pad, xr[full:], ninf), m, &r.lanes[0], laneWidth)
			copy(d[full:], r.out[:])
		}
		s := r.lanes.foldSum()
		if sink != nil {
			s += expLane(sink[i] - m)
		}
		if s == 0 {
			clear(d)
			continue
		}
		if full > 0 {
			t.div(&d[0], &d[0], s, full)
		}
		for j := full; j < n; j++ {
			d[j] /= s
		}
	}
}
