package main

import (
	"fmt"
	"math/rand/v2"
	"time"

	"quire/kernels"
	"quire/kernels/dtype"
)

// run does every measurement that is wanted.
func (b *bench) run() {
	threads := []int{1}
	if b.threads > 1 {
		threads = append(threads, b.threads)
	}
	for _, n := range threads {
		for _, p := range b.peaks {
			if name := "peak " + p.name; b.wanted(name) {
				b.report(Result{Name: name, Threads: n, Unit: "GF", Ours: b.peak(p, n) / 1e9, Gated: 1})
			}
		}
	}
	shapes := [][3]int{{2048, 2048, 2048}, {512, 1536, 4096}, {256, 768, 2048}, {64, 768, 2048}}
	if b.quick {
		shapes = [][3]int{{1024, 1024, 1024}, {256, 768, 2048}}
	}
	for _, n := range threads {
		for _, s := range shapes {
			b.gemm(s[0], s[1], s[2], n, false)
			b.gemm(s[0], s[1], s[2], n, true)
		}
	}
	for _, n := range threads {
		sizes := []int{2048, 4096}
		if b.quick {
			sizes = []int{1024}
		}
		for _, size := range sizes {
			b.gram(size, n, false)
			b.gram(size, n, true)
		}
	}
	for _, n := range threads {
		sizes := []int{768, 2048}
		if b.quick {
			sizes = []int{768}
		}
		for _, size := range sizes {
			b.inverse(size, n)
		}
		b.gptq(768, 2048, n)
	}
	b.memory(threads)
}

// measure races ours against the alternative and reports rates of work/second.
func (b *bench) measure(name string, threads int, work float64, unit string, limit peakLoop, ours func(p *kernels.Pool), other func()) {
	if !b.wanted(name) {
		return
	}
	p := b.pool
	if threads == 1 {
		p = nil
	}
	us := &contender{run: func() { ours(p) }}
	cs := []*contender{us}
	var them *contender
	if b.blas != nil && other != nil {
		b.blas.threads(int32(threads))
		them = &contender{run: other}
		if threads > 1 {
			them.rest = restAfter
		}
		cs = append(cs, them)
	}
	b.race(3*time.Second, cs...)
	r := Result{Name: name, Threads: threads, Unit: unit, Ours: work / us.seconds() / 1e9, Gated: us.gated}
	if limit.run != nil {
		r.Limit, r.Peak = limit.name, b.peak(limit, threads)/1e9
		r.Share = r.Ours / r.Peak
	}
	if them != nil {
		r.Against, r.Alternative = "OpenBLAS", work/them.seconds()/1e9
		r.Ratio = r.Ours / r.Alternative
	}
	b.report(r)
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

// bf16Peak is the limit of bf16 products: their own instruction or, widened, the multiply-add.
func (b *bench) bf16Peak() peakLoop { return b.peaks[len(b.peaks)-1] }

const (
	rowMajor, colMajor = 101, 102
	noTrans, trans     = 111, 112
	upper              = 121
)

// gemm is Y[m,n] = X[m,k]·W[n,k]ᵀ with W packed beforehand. OpenBLAS has no packed
// form and no bf16 form here; it is compared in float32.
func (b *bench) gemm(m, n, k, threads int, bf16 bool) {
	name := fmt.Sprintf("gemm f32 %dx%dx%d", m, n, k)
	if bf16 {
		name = fmt.Sprintf("gemm bf16 %dx%dx%d", m, n, k)
	}
	if !b.wanted(name) {
		return
	}
	y := make([]float32, m*n)
	x, w := random(m*k), random(n*k)
	job := kernels.GEMMJob{X: kernels.RowsF32(x, m, k), W: kernels.PackF32(nil, w, n, k), Y: y}
	limit := b.peaks[0]
	if bf16 {
		job.X, job.W = kernels.RowsBF16(randomBF16(m*k), m, k), kernels.PackBF16(nil, randomBF16(n*k), n, k)
		limit = b.bf16Peak()
	}
	z := make([]float32, m*n)
	b.measure(name, threads, 2*float64(m)*float64(n)*float64(k), "GF", limit,
		func(p *kernels.Pool) { kernels.GEMM(p, job) },
		func() {
			b.blas.sgemm(rowMajor, noTrans, trans, int32(m), int32(n), int32(k), 1, &x[0], int32(k), &w[0], int32(k), 0, &z[0], int32(n))
		})
}

// gram is H += XᵀX of 2,048 rows; flops are those of the upper triangle.
func (b *bench) gram(n, threads int, bf16 bool) {
	const rows = 2048
	name := fmt.Sprintf("gram f32 n=%d rows=%d", n, rows)
	if bf16 {
		name = fmt.Sprintf("gram bf16 n=%d rows=%d", n, rows)
	}
	if !b.wanted(name) {
		return
	}
	x := random(rows * n)
	in, limit := kernels.RowsF32(x, rows, n), b.peaks[0]
	if bf16 {
		in, limit = kernels.RowsBF16(randomBF16(rows*n), rows, n), b.bf16Peak()
	}
	g := kernels.NewGram(n)
	c := make([]float32, n*n)
	b.measure(name, threads, float64(rows)*float64(n)*float64(n+1), "GF", limit,
		func(p *kernels.Pool) { g.Add(p, in) },
		func() {
			b.blas.ssyrk(rowMajor, upper, trans, int32(n), rows, 1, &x[0], int32(n), 1, &c[0], int32(n))
		})
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
func (b *bench) inverse(n, threads int) {
	name := fmt.Sprintf("inverse factor f32 n=%d", n)
	if !b.wanted(name) {
		return
	}
	h, u, a := hessian(n), make([]float32, n*n), make([]float32, n*n)
	var fail string
	b.measure(name, threads, 2*float64(n)*float64(n)*float64(n)/3, "GF", b.peaks[0],
		func(p *kernels.Pool) {
			if f := kernels.InverseFactor(p, u, h, n); f != nil {
				fail = f.String()
			}
		},
		func() {
			copy(a, h) // ours copies too
			uplo, diag, size, info := byte('U'), byte('N'), int32(n), int32(0)
			b.blas.spotrf(&uplo, &size, &a[0], &size, &info)
			b.blas.strtri(&uplo, &diag, &size, &a[0], &size, &info)
			if info != 0 {
				fail = "OpenBLAS refused the matrix"
			}
		})
	if fail != "" {
		fmt.Println(name, fail)
	}
}

// gptq is the whole column loop of one linear, 4 bits, one scale a channel, blocks of 128; rows·n² flops.
func (b *bench) gptq(rows, n, threads int) {
	name := fmt.Sprintf("gptq loop %dx%d", rows, n)
	if !b.wanted(name) {
		return
	}
	const block, width = 128, kernels.SlabWidth
	u := make([]float32, n*n)
	if f := kernels.InverseFactor(b.pool, u, hessian(n), n); f != nil {
		fmt.Println(name, f)
		return
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
	b.measure(name, threads, float64(rows)*float64(n)*float64(n), "GF", b.peaks[0], func(p *kernels.Pool) {
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
	}, nil)
}
