package kernels

import (
	"fmt"
	"math"
)

func checkRows(op string, rows, n int, lengths ...int) {
	if rows < 0 || n < 0 {
		panic(fmt.Sprintf("kernels.%s: %d rows of %d", op, rows, n))
	}
	sameLength(op, rows*n, lengths...)
}

// RMSNorm normalises each of the rows of x, [rows,n]:
//
//	inv = 1/√(Σx²/n + eps)        Σ in 16 lanes, one fma each
//	dst = (x·inv)·(w+offset)
//
// all in float32 with each step rounded. offset is 0 for most families and 1 where
// the weight is stored around zero. A nil w is all ones (and offset is ignored).
func RMSNorm(dst, x, w []float32, rows, n int, eps, offset float32) {
	checkRows("RMSNorm", rows, n, len(dst), len(x))
	if w != nil {
		sameLength("RMSNorm", n, len(w))
	}
	t, r, b := elem(), new(reduction), new(tail)
	full := n &^ (laneWidth - 1)
	for i := range rows {
		xr, d := x[i*n:(i+1)*n], dst[i*n:(i+1)*n]
		inv := 1 / sqrt32(float32(r.sumSquare(t, xr, 0)/float32(n))+eps)
		if w == nil {
			scaleRow(t, b, d, xr, inv)
			continue
		}
		if full > 0 {
			t.rms(&d[0], &xr[0], &w[0], inv, offset, full)
		}
		if full < n {
			t.rms(&b.c[0], pad(&b.a, xr[full:], 0), pad(&b.b, w[full:], 0), inv, offset, laneWidth)
			copy(d[full:], b.c[:])
		}
	}
}

// sqrt32 is correctly rounded: a float64 square root has more than twice the bits.
func sqrt32(x float32) float32 { return float32(math.Sqrt(float64(x))) }

func scaleRow(t *elemTable, b *tail, dst, x []float32, s float32) {
	full := len(dst) &^ (laneWidth - 1)
	if full > 0 {
		t.scale(&dst[0], &x[0], s, full)
	}
	if full < len(dst) {
		t.scale(&b.b[0], pad(&b.a, x[full:], 0), s, laneWidth)
		copy(dst[full:], b.b[:])
	}
}

// LayerNorm normalises each of the rows of x, [rows,n]:
//
//	mean = Σx/n, var = Σ(x−mean)²/n, inv = 1/√(var+eps)
//	dst  = ((x−mean)·inv)·w + bias
//
// each step rounded to float32, no fma after the sums. w and bias may be nil.
func LayerNorm(dst, x, w, bias []float32, rows, n int, eps float32) {
	checkRows("LayerNorm", rows, n, len(dst), len(x))
	t, r, b := elem(), new(reduction), new(tail)
	full := n &^ (laneWidth - 1)
	for i := range rows {
		xr, d := x[i*n:(i+1)*n], dst[i*n:(i+1)*n]
		mean := r.sum(t, xr) / float32(n)
		inv := 1 / sqrt32(float32(r.sumSquare(t, xr, mean)/float32(n))+eps)
		if full > 0 {
			t.shift(&d[0], &xr[0], mean, inv, full)
		}
		if full < n {
			t.shift(&b.b[0], pad(&b.a, xr[full:], 0), mean, inv, laneWidth)
			copy(d[full:], b.b[:])
		}
		if w != nil {
			binary("LayerNorm", t.mul, d, d, w)
		}
		if bias != nil {
			binary("LayerNorm", t.add, d, d, bias)
		}
	}
}
