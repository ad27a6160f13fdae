package quant_test

import (
	"math"
	"sort"

	"quire/engine/quant"
)

// oracleResult is what the float64 column loop gives.
type oracleResult struct {
	codes  []int
	scales []float64 // [out,G]
	zeros  []float64
	deq    []float64
	value  []float64 // [out,in] w/scale+zero in front of the rounding, in natural column order
	order  []int     // position → column
	loss   float64
	u      []float64
}

// oracle solves GPTQ by the textbook: float64, one column at a time, every feedback applied at once to all columns
// behind it. Only the grids are float32, because group extremes sit on rounding ties. It shares no code with the
// package. nil means that H could not be factorized.
//
// Ranges (a group that starts inside a block of 128 columns is fitted on the block's first state)
// are modelled with a second copy of the weights that gets feedback at block ends only.
func oracle(w []float32, h []float32, out, in int, o quant.Options) *oracleResult {
	parity := o.Parity == quant.ParityGPTQModel
	diag := make([]float64, in)
	hd := make([]float64, in*in)
	for i := range in {
		for j := i; j < in; j++ {
			hd[i*in+j] = float64(h[i*in+j])
			hd[j*in+i] = hd[i*in+j]
		}
	}
	dead := make([]bool, in)
	live, sum := 0, 0.0
	for i := range in {
		diag[i] = hd[i*in+i]
		if diag[i] == 0 {
			dead[i] = true
		} else {
			live++
			sum += diag[i]
		}
	}
	if live == 0 {
		return nil
	}
	mean := sum / float64(live)
	for i := range in {
		if dead[i] && parity {
			diag[i] = 1
			sum++
		}
	}
	if parity {
		mean = sum / float64(in)
	}
	g := o.GroupSize
	if g == -1 || g > in {
		g = in
	}
	r := &oracleResult{order: oracleOrder(diag, g, o)}
	for i := range in {
		if dead[i] && !parity {
			diag[i] = mean
		}
	}
	// Damped H in visiting order, its inverse by Gauss-Jordan, U by the textbook Cholesky of the inverse.
	a := make([]float64, in*in)
	for p, c := range r.order {
		for q, d := range r.order {
			a[p*in+q] = hd[c*in+d]
		}
		a[p*in+p] = diag[c] + o.DampPercent*mean
	}
	inv := invertSPD(a, in)
	if inv == nil {
		return nil
	}
	u := choleskyUpper(inv, in)
	if u == nil {
		return nil
	}
	r.u = u

	// A block is made of whole groups; a group longer than a block starts one anyway, and of it only the start matters.
	reach := min(o.BlockSize, in)
	switch {
	case parity:
		reach = o.BlockSize
	case g <= reach:
		reach = reach / g * g
	default:
		reach = g
	}
	groups := (in + g - 1) / g
	r.codes, r.deq, r.value = make([]int, out*in), make([]float64, out*in), make([]float64, out*in)
	r.scales, r.zeros = make([]float64, out*groups), make([]float64, out*groups)
	static := o.StaticGroups || o.GroupSize == -1
	grid := oracleGrid{o: o}
	x := make([]float64, in)
	for row := range out {
		now := make([]float64, in) // visiting order
		for p, c := range r.order {
			now[p] = float64(w[row*in+c])
			if parity && dead[c] {
				now[p] = 0
			}
		}
		held := append([]float64(nil), now...) // state at the start of the block
		scale, zero := make([]float64, groups), make([]float64, groups)
		fitted := make([]bool, groups)
		if static {
			for k := range groups {
				lo, hi := k*g, min((k+1)*g, in)
				for c := lo; c < hi; c++ {
					x[c-lo] = float64(w[row*in+c])
					if parity && dead[c] && o.GroupSize != -1 {
						x[c-lo] = 0
					}
				}
				scale[k], zero[k] = grid.fit(x[:hi-lo])
				fitted[k] = true
			}
		}
		for p := range in {
			if p%reach == 0 {
				copy(held, now)
			}
			c := r.order[p]
			k := p / g
			if static || o.ActGroupAware {
				k = c / g
			}
			if !fitted[k] {
				scale[k], zero[k] = grid.fit(held[p:min(p+g, in)])
				fitted[k] = true
			}
			v := now[p]
			q := math.RoundToEven(v/scale[k]) + zero[k]
			q = math.Max(0, math.Min(float64(int(1)<<o.Bits-1), q))
			deq := scale[k] * (q - zero[k])
			r.codes[row*in+c], r.deq[row*in+c] = int(q), deq
			r.value[row*in+c] = v/scale[k] + zero[k]
			e := (v - deq) / u[p*in+p]
			if parity || !dead[c] {
				r.loss += e * e / 2
			}
			for j := p; j < in; j++ {
				now[j] -= e * u[p*in+j]
			}
		}
		copy(r.scales[row*groups:], scale)
		copy(r.zeros[row*groups:], zero)
	}
	return r
}

func oracleOrder(diag []float64, g int, o quant.Options) []int {
	n := len(diag)
	ord := make([]int, n)
	for i := range ord {
		ord[i] = i
	}
	by := func(s []int) {
		sort.SliceStable(s, func(i, j int) bool { return diag[s[i]] > diag[s[j]] })
	}
	switch {
	case o.DescAct:
		by(ord)
	case o.ActGroupAware:
		full := n / g
		groups := make([][]int, full)
		for k := range groups {
			groups[k] = ord[k*g : (k+1)*g : (k+1)*g]
			by(groups[k])
		}
		sort.SliceStable(groups, func(i, j int) bool { return diag[groups[i][0]] > diag[groups[j][0]] })
		var all []int
		for _, s := range groups {
			all = append(all, s...)
		}
		ord = append(all, ord[full*g:]...)
	}
	return ord
}

type oracleGrid struct{ o quant.Options }

// fit is the range rule and the clip search in float32.
func (g oracleGrid) fit(x []float64) (scale, zero float64) {
	maxq := float32(int(1)<<g.o.Bits - 1)
	var lo, hi float32
	for _, v := range x {
		lo, hi = min(lo, float32(v)), max(hi, float32(v))
	}
	quirk := g.o.Parity == quant.ParityGPTQModel
	if g.o.Sym {
		if a := -lo; a > hi {
			hi = a
		}
		if lo < 0 || !quirk {
			lo = -hi
		}
	}
	if lo == 0 && hi == 0 {
		lo, hi = -1, 1
	}
	derive := func(lo, hi float32) (float32, float32) {
		s := (hi - lo) / maxq
		if g.o.ScaleDType == quant.ScaleBF16 {
			b := math.Float32bits(s)
			b += 0x7fff + b>>16&1
			s = math.Float32frombits(b &^ 0xffff)
		}
		if g.o.Sym {
			return s, (maxq + 1) / 2
		}
		z := float32(math.RoundToEven(float64(-lo / s)))
		if !quirk {
			z = min(max(z, 0), maxq)
		}
		return s, z
	}
	s, z := derive(lo, hi)
	if g.o.MSE == 0 {
		return float64(s), float64(z)
	}
	best := math.Inf(1)
	for i := range 80 {
		p := float32(1 - float64(i)/100)
		s1, z1 := derive(p*lo, p*hi)
		cand := []float32{z1}
		if g.o.Bits == 2 && !g.o.Sym {
			fl := float32(math.Floor(float64(-(p * lo) / s1)))
			ce := float32(math.Ceil(float64(-(p * lo) / s1)))
			fl, ce = min(max(fl, 0), maxq), min(max(ce, 0), maxq)
			if z1 == fl {
				cand = append(cand, ce)
			} else {
				cand = append(cand, fl)
			}
		}
		for _, zc := range cand {
			var e float64
			for _, v := range x {
				q := float32(math.RoundToEven(float64(float32(v)/s1))) + zc
				q = min(max(q, 0), maxq)
				e += math.Pow(math.Abs(float64(s1*(q-zc)-float32(v))), g.o.MSE)
			}
			if e < best {
				best, s, z = e, s1, zc
			}
		}
	}
	return float64(s), float64(z)
}

// invertSPD is Gauss-Jordan without pivoting; nil when a pivot is not positive.
func invertSPD(a []float64, n int) []float64 {
	m := append([]float64(nil), a...)
	v := make([]float64, n*n)
	for i := range n {
		v[i*n+i] = 1
	}
	for i := range n {
		p := m[i*n+i]
		if !(p > 0) {
			return nil
		}
		for j := range n {
			m[i*n+j] /= p
			v[i*n+j] /= p
		}
		for r := range n {
			if r == i {
				continue
			}
			f := m[r*n+i]
			if f == 0 {
				continue
			}
			for j := range n {
				m[r*n+j] -= f * m[i*n+j]
				v[r*n+j] -= f * v[i*n+j]
			}
		}
	}
	for i := range n {
		for j := range i {
			s := (v[i*n+j] + v[j*n+i]) / 2
			v[i*n+j], v[j*n+i] = s, s
		}
	}
	return v
}

// choleskyUpper gives U upper with A = UᵀU.
func choleskyUpper(a []float64, n int) []float64 {
	u := make([]float64, n*n)
	for i := range n {
		for j := i; j < n; j++ {
			s := a[i*n+j]
			for k := range i {
				s -= u[k*n+i] * u[k*n+j]
			}
			if i == j {
				if !(s > 0) {
					return nil
				}
				u[i*n+i] = math.Sqrt(s)
			} else {
				u[i*n+j] = s / u[i*n+i]
			}
		}
	}
	return u
}
