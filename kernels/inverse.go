package kernels

import (
	"fmt"
	"math"
)

// Pivot says where a factorisation stopped: the diagonal element that was not
// positive and finite, in the order of the matrix that was given.
type Pivot struct {
	Index int
	Value float64
}

// String describes the failure.
func (p *Pivot) String() string {
	return fmt.Sprintf("pivot %d is %g: the matrix is not positive definite there", p.Index, p.Value)
}

// InverseFactor computes U, upper triangular with H⁻¹ = UᵀU, into u [n,n]
// row-major (the lower triangle becomes zero). Only the upper triangle of h [n,n] is
// read; u and h must not overlap. It returns nil, or the pivot where H is not
// positive definite; u is undefined then.
//
// With H = R·Rᵀ, R upper triangular (the Cholesky factor of the index-reversed
// matrix), U = R⁻¹: one factorisation and one triangular inverse, 2n³/3 flops
// (reference/kernels.md, section 4). Work memory: n²/2 elements.
func InverseFactor(p *Pool, u, h []float32, n int) *Pivot {
	t := micro()
	f := factorizer[float32]{
		pool: p, width: panelWidth, slices: t.slices,
		kernel: func(h, k int, a, b *float32, half int, c *float32, ldc, mode, count int) {
			t.f32[h](k, a, h, b, half, c, ldc, mode, count, a, 0)
		},
		packRows: func(dst []float32, ld int, src []float32, stride, rows, k int) {
			x := Rows{M: rows, K: k, Stride: stride, F32: src}
			packTranspose(t, laneF32, lanesOf(dst), ld, &x, 0, rows, 0, k)
		},
		most: math.MaxFloat32,
	}
	size := f.workSize(n)
	buf := borrowLanes(2 * size)
	defer buf.giveBack()
	f.rows, f.cols = floats(buf.lanes[:size]), floats(buf.lanes[size:])
	return f.run(u, h, n)
}

// InverseFactor64 is InverseFactor in float64, the oracle and the retry for
// matrices that are too ill-conditioned for float32.
func InverseFactor64(p *Pool, u, h []float64, n int) *Pivot {
	t := micro()
	f := factorizer[float64]{
		pool: p, width: panelWidth64, slices: slices64,
		kernel: func(h, k int, a, b *float64, half int, c *float64, ldc, mode, count int) {
			t.f64[h](k, a, h, b, half, c, ldc, mode, count, a, 0)
		},
		packRows: func(dst []float64, ld int, src []float64, stride, rows, k int) {
			for r := range rows {
				for i, v := range src[r*stride:][:k] {
					dst[i*ld+r] = v
				}
			}
		},
		most: math.MaxFloat64,
	}
	size := f.workSize(n)
	buf := alignedDoubles(2 * size)
	f.rows, f.cols = buf[:size], buf[size:]
	return f.run(u, h, n)
}

// factorizer holds what differs between the precisions.
type factorizer[T float32 | float64] struct {
	pool   *Pool
	width  int     // panel width; sizes of the recursion are multiples of it
	slices []slice // tile heights of one panel
	kernel func(h, k int, a, b *T, half int, c *T, ldc, mode, count int)
	// packRows writes rows (<= ld) of k elements as [k][ld]; lanes of missing rows
	// get anything.
	packRows func(dst []T, ld int, src []T, stride, rows, k int)
	most     float64

	m     []T // the matrix, lower triangle, row stride n
	n     int
	rows  []T // packed left operand: [panel][slice][k][height]
	cols  []T // packed right operand: [panel][half][k][width/2]
	pivot *Pivot
}

func (f *factorizer[T]) run(u, h []T, n int) *Pivot {
	if n < 0 || len(u) < n*n || len(h) < n*n {
		panic(fmt.Sprintf("kernels: inverse factor of n = %d with %d and %d elements", n, len(h), len(u)))
	}
	if n == 0 {
		return nil
	}
	u = u[:n*n]
	// The lower triangle of the index-reversed matrix: reading h backwards.
	f.pool.Do(ceilDiv(n, 64), func(_, task int) {
		for i := task * 64; i < min(n, task*64+64); i++ {
			src := h[(n-1-i)*n : (n-i)*n]
			row := u[i*n : i*n+n]
			for j := 0; j <= i; j++ {
				row[j] = src[n-1-j]
			}
			clear(row[i+1:])
		}
	})
	f.m, f.n = u, n
	if f.factor(0, n); f.pivot != nil {
		return f.pivot
	}
	// Back to the given order: the inverse, index-reversed, is the slice reversed.
	half := len(u) / 2
	const piece = 64 << 10
	f.pool.Do(ceilDiv(half, piece), func(_, task int) {
		for i := task * piece; i < min(half, task*piece+piece); i++ {
			j := len(u) - 1 - i
			u[i], u[j] = u[j], u[i]
		}
	})
	return nil
}

// factor replaces the lower triangle of rows and columns o..o+n by the inverse
// of its Cholesky factor.
func (f *factorizer[T]) factor(o, n int) {
	if n <= f.width {
		f.base(o, n)
		return
	}
	w := f.width
	n1 := ceilDiv(ceilDiv(n, w), 2) * w
	n2 := n - n1
	f.factor(o, n1) // A11 becomes inv(L11)
	if f.pivot != nil {
		return
	}
	whole := func(_, _ int) (int, int) { return 0, n1 }
	// L21 = A21·inv(L11)ᵀ; inv(L11) is lower, so output panel j needs k < 32(j+1).
	f.packRowSlices(o+n1, o, n2, n1, false)
	f.packRowPanels(o, o, n1, n1, true)
	f.product(o+n1, o, n2, n1, n1, modeStore, func(_, jp int) (int, int) { return 0, (jp + 1) * w }, false)
	// A22 -= L21·L21ᵀ, lower tiles.
	f.packRowSlices(o+n1, o, n2, n1, false)
	f.packRowPanels(o+n1, o, n2, n1, false)
	f.product(o+n1, o+n1, n2, n2, n1, modeSub, whole, true)
	// T = L21·inv(L11) in place of L21; column panel j needs k >= 32j.
	f.packColumnPanels(o, o, n1, n1, false, true)
	f.product(o+n1, o, n2, n1, n1, modeStore, func(_, jp int) (int, int) { return jp * w, n1 }, false)
	f.factor(o+n1, n2) // A22 becomes inv(L22)
	if f.pivot != nil {
		return
	}
	// inv21 = inv(L22)·(−T); row panel i needs k < 32(i+1).
	f.packRowSlices(o+n1, o+n1, n2, n2, true)
	f.packColumnPanels(o+n1, o, n2, n1, true, false)
	f.product(o+n1, o, n2, n1, n2, modeStore, func(ip, _ int) (int, int) { return 0, min(n2, (ip+1)*w) }, false)
}

// workSize is the elements of one packed operand, at the first step of the recursion.
func (f *factorizer[T]) workSize(n int) int {
	n1 := ceilDiv(ceilDiv(n, f.width), 2) * f.width
	return n1 * n1
}

// packRowSlices packs rows r0.. (m of them), columns c0..c0+k as the left operand.
// lower: only the columns up to the end of the panel's diagonal block.
func (f *factorizer[T]) packRowSlices(r0, c0, m, k int, lower bool) {
	w := f.width
	f.pool.Do(ceilDiv(m, w), func(_, ip int) {
		rows, kk := min(w, m-ip*w), k
		if lower {
			kk = min(k, (ip+1)*w)
		}
		r := 0
		for _, s := range f.slices {
			for range s.count {
				h, at := s.height, (ip*w+r)*k
				if have := min(h, rows-r); have > 0 {
					f.packRows(f.rows[at:at+h*k], h, f.m[(r0+ip*w+r)*f.n+c0:], f.n, have, kk)
				}
				r += h
			}
		}
	})
}

// packRowPanels packs rows as the right operand of a product with their transpose.
func (f *factorizer[T]) packRowPanels(r0, c0, m, k int, lower bool) {
	w := f.width
	f.pool.Do(ceilDiv(m, w), func(_, ip int) {
		rows, kk := min(w, m-ip*w), k
		if lower {
			kk = min(k, (ip+1)*w)
		}
		for r := 0; r < rows; r += w / 2 {
			at := (ip*w + r) * k
			f.packRows(f.cols[at:at+w/2*k], w/2, f.m[(r0+ip*w+r)*f.n+c0:], f.n, min(w/2, rows-r), kk)
		}
	})
}

// packColumnPanels packs columns c0.. (m of them), rows r0..r0+k as the right operand.
// lower: only the rows from the panel's diagonal block on.
func (f *factorizer[T]) packColumnPanels(r0, c0, k, m int, negate, lower bool) {
	w := f.width
	f.pool.Do(ceilDiv(m, w), func(_, jp int) {
		cols, from := min(w, m-jp*w), 0
		if lower {
			from = jp * w
		}
		for h := 0; h < w; h += w / 2 {
			half := f.cols[(jp*w+h)*k:][:w/2*k]
			have := max(0, min(w/2, cols-h))
			for i := from; i < k; i++ {
				out := half[i*w/2 : (i+1)*w/2]
				row := f.m[(r0+i)*f.n+c0+jp*w+min(h, cols):][:have]
				if negate {
					for j, v := range row {
						out[j] = -v
					}
				} else {
					copy(out, row)
				}
				clear(out[have:])
			}
		}
	})
}

// product joins the packed operands' product with the m x n matrix at (r0,c0).
// Panel (ip,jp) uses the k of span(ip,jp), in K blocks of 256 counted from k = 0.
// lower: only tiles with jp <= ip.
func (f *factorizer[T]) product(r0, c0, m, n, k, mode int, span func(ip, jp int) (int, int), lower bool) {
	w := f.width
	pm, pn := ceilDiv(m, w), ceilDiv(n, w)
	rb, cb := tileSteps(pm*pn, f.pool.Threads())
	ni, nj := ceilDiv(pm, rb), ceilDiv(pn, cb)
	f.pool.Do(ni*nj, func(_, task int) {
		i0, j0 := task%ni*rb, task/ni*cb
		if lower && j0 > min(pm, i0+rb)-1 {
			return
		}
		var edge []T
		for kb := 0; kb < k; kb += kBlock {
			for jp := j0; jp < min(pn, j0+cb); jp++ {
				for ip := i0; ip < min(pm, i0+rb); ip++ {
					if lower && jp > ip {
						continue
					}
					from, to := span(ip, jp)
					first := mode == modeStore && kb <= from
					from, to = max(from, kb), min(to, kb+kBlock)
					if from >= to {
						continue
					}
					md := mode
					if mode == modeStore && !first {
						md = modeAdd
					}
					rows, cols := min(w, m-ip*w), min(w, n-jp*w)
					at := (r0+ip*w)*f.n + c0 + jp*w
					if rows == w && cols == w {
						f.tile(ip, jp, k, from, to, f.m[at:], f.n, md)
						continue
					}
					if edge == nil {
						edge = make([]T, w*w)
					}
					for r := range rows {
						copy(edge[r*w:], f.m[at+r*f.n:][:cols])
					}
					f.tile(ip, jp, k, from, to, edge, w, md)
					for r := range rows {
						copy(f.m[at+r*f.n:][:cols], edge[r*w:])
					}
				}
			}
		}
	})
}

// tile runs one panel product over k from..to.
func (f *factorizer[T]) tile(ip, jp, k, from, to int, c []T, ldc, mode int) {
	b := &f.cols[jp*k*f.width+from*f.width/2]
	half := k * f.width / 2
	r := 0
	for _, s := range f.slices {
		count, calls := 1, s.count
		if to-from == k { // the tiles lie one behind the other
			count, calls = s.count, 1
		}
		for range calls {
			f.kernel(s.height, to-from, &f.rows[(ip*f.width+r)*k+from*s.height], b, half, &c[r*ldc], ldc, mode, count)
			r += count * s.height
		}
	}
}

// base factors and inverts one diagonal block, n <= width, in column form: every
// step is one chain over the finished columns (rows), so it runs on the
// one-row kernel.
func (f *factorizer[T]) base(o, n int) {
	w := f.width
	cols := make([]T, w*w) // cols[k*w+r] = L[r][k]
	inv := make([]T, w*w)  // inv[r*w+c]
	neg := make([]T, w)
	for r := range n {
		for c := range r + 1 {
			cols[c*w+r] = f.m[(o+r)*f.n+o+c]
		}
	}
	for j := range n {
		col := cols[j*w : j*w+w]
		if j > 0 {
			for k := range j {
				neg[k] = -cols[k*w+j]
			}
			f.kernel(1, j, &neg[0], &cols[0], w/2, &col[0], w, modeChain, 1)
		}
		p := float64(col[j])
		if !(p > 0 && p <= f.most) {
			f.pivot = &Pivot{Index: f.n - 1 - (o + j), Value: p}
			return
		}
		d := T(math.Sqrt(p))
		clear(col[:j])
		col[j] = d
		for r := j + 1; r < n; r++ {
			col[r] /= d
		}
		clear(col[n:])
	}
	for r := range n {
		row := inv[r*w : r*w+w]
		row[r] = 1
		if r > 0 {
			for k := range r {
				neg[k] = -cols[k*w+r]
			}
			f.kernel(1, r, &neg[0], &inv[0], w/2, &row[0], w, modeChain, 1)
		}
		d := cols[r*w+r]
		for c := range r + 1 {
			row[c] /= d
		}
		out := f.m[(o+r)*f.n+o:][:n]
		copy(out, row[:r+1])
		clear(out[r+1:]) // updates of whole tiles have written there
	}
}
