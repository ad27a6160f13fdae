package kernels

import (
	"math/rand/v2"
	"testing"
	"unsafe"
)

// The collector ends a program that holds an address outside every allocation, read or
// not. Kernels get one of memory that is only fetched: it must lie inside the packed
// operands, however many tiles share them.
func TestFetchedAddressesStayInsideTheirMemory(t *testing.T) {
	defer ForceLevel(LevelScalar)()
	saved := *scalarTable
	defer func() { *scalarTable = saved }()
	var memory []uint32
	calls := 0
	watch := func(k microKernel) microKernel {
		return func(n int, a *float32, lda int, b *float32, half int, c *float32, ldc, mode, count int, pf *float32, ahead int) {
			calls++
			first, last := uintptr(unsafe.Pointer(&memory[0])), uintptr(unsafe.Pointer(&memory[len(memory)-1]))
			if at := uintptr(unsafe.Pointer(pf)); at < first || at > last {
				t.Errorf("call %d fetches from %d bytes behind the last of %d lanes", calls, int(at)-int(last), len(memory))
			}
			k(n, a, lda, b, half, c, ldc, mode, count, pf, ahead)
		}
	}
	for h := 1; h <= scalarTable.rows; h++ {
		scalarTable.f32[h], scalarTable.wide[h] = watch(saved.f32[h]), watch(saved.wide[h])
	}
	r := rand.New(rand.NewPCG(31, 32))
	for range 30 {
		m, n, k := 1+r.IntN(40), 1+r.IntN(70), 1+r.IntN(300)
		x, y := make([]float32, m*k), make([]float32, m*n)
		for _, w := range []*Weight{PackF32(nil, make([]float32, n*k), n, k), PackBF16(nil, make([]uint16, n*k), n, k)} {
			memory = w.lanes
			GEMM(nil, GEMMJob{X: RowsF32(x, m, k), W: w, Y: y})
		}
		q := PackForm(nil, make([]float32, k*k), k, 0, k, nil)
		memory = q.lanes
		q.Values(new([SlabWidth]float64), make([]float32, k*SlabWidth), make([]float32, k*SlabWidth))
	}
	if calls == 0 {
		t.Error("nothing was watched")
	}
}
