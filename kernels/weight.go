package kernels

import "fmt"

// Rows is a row-major matrix [M,K]. Exactly one of F32 and BF16 is set; row r
// begins at r*Stride.
type Rows struct {
	M, K   int
	Stride int // in elements, >= K
	F32    []float32
	BF16   []uint16
}

// RowsF32 describes a dense float32 matrix.
func RowsF32(x []float32, m, k int) Rows { return Rows{M: m, K: k, Stride: k, F32: x} }

// RowsBF16 describes a dense bf16 matrix.
func RowsBF16(x []uint16, m, k int) Rows { return Rows{M: m, K: k, Stride: k, BF16: x} }

// check panics on a shape that the slices cannot hold.
func (x *Rows) check() {
	if x.M < 0 || x.K < 0 || x.Stride < x.K {
		panic(fmt.Sprintf("kernels: rows [%d,%d] with stride %d", x.M, x.K, x.Stride))
	}
	if (x.F32 != nil) == (x.BF16 != nil) && x.M*x.K > 0 {
		panic("kernels: rows need exactly one of F32 and BF16")
	}
	if need := (x.M-1)*x.Stride + x.K; x.M*x.K > 0 && max(len(x.F32), len(x.BF16)) < need {
		panic(fmt.Sprintf("kernels: rows [%d,%d] with stride %d need %d elements, have %d", x.M, x.K, x.Stride, need, max(len(x.F32), len(x.BF16))))
	}
}

// Weight is a matrix [N,K] (output features, input features) packed once for
// many products. The layout is the same on every CPU:
//
//	[K block of 256][panel of 32 outputs][half][k][16]      float32
//	[K block of 256][panel of 32 outputs][half][k/2][16][2] bf16, even k first
//
// Outputs past N and the odd last k of a bf16 weight are zero. bf16 values below
// 2^-55 in magnitude are stored as zero (contract, "flush of tiny values").
type Weight struct {
	n, k  int
	bf16  bool
	lanes []uint32
}

// N is the number of outputs.
func (w *Weight) N() int { return w.n }

// K is the number of inputs.
func (w *Weight) K() int { return w.k }

// IsBF16 reports the stored type.
func (w *Weight) IsBF16() bool { return w.bf16 }

// Bytes is the memory held, including room kept from a larger matrix.
func (w *Weight) Bytes() int64 { return 4 * int64(cap(w.lanes)) }

// PackedBytes is what a packed [n,k] takes.
func PackedBytes(n, k int, bf16 bool) int64 {
	return 4 * int64(ceilDiv(n, panelWidth)*panelWidth) * int64(weightKind(bf16).laneCount(k))
}

func weightKind(bf16 bool) laneKind {
	if bf16 {
		return lanePair
	}
	return laneF32
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// PackF32 packs w, [n,k] row-major. dst is reused when it is not nil and large
// enough; the result is dst then, a new Weight otherwise.
func PackF32(dst *Weight, w []float32, n, k int) *Weight {
	x := Rows{M: n, K: k, Stride: k, F32: w}
	return packWeight(nil, dst, &x)
}

// PackBF16 packs w, [n,k] row-major bf16.
func PackBF16(dst *Weight, w []uint16, n, k int) *Weight {
	x := Rows{M: n, K: k, Stride: k, BF16: w}
	return packWeight(nil, dst, &x)
}

// PackRows packs any strided matrix, in parallel: the weight is x [N=x.M, K=x.K].
func PackRows(p *Pool, dst *Weight, x Rows) *Weight { return packWeight(p, dst, &x) }

func packWeight(p *Pool, dst *Weight, x *Rows) *Weight {
	x.check()
	bf16 := x.BF16 != nil
	kind := weightKind(bf16)
	panels := ceilDiv(x.M, panelWidth)
	need := panels * panelWidth * kind.laneCount(x.K)
	if dst == nil {
		dst = &Weight{}
	}
	if cap(dst.lanes) < need {
		dst.lanes = alignedLanes(need)
	}
	dst.n, dst.k, dst.bf16, dst.lanes = x.M, x.K, bf16, dst.lanes[:need]
	t := micro()
	const group = 4 // panels a task
	p.Do(ceilDiv(panels, group), func(_, task int) {
		for jp := task * group; jp < min(panels, task*group+group); jp++ {
			rows := min(panelWidth, x.M-jp*panelWidth)
			for k0 := 0; k0 < x.K; k0 += kBlock {
				kn := min(kBlock, x.K-k0)
				panel := dst.panel(k0, jp)
				for h := range 2 {
					const w = panelWidth / 2
					half := panel[h*len(panel)/2 : (h+1)*len(panel)/2]
					have := max(0, min(w, rows-h*w))
					if have > 0 {
						packTranspose(t, kind, half, w, x, jp*panelWidth+h*w, have, k0, kn)
					}
					clearLanes(half, w, have)
				}
			}
		}
	})
	return dst
}

// panel is the lanes of panel jp in the K block that begins at element k0.
func (w *Weight) panel(k0, jp int) []uint32 {
	kind := weightKind(w.bf16)
	panels := ceilDiv(w.n, panelWidth)
	steps := kind.laneCount(min(kBlock, w.k-k0))
	at := (kind.laneCount(k0)*panels + steps*jp) * panelWidth
	return w.lanes[at : at+steps*panelWidth]
}
