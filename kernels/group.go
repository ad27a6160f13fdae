package kernels

import "math"

// MinMax gives the smallest and largest element of every group of size group
// along x; the last group may be short. lo and hi have ⌈len(x)/group⌉ elements.
// NaN is ignored; a group of nothing else gives +Inf, −Inf.
func MinMax(lo, hi, x []float32, group int) {
	groups := groupCount("MinMax", len(x), group)
	sameLength("MinMax", groups, len(lo), len(hi))
	t, r := elem(), new(reduction)
	for g := range groups {
		lo[g], hi[g] = r.extremes(t, x[g*group:min(len(x), (g+1)*group)])
	}
}

// AbsMax gives the largest magnitude of every group of size group along x; the
// last group may be short. NaN is ignored; a group of nothing else gives 0.
func AbsMax(dst, x []float32, group int) {
	groups := groupCount("AbsMax", len(x), group)
	sameLength("AbsMax", groups, len(dst))
	t, r := elem(), new(reduction)
	for g := range groups {
		dst[g] = r.absLarge(t, x[g*group:min(len(x), (g+1)*group)])
	}
}

func groupCount(op string, n, group int) int {
	if group <= 0 {
		panic("kernels." + op + ": group size must be positive")
	}
	return (n + group - 1) / group
}

// QuantizeGroup quantizes one group: code = clamp(round(w/scale)+zero, 0, maxq),
// ties to even. NaN (also 0/0) gives code 0.
func QuantizeGroup(codes []uint8, w []float32, scale, zero, maxq float32) {
	sameLength("QuantizeGroup", len(codes), len(w))
	t := elem()
	full := len(w) &^ (laneWidth - 1)
	if full > 0 {
		t.quantize(&codes[0], &w[0], scale, zero, maxq, full)
	}
	if full < len(w) {
		b := tails.Get().(*tail)
		var last [laneWidth]uint8
		t.quantize(&last[0], pad(&b.a, w[full:], 0), scale, zero, maxq, laneWidth)
		copy(codes[full:], last[:])
		tails.Put(b)
	}
}

// DequantizeGroup is scale·(code−zero).
func DequantizeGroup(dst []float32, codes []uint8, scale, zero float32) {
	sameLength("DequantizeGroup", len(dst), len(codes))
	t := elem()
	full := len(dst) &^ (laneWidth - 1)
	if full > 0 {
		t.dequantize(&dst[0], &codes[0], scale, zero, full)
	}
	if full < len(dst) {
		b := tails.Get().(*tail)
		var last [laneWidth]uint8
		copy(last[:], codes[full:])
		t.dequantize(&b.a[0], &last[0], scale, zero, laneWidth)
		copy(dst[full:], b.a[:])
		tails.Put(b)
	}
}

// GroupError is Σ(w − deq)² over one group, where deq is what [QuantizeGroup] and
// [DequantizeGroup] make of w: 16 lanes, one fma each, fixed tree.
func GroupError(w []float32, scale, zero, maxq float32) float32 {
	var l lanes16
	for i, v := range w {
		q := float32(math.RoundToEven(float64(v/scale))) + zero
		if !(q > 0) {
			q = 0
		}
		if !(q < maxq) {
			q = maxq
		}
		d := v - float32(scale*(q-zero))
		l[i%laneWidth] = fma32(d, d, l[i%laneWidth])
	}
	return l.foldSum()
}
