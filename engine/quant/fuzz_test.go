package quant_test

import (
	"context"
	"errors"
	"math"
	"testing"

	"quire/engine/quant"
)

// FuzzSolve: whatever stands in H and W, the outcome is a documented error or codes and scales in range.
func FuzzSolve(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8}, uint8(4), uint8(3), uint8(0))
	f.Add([]byte{0, 0, 0x80, 0x7f, 0xff, 0xff, 0x7f, 0x7f, 0, 0, 0, 0}, uint8(9), uint8(2), uint8(0x5b))
	f.Fuzz(func(t *testing.T, data []byte, cols, rows, flags uint8) {
		in, out := int(cols%24)+1, int(rows%5)+1
		at := 0
		next := func() float32 {
			var u uint32
			for k := range 4 {
				if len(data) > 0 {
					u |= uint32(data[at%len(data)]^byte(at/max(len(data), 1))) << (8 * k)
				}
				at++
			}
			return math.Float32frombits(u)
		}
		h, w := make([]float32, in*in), make([]float32, out*in)
		for i := range h {
			h[i] = next()
		}
		for i := range w {
			w[i] = next()
		}
		if flags&1 != 0 {
			// A Gram matrix of the drawn values, so that the column loop is reached.
			h = gram(h, in, in)
		}
		o := quant.DefaultOptions()
		o.GroupSize = 4
		o.Bits = int(flags>>1)%7 + 2
		o.Sym = flags&16 == 0
		o.DescAct = flags&32 != 0
		o.ActGroupAware = !o.DescAct
		o.StaticGroups = flags&64 != 0
		if flags&128 != 0 {
			o.MSE = 2.4
		}
		p, err := quant.Prepare(nil, quant.Hessian{N: in, H: h, Rows: 3}, o)
		if err != nil {
			if !errors.Is(err, quant.ErrNonFinite) && !errors.Is(err, quant.ErrNegativeDiagonal) {
				t.Fatalf("prepare: %v", err)
			}
			return
		}
		r, err := p.Solve(context.Background(), nil, w, out)
		if err != nil {
			if !errors.Is(err, quant.ErrNonFinite) && !errors.Is(err, quant.ErrScaleRange) {
				t.Fatalf("solve: %v", err)
			}
			return
		}
		checkSane(t, r)
		for i, z := range r.Zeros {
			if int(z) > o.MaxQ() {
				t.Fatalf("zero %d is %d", i, z)
			}
		}
	})
}
