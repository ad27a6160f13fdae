package quant

import (
	"fmt"
	"math"
)

// Names that Options.Parity takes. Empty means this package's own rules.
const (
	ParityGPTQModel         = "gptqmodel"
	ParityCompressedTensors = "compressed-tensors"
)

// Names that Options.ScaleDType takes.
const (
	ScaleF32  = "f32"
	ScaleF16  = "f16"
	ScaleBF16 = "bf16"
)

// Names that Options.FallbackGrid takes: the grids of reference/gptqmodel.md 1.7.
const (
	GridRTN      = "rtn"
	GridMidpoint = "midpoint"
	GridMean     = "mean"
	GridMedian   = "median"
	GridStdClip  = "stdclip"
)

// Options are the settings of one module's quantization. They are validated once, by Validate.
type Options struct {
	// Bits of a code, 2..8.
	Bits int
	// GroupSize is the number of columns that share a scale, −1 for the whole output channel. The last group may be
	// short.
	GroupSize int
	// Sym fixes the zero point at 2^(bits−1) and the range at ±absmax.
	Sym bool
	// DescAct visits columns by descending H[i,i]. Without StaticGroups the groups are made of visited columns, so the
	// result has a g_idx that is not natural.
	DescAct bool
	// ActGroupAware visits groups by descending largest H[i,i] and columns inside a group by descending H[i,i]; g_idx
	// stays natural. It needs a group size and excludes DescAct.
	ActGroupAware bool
	// StaticGroups takes every group's range from the original weights.
	StaticGroups bool
	// MSE > 0 is the exponent of the clip search's error norm (2.4 is usual); 0 turns the search off.
	MSE float64
	// BlockSize is the most columns between two updates of the columns behind them, and the reach of a group's range: a
	// group is fitted on the weights as they stand at the start of its block.
	BlockSize int
	// DampPercent is the share of the mean live diagonal that is added to the diagonal, in (0,1).
	DampPercent float64
	// DampIncrement is added to DampPercent when the factorization fails, in [0,1); 0 means one try.
	DampIncrement float64
	// ScaleDType is what a scale is rounded to inside the solver: f32, f16 or bf16.
	ScaleDType string
	// ZeroMin is the smallest true zero point of an asymmetric grid: 0, or 1 for containers that store zero−1.
	ZeroMin int
	// Fallback is what a statistic that cannot be factorized leads to: rtn, or fail for an error.
	Fallback string
	// FallbackGrid is the grid of RTN: rtn, or (asymmetric only) midpoint, mean, median, stdclip.
	FallbackGrid string
	// NoGuard keeps the solver's codes even if rounding to nearest has the smaller output error.
	NoGuard bool
	// Parity reproduces a public implementation's numbers, quirks included: gptqmodel or compressed-tensors.
	Parity string
}

// DefaultOptions are the settings of a run that names none.
func DefaultOptions() Options {
	return Options{
		Bits: 4, GroupSize: 128, Sym: true, ActGroupAware: true, BlockSize: 128,
		DampPercent: 0.05, DampIncrement: 0.01, ScaleDType: ScaleBF16,
		Fallback: "rtn", FallbackGrid: GridRTN,
	}
}

// MaxQ is the largest code.
func (o Options) MaxQ() int { return 1<<o.Bits - 1 }

// Groups is the number of groups of a channel with in columns.
func (o Options) Groups(in int) int {
	g := o.groupSize(in)
	return (in + g - 1) / g
}

// groupSize is the group size with −1 resolved.
func (o Options) groupSize(in int) int {
	if o.GroupSize == -1 || o.GroupSize > in {
		return max(in, 1)
	}
	return o.GroupSize
}

// staticGroups tells whether ranges come from the original weights.
func (o Options) staticGroups() bool {
	return o.StaticGroups || o.Parity == ParityCompressedTensors || o.GroupSize == -1
}

// guarded tells whether the result is compared with rounding to nearest.
func (o Options) guarded() bool { return !o.NoGuard && o.Parity == "" }

// OptionError is a setting that Validate refuses.
type OptionError struct {
	Option string // field's recipe name
	Value  any
	Reason string
	Try    string
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("%s %v: %s; %s", e.Option, e.Value, e.Reason, e.Try)
}

// Unwrap gives ErrOptions.
func (e *OptionError) Unwrap() error { return ErrOptions }

// Validate refuses settings that contradict each other or that no solver can follow. The error is an *OptionError.
func (o Options) Validate() error {
	bad := func(option string, value any, reason, remedy string) error {
		return &OptionError{Option: option, Value: value, Reason: reason, Try: remedy}
	}
	if o.Bits < 2 || o.Bits > 8 {
		return bad("bits", o.Bits, "codes have 2 to 8 bits", "choose 2..8")
	}
	if o.GroupSize != -1 && o.GroupSize < 1 {
		return bad("group_size", o.GroupSize, "a group has at least one column", "choose a positive size, or -1 for one group per output channel")
	}
	if o.DescAct && o.ActGroupAware {
		return bad("act_group_aware", true, "desc_act and act_group_aware are two orders", "turn one of them off")
	}
	if o.ActGroupAware && o.GroupSize == -1 {
		return bad("act_group_aware", true, "there are no groups to order with group_size -1", "give a group size or use no-act-group-aware")
	}
	if o.StaticGroups && o.GroupSize == -1 {
		return bad("static_groups", true, "with group_size -1 the range is that of the original channel anyway", "give a group size or leave static_groups off")
	}
	if !(o.MSE >= 0) || o.MSE > 16 {
		return bad("mse", o.MSE, "the exponent of the error norm lies in 0..16", "use 0 for no search, 2.4 for the usual one")
	}
	if o.BlockSize < 1 {
		return bad("block_size", o.BlockSize, "a block has at least one column", "use 128")
	}
	if !(o.DampPercent > 0 && o.DampPercent < 1) {
		return bad("damp_percent", o.DampPercent, "damping is a share of the mean diagonal between 0 and 1", "use 0.05")
	}
	if !(o.DampIncrement >= 0 && o.DampIncrement < 1) || math.IsNaN(o.DampIncrement) {
		return bad("damp_increment", o.DampIncrement, "the step of the damping ladder lies in 0..1", "use 0.01")
	}
	switch o.ScaleDType {
	case ScaleF32, ScaleF16, ScaleBF16:
	default:
		return bad("scale_dtype", fmt.Sprintf("%q", o.ScaleDType), "unknown", "use f32, f16 or bf16")
	}
	if o.ZeroMin != 0 && o.ZeroMin != 1 {
		return bad("zero_min", o.ZeroMin, "the smallest zero point is 0 or 1", "use 1 for containers that store zero-1")
	}
	switch o.Fallback {
	case "rtn", "fail":
	default:
		return bad("fallback", fmt.Sprintf("%q", o.Fallback), "a statistic that cannot be factorized leads to rtn or fail", "use rtn or fail")
	}
	switch o.FallbackGrid {
	case GridRTN:
	case GridMidpoint, GridMean, GridMedian, GridStdClip:
		if o.Sym && o.Parity != ParityGPTQModel {
			return bad("fallback_grid", o.FallbackGrid, "this grid places its zero point freely, which a symmetric container cannot store", "use fallback_grid rtn, or no-sym")
		}
	default:
		return bad("fallback_grid", fmt.Sprintf("%q", o.FallbackGrid), "unknown", "use rtn, midpoint, mean, median or stdclip")
	}
	switch o.Parity {
	case "":
	case ParityGPTQModel:
		if o.StaticGroups && o.ActGroupAware {
			return bad("parity", o.Parity, "with static_groups and act_group_aware that implementation looks groups up by visited position and uses another group's scale", "leave parity off for this pair, or turn one of the two off")
		}
		if o.ZeroMin != 0 {
			return bad("zero_min", o.ZeroMin, "that implementation has no lower bound of the zero point", "leave parity off or use format gptq_v2")
		}
	case ParityCompressedTensors:
		if o.ActGroupAware {
			return bad("act_group_aware", true, "compressed-tensors has no group-aware order", "use desc_act or the natural order with this parity")
		}
		if o.MSE > 0 {
			return bad("mse", o.MSE, "the clip search here is not that of compressed-tensors' observers", "use mse 0 with this parity")
		}
		if o.FallbackGrid != GridRTN {
			return bad("fallback_grid", o.FallbackGrid, "compressed-tensors rounds to nearest on its own grid", "use fallback_grid rtn with this parity")
		}
		if o.ZeroMin != 0 {
			return bad("zero_min", o.ZeroMin, "that implementation has no lower bound of the zero point", "leave parity off")
		}
	default:
		return bad("parity", fmt.Sprintf("%q", o.Parity), "unknown", "use gptqmodel or compressed-tensors")
	}
	return nil
}
