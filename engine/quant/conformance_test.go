package quant_test

import (
	"context"
	"math"
	"testing"

	"quire/engine/quant"
)

// TestGPTQConformance runs every GPTQ case of fixtures/quant under --parity gptqmodel by the rule that stands in the
// case: share of equal codes, first difference of a row behind a rounding tie, scales, output error, loss, order of live
// columns, group index.
func TestGPTQConformance(t *testing.T) {
	for _, file := range caseFiles(t, "gptq") {
		c := readCase(t, file)
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			o := c.options()
			p, err := quant.Prepare(nil, quant.Hessian{N: c.in, H: c.h, Rows: c.NRows, NativeRows: c.NRows, Site: c.Name}, o)
			if err != nil {
				t.Fatal(err)
			}
			r, err := p.Solve(context.Background(), nil, c.w, c.out)
			if err != nil {
				t.Fatal(err)
			}
			if got := r.Record.Damping.Share; got != c.Options.DampUsed {
				t.Errorf("damping %v, want %v", got, c.Options.DampUsed)
			}
			compareCase(t, c, o, r)
		})
	}
}

func compareCase(t *testing.T, c *quantCase, o quant.Options, r *quant.Result) {
	t.Helper()
	codes, scales, zeros := c.tensors["codes"].data, c.tensors["scales"].f32(), c.tensors["zeros"].i32()
	for i, g := range c.tensors["g_idx"].i32() {
		if r.Group(i) != int(g) {
			t.Fatalf("g_idx[%d] = %d, want %d", i, r.Group(i), g)
		}
	}
	if perm, ok := c.tensors["perm"]; ok {
		live := func(p []int32) (s []int32) {
			for _, v := range p {
				if c.h[int(v)*c.in+int(v)] != 0 {
					s = append(s, v)
				}
			}
			return s
		}
		want, got := live(perm.i32()), live(r.Perm)
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("perm at live position %d is %d, want %d", i, got[i], want[i])
			}
		}
	}
	or := oracle(c.w, c.h, c.out, c.in, o)
	if or == nil {
		t.Fatal("oracle: H is not positive definite")
	}
	groups := r.Groups()
	var differ, rowsDiffer int
	for row := range c.out {
		first := c.in // position
		for p, col := range or.order {
			i := row*c.in + col
			if d := int(r.Codes[i]) - int(codes[i]); d != 0 {
				differ++
				if max(d, -d) > c.Tolerance.MaxStep {
					t.Errorf("code [%d,%d] = %d, want %d: more than %d steps", row, col, r.Codes[i], codes[i], c.Tolerance.MaxStep)
				}
				if p < first {
					first = p
				}
			}
		}
		if first < c.in {
			rowsDiffer++
			col := or.order[first]
			if d := tieDistance(or.value[row*c.in+col]); d > c.Tolerance.Tie && zerosEqual(r, zeros, row, groups) {
				t.Errorf("row %d first differs at column %d, %.2g from a tie", row, col, d)
			}
		}
		for k := range groups {
			i := row*groups + k
			if first == c.in && relative(float64(r.Scales[i]), float64(scales[i])) > c.Tolerance.ScaleRel {
				t.Errorf("scale [%d,%d] = %v, want %v", row, k, r.Scales[i], scales[i])
			}
			if first == c.in && int32(r.Zeros[i]) != zeros[i] {
				t.Errorf("zero [%d,%d] = %d, want %d", row, k, r.Zeros[i], zeros[i])
			}
		}
	}
	equal := 100 * (1 - float64(differ)/float64(len(codes)))
	if equal < c.Tolerance.MinEqual {
		t.Errorf("%.2f %% of the codes are equal, want %.2f", equal, c.Tolerance.MinEqual)
	}
	q := make([]float32, len(c.w))
	r.Dequantize(q)
	got := outputError(c.w, q, c.x, c.out, c.in, c.rows)
	if d := relative(got, c.Error); d > c.Tolerance.ErrorRel {
		t.Errorf("output error %v, want %v (%.2g)", got, c.Error, d)
	}
	if d := relative(*r.Record.OutputError, got); d > c.Tolerance.ErrorRel {
		t.Errorf("recorded output error %v, from the rows %v (%.2g)", *r.Record.OutputError, got, d)
	}
	if d := relative(*r.Record.Loss/float64(c.NRows), c.AvgLoss); d > c.Tolerance.LossRel {
		t.Errorf("loss %v, want %v (%.2g)", *r.Record.Loss/float64(c.NRows), c.AvgLoss, d)
	}
	t.Logf("%d of %d codes differ in %d rows", differ, len(codes), rowsDiffer)
}

// zerosEqual tells whether a row's zero points are those of the case: a group of zeros only may take either of two.
func zerosEqual(r *quant.Result, want []int32, row, groups int) bool {
	for k := range groups {
		if int32(r.Zeros[row*groups+k]) != want[row*groups+k] {
			return false
		}
	}
	return true
}

func tieDistance(v float64) float64 { return math.Abs(v - math.Floor(v) - 0.5) }

// TestRTNConformance runs the five grids of the few-row fallback: codes exact, scales 1e-6, values 1e-6.
func TestRTNConformance(t *testing.T) {
	for _, file := range caseFiles(t, "rtn") {
		c := readCase(t, file)
		t.Run(c.Name, func(t *testing.T) {
			r, err := quant.RTN(context.Background(), nil, c.w, c.out, c.in, c.options(), nil)
			if err != nil {
				t.Fatal(err)
			}
			codes, scales, deq := c.tensors["codes"].data, c.tensors["scales"].f32(), c.tensors["dequantized"].f32()
			q := make([]float32, len(c.w))
			r.Dequantize(q)
			zeroFree := func(row, col int) bool { return deq[row*c.in+col] != 0 || c.w[row*c.in+col] != 0 }
			for i := range codes {
				if r.Codes[i] != codes[i] && zeroFree(i/c.in, i%c.in) {
					t.Errorf("code [%d,%d] = %d, want %d", i/c.in, i%c.in, r.Codes[i], codes[i])
				}
				if math.Abs(float64(q[i]-deq[i])) > c.Tolerance.DeqAbs {
					t.Errorf("value [%d,%d] = %v, want %v", i/c.in, i%c.in, q[i], deq[i])
				}
			}
			for i := range scales {
				if relative(float64(r.Scales[i]), float64(scales[i])) > c.Tolerance.ScaleRel {
					t.Errorf("scale %d = %v, want %v", i, r.Scales[i], scales[i])
				}
			}
		})
	}
}
