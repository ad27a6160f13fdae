package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	"quire/engine/format"
	"quire/engine/quant"
	"quire/kernels"
	"quire/ledger"
	"quire/ledger/codec"
)

// solverOptions are the options of one module's solve.
func (id *Identity) solverOptions(s Scheme) quant.Options {
	o := quant.Options{
		Bits: s.Bits, GroupSize: s.GroupSize, Sym: s.Sym, DescAct: s.DescAct, ActGroupAware: s.ActGroupAware, MSE: s.MSE,
		StaticGroups: id.StaticGroups && s.GroupSize > 0 && !s.ActGroupAware, BlockSize: id.BlockSize, DampPercent: id.DampPercent, DampIncrement: id.DampIncrement,
		ScaleDType: id.ScaleDType, Fallback: quant.UseRTN, FallbackGrid: id.FallbackGrid, Parity: id.Parity,
	}
	if id.Format == "gptq" && !s.Sym { // that container stores zero-1
		o.ZeroMin = 1
	}
	if id.Fallback == quant.UseFail {
		o.Fallback = quant.UseFail
	}
	return o
}

// siteInputs answers a method's questions about one site. Prepare runs once for linears of equal options. What no method
// of this version needs is not captured, and asking for it is an error.
type siteInputs struct {
	pool     *kernels.Pool
	h        *quant.Hessian // nil: no statistic (few-row policy rtn, or a method without calibration)
	prepared map[quant.Options]*quant.Prepared
}

func (in *siteInputs) Gram(context.Context) (*quant.Hessian, error) { return in.h, nil }

func (in *siteInputs) Prepared(_ context.Context, o quant.Options) (*quant.Prepared, error) {
	if p, ok := in.prepared[o]; ok {
		return p, nil
	}
	p, err := quant.Prepare(in.pool, *in.h, o)
	if err != nil {
		return nil, err
	}
	if in.prepared == nil {
		in.prepared = map[quant.Options]*quant.Prepared{}
	}
	in.prepared[o] = p
	return p, nil
}

var errNotCaptured = errors.New("the method asks for something that its Needs did not name")

func (in *siteInputs) Cross(context.Context) ([]float32, int64, error) { return nil, 0, errNotCaptured }

func (in *siteInputs) Columns(context.Context) (meanAbs, lo, hi []float32, err error) {
	return nil, nil, nil, errNotCaptured
}

func (in *siteInputs) Rows(context.Context, quant.Stream) iter.Seq2[quant.RowBlock, error] {
	return func(yield func(quant.RowBlock, error) bool) { yield(quant.RowBlock{}, errNotCaptured) }
}

func (in *siteInputs) Joint() json.RawMessage { return nil }

// solve quantizes one weight [out,in] by the module's method.
func solve(ctx context.Context, pool *kernels.Pool, m *ModulePlan, id *Identity, w []float32, in *siteInputs) (*quant.Result, error) {
	method, err := quant.Lookup(m.Scheme.Method)
	if err != nil {
		return nil, err
	}
	unit := quant.Unit{Subject: m.Module, In: m.In, Linears: []quant.Linear{{Module: m.Module, W: w, Out: m.Out, Options: id.solverOptions(*m.Scheme)}}}
	d, err := method.Decide(ctx, pool, unit, in)
	if err != nil {
		return nil, fmt.Errorf("layer %d: %w", m.Layer, err)
	}
	return d.Results[0], nil
}

// weightDigest is what the record of a decision says of the weight.
func weightDigest(w []float32) string {
	if digestsOff {
		return ""
	}
	return quant.Digest(w)
}

// decision is what goes into the ledger about one solved module.
type decision struct {
	plan      *ModulePlan
	site      string
	result    *quant.Result
	treatment *quant.Treatment
	rows      int64
	native    int64
	inputs    []ledger.Ref // hessian and source events, in order
	hessian   string
	common    string
}

// write hands the decision to the ledger and gives its record.
func (d *decision) write(ctx context.Context, s Store, f *futures) DecisionRecord {
	r, m := d.result, d.plan
	rec := DecisionRecord{
		Layer: m.Layer, Module: m.Module, Expert: m.Expert, Site: d.site, Scheme: *m.Scheme, Method: r.Record.Method, Reason: r.Record.Reason,
		Rows: d.rows, NativeRows: d.native, Guard: r.Record.Reason == quant.ReasonGuard, Treatment: d.treatment, Solver: r.Record,
		WeightSHA: r.Record.WeightSHA256, CodesSHA: digest(r.Codes), HessianKey: d.hessian, HessianAll: d.common,
	}
	if d.treatment != nil && d.treatment.Fallback {
		rec.Fallback = d.treatment.Use
	}
	if dm := r.Record.Damping; dm != nil {
		rec.Damp = dm.Share
	}
	if v := r.Record.OutputError; v != nil {
		rec.Error = *v
	}
	if v := r.Record.OutputErrorRel; v != nil {
		rec.RelError = *v
	}
	h := sha256.New()
	for _, in := range d.inputs {
		fmt.Fprintf(h, "%s %s\n", in.Key, in.Digest)
	}
	rec.InputsSHA = hex.EncodeToString(h.Sum(nil))

	e := ledger.Event{Type: TypeDecision, Schema: 1, Key: keyDecision(m.Layer, m.Module), Inputs: d.inputs}
	e.Record = record(rec)
	segment := segmentOf(m.Layer)
	f.put(ctx, s, e,
		blob{role: "groups", class: ledger.ClassPermanent, segment: segment, codec: codec.Planes4, bytes: encodeGroups(r)},
		blob{role: "perm", class: ledger.ClassPermanent, segment: segment, codec: codec.Planes4, bytes: bytesOf(r.Perm)},
		blob{role: "gidx", class: ledger.ClassPermanent, segment: segment, codec: codec.Planes4, bytes: bytesOf(r.GIdx)},
		blob{role: "codes", class: ledger.ClassCodes, segment: segment, codec: codec.None, bytes: packCodes(r.Codes, r.Bits)})
	return rec
}

// encodeGroups is scales, lo and hi as float32 [out,G] each, then zeros and, where there was a search, candidates as
// uint8 [out,G].
func encodeGroups(r *quant.Result) []byte {
	b := make([]byte, 0, 14*len(r.Scales))
	b = append(b, bytesOf(r.Scales)...)
	b = append(b, bytesOf(r.GroupLo)...)
	b = append(b, bytesOf(r.GroupHi)...)
	b = append(b, r.Zeros...)
	return append(b, r.Candidate...)
}

// GroupTable is the decoded "groups" payload of a decision, each [out,G].
type GroupTable struct {
	Scales, Lo, Hi []float32
	Zeros          []uint8
	Candidate      []uint8 // nil without a clip search
}

// DecodeGroups reads the "groups" payload of a decision with n entries.
func DecodeGroups(b []byte, n int) (GroupTable, error) {
	if len(b) != 13*n && len(b) != 14*n {
		return GroupTable{}, fmt.Errorf("group tables of %d bytes for %d groups", len(b), n)
	}
	t := GroupTable{Scales: valuesOf[float32](b[:4*n]), Lo: valuesOf[float32](b[4*n : 8*n]), Hi: valuesOf[float32](b[8*n : 12*n]), Zeros: b[12*n : 13*n]}
	if len(b) == 14*n {
		t.Candidate = b[13*n:]
	}
	return t, nil
}

// packCodes stores two codes a byte where they have at most 4 bits (even index low), else one.
func packCodes(codes []uint8, bits int) []byte {
	if bits > 4 {
		return codes
	}
	b := make([]byte, (len(codes)+1)/2)
	for i := 0; i+1 < len(codes); i += 2 {
		b[i/2] = codes[i] | codes[i+1]<<4
	}
	if len(codes)%2 == 1 {
		b[len(b)-1] = codes[len(codes)-1]
	}
	return b
}

func unpackCodes(b []byte, n, bits int) ([]uint8, error) {
	if bits > 4 {
		if len(b) != n {
			return nil, fmt.Errorf("%d codes in %d bytes", n, len(b))
		}
		return b, nil
	}
	if len(b) != (n+1)/2 {
		return nil, fmt.Errorf("%d codes in %d bytes", n, len(b))
	}
	codes := make([]uint8, n)
	for i := range codes {
		codes[i] = b[i/2] >> (4 * (i & 1)) & 15
	}
	return codes, nil
}

// Decided is a decision read back: everything that the packer and the forward pass need.
type Decided struct {
	Event  ledger.Event
	Record DecisionRecord
	Groups GroupTable
	GIdx   []int32
	Perm   []int32
	Codes  []uint8
}

// ReadDecision reads a module's decision from the ledger. Codes are read too if withCodes; where they have moved into the
// output the error is ledger.ErrElsewhere.
func ReadDecision(ctx context.Context, s PayloadReader, layer int, module string, out, in int, withCodes bool) (*Decided, bool, error) {
	e, ok, err := s.Get(keyDecision(layer, module))
	if err != nil || !ok {
		return nil, false, err
	}
	d := &Decided{Event: e}
	if err := readRecord(e, &d.Record); err != nil {
		return nil, false, err
	}
	groups := 1
	if g := d.Record.Scheme.GroupSize; g > 0 {
		groups = (in + g - 1) / g
	}
	b, err := s.ReadPayload(ctx, e, "groups")
	if err != nil {
		return nil, false, err
	}
	if d.Groups, err = DecodeGroups(b, out*groups); err != nil {
		return nil, false, fmt.Errorf("%s: %w", e.Key, err)
	}
	if _, ok := e.Payload("gidx"); ok {
		if b, err = s.ReadPayload(ctx, e, "gidx"); err != nil {
			return nil, false, err
		}
		d.GIdx = valuesOf[int32](b)
	}
	if _, ok := e.Payload("perm"); ok {
		if b, err = s.ReadPayload(ctx, e, "perm"); err != nil {
			return nil, false, err
		}
		d.Perm = valuesOf[int32](b)
	}
	if withCodes {
		if b, err = s.ReadPayload(ctx, e, "codes"); err != nil {
			return d, true, err
		}
		if d.Codes, err = unpackCodes(b, out*in, d.Record.Scheme.Bits); err != nil {
			return nil, false, fmt.Errorf("%s: %w", e.Key, err)
		}
	}
	return d, true, nil
}

// module spells a decision as the formats want it.
func (d *Decided) module(m *ModulePlan, scaleDType string) *format.Module {
	f := m.formatModule(scaleDType)
	f.Codes, f.Scales, f.GIdx = d.Codes, d.Groups.Scales, d.GIdx
	if !m.Scheme.Sym {
		f.Zeros = d.Groups.Zeros
	}
	return f
}
