package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"quire/kernels"
	"quire/kernels/dtype"
)

// all does every measurement that is wanted.
func (b *bench) all() error {
	for _, n := range b.threadCounts() {
		for _, p := range b.peaks {
			if name := "peak " + p.name; b.wanted(name) {
				b.report(Result{Name: name, Threads: n, Unit: "GF", Ours: b.peak(p, n) / 1e9, Gated: 1})
			}
		}
	}
	b.multiply()
	var failed error
	for _, n := range b.threadCounts() {
		for _, size := range of(b.scale, []int{2048, 4096}, []int{1024}, []int{64}) {
			b.gram(size, n, false)
			b.gram(size, n, true)
		}
	}
	for _, n := range b.threadCounts() {
		for _, size := range of(b.scale, []int{768, 2048}, []int{1024}, []int{96}) {
			failed = errors.Join(failed, b.inverse(size, n))
		}
		failed = errors.Join(failed, b.gptq(of(b.scale, 768, 768, 40), of(b.scale, 2048, 2048, 96), n))
	}
	b.scaling()
	b.memory()
	return failed
}

// line is one measurement of work that runs on a pool.
type line struct {
	name    string
	threads int
	work    float64
	unit    string // of work per second / 1e9
	limit   string
	peak    func() float64 // the limit, in the same unit
	limiter *contender     // what the limit follows from, run in turn with the others, or nil
	ours    func(p *kernels.Pool)
	other   func() // the same by OpenBLAS, nil: it has none
	share   float64
	ratio   float64 // targets, 0: none
}

func (b *bench) measure(l line) {
	if !b.wanted(l.name) {
		return
	}
	p := b.poolOf(l.threads)
	us := &contender{run: func() { l.ours(p) }, threads: l.threads}
	cs := []*contender{us}
	var them *contender
	if b.blas != nil && l.other != nil {
		b.blas.threads(int32(l.threads))
		them = &contender{run: l.other, threads: l.threads}
		if l.threads > 1 && b.scale != tiny {
			them.rest = restAfter
		}
		cs = append(cs, them)
	}
	if l.limiter != nil {
		cs = append(cs, l.limiter)
	}
	b.race(2*time.Second, cs...)
	r := Result{Name: l.name, Threads: l.threads, Unit: l.unit, Ours: l.work / us.seconds() / 1e9, Gated: us.gated}
	if l.peak != nil {
		r.Limit, r.Peak = l.limit, l.peak()
		r.Share = r.Ours / r.Peak
	}
	if them != nil {
		r.Against, r.Alternative = "OpenBLAS", l.work/them.seconds()/1e9
		r.Ratio = r.Ours / r.Alternative
		r.Gated = min(us.gated, them.gated)
	}
	r.want("share", l.share)
	if l.ratio > 0 && (r.Holds == nil || *r.Holds) {
		r.want("ratio", l.ratio)
	}
	b.report(r)
}

// flopPeak is the limit of float32 work, or of bf16 products: their own instruction or, widened, the multiply-add.
func (b *bench) flopPeak(bf16 bool, threads int) (string, func() float64) {
	p := b.peaks[0]
	if bf16 {
		p = b.peaks[len(b.peaks)-1]
	}
	return p.name, func() float64 { return b.peak(p, threads) / 1e9 }
}

// random fills n values in (-1, 1).
func random(n int) []float32 {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	x := make([]float32, n)
	for i := range x {
		x[i] = 2*r.Float32() - 1
	}
	return x
}

func randomBF16(n int) []uint16 {
	h := make([]uint16, n)
	dtype.EncodeBF16(h, random(n))
	return h
}

const (
	rowMajor       = 101
	noTrans, trans = 111, 112
	upper          = 121
)

// typeName is how names of measurements call the input type.
func typeName(bf16 bool) string {
	if bf16 {
		return "bf16"
	}
	return "f32"
}

// native reports whether the level multiplies bf16 pairs in one instruction; vectors whether it has vector kernels at all.
func native() bool  { return kernels.CPULevel() >= kernels.LevelAVX512BF16 }
func vectors() bool { return kernels.CPULevel() >= kernels.LevelAVX2 }

// multiply measures products with packed weights.
func (b *bench) multiply() {
	shapes := of(b.scale, [][3]int{{2048, 2048, 2048}, {512, 1536, 4096}, {256, 768, 2048}, {64, 768, 2048}}, [][3]int{{1024, 1024, 1024}, {256, 768, 2048}}, [][3]int{{8, 40, 64}})
	for _, n := range b.threadCounts() {
		for i, s := range shapes {
			for _, bf16 := range []bool{false, true} {
				l := b.gemm(s[0], s[1], s[2], n, bf16)
				if n == 1 && vectors() {
					l.share = of(b.scale, 0.9, 0.9, 0)
					if bf16 && native() {
						l.share = 0.85
					}
					if i > 0 {
						l.share = 0 // stated for the largest only
					}
					if !bf16 {
						l.ratio = 0.97
						if s[0] <= 256 {
							l.ratio = 1.05
						}
					}
				}
				b.measure(l)
			}
		}
	}
}

// gemm is Y[m,n] = X[m,k]·W[n,k]ᵀ with W packed beforehand. OpenBLAS has no packed
// form and no bf16 form here; it is compared in float32.
func (b *bench) gemm(m, n, k, threads int, bf16 bool) line {
	l := line{name: fmt.Sprintf("gemm %s %dx%dx%d", typeName(bf16), m, n, k), threads: threads, unit: "GF", work: 2 * float64(m) * float64(n) * float64(k)}
	if !b.wanted(l.name) {
		return l
	}
	y := make([]float32, m*n)
	x, w := random(m*k), random(n*k)
	job := kernels.GEMMJob{X: kernels.RowsF32(x, m, k), W: kernels.PackF32(nil, w, n, k), Y: y}
	if bf16 {
		job.X, job.W = kernels.RowsBF16(randomBF16(m*k), m, k), kernels.PackBF16(nil, randomBF16(n*k), n, k)
	}
	l.limit, l.peak = b.flopPeak(bf16, threads)
	z := make([]float32, m*n)
	l.ours = func(p *kernels.Pool) { kernels.GEMM(p, job) }
	l.other = func() {
		b.blas.sgemm(rowMajor, noTrans, trans, int32(m), int32(n), int32(k), 1, &x[0], int32(k), &w[0], int32(k), 0, &z[0], int32(n))
	}
	return l
}

// gram is H += XᵀX of 2,048 rows; flops are those of the upper triangle.
func (b *bench) gram(n, threads int, bf16 bool) {
	rows := of(b.scale, 2048, 2048, 256)
	l := line{name: fmt.Sprintf("gram %s n=%d rows=%d", typeName(bf16), n, rows), threads: threads, unit: "GF", work: float64(rows) * float64(n) * float64(n+1)}
	if !b.wanted(l.name) {
		return
	}
	x := random(rows * n)
	in := kernels.RowsF32(x, rows, n)
	if bf16 {
		in = kernels.RowsBF16(randomBF16(rows*n), rows, n)
	}
	l.limit, l.peak = b.flopPeak(bf16, threads)
	g := kernels.NewGram(n)
	c := make([]float32, n*n)
	l.ours = func(p *kernels.Pool) { g.Add(p, in) }
	l.other = func() {
		b.blas.ssyrk(rowMajor, upper, trans, int32(n), int32(rows), 1, &x[0], int32(n), 1, &c[0], int32(n))
	}
	if vectors() {
		if l.ratio = 0.95; bf16 && native() {
			l.ratio = 1.6
		}
	}
	b.measure(l)
}

// hessian is a well-conditioned symmetric matrix.
func hessian(n int) []float32 {
	g := kernels.NewGram(n)
	g.Add(nil, kernels.RowsF32(random((n+64)*n), n+64, n))
	h := make([]float32, n*n)
	g.Partial(h)
	for i := range n {
		h[i*n+i] *= 1.1
		for j := range i {
			h[i*n+j] = h[j*n+i]
		}
	}
	return h
}

// inverse is U with H⁻¹ = UᵀU against potrf + trtri; 2n³/3 flops.
func (b *bench) inverse(n, threads int) error {
	l := line{name: fmt.Sprintf("inverse factor f32 n=%d", n), threads: threads, unit: "GF", work: 2 * float64(n) * float64(n) * float64(n) / 3}
	if !b.wanted(l.name) {
		return nil
	}
	h, u, a := hessian(n), make([]float32, n*n), make([]float32, n*n)
	var failed error
	l.limit, l.peak = b.flopPeak(false, threads)
	l.ours = func(p *kernels.Pool) {
		if f := kernels.InverseFactor(p, u, h, n); f != nil {
			failed = fmt.Errorf("%s: %v", l.name, f)
		}
	}
	l.other = func() {
		copy(a, h) // ours copies too
		uplo, diag, size, info := byte('U'), byte('N'), int32(n), int32(0)
		b.blas.spotrf(&uplo, &size, &a[0], &size, &info)
		b.blas.strtri(&uplo, &diag, &size, &a[0], &size, &info)
		if info != 0 {
			failed = fmt.Errorf("%s: OpenBLAS refused the matrix", l.name)
		}
	}
	if vectors() {
		l.ratio = 1
	}
	b.measure(l)
	return failed
}

// gptq is the whole column loop of one linear, 4 bits, one scale a channel, blocks of 128; rows·n² flops.
func (b *bench) gptq(rows, n, threads int) error {
	l := line{name: fmt.Sprintf("gptq loop 4-bit %dx%d", rows, n), threads: threads, unit: "GF", work: float64(rows) * float64(n) * float64(n)}
	if !b.wanted(l.name) {
		return nil
	}
	const block, width = 128, kernels.SlabWidth
	u := make([]float32, n*n)
	if f := kernels.InverseFactor(b.pool, u, hessian(n), n); f != nil {
		return fmt.Errorf("%s: %v", l.name, f)
	}
	f := kernels.PackFactor(nil, u, n, block)
	w := random(rows * n)
	type scratch struct {
		slab, e, deq, scale, zero []float32
		codes                     []uint8
	}
	work := make([]scratch, b.threads)
	for i := range work {
		work[i] = scratch{make([]float32, n*width), make([]float32, block*width), make([]float32, n*width), make([]float32, width), make([]float32, width), make([]uint8, n*width)}
		for j := range width {
			work[i].scale[j], work[i].zero[j] = 1.0/7, 8
		}
	}
	l.limit, l.peak = b.flopPeak(false, threads)
	l.ours = func(p *kernels.Pool) {
		p.Do((rows+width-1)/width, func(worker, task int) {
			s := &work[worker]
			kernels.PackSlab(s.slab, w, rows, n, task*width)
			for blk := range f.Blocks() {
				for i := range min(block, n-blk*block) {
					f.Column(s.slab, s.e, blk, i)
					at := (blk*block + i) * width
					kernels.QuantizeColumn(s.codes[at:], s.deq[at:], s.e[i*width:], s.slab[at:], s.scale, s.zero, 15, f.Diag(blk*block+i))
				}
				f.Tail(s.slab, s.e, blk)
			}
		})
	}
	if vectors() && threads == 1 {
		l.share = 0.6
	}
	b.measure(l)
	return nil
}

// scaling is the speed-up of jobs over 10 ms by all threads, both ways interleaved.
func (b *bench) scaling() {
	if b.threads == 1 {
		return
	}
	s := of(b.scale, 1024, 1024, 64)
	rows := of(b.scale, 2048, 1024, 256)
	x, h, u := random(rows*s), hessian(s), make([]float32, s*s)
	g := kernels.NewGram(s)
	for _, job := range []struct {
		name string
		run  func(p *kernels.Pool)
	}{
		{"gemm f32", b.gemm(s, s, s, 1, false).ours},
		{"gemm bf16", b.gemm(s, s, s, 1, true).ours},
		{"gram f32", func(p *kernels.Pool) { g.Add(p, kernels.RowsF32(x, rows, s)) }},
		{"inverse factor f32", func(p *kernels.Pool) { kernels.InverseFactor(p, u, h, s) }},
	} {
		name := fmt.Sprintf("scaling %s n=%d", job.name, s)
		if !b.wanted(name) || job.run == nil {
			continue
		}
		one := &contender{run: func() { job.run(nil) }, threads: 1}
		all := &contender{run: func() { job.run(b.pool) }, threads: b.threads}
		b.race(2*time.Second, one, all)
		r := Result{Name: name, Threads: b.threads, Unit: "x", Ours: one.seconds() / all.seconds(), Gated: min(one.gated, all.gated)}
		r.Limit, r.Peak = "linear", float64(b.threads)
		r.Share = r.Ours / r.Peak
		if vectors() && b.threads == 2 {
			r.want("value", 1.85)
		}
		b.report(r)
	}
}
