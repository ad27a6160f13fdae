package quant

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"

	"quire/kernels"
)

// Scope is what a method decides about in one go.
type Scope string

const (
	// ScopeModule decides linear by linear (GPTQ, RTN).
	ScopeModule Scope = "module"
	// ScopeSite decides about all linears that read one input (AWQ scales, static input scales).
	ScopeSite Scope = "site"
	// ScopeFusedSet decides something common to a fused set before its modules (second-level scales of float formats).
	ScopeFusedSet Scope = "fused-set"
)

// Needs is what a method wants to see of the calibration; the engine captures nothing that no method asked for.
type Needs struct {
	Scope Scope
	// Gram: XᵀX of the rows that the linears multiply (the q stream).
	Gram bool
	// Cross: D = (X_fp − X_q)ᵀ X_q over rows joined by id; implies a second stream.
	Cross bool
	// Absolute: mean |x| per column. Range: extremes per column.
	Absolute, Range bool
	// TokenRows > 0: that many rows of the site itself, replayed in calibration order; −1 for all.
	TokenRows int
	// FPStream: activations through original weights beside those through quantized ones.
	FPStream bool
	// Calibration is false for a method that looks at weights only: no forward is run for it.
	Calibration bool
}

// Stream names activations: through quantized layers, or through original weights.
type Stream string

const (
	StreamQ  Stream = "q"
	StreamFP Stream = "fp"
)

// RowID identifies a token row across streams and routings.
type RowID struct{ Batch, Position int32 }

// RowBlock is a run of token rows of one site, in calibration order.
type RowBlock struct {
	IDs []RowID
	// X [len(IDs), in] holds exactly the values that the linear multiplies.
	X []float32
}

// Linear is one weight of a unit.
type Linear struct {
	Module string
	W      []float32 // [out,in]
	Out    int
	// Options of this module (rules may differ inside a unit except where loaders fuse).
	Options Options
}

// Unit is what a method decides about: one linear, the linears of a site, or a fused set.
type Unit struct {
	Subject string // natural key of the decision
	In      int
	Linears []Linear
}

// Inputs gives a method what its Needs asked for. What was not asked for is an error.
type Inputs interface {
	// Gram is the site's second-moment statistic after the few-row policy; nil if the policy says rtn.
	Gram(ctx context.Context) (*Hessian, error)
	// Prepared is Prepare of that statistic, computed once however many linears ask with equal options.
	Prepared(ctx context.Context, o Options) (*Prepared, error)
	// Cross is D [in,in] with the number of joined rows.
	Cross(ctx context.Context) (d []float32, rows int64, err error)
	// Columns gives per-column statistics; slices that were not asked for are nil.
	Columns(ctx context.Context) (meanAbs, lo, hi []float32, err error)
	// Rows yields token rows of a stream in calibration order; may be called more than once.
	Rows(ctx context.Context, s Stream) iter.Seq2[RowBlock, error]
	// Joint is the decision of the enclosing scope (site or fused set), nil if there is none.
	Joint() json.RawMessage
}

// Decision is what a method decided about a unit.
type Decision struct {
	// Joint is what holds for the whole unit (scales folded into the norm, second-level scales); the engine stores it and
	// applies InputScale before the modules are solved.
	Joint json.RawMessage
	// InputScale [in], if not nil, divides the unit's input and multiplies the linears' columns.
	InputScale []float32
	// Results has one entry per linear, or is nil for a method that decides only Joint (the modules come afterwards).
	Results []*Result
}

// Method is one way to quantize. Implementations hold no state between units.
type Method interface {
	Name() string
	Needs(o Options) Needs
	Decide(ctx context.Context, pool *kernels.Pool, u Unit, in Inputs) (*Decision, error)
}

// Methods is the table of methods by name.
var Methods = map[string]Method{
	MethodGPTQ: gptqMethod{},
	MethodRTN:  rtnMethod{},
}

// Lookup finds a method.
func Lookup(name string) (Method, error) {
	if m, ok := Methods[name]; ok {
		return m, nil
	}
	return nil, &OptionError{Option: "method", Value: fmt.Sprintf("%q", name), Reason: "unknown", Try: "use gptq or rtn"}
}

type gptqMethod struct{}

func (gptqMethod) Name() string { return MethodGPTQ }

func (gptqMethod) Needs(Options) Needs {
	return Needs{Scope: ScopeModule, Gram: true, Calibration: true}
}

func (gptqMethod) Decide(ctx context.Context, pool *kernels.Pool, u Unit, in Inputs) (*Decision, error) {
	d := &Decision{}
	for _, l := range u.Linears {
		h, err := in.Gram(ctx)
		if err != nil {
			return nil, err
		}
		var r *Result
		if h == nil || h.Rows == 0 {
			if r, err = RTN(ctx, pool, l.W, l.Out, u.In, l.Options, nil); err == nil {
				r.Record.Asked, r.Record.Reason = MethodGPTQ, ReasonFallback
			}
		} else {
			var p *Prepared
			if p, err = in.Prepared(ctx, l.Options); err == nil {
				r, err = p.Solve(ctx, pool, l.W, l.Out)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.Module, err)
		}
		d.Results = append(d.Results, r)
	}
	return d, nil
}

type rtnMethod struct{}

func (rtnMethod) Name() string { return MethodRTN }

func (rtnMethod) Needs(Options) Needs { return Needs{Scope: ScopeModule} }

func (rtnMethod) Decide(ctx context.Context, pool *kernels.Pool, u Unit, _ Inputs) (*Decision, error) {
	d := &Decision{}
	for _, l := range u.Linears {
		r, err := RTN(ctx, pool, l.W, l.Out, u.In, l.Options, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.Module, err)
		}
		d.Results = append(d.Results, r)
	}
	return d, nil
}
