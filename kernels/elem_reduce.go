package kernels

import "math"

// Reductions. Element i of a row is added to lane i mod 16 in increasing i; the
// 16 lanes are then folded: lane j takes lane j+8, then j+4, j+2, j+1. A last
// incomplete group of 16 is padded with a value that changes nothing.

type lanes16 [laneWidth]float32

func fillLanes(v float32) (l lanes16) {
	for i := range l {
		l[i] = v
	}
	return l
}

// foldSum is the tree of a sum.
func (l *lanes16) foldSum() float32 {
	for w := laneWidth / 2; w > 0; w /= 2 {
		for i := range w {
			l[i] += l[i+w]
		}
	}
	return l[0]
}

// foldMax is the tree of a maximum; −0 is below +0 here. Lanes are never NaN. The
// built-in compiles without branches, which random data would mispredict.
func (l *lanes16) foldMax() float32 {
	for w := laneWidth / 2; w > 0; w /= 2 {
		for i := range w {
			l[i] = max(l[i], l[i+w])
		}
	}
	return l[0]
}

// foldMin is the tree of a minimum; −0 is below +0 here.
func (l *lanes16) foldMin() float32 {
	for w := laneWidth / 2; w > 0; w /= 2 {
		for i := range w {
			l[i] = min(l[i], l[i+w])
		}
	}
	return l[0]
}

// reduction is the work space of a row operation; it lives on the heap once.
type reduction struct {
	lanes, more lanes16
	pad, out    [laneWidth]float32
}

// sum folds x.
func (r *reduction) sum(t *elemTable, x []float32) float32 {
	r.lanes = lanes16{}
	full := len(x) &^ (laneWidth - 1)
	if full > 0 {
		t.sum(&x[0], &r.lanes[0], full)
	}
	if full < len(x) {
		t.sum(pad(&r.pad, x[full:], 0), &r.lanes[0], laneWidth)
	}
	return r.lanes.foldSum()
}

// sumSquare folds (x−mean)².
func (r *reduction) sumSquare(t *elemTable, x []float32, mean float32) float32 {
	r.lanes = lanes16{}
	full := len(x) &^ (laneWidth - 1)
	if full > 0 {
		t.sumSquare(&x[0], mean, &r.lanes[0], full)
	}
	if full < len(x) {
		t.sumSquare(pad(&r.pad, x[full:], mean), mean, &r.lanes[0], laneWidth)
	}
	return r.lanes.foldSum()
}

// largest folds the maximum of x and start.
func (r *reduction) largest(t *elemTable, x []float32, start float32) float32 {
	r.lanes = fillLanes(start)
	full := len(x) &^ (laneWidth - 1)
	if full > 0 {
		t.largest(&x[0], &r.lanes[0], full)
	}
	if full < len(x) {
		t.largest(pad(&r.pad, x[full:], start), &r.lanes[0], laneWidth)
	}
	return r.lanes.foldMax()
}

// extremes folds minimum and maximum.
func (r *reduction) extremes(t *elemTable, x []float32) (lo, hi float32) {
	r.lanes, r.more = fillLanes(float32(math.Inf(1))), fillLanes(float32(math.Inf(-1)))
	full := len(x) &^ (laneWidth - 1)
	if full > 0 {
		t.extremes(&x[0], &r.lanes[0], &r.more[0], full)
	}
	if full < len(x) {
		t.extremes(pad(&r.pad, x[full:], float32(math.NaN())), &r.lanes[0], &r.more[0], laneWidth)
	}
	return r.lanes.foldMin(), r.more.foldMax()
}

// absLarge folds the largest magnitude.
func (r *reduction) absLarge(t *elemTable, x []float32) float32 {
	r.lanes = lanes16{}
	full := len(x) &^ (laneWidth - 1)
	if full > 0 {
		t.absLarge(&x[0], &r.lanes[0], full)
	}
	if full < len(x) {
		t.absLarge(pad(&r.pad, x[full:], 0), &r.lanes[0], laneWidth)
	}
	return r.lanes.foldMax()
}

// Sum adds x in 16 lanes and a fixed tree.
func Sum(x []float32) float32 { return new(reduction).sum(elem(), x) }

// SumSquares adds x² (one fma each) in 16 lanes and a fixed tree.
func SumSquares(x []float32) float32 { return new(reduction).sumSquare(elem(), x, 0) }

// Max is the largest element; NaN is ignored, −Inf if there is nothing else.
func Max(x []float32) float32 { return new(reduction).largest(elem(), x, float32(math.Inf(-1))) }

// AllFinite reports whether x has neither NaN nor Inf.
func AllFinite(x []float32) bool {
	for _, v := range x {
		if math.Float32bits(v)&0x7f800000 == 0x7f800000 {
			return false
		}
	}
	return true
}
