package kernels

import "unsafe"

// panelWidth is the vector side of every kernel: 32 float32 outputs, whatever
// the vector width, so packed matrices have one layout on every CPU.
const panelWidth = 32

// kBlock is the number of k (or statistic rows) that share one fresh
// accumulator. It is part of the contract.
const kBlock = 256

// How a micro-kernel joins its accumulators with C.
const (
	modeStore = 0 // C = acc
	modeAdd   = 1 // C = C + acc, one float32 addition
	modeChain = 2 // acc starts from C instead of 0, then C = acc
	modeAdd64 = 3 // C is float64: C = C + float64(acc)
	modeSub   = 4 // C = C - acc
)

// microKernel computes count tiles of h x 32, one below the other:
// acc[r][j] = chain over k of fma(a[k*lda+r], b[k][j], acc), then joins it with c as mode
// says. ldc is in elements of c; the next tile begins h rows further down in C and
// k steps further on in a (where the last one ended).
//
// b is a panel of 32 columns in two halves of 16: column j < 16 of step i is
// b[i*16+j], column 16+j is b[half+i*16+j]. A tile reads one half at a time at the AVX2
// level, so a half of a whole K block (16 KB) stays in the first-level cache. With
// half = 16 the halves lie side by side, [k][32].
//
// pf is memory that will be read soon (never dereferenced): with every step one
// address is fetched into the second-level cache, the next one ahead bytes further on.
//
// There are three kinds with one signature; a, b, c are reinterpreted:
//
//	f32   a float32, b float32; steps k in natural order
//	wide  a float32, b pairs of bf16 in one lane (even k low); one step is two k,
//	      the odd one first; a advances by 2·lda
//	dot   a and b pairs of bf16; one step is two k, the odd one first
type microKernel func(k int, a *float32, lda int, b *float32, half int, c *float32, ldc, mode, count int, pf *float32, ahead int)

// tileKernel is a microKernel of one tile on a panel [k][32].
type tileKernel func(k int, a *float32, lda int, b, c *float32, ldc, mode int)

// tiles makes the definition of a microKernel from that of one tile, whose step
// takes perStep k of a.
func (f tileKernel) tiles(h, perStep int) microKernel {
	return func(k int, a *float32, lda int, b *float32, half int, c *float32, ldc, mode, count int, _ *float32, _ int) {
		if half != panelWidth/2 && k > 0 {
			src, whole := unsafe.Slice(b, half+k*panelWidth/2), make([]float32, k*panelWidth)
			for i := range k {
				copy(whole[i*panelWidth:], src[i*panelWidth/2:][:panelWidth/2])
				copy(whole[i*panelWidth+panelWidth/2:], src[half+i*panelWidth/2:][:panelWidth/2])
			}
			b = &whole[0]
		}
		perElement := 4
		if mode == modeAdd64 {
			perElement = 8
		}
		for t := range count {
			f(k, advance(a, 4*t*k*perStep*lda), lda, b, advance(c, perElement*t*h*ldc), ldc, mode)
		}
	}
}

// fetchStep is the distance of fetches that brings bytes of memory in during steps steps.
func (t *microTable) fetchStep(bytes, steps int) int { return ceilDiv(bytes, max(1, steps*t.passes)) }

// advance is p moved on by n bytes.
func advance[T any](p *T, n int) *T { return (*T)(unsafe.Add(unsafe.Pointer(p), n)) }

// maxHeight bounds the tile heights of all levels.
const maxHeight = 14

// microTable is what a level provides. Index of the kernel arrays: height, 1..rows.
type microTable struct {
	level Level
	// rows is the greatest tile height.
	rows int
	// passes is how often a kernel goes through its steps: once for each half of the panel, or once for both.
	passes int
	// slice is the tile height of products where both sides are columns of one
	// matrix (statistics, factorisation); it divides 96.
	slice int
	f32   [maxHeight + 1]microKernel
	wide  [maxHeight + 1]microKernel
	dot   [maxHeight + 1]microKernel // nil entries: the level has no bf16 dot product
	f64   [maxHeight + 1]microKernel64
	// quantize is QuantizeColumn for one full slab column.
	quantize func(codes *uint8, deq, err, w, scale, zero *float32, maxq, diag float32)
	// transpose is packTranspose for full groups of eight columns.
	transpose transposer
	// strip is packColumns for whole groups of eight columns.
	strip   striper
	columns columnKernel
}

// nativeBF16 reports whether bf16 pairs are multiplied as they are.
func (t *microTable) nativeBF16() bool { return t.dot[1] != nil }

var scalarTable = makeScalarTable()

// micro returns the kernels of the level in use.
func micro() *microTable { return tableOf(CPULevel()) }

func makeScalarTable() *microTable {
	t := &microTable{level: LevelScalar, rows: 6, passes: 1, slice: 6}
	for h := 1; h <= maxHeight; h++ {
		t.f32[h] = scalarF32(h).tiles(h, 1)
		t.wide[h] = scalarWide(h).tiles(h, 2)
		t.f64[h] = scalarF64(h)
	}
	t.quantize = scalarQuantize
	t.transpose, t.strip = scalarTranspose, scalarStrip
	t.columns = scalarColumns
	return t
}

// scalarF32 is the definition of the f32 kernel of height h.
func scalarF32(h int) tileKernel {
	return func(k int, a *float32, lda int, b, c *float32, ldc, mode int) {
		var acc [maxHeight][panelWidth]float32
		startChain(&acc, h, c, ldc, mode)
		if k > 0 {
			as := unsafe.Slice(a, (k-1)*lda+h)
			bs := unsafe.Slice(b, k*panelWidth)
			for i := range k {
				row := (*[panelWidth]float32)(bs[i*panelWidth:])
				for r := range h {
					x, s := as[i*lda+r], &acc[r]
					for j := range s {
						s[j] = fma32(x, row[j], s[j])
					}
				}
			}
		}
		joinTile(&acc, h, c, ldc, mode)
	}
}

// scalarWide is the definition of the wide kernel of height h.
func scalarWide(h int) tileKernel {
	return func(k int, a *float32, lda int, b, c *float32, ldc, mode int) {
		var acc [maxHeight][panelWidth]float32
		startChain(&acc, h, c, ldc, mode)
		if k > 0 {
			as := unsafe.Slice(a, (2*k-1)*lda+h)
			bs := unsafe.Slice((*uint32)(unsafe.Pointer(b)), k*panelWidth)
			for i := range k {
				row := (*[panelWidth]uint32)(bs[i*panelWidth:])
				for r := range h {
					even, odd, s := as[2*i*lda+r], as[(2*i+1)*lda+r], &acc[r]
					for j := range s {
						t := fma32(odd, f32bits(row[j]&0xffff0000), s[j])
						s[j] = fma32(even, f32bits(row[j]<<16), t)
					}
				}
			}
		}
		joinTile(&acc, h, c, ldc, mode)
	}
}

func startChain(acc *[maxHeight][panelWidth]float32, h int, c *float32, ldc, mode int) {
	if mode != modeChain {
		return
	}
	cs := unsafe.Slice(c, (h-1)*ldc+panelWidth)
	for r := range h {
		copy(acc[r][:], cs[r*ldc:])
	}
}

func joinTile(acc *[maxHeight][panelWidth]float32, h int, c *float32, ldc, mode int) {
	if mode == modeAdd64 {
		cs := unsafe.Slice((*float64)(unsafe.Pointer(c)), (h-1)*ldc+panelWidth)
		for r := range h {
			for j, s := range acc[r] {
				cs[r*ldc+j] += float64(s)
			}
		}
		return
	}
	cs := unsafe.Slice(c, (h-1)*ldc+panelWidth)
	for r := range h {
		row := cs[r*ldc : r*ldc+panelWidth]
		if mode == modeAdd {
			for j, s := range acc[r] {
				row[j] += s
			}
			continue
		}
		if mode == modeSub {
			for j, s := range acc[r] {
				row[j] -= s
			}
			continue
		}
		copy(row, acc[r][:])
	}
}
