package quant

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Treatments of an expert's statistic, and the names that --fallback takes (own is not one of them).
const (
	UseOwn     = "own"      // enough rows: the expert's own statistic
	UseBlend   = "blend"    // (n·H_expert + κ·H_all)/(n+κ)
	UseAllRows = "all-rows" // the statistic of all rows of the block
	UseRTN     = "rtn"      // no statistic: rounding to nearest
	UseCopy    = "copy"     // the layer's routed experts stay in their source form
	UseFail    = "fail"     // stop the run
)

// DefaultFewRows is the measured best fallback (docs/few-rows.md).
const DefaultFewRows = UseBlend

// RowFloor is the number of natively routed rows below which the few-row policy applies: a fixed count, a share of the
// run's rows, or (zero value) the larger of 32 and in.
type RowFloor struct {
	Count int64
	Share float64
	Set   bool
}

// ParseRowFloor reads "", "256" or "0.5%".
func ParseRowFloor(s string) (RowFloor, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return RowFloor{}, nil
	}
	if p, ok := strings.CutSuffix(s, "%"); ok {
		v, err := strconv.ParseFloat(strings.TrimSpace(p), 64)
		if err != nil || !(v >= 0 && v <= 100) {
			return RowFloor{}, &OptionError{Option: "min_rows", Value: strconv.Quote(s), Reason: "not a share of the rows", Try: `write a number such as 256, or a share such as 0.5%`}
		}
		return RowFloor{Share: v / 100, Set: true}, nil
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v < 0 {
		return RowFloor{}, &OptionError{Option: "min_rows", Value: strconv.Quote(s), Reason: "not a row count", Try: `write a number such as 256, or a share such as 0.5%`}
	}
	return RowFloor{Count: v, Set: true}, nil
}

// Rows is the floor for a module with in columns in a run of total calibration rows. Out of sample a statistic of in/2 own
// rows is no better than none, and one of in rows loses a quarter to the blend; above, the gain shrinks (2·in: an eighth,
// 4·in: 3 %) while the blend costs a pass of all rows through the expert (docs/few-rows.md).
func (f RowFloor) Rows(in int, total int64) int64 {
	if !f.Set {
		return max(32, int64(in))
	}
	if f.Share > 0 {
		return int64(math.Ceil(float64(f.Share * float64(total))))
	}
	return f.Count
}

// Kappa is the weight, in rows, of the layer's common statistic in a blend: 2·in, the best of in/2 … 8·in out of sample
// (docs/few-rows.md).
func Kappa(in int) float64 { return 2 * float64(in) }

// Coverage is what is known of one expert's statistic before it is used.
type Coverage struct {
	In     int
	Native int64 // rows that the model's own router sent
	Rows   int64 // rows behind the expert's statistic (more than Native with routing all or top-k=N)
	All    int64 // rows of the block
	Total  int64 // calibration rows of the run
}

// Treatment is the outcome of the policy.
type Treatment struct {
	Use      string  `json:"use"`
	Fallback bool    `json:"fallback"`
	Native   int64   `json:"native_rows"`
	Floor    int64   `json:"min_rows"`
	Kappa    float64 `json:"kappa,omitempty"`
	Reason   string  `json:"reason,omitempty"`
}

// Decide applies the few-row policy to one expert: its own statistic from the floor on, else the fallback. Coverage is
// judged by natively routed rows, whatever rows fed the statistic; where routing gave the statistic all rows there is
// nothing to fall back to, and it is used as it is.
func Decide(c Coverage, floor RowFloor, fallback string) (Treatment, error) {
	switch fallback {
	case UseBlend, UseAllRows, UseRTN, UseCopy, UseFail:
	default:
		return Treatment{}, &OptionError{Option: "fallback", Value: strconv.Quote(fallback), Reason: "unknown", Try: "use blend, all-rows, rtn, copy or fail"}
	}
	t := Treatment{Use: UseOwn, Native: c.Native, Floor: floor.Rows(c.In, c.Total)}
	if c.Native >= t.Floor {
		return t, nil
	}
	t.Fallback = true
	t.Reason = fmt.Sprintf("%d natively routed rows, below %d", c.Native, t.Floor)
	t.Use = fallback
	switch fallback {
	case UseBlend:
		switch {
		case c.All == 0:
			t.Use = UseRTN
			t.Reason += "; no row reached the block at all"
		case c.Rows >= c.All:
			t.Use = UseAllRows
			t.Reason += "; the statistic already has every row"
		default:
			t.Kappa = Kappa(c.In)
		}
	case UseAllRows:
		if c.All == 0 {
			t.Use = UseRTN
			t.Reason += "; no row reached the block at all"
		}
	}
	return t, nil
}

// Blend writes (n·H_expert + κ·H_all)/(n+κ) into dst; every element is computed in float64 and rounded once. expert may
// be nil when n is 0. Lengths must be equal; dst may be either input.
func Blend(dst, expert []float32, n int64, all []float32, kappa float64) error {
	if len(all) != len(dst) || (n > 0 && len(expert) != len(dst)) {
		return fmt.Errorf("%w: blend of %d and %d values into %d", ErrShape, len(expert), len(all), len(dst))
	}
	if n < 0 || !(kappa >= 0) || (n == 0 && kappa == 0) {
		return fmt.Errorf("%w: blend of %d rows with kappa %g", ErrShape, n, kappa)
	}
	fn := float64(n)
	sum := fn + kappa
	if n == 0 {
		copy(dst, all)
		return nil
	}
	for i, a := range all {
		dst[i] = float32((float64(fn*float64(expert[i])) + float64(kappa*float64(a))) / sum)
	}
	return nil
}

// Statistic gives the statistic that a treatment asks for: the expert's own, the blend, all rows, or nil for rtn, copy
// and fail. A blend is written to scratch [in,in], which is allocated when nil. Rows of a blend are n+κ, rounded.
func Statistic(t Treatment, own, all *Hessian, scratch []float32) (*Hessian, error) {
	switch t.Use {
	case UseOwn:
		return own, nil
	case UseAllRows:
		h := *all
		h.NativeRows = t.Native
		return &h, nil
	case UseBlend:
		if scratch == nil {
			scratch = make([]float32, len(all.H))
		}
		var mine []float32
		var rows int64
		if own != nil {
			mine, rows = own.H, own.Rows
		}
		if err := Blend(scratch, mine, rows, all.H, t.Kappa); err != nil {
			return nil, err
		}
		h := &Hessian{N: all.N, H: scratch, Rows: rows + int64(math.RoundToEven(t.Kappa)), NativeRows: t.Native, Site: all.Site}
		if own != nil {
			h.Site = own.Site
		}
		return h, nil
	}
	return nil, nil
}
