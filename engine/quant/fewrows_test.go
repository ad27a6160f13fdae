package quant_test

import (
	"math"
	"testing"

	"quire/engine/quant"
)

func TestDecide(t *testing.T) {
	share, err := quant.ParseRowFloor("0.5%")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		cov      quant.Coverage
		floor    quant.RowFloor
		fallback string
		use      string
		fell     bool
	}{
		{"floor is 32 for narrow inputs", quant.Coverage{In: 16, Native: 32, Rows: 32, All: 900}, quant.RowFloor{}, quant.UseBlend, quant.UseOwn, false},
		{"one below", quant.Coverage{In: 16, Native: 31, Rows: 31, All: 900}, quant.RowFloor{}, quant.UseBlend, quant.UseBlend, true},
		{"in", quant.Coverage{In: 2048, Native: 2047, Rows: 2047, All: 9000}, quant.RowFloor{}, quant.UseAllRows, quant.UseAllRows, true},
		{"in reached", quant.Coverage{In: 2048, Native: 2048, Rows: 2048, All: 9000}, quant.RowFloor{}, quant.UseAllRows, quant.UseOwn, false},
		{"no row", quant.Coverage{In: 64, All: 900}, quant.RowFloor{}, quant.UseBlend, quant.UseBlend, true},
		{"no row anywhere", quant.Coverage{In: 64}, quant.RowFloor{}, quant.UseBlend, quant.UseRTN, true},
		{"all tokens mode", quant.Coverage{In: 64, Native: 3, Rows: 900, All: 900}, quant.RowFloor{}, quant.UseBlend, quant.UseAllRows, true},
		{"share", quant.Coverage{In: 64, Native: 49, Rows: 49, All: 900, Total: 10000}, share, quant.UseRTN, quant.UseRTN, true},
		{"share reached", quant.Coverage{In: 64, Native: 50, Rows: 50, All: 900, Total: 10000}, share, quant.UseRTN, quant.UseOwn, false},
		{"copy", quant.Coverage{In: 64, Native: 1, Rows: 1, All: 900}, quant.RowFloor{}, quant.UseCopy, quant.UseCopy, true},
	} {
		got, err := quant.Decide(c.cov, c.floor, c.fallback)
		if err != nil || got.Use != c.use || got.Fallback != c.fell || (got.Fallback && got.Reason == "") {
			t.Errorf("%s: %+v %v", c.name, got, err)
		}
	}
	if _, err := quant.Decide(quant.Coverage{}, quant.RowFloor{}, "zero"); err == nil {
		t.Error("an unknown fallback was accepted")
	}
	for _, bad := range []string{"-1", "x", "101%", "-1%", "1.5", "NaN%"} {
		if _, err := quant.ParseRowFloor(bad); err == nil {
			t.Errorf("min_rows %q was accepted", bad)
		}
	}
}

func TestBlend(t *testing.T) {
	expert, all := []float32{3, 0, -1}, []float32{1, 2, 5}
	dst := make([]float32, 3)
	if err := quant.Blend(dst, expert, 8, all, 32); err != nil {
		t.Fatal(err)
	}
	for i, want := range []float32{1.4, 1.6, 3.8} { // (8·3+32·1)/40, …
		if math.Abs(float64(dst[i]-want)) > 1e-6 {
			t.Errorf("blend[%d] = %v, want %v", i, dst[i], want)
		}
	}
	if err := quant.Blend(dst, nil, 0, all, 32); err != nil || dst[2] != 5 {
		t.Errorf("no own rows: %v %v", dst, err)
	}
	if err := quant.Blend(dst, expert[:2], 8, all, 32); err == nil {
		t.Error("a short statistic was accepted")
	}
	own := &quant.Hessian{N: 1, H: []float32{4}, Rows: 8, Site: "expert"}
	whole := &quant.Hessian{N: 1, H: []float32{1}, Rows: 900, Site: "all"}
	h, err := quant.Statistic(quant.Treatment{Use: quant.UseBlend, Kappa: 8, Native: 8}, own, whole, nil)
	if err != nil || h.H[0] != 2.5 || h.Rows != 16 || h.NativeRows != 8 {
		t.Errorf("%+v %v", h, err)
	}
	if h, err := quant.Statistic(quant.Treatment{Use: quant.UseRTN}, own, whole, nil); h != nil || err != nil {
		t.Errorf("rtn: %+v %v", h, err)
	}
}
