package quant_test

import (
	"context"
	"errors"
	"math"
	"testing"

	"quire/engine/quant"
)

func smallOptions() quant.Options {
	o := quant.DefaultOptions()
	o.GroupSize = 16
	return o
}

func checkSane(t *testing.T, r *quant.Result) {
	t.Helper()
	for i, s := range r.Scales {
		if !(s > 0) || math.IsInf(float64(s), 0) {
			t.Fatalf("scale %d is %v", i, s)
		}
	}
	for i, c := range r.Codes {
		if int(c) > 1<<r.Bits-1 {
			t.Fatalf("code %d is %d", i, c)
		}
	}
}

func TestZeroAndEqualGroups(t *testing.T) {
	for _, sym := range []bool{true, false} {
		p := makeProblem(1, 5, 48, fullRank)
		for c := range 16 {
			p.w[c] = 0       // channel 0, group 0: nothing
			p.w[48+c] = 0.25 // channel 1, group 0: one value
		}
		o := smallOptions()
		o.Sym, o.StaticGroups, o.ScaleDType = sym, true, quant.ScaleF32
		r := p.solve(t, nil, o)
		checkSane(t, r)
		if r.Record.ZeroGroups != 1 {
			t.Errorf("sym %v: %d zero groups, want 1", sym, r.Record.ZeroGroups)
		}
		if want := float32(2) / 15; r.Scales[0] != want {
			t.Errorf("sym %v: scale of an empty group is %v, want 2/maxq = %v", sym, r.Scales[0], want)
		}
		plain, err := quant.RTN(context.Background(), nil, p.w, p.out, p.in, o, nil)
		if err != nil {
			t.Fatal(err)
		}
		q := make([]float32, len(p.w))
		plain.Dequantize(q)
		for c := range 16 {
			if q[c] != 0 {
				t.Errorf("sym %v: a zero became %v", sym, q[c])
			}
			// asymmetric: 15 steps of 1/60 reach 0.25; symmetric: 7 steps of 1/30 reach 7/30, half a step short.
			want := float32(0.25)
			if sym {
				want = float32(7) * (float32(0.5) / 15)
			}
			if math.Abs(float64(q[48+c]-want)) > 1e-7 {
				t.Errorf("sym %v: 0.25 became %v, want %v", sym, q[48+c], want)
			}
		}
	}
}

func TestOutlierWeight(t *testing.T) {
	p := makeProblem(2, 4, 48, fullRank)
	p.w[5] = 1e30
	o := smallOptions()
	o.ActGroupAware = false
	r := p.solve(t, nil, o)
	checkSane(t, r)
	q := make([]float32, len(p.w))
	r.Dequantize(q)
	if relative(float64(q[5]), 1e30) > 0.07 {
		t.Errorf("1e30 became %v", q[5])
	}
	if rel := *r.Record.OutputErrorRel; math.IsNaN(rel) || math.IsInf(rel, 0) {
		t.Errorf("relative error %v", rel)
	}

	o.ScaleDType = quant.ScaleF16
	prep, err := quant.Prepare(nil, p.hessian(), o)
	if err != nil {
		t.Fatal(err)
	}
	_, err = prep.Solve(context.Background(), nil, p.w, p.out)
	var v *quant.ValueError
	if !errors.Is(err, quant.ErrScaleRange) || !errors.As(err, &v) || v.Row != 0 || v.Col != 0 {
		t.Errorf("a scale of 1e29 in float16: %v", err)
	}

	p.w[5], p.w[6] = 3e38, -3e38
	o.ScaleDType = quant.ScaleF32
	if prep, err = quant.Prepare(nil, p.hessian(), o); err != nil {
		t.Fatal(err)
	}
	if _, err = prep.Solve(context.Background(), nil, p.w, p.out); !errors.Is(err, quant.ErrScaleRange) {
		t.Errorf("a range of 6e38: %v", err)
	}
}

func TestSubnormals(t *testing.T) {
	p := makeProblem(3, 3, 32, fullRank)
	for i := range p.w {
		p.w[i] = math.Float32frombits(uint32(i%1000 + 1)) // 1e-45 … 1e-42
	}
	for _, dt := range []string{quant.ScaleF32, quant.ScaleBF16, quant.ScaleF16} {
		o := smallOptions()
		o.ScaleDType = dt
		r := p.solve(t, nil, o)
		checkSane(t, r)
		if r.Record.ScaleFloor != int64(len(r.Scales)) {
			t.Errorf("%s: %d of %d scales raised to the smallest", dt, r.Record.ScaleFloor, len(r.Scales))
		}
	}
}

func TestNonFiniteInput(t *testing.T) {
	o := smallOptions()
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		p := makeProblem(4, 3, 32, fullRank)
		p.h[3*32+9] = bad
		_, err := quant.Prepare(nil, p.hessian(), o)
		var v *quant.ValueError
		if !errors.Is(err, quant.ErrNonFinite) || !errors.As(err, &v) || v.What != "H" || v.Row != 3 || v.Col != 9 || v.Site != "drawn" {
			t.Errorf("H with %v: %v", bad, err)
		}
		p = makeProblem(4, 3, 32, fullRank)
		prep, err := quant.Prepare(nil, p.hessian(), o)
		if err != nil {
			t.Fatal(err)
		}
		p.w[2*32+7] = bad
		if _, err = prep.Solve(context.Background(), nil, p.w, 3); !errors.Is(err, quant.ErrNonFinite) || !errors.As(err, &v) || v.What != "W" || v.Row != 2 || v.Col != 7 {
			t.Errorf("W with %v: %v", bad, err)
		}
		if _, err = quant.RTN(context.Background(), nil, p.w, 3, 32, o, nil); !errors.Is(err, quant.ErrNonFinite) {
			t.Errorf("RTN of W with %v: %v", bad, err)
		}
	}
	p := makeProblem(4, 3, 32, fullRank)
	p.h[5*32+5] = -1
	if _, err := quant.Prepare(nil, p.hessian(), o); !errors.Is(err, quant.ErrNegativeDiagonal) {
		t.Errorf("negative diagonal: %v", err)
	}
	p.h = p.h[:100]
	if _, err := quant.Prepare(nil, p.hessian(), o); !errors.Is(err, quant.ErrShape) {
		t.Errorf("short H: %v", err)
	}
}

// TestNoRows: a statistic of zero rows has every column dead; the module is rounded, and the record says why.
func TestNoRows(t *testing.T) {
	p := makeProblem(5, 7, 48, fullRank)
	h := quant.Hessian{N: 48, H: make([]float32, 48*48), Site: "expert 3"}
	prep, err := quant.Prepare(nil, h, smallOptions())
	if err != nil {
		t.Fatal(err)
	}
	r, err := prep.Solve(context.Background(), nil, p.w, p.out)
	if err != nil {
		t.Fatal(err)
	}
	if r.Record.Method != quant.MethodRTN || r.Record.Reason != quant.ReasonNoActivity || r.Record.OutputError != nil {
		t.Errorf("record %+v", r.Record)
	}
	plain, err := quant.RTN(context.Background(), nil, p.w, p.out, p.in, smallOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.Codes {
		if r.Codes[i] != plain.Codes[i] {
			t.Fatalf("code %d differs from RTN", i)
		}
	}
}

func TestOneRow(t *testing.T) {
	p := makeProblem(6, 33, 40, oneRow)
	r := p.solve(t, nil, smallOptions())
	checkSane(t, r)
	if r.Record.Method != quant.MethodGPTQ || *r.Record.OutputErrorRel > 1e-2 {
		t.Errorf("method %s, relative error %v", r.Record.Method, *r.Record.OutputErrorRel)
	}
}

// TestDeadColumnsAtSmallActivity: 10 % dead columns beside activations of rms 0.02. The mean must be that of the live
// columns: with a 1 for each dead column damping would be 125 times the activity. Dead columns are rounded, not zeroed.
func TestDeadColumnsAtSmallActivity(t *testing.T) {
	p := makeProblem(7, 35, 80, fullRank)
	for i := range p.x {
		p.x[i] = float32(0.02 * math.Sin(float64(i*i%7919)))
	}
	for r := range p.rows {
		for c := 0; c < 80; c += 10 {
			p.x[r*80+c] = 0
		}
	}
	p.h = gram(p.x, p.rows, 80)
	var sum float64
	for c := range 80 {
		sum += float64(p.h[c*80+c])
	}
	want := sum / 72
	o := smallOptions()
	r := p.solve(t, nil, o)
	if got := r.Record.Damping.Mean; relative(got, want) > 1e-6 || got > 1e-3 {
		t.Errorf("mean diagonal %v, want %v", got, want)
	}
	if len(r.Record.Dead) != 8 || r.Record.Dead[1] != 10 {
		t.Errorf("dead columns %v", r.Record.Dead)
	}
	q := make([]float32, len(p.w))
	r.Dequantize(q)
	zeroed := 0
	for row := range p.out {
		for c := 0; c < 80; c += 10 {
			s := r.Scales[row*r.Groups()+r.Group(c)]
			if d := q[row*80+c] - p.w[row*80+c]; d > s*0.5001 || d < -s*1.0001 {
				t.Errorf("dead weight [%d,%d] %v became %v, step %v", row, c, p.w[row*80+c], q[row*80+c], s)
			}
			if q[row*80+c] == 0 {
				zeroed++
			}
		}
	}
	if zeroed > 8*p.out/2 {
		t.Errorf("%d of %d dead weights became zero", zeroed, 8*p.out)
	}
}

// TestIndefiniteStatistic: the ladder, float64, then the declared fallback, each recorded.
func TestIndefiniteStatistic(t *testing.T) {
	p := makeProblem(8, 6, 32, fullRank)
	for i := range 32 {
		p.h[i*32+i] = 1
		for j := range i {
			p.h[i*32+j], p.h[j*32+i] = -1, -1 // smallest eigenvalue 1−31
		}
	}
	o := smallOptions()
	r := p.solve(t, nil, o)
	d := r.Record.Damping
	if r.Record.Method != quant.MethodRTN || r.Record.Reason != quant.ReasonNoFactor || d.Precision != "none" {
		t.Fatalf("record %+v damping %+v", r.Record, d)
	}
	var f32, f64 int
	for _, try := range d.Tries {
		switch try.Precision {
		case "f32":
			f32++
		case "f64":
			f64++
		}
	}
	if f32 < 2 || f64 < 2 || d.Tries[0].Share != 0.05 || math.Abs(d.Tries[1].Share-0.06) > 1e-12 {
		t.Errorf("tries %+v", d.Tries)
	}
	o.Fallback = "fail"
	if _, err := quant.Prepare(nil, p.hessian(), o); !errors.Is(err, quant.ErrNotPositiveDefinite) {
		t.Errorf("fallback fail: %v", err)
	}

	// A slightly indefinite H is cured by the ladder.
	q := makeProblem(9, 6, 32, fullRank)
	for i := range q.h {
		q.h[i] = 0
	}
	for i := range 32 {
		q.h[i*32+i] = 1
	}
	q.h[1], q.h[32] = 1.08, 1.08 // needs more than 0.08
	r = q.solve(t, nil, smallOptions())
	if got := r.Record.Damping; math.Abs(got.Share-0.09) > 1e-9 || len(got.Tries) != 4 || got.Precision != "f32" {
		t.Errorf("damping %+v", got)
	}
}

func TestOddShapes(t *testing.T) {
	for _, shape := range [][2]int{{1, 1}, {1, 17}, {31, 33}, {33, 31}, {65, 130}} {
		p := makeProblem(10, shape[0], shape[1], fullRank)
		for _, order := range []string{"natural", "desc", "gar"} {
			o := smallOptions()
			o.DescAct, o.ActGroupAware = order == "desc", order == "gar"
			r := p.solve(t, nil, o)
			checkSane(t, r)
			if g := (shape[1] + 15) / 16; r.Groups() != g || len(r.Scales) != shape[0]*g {
				t.Errorf("%v: %d groups, %d scales", shape, r.Groups(), len(r.Scales))
			}
		}
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p := makeProblem(11, 40, 32, fullRank)
	prep, err := quant.Prepare(nil, p.hessian(), smallOptions())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := prep.Solve(ctx, nil, p.w, p.out); !errors.Is(err, context.Canceled) {
		t.Errorf("solve: %v", err)
	}
	if _, err := quant.RTN(ctx, nil, p.w, p.out, p.in, smallOptions(), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("rtn: %v", err)
	}
}

// TestPositiveGroupsKeepTheirStep: the public implementations give a symmetric group without negative weights half the
// step, so that it saturates at 7/15 of its maximum. Ours does not; parity does.
func TestPositiveGroupsKeepTheirStep(t *testing.T) {
	p := makeProblem(12, 2, 16, fullRank)
	for i := range p.w {
		p.w[i] = float32(i%16+1) / 16
	}
	o := smallOptions()
	o.ScaleDType = quant.ScaleF32
	for _, c := range []struct {
		parity string
		scale  float32
	}{{"", 2.0 / 15}, {quant.ParityGPTQModel, 1.0 / 15}, {quant.ParityCompressedTensors, 2.0 / 15}} {
		o.Parity, o.ActGroupAware = c.parity, false
		r, err := quant.RTN(context.Background(), nil, p.w, 2, 16, o, nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.Scales[0] != c.scale {
			t.Errorf("parity %q: scale %v, want %v", c.parity, r.Scales[0], c.scale)
		}
	}
}

// TestZeroMin: containers that store zero−1 cannot hold a true zero of 0; the grid gives up a code instead.
func TestZeroMin(t *testing.T) {
	p := makeProblem(13, 4, 32, fullRank)
	for i := range p.w {
		p.w[i] = float32(math.Abs(float64(p.w[i]))) + 0.01
	}
	for _, mse := range []float64{0, 2.4} {
		for _, bits := range []int{2, 4} {
			o := smallOptions()
			o.Sym, o.ZeroMin, o.MSE, o.Bits = false, 1, mse, bits
			r := p.solve(t, nil, o)
			checkSane(t, r)
			for i, z := range r.Zeros {
				if z < 1 {
					t.Fatalf("zero %d is %d", i, z)
				}
				if top := r.Scales[i] * float32(o.MaxQ()-int(z)); mse == 0 && top < r.GroupHi[i]*0.99 {
					t.Errorf("group %d reaches %v, needs %v", i, top, r.GroupHi[i])
				}
			}
		}
	}
}

func TestContradictionsAreRefused(t *testing.T) {
	d := quant.DefaultOptions()
	for name, change := range map[string]func(*quant.Options){
		"bits":            func(o *quant.Options) { o.Bits = 9 },
		"group_size":      func(o *quant.Options) { o.GroupSize = 0 },
		"two orders":      func(o *quant.Options) { o.DescAct = true },
		"gar per row":     func(o *quant.Options) { o.GroupSize = -1 },
		"static per row":  func(o *quant.Options) { o.GroupSize, o.ActGroupAware, o.StaticGroups = -1, false, true },
		"mse":             func(o *quant.Options) { o.MSE = math.NaN() },
		"damp":            func(o *quant.Options) { o.DampPercent = 0 },
		"damp nan":        func(o *quant.Options) { o.DampPercent = math.NaN() },
		"increment":       func(o *quant.Options) { o.DampIncrement = -1 },
		"scale":           func(o *quant.Options) { o.ScaleDType = "fp8" },
		"grid with sym":   func(o *quant.Options) { o.FallbackGrid = quant.GridMean },
		"grid":            func(o *quant.Options) { o.FallbackGrid = "best" },
		"parity":          func(o *quant.Options) { o.Parity = "autoawq" },
		"parity gar+stat": func(o *quant.Options) { o.Parity, o.StaticGroups = quant.ParityGPTQModel, true },
		"parity ct gar":   func(o *quant.Options) { o.Parity = quant.ParityCompressedTensors },
		"block":           func(o *quant.Options) { o.BlockSize = 0 },
		"zero min":        func(o *quant.Options) { o.ZeroMin = 2 },
		"fallback":        func(o *quant.Options) { o.Fallback = "zero" },
	} {
		o := d
		change(&o)
		err := o.Validate()
		var e *quant.OptionError
		if !errors.Is(err, quant.ErrOptions) || !errors.As(err, &e) || e.Try == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := d.Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
}
