package quant

import (
	"sync"

	"quire/kernels"
)

const (
	precisionF32  = "f32"
	precisionF64  = "f64"
	precisionNone = "none"
)

// factorize climbs the ladder: float32 with growing damping, then float64 with the same shares. diag is the diagonal in
// natural order with dead columns filled in; the off-diagonal of a dead column is zero, so that U has no entry that
// would carry its error anywhere.
func (p *Prepared) factorize(pool *kernels.Pool, diag []float32) {
	if p.o.Parity == ParityGPTQModel {
		p.factorizeLikeGPTQModel(pool, diag)
		return
	}
	work := borrow(2 * p.n * p.n)
	defer giveBack(work)
	u, h := work[:p.n*p.n], work[p.n*p.n:]
	p.permuted(pool, h, diag)
	if p.ladder(precisionF32, diag, 0, func(add []float64) *pivot {
		setDiagonal(h, add, p.n)
		return p.inverse(pool, u, h)
	}) {
		p.pack(pool, u)
		return
	}
	if p.o.Parity == ParityCompressedTensors {
		p.damping.Precision = precisionNone
		return
	}
	h64 := make([]float64, p.n*p.n)
	for i, v := range h {
		h64[i] = float64(v)
	}
	u64 := make([]float64, p.n*p.n)
	if p.ladder(precisionF64, diag, 0, func(add []float64) *pivot {
		for i, v := range add {
			h64[i*p.n+i] = v
		}
		return inverseFactor64(pool, u64, h64, p.n)
	}) {
		for i, v := range u64 {
			u[i] = float32(v)
		}
		p.pack(pool, u)
		return
	}
	p.damping.Precision = precisionNone
}

// inverse factors h in float32. Under parity the arithmetic is float64, rounded at the end: the public implementations'
// float32 libraries agree with that more often than with each other.
func (p *Prepared) inverse(pool *kernels.Pool, u, h []float32) *pivot {
	if p.o.Parity == "" {
		return inverseFactor(pool, u, h, p.n)
	}
	wide, u64 := make([]float64, len(h)), make([]float64, len(u))
	for i, v := range h {
		wide[i] = float64(v)
	}
	if f := inverseFactor64(pool, u64, wide, p.n); f != nil {
		return f
	}
	for i, v := range u64 {
		u[i] = float32(v)
	}
	return nil
}

// ladder tries shares DampPercent, +DampIncrement, … below 1 and records failures. try gets the damped diagonal in
// visiting order.
func (p *Prepared) ladder(precision string, diag []float32, floor float64, try func(diagonal []float64) *pivot) bool {
	damped := make([]float64, p.n)
	tries := dampingTries
	if p.o.Parity == ParityGPTQModel {
		tries = 1 << 20 // bounded by the share
	}
	mean := p.damping.Mean
	if floor > 0 {
		mean = 0
		for _, d := range diag {
			mean += max(float64(d)+floor, floor)
		}
		mean /= float64(p.n)
	}
	for k := range tries {
		share := p.o.DampPercent + float64(float64(k)*p.o.DampIncrement)
		if share >= 1 {
			return false
		}
		add := float64(share * mean)
		for at := range damped {
			c := at
			if p.perm != nil {
				c = int(p.perm[at])
			}
			d := float64(diag[c])
			if floor > 0 {
				d = max(d+floor, floor)
			}
			damped[at] = d + add
		}
		pivot := try(damped)
		if pivot == nil {
			p.damping.Share, p.damping.Added, p.damping.Precision = share, add, precision
			return true
		}
		p.damping.Tries = append(p.damping.Tries, DampingTry{Share: share, Floor: floor, Precision: precision, Pivot: pivot.Index, Value: pivot.Value})
		if p.o.DampIncrement == 0 {
			return false
		}
	}
	return false
}

// factorizeLikeGPTQModel is the ladder of reference/gptqmodel.md 1.6: all shares below 1, then the same again on a
// diagonal raised by 1e-6·max|d|·10^k.
func (p *Prepared) factorizeLikeGPTQModel(pool *kernels.Pool, diag []float32) {
	var largest float64
	for _, d := range diag {
		largest = max(largest, float64(d))
	}
	work := borrow(2 * p.n * p.n)
	defer giveBack(work)
	u, h := work[:p.n*p.n], work[p.n*p.n:]
	p.permuted(pool, h, diag)
	floor := 0.0
	for attempt := range 7 {
		if attempt == 1 {
			floor = 1e-6 * largest
		} else if attempt > 1 {
			floor *= 10
		}
		if p.ladder(precisionF32, diag, floor, func(add []float64) *pivot {
			setDiagonal(h, add, p.n)
			return p.inverse(pool, u, h)
		}) {
			p.pack(pool, u)
			return
		}
	}
	p.damping.Precision = precisionNone
}

// scratch keeps the two square matrices of a factorization for the next one.
var scratch sync.Pool

// borrow gives n elements of any value.
func borrow(n int) []float32 {
	if s, ok := scratch.Get().(*[]float32); ok && cap(*s) >= n {
		return (*s)[:n]
	}
	return make([]float32, n)
}

func giveBack(s []float32) { scratch.Put(&s) }

// permuted copies the upper triangle of H in visiting order to h, with diag on the diagonal; elements below it are left
// as they are.
func (p *Prepared) permuted(pool *kernels.Pool, h, diag []float32) {
	n := p.n
	const rows = 32 // a task
	pool.Do((n+rows-1)/rows, func(_, task int) {
		for i := task * rows; i < min(n, (task+1)*rows); i++ {
			row := h[i*n : (i+1)*n]
			if p.perm == nil {
				copy(row[i:], p.h.H[i*n+i:(i+1)*n])
				row[i] = diag[i]
				continue
			}
			ci := int(p.perm[i])
			row[i] = diag[ci]
			across := p.h.H[ci*n : (ci+1)*n]
			for j := i + 1; j < n; j++ {
				if c := int(p.perm[j]); c > ci {
					row[j] = across[c]
				} else {
					row[j] = p.h.H[c*n+ci]
				}
			}
		}
	})
}

func setDiagonal(h []float32, diagonal []float64, n int) {
	for i, v := range diagonal {
		h[i*n+i] = float32(v)
	}
}

// pack stores U for the column loop.
func (p *Prepared) pack(pool *kernels.Pool, u []float32) {
	n := p.n
	p.diagU = make([]float32, n)
	for i := range n {
		p.diagU[i] = u[i*n+i]
	}
	p.factor = kernels.PackFactorParallel(pool, nil, u, n, p.block)
}
