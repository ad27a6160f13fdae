package quant

import "quire/kernels"

// Result is one quantized weight. Columns are in natural order, groups in natural order unless GIdx says otherwise.
type Result struct {
	Out, In int
	// Bits and GroupSize (−1 resolved to In) are those of the solve.
	Bits, GroupSize int
	Sym             bool
	// Codes [out,in], 0..2^bits−1.
	Codes []uint8
	// Scales [out,G], finite, > 0, exactly representable in the options' ScaleDType.
	Scales []float32
	// Zeros [out,G] is the true zero point, 0..2^bits−1.
	Zeros []uint8
	// GIdx [in] is the group of each column; nil means column/GroupSize.
	GIdx []int32
	// Perm [in] is the visiting order, perm[new position] = column; nil means natural.
	Perm []int32
	// GroupLo and GroupHi [out,G] are the range behind each scale: min(0,·) and max(0,·) of the group's weights after
	// the feedback of all columns visited before, or of the original weights for static groups and RTN.
	GroupLo, GroupHi []float32
	// Candidate [out,G] is the step of the clip search that won (range·(1 − i/100)); bit 7 marks the neighbouring zero
	// point of a 2-bit search; 0x7f means that no candidate had a finite error. nil without a search.
	Candidate []uint8
	// GroupShare [G] is Σ over channels of e_g·H_gg·e_gᵀ·rows/2 for the group's own columns: the diagonal block of the
	// output error. Products between groups are left out, so the shares do not add up to the output error. nil if no
	// statistic was given.
	GroupShare []float64
	// Record is the account of how this came about.
	Record Record
}

// Group gives the group of column c.
func (r *Result) Group(c int) int {
	if r.GIdx != nil {
		return int(r.GIdx[c])
	}
	return c / r.GroupSize
}

// Groups is the number of groups per output channel.
func (r *Result) Groups() int { return (r.In + r.GroupSize - 1) / r.GroupSize }

// Dequantize writes float32(scale·(code−zero)) into dst [out,in].
func (r *Result) Dequantize(dst []float32) { r.dequantize(dst, 0, r.Out) }

// dequantize is Dequantize of channels r0..r1.
func (r *Result) dequantize(dst []float32, r0, r1 int) {
	g := r.Groups()
	for row := r0; row < r1; row++ {
		codes := r.Codes[row*r.In : (row+1)*r.In]
		d := dst[(row-r0)*r.In : (row-r0+1)*r.In]
		scales, zeros := r.Scales[row*g:(row+1)*g], r.Zeros[row*g:(row+1)*g]
		if r.GIdx == nil {
			for k := range g {
				lo, hi := k*r.GroupSize, min((k+1)*r.GroupSize, r.In)
				if hi-lo >= 16 {
					kernels.DequantizeGroup(d[lo:hi], codes[lo:hi], scales[k], float32(zeros[k]))
					continue
				}
				s, z := scales[k], int32(zeros[k])
				for c := lo; c < hi; c++ {
					d[c] = s * float32(int32(codes[c])-z)
				}
			}
			continue
		}
		for c := range d {
			k := r.GIdx[c]
			d[c] = scales[k] * float32(int32(codes[c])-int32(zeros[k]))
		}
	}
}

// newResult makes the tables of one weight.
func newResult(o Options, out, in int) *Result {
	g := o.Groups(in)
	r := &Result{
		Out: out, In: in, Bits: o.Bits, GroupSize: o.groupSize(in), Sym: o.Sym,
		Codes: make([]uint8, out*in), Scales: make([]float32, out*g), Zeros: make([]uint8, out*g),
		GroupLo: make([]float32, out*g), GroupHi: make([]float32, out*g),
	}
	if o.MSE > 0 {
		r.Candidate = make([]uint8, out*g)
	}
	return r
}

// setTable stores the grid of entry i of the [out,G] tables.
func (r *Result) setTable(i int, f *fitted) {
	r.Scales[i], r.Zeros[i] = f.scale, uint8(f.zero)
	r.GroupLo[i], r.GroupHi[i] = f.lo, f.hi
	if r.Candidate != nil {
		r.Candidate[i] = f.candidate
	}
}

// Names of methods in a Record.
const (
	MethodGPTQ = "gptq"
	MethodRTN  = "rtn"
)

// Reasons in a Record for codes of another method than the one asked for.
const (
	ReasonGuard      = "guard"       // rounding to nearest has the smaller output error
	ReasonNoFactor   = "no-factor"   // no damping made the statistic factorizable
	ReasonNoActivity = "no-activity" // every column of the statistic is dead
	ReasonFeedback   = "feedback"    // feedback left the range of float32
	ReasonFallback   = "fallback"    // the few-row policy
)

// Ways to an output error in a Record.
const (
	ErrorFromStatistic = "statistic" // (W−Q)·H·(W−Q)ᵀ, float32 products summed in float64
	// ErrorFromLoss: the column loop's own errors less what damping added, an identity that a sample of the channels
	// confirmed from H to 2e-4.
	ErrorFromLoss = "loss"
)

// record fills in what the options say.
func (o Options) record(method string, out, in int) Record {
	return Record{
		Method: method, Asked: method, Out: out, In: in, Bits: o.Bits, GroupSize: o.groupSize(in), Sym: o.Sym,
		Static: o.staticGroups(), MSE: o.MSE, Block: o.block(in), ScaleDType: o.ScaleDType, ZeroMin: o.ZeroMin,
		Grid: GridRTN, Parity: o.Parity, Order: orderNatural,
	}
}

// fillRecord fills in what the statistic says.
func (p *Prepared) fillRecord(r *Record) {
	if r.Asked == MethodGPTQ && r.Method == MethodGPTQ {
		r.Order = p.kind
	}
	r.Site, r.Rows, r.NativeRows, r.HessianSHA256 = p.h.Site, p.h.Rows, p.h.NativeRows, p.h.SHA256
	r.Dead = p.dead
	d := p.damping
	r.Damping = &d
}

// Record is the account of one decision: what an audit needs besides the tables of the Result. It marshals to JSON.
type Record struct {
	Method string `json:"method"` // what the codes are: gptq or rtn
	Asked  string `json:"asked"`  // what was asked for
	// Reason says why Method differs from Asked: empty or one of the Reason constants.
	Reason string `json:"reason,omitempty"`

	Out        int     `json:"out"`
	In         int     `json:"in"`
	Bits       int     `json:"bits"`
	GroupSize  int     `json:"group_size"`
	Sym        bool    `json:"sym"`
	Order      string  `json:"order"` // natural, desc_act or act_group_aware
	Static     bool    `json:"static_groups"`
	MSE        float64 `json:"mse"`
	Block      int     `json:"block"` // columns between two tail updates, as used
	ScaleDType string  `json:"scale_dtype"`
	ZeroMin    int     `json:"zero_min,omitempty"`
	Grid       string  `json:"grid"`
	Parity     string  `json:"parity,omitempty"`

	Site       string   `json:"site,omitempty"`
	Rows       int64    `json:"rows"`
	NativeRows int64    `json:"native_rows"`
	Dead       []int32  `json:"dead_columns,omitempty"`
	Damping    *Damping `json:"damping,omitempty"`

	HessianSHA256 string `json:"hessian_sha256,omitempty"`
	WeightSHA256  string `json:"weight_sha256,omitempty"`

	// OutputError is ‖(W−Q)X‖² over the statistic's rows, OutputErrorRel the same over ‖WX‖².
	OutputError    *float64 `json:"output_error,omitempty"`
	OutputErrorRel *float64 `json:"output_error_rel,omitempty"`
	// ErrorFrom tells how OutputError came about: one of the ErrorFrom constants.
	ErrorFrom string `json:"error_from,omitempty"`
	// Guard tells how the result compares with rounding to nearest.
	Guard *GuardRecord `json:"guard,omitempty"`
	// Loss is Σ((w−q)/U_ii)²/2, the quantity that public implementations log times their row count.
	Loss *float64 `json:"loss,omitempty"`

	// Saturated counts codes at 0 or maxq.
	Saturated int64 `json:"saturated_codes"`
	// ScaleFloor counts groups whose scale was raised to the smallest that the type holds.
	ScaleFloor int64 `json:"scale_floor,omitempty"`
	// ZeroGroups counts groups without a non-zero weight.
	ZeroGroups int64 `json:"zero_groups,omitempty"`
}

// Damping is the ladder of one statistic.
type Damping struct {
	// Mean is the mean diagonal that the shares refer to: over live columns (over all, dead ones as 1, under parity).
	Mean float64 `json:"mean_diagonal"`
	// Share is the DampPercent that succeeded and Added = Share·Mean what was added; 0 if none did.
	Share float64 `json:"share"`
	Added float64 `json:"added"`
	// Precision is the arithmetic that succeeded: f32, f64, or none.
	Precision string `json:"precision"`
	// Tries lists every failed try.
	Tries []DampingTry `json:"failed,omitempty"`
}

// DampingTry is one factorization that failed.
type DampingTry struct {
	Share     float64 `json:"share"`
	Floor     float64 `json:"floor,omitempty"` // diagonal floor, only under parity
	Precision string  `json:"precision"`
	Pivot     int     `json:"pivot"` // visited position of the pivot that was not positive
	Value     float64 `json:"value"`
}

// GuardRecord compares the solver with rounding to nearest under the same options.
type GuardRecord struct {
	SolverError float64 `json:"solver_error"`
	// RTNError is exact if RTNComplete, else the sum over the channels looked at, which already exceeds SolverError.
	RTNError    float64 `json:"rtn_error"`
	RTNComplete bool    `json:"rtn_complete"`
	KeptRTN     bool    `json:"kept_rtn"`
}
