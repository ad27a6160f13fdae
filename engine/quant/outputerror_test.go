package quant_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"quire/engine/quant"
	"quire/kernels"
)

// TestErrorFigures: the recorded errors of wide modules, whether they come from the column loop's loss or from H, are
// those of the rows themselves; so are the groups' diagonal blocks. Both ways are taken, each in each kind of order.
func TestErrorFigures(t *testing.T) {
	pool := kernels.NewPool(2)
	defer pool.Close()
	from := map[string]int{}
	for kind := range statisticKinds {
		for order := range 4 {
			t.Run(fmt.Sprintf("statistic %d order %d", kind, order), func(t *testing.T) {
				p := makeProblem(uint64(10*kind+order), 290, 72, kind)
				o := quant.DefaultOptions()
				o.GroupSize = 16
				o.ActGroupAware, o.DescAct, o.StaticGroups = order == 1, order >= 2, order == 3
				o.NoGuard = true
				if kind == illConditioned {
					o.DampPercent = 1e-6 // condition 1e7: rounding of U shows in the loss
				}
				r := p.solve(t, pool, o)
				from[r.Record.ErrorFrom]++
				q := make([]float32, len(p.w))
				r.Dequantize(q)
				want := outputError(p.w, q, p.x, p.out, p.in, p.rows)
				if d := relative(*r.Record.OutputError, want); d > 3e-4 && math.Abs(*r.Record.OutputError-want) > noise(p, q) {
					t.Errorf("output error %v from %s, from the rows %v", *r.Record.OutputError, r.Record.ErrorFrom, want)
				}
				if got, want := *r.Record.OutputErrorRel, *r.Record.OutputError/baseError(p); relative(got, want) > 1e-5 {
					t.Errorf("relative error %v, from the rows %v", got, want)
				}
				for g, share := range r.GroupShare {
					part := append([]float32(nil), p.w...)
					for i := range part {
						if r.Group(i%p.in) == g {
							part[i] = q[i]
						}
					}
					want := outputError(p.w, part, p.x, p.out, p.in, p.rows)
					if relative(share, want) > 1e-3 && math.Abs(share-want) > noise(p, q) {
						t.Errorf("share of group %d is %v, from the rows %v", g, share, want)
					}
				}
				// Rounding has no loss to take it from; with the guard on, its error is what the guard compares with.
				plain, err := quant.RTN(context.Background(), pool, p.w, p.out, p.in, o, &quant.Hessian{N: p.in, H: p.h, Rows: int64(p.rows)})
				if err != nil {
					t.Fatal(err)
				}
				if plain.Record.ErrorFrom != quant.ErrorFromStatistic {
					t.Errorf("rounding's error is from %q", plain.Record.ErrorFrom)
				}
				o.NoGuard = false
				g := p.solve(t, pool, o).Record.Guard
				if order != 2 && g.RTNComplete && relative(g.RTNError, *plain.Record.OutputError) > 1e-5 {
					t.Errorf("the guard's rounding error %v, rounding's own %v", g.RTNError, *plain.Record.OutputError)
				}
				if order != 2 && !g.RTNComplete && g.RTNError > *plain.Record.OutputError*(1+1e-5) {
					t.Errorf("the guard's part of the rounding error %v exceeds the whole %v", g.RTNError, *plain.Record.OutputError)
				}
			})
		}
	}
	if from[quant.ErrorFromLoss] == 0 || from[quant.ErrorFromStatistic] == 0 {
		t.Errorf("ways to the figure: %v; both are meant to be tested", from)
	}
	t.Logf("ways to the figure: %v", from)
}
