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
		pool: p, width: panelWidth, slice: t.slice,
		kernel: func(h, k int, a *float32, lda int, b *float32, half int, c *float32, ldc, mode, count int) {
			t.f32[h](k, a, lda, b, half, c, ldc, mode, count, a, 0)
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
		pool: p, width: panelWidth64, slice: slice64,
		kernel: func(h, k int, a *float64, lda int, b *float64, half int, c *float64, ldc, mode, count int) {
			t.f64[h](k, a, lda, b, half, c, ldc, mode, count, a, 0)
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
	width  int // panel width; sizes of the recursion are multiples of it
	slice  int // tile height
	kernel func(h, k int, a *T, lda int, b *T, half int, c *T, ldc, mode, count int)
	// packRows writes rows (<= ld) of k elements as [k][ld]; lanes of missing rows
	// get anything.
	packRows func(dst []T, ld int, src []T, stride, rows, k int)
	most     float64

	m     []T // the matrix, lower triangle, row stride n
	n     int
	rows  []T // packed left operand: [slice][k][height]
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
	return n1 * (n1 + f.slice)
}

// The packed operands lie by K blocks of 256, each block as the kernels take it:
// rows [K block][slice][k][height], cols [K block][panel][half][k][width/2].

// packRowSlices packs rows r0.. (m of them), columns c0..c0+k as the left operand.
// lower: only the columns up to the end of the panel's diagonal block.
func (f *factorizer[T]) packRowSlices(r0, c0, m, k int, lower bool) {
	h := f.slice
	slices := ceilDiv(m, h)
	const group = 8
	f.pool.Do(ceilDiv(slices, group), func(_, task int) {
		for kb := 0; kb < k; kb += kBlock {
			kn := min(kBlock, k-kb)
			for i := task * group; i < min(slices, (task+1)*group); i++ {
				rows, need := min(h, m-i*h), kn
				if lower {
					need = min(kn, ceilDiv(i*h+rows, f.width)*f.width-kb)
				}
				if need > 0 {
					f.packRows(f.rows[kb*slices*h+i*h*kn:][:h*kn], h, f.m[(r0+i*h)*f.n+c0+kb:], f.n, rows, need)
				}
			}
		}
	})
}

// packRowPanels packs rows as the right operand of a product with their transpose.
func (f *factorizer[T]) packRowPanels(r0, c0, m, k int, lower bool) {
	w := f.width
	panels := ceilDiv(m, w)
	f.pool.Do(panels, func(_, jp int) {
		rows := min(w, m-jp*w)
		for kb := 0; kb < k; kb += kBlock {
			kn := min(kBlock, k-kb)
			need := kn
			if lower {
				need = min(kn, (jp+1)*w-kb)
			}
			for r := 0; r < rows && need > 0; r += w / 2 {
				half := f.cols[(kb*panels+jp*kn)*w+r*kn:][:w/2*kn]
				f.packRows(half, w/2, f.m[(r0+jp*w+r)*f.n+c0+kb:], f.n, min(w/2, rows-r), need)
			}
		}
	})
}

// packColumnPanels packs columns c0.. (m of them), rows r0..r0+k as the right operand.
// lower: only the rows from the panel's diagonal block on.
func (f *factorizer[T]) packColumnPanels(r0, c0, k, m int, negate, lower bool) {
	w := f.width
	panels := ceilDiv(m, w)
	f.pool.Do(panels, func(_, jp int) {
		cols, from := min(w, m-jp*w), 0
		if lower {
			from = jp * w
		}
		for kb := from / kBlock * kBlock; kb < k; kb += kBlock {
			kn := min(kBlock, k-kb)
			for h := 0; h < cols; h += w / 2 {
				half := f.cols[(kb*panels+jp*kn)*w+h*kn:][:w/2*kn]
				have := min(w/2, cols-h)
				for i := max(from, kb); i < kb+kn; i++ {
					out := half[(i-kb)*w/2:][:w/2]
					row := f.m[(r0+i)*f.n+c0+jp*w+h:][:have]
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
		i1, j1 := min(pm, i0+rb), min(pn, j0+cb)
		var edge []T
		for kb := 0; kb < k; kb += kBlock {
			for jp := j0; jp < j1; jp++ {
				first := i0
				if lower {
					first = max(i0, jp)
				}
				for ip := first; ip < i1; {
					start := ip
					from, to := span(ip, jp)
					join := mode
					if mode == modeStore && kb > from {
						join = modeAdd
					}
					from, to = max(from, kb), min(to, kb+kBlock)
					for ip++; ip < i1; ip++ { // the panels below that use the same k
						if a, b := span(ip, jp); max(a, kb) != from || min(b, kb+kBlock) != to {
							break
						}
					}
					if from >= to {
						continue
					}
					top, bottom, cols := start*w, min(m, ip*w), min(w, n-jp*w)
					at := (r0+top)*f.n + c0 + jp*w
					if cols == w {
						f.strip(top, bottom, jp, m, n, k, kb, from, to, f.m[at:], f.n, join)
						continue
					}
					if edge == nil {
						edge = make([]T, rb*w*w)
					}
					for r := range bottom - top {
						copy(edge[r*w:], f.m[at+r*f.n:][:cols])
					}
					f.strip(top, bottom, jp, m, n, k, kb, from, to, edge, w, join)
					for r := range bottom - top {
						copy(f.m[at+r*f.n:][:cols], edge[r*w:])
					}
				}
			}
		}
	})
}

// strip multiplies rows top..bottom by panel jp over k from..to of the K block at kb. c is the element of row top.
func (f *factorizer[T]) strip(top, bottom, jp, m, n, k, kb, from, to int, c []T, ldc, mode int) {
	w, h := f.width, f.slice
	kn := min(kBlock, k-kb)
	panels, slices := ceilDiv(n, w), ceilDiv(m, h)
	half := w / 2 * kn
	b := &f.cols[(kb*panels+jp*kn)*w+(from-kb)*w/2]
	rows := f.rows[kb*slices*h:]
	cutRows(top, bottom, h, func(r, high, count int) {
		each := count
		if to-from < kn { // the tiles do not lie one behind the other
			each = 1
		}
		for last := r + high*count; r < last; r += high * each {
			a := &rows[r/h*h*kn+(from-kb)*h+r%h]
			f.kernel(high, to-from, a, h, b, half, &c[(r-top)*ldc], ldc, mode, each)
		}
	})
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
			f.kernel(1, j, &neg[0], 1, &cols[0], w/2, &col[0], w, modeChain, 1)
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
			f.kernel(1, r, &neg[0], 1, &inv[0], w/2, &row[0], w, modeChain, 1)
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
