package lint

import "math"

// Smoothing methods (AWQ, SmoothQuant) multiply columns of a linear by a scale and divide what comes before by it: the
// norm in front, the rows of the linear that feeds it. Such a checkpoint computes the same function, so it is compared
// after the best scale of each column and row is taken out.

// unscale divides q by the column factors and then the row factors that fit it best to w, in place, and says whether that
// explains most of the difference.
func unscale(w, q []float32, out, in int) bool {
	before := sumSquares(w, q)
	fitted := make([]float32, len(q))
	copy(fitted, q)
	for c := range in {
		f := factor(w[c:], fitted[c:], out, in)
		for r := range out {
			fitted[r*in+c] *= f
		}
	}
	for r := range out {
		f := factor(w[r*in:], fitted[r*in:], in, 1)
		for c := range in {
			fitted[r*in+c] *= f
		}
	}
	if !(sumSquares(w, fitted) < before/2) {
		return false
	}
	copy(q, fitted)
	return true
}

// factor is Σwq/Σq², the factor of q nearest to w over n elements at a stride.
func factor(w, q []float32, n, stride int) float32 {
	var wq, qq float64
	for i := range n {
		wq += float64(w[i*stride]) * float64(q[i*stride])
		qq += float64(q[i*stride]) * float64(q[i*stride])
	}
	if f := wq / qq; qq > 0 && f > 0 && !math.IsInf(f, 0) {
		return float32(f)
	}
	return 1
}

func sumSquares(w, q []float32) float64 {
	var s float64
	for i, v := range w {
		d := float64(v) - float64(q[i])
		s += d * d
	}
	return s
}

// rescaled says whether b is a with its columns (a vector: its elements) multiplied by positive factors, within the
// rounding of 8-bit mantissas.
func rescaled(a, b []float32, out, in int) bool {
	for c := range in {
		best := 0
		for r := range out {
			if math.Abs(float64(a[r*in+c])) > math.Abs(float64(a[best*in+c])) {
				best = r
			}
		}
		top := float64(a[best*in+c])
		f := float64(b[best*in+c]) / top
		if top == 0 {
			f = 1
		}
		if !(f > 0) || math.IsInf(f, 0) {
			return false
		}
		for r := range out {
			x := float64(a[r*in+c]) * f
			if d := math.Abs(float64(b[r*in+c]) - x); !(d <= 0.02*math.Abs(x)+1e-3*math.Abs(top*f)) {
				return false
			}
		}
	}
	return true
}
