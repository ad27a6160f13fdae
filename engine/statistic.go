package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"quire/engine/quant"
	"quire/kernels"
	"quire/ledger"
	"quire/ledger/codec"
)

// statID names a second-moment statistic: the rows of a site (of one expert, or of all) that feed a Hessian.
type statID struct {
	layer   int
	site    string
	expert  int  // -1: the site's own rows, all experts
	allRows bool // every row of the block sent through the expert, whatever the router chose
}

func (id statID) who() string {
	if id.allRows {
		return who(id.expert) + "-all"
	}
	return who(id.expert)
}

func (id statID) key() string { return keyHessian(id.layer, id.site, id.who()) }

func (id statID) String() string { return keySite(id.layer, id.site) + "/" + id.who() }

// batchShare is what one batch gave to a statistic.
type batchShare struct {
	Batch int32
	Rows  int32
	SumSq float64 // Σ‖x‖² of those rows
}

const batchShareBytes = 16

func encodeShares(s []batchShare) []byte {
	b := make([]byte, 0, len(s)*batchShareBytes)
	for _, e := range s {
		b = binary.LittleEndian.AppendUint32(b, uint32(e.Batch))
		b = binary.LittleEndian.AppendUint32(b, uint32(e.Rows))
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(e.SumSq))
	}
	return b
}

func decodeShares(b []byte) []batchShare {
	s := make([]batchShare, len(b)/batchShareBytes)
	for i := range s {
		p := b[i*batchShareBytes:]
		s[i] = batchShare{int32(binary.LittleEndian.Uint32(p)), int32(binary.LittleEndian.Uint32(p[4:])), math.Float64frombits(binary.LittleEndian.Uint64(p[8:]))}
	}
	return s
}

// statistic accumulates XᵀX lane by lane. Lanes must be opened in order; inside a lane rows come in calibration order.
// A lane that the ledger already has is added from there. Sums of lanes are float64 in lane order, so neither threads nor
// loop order nor a resume can change a bit.
type statistic struct {
	ctx    context.Context
	store  Store
	pool   *kernels.Pool
	id     statID
	n      int
	keep   bool // store partials' payloads
	native int64
	drop   bool // drop rows that are not finite instead of failing

	gram    *kernels.Gram
	sum     []float64 // upper triangle
	rows    int64
	shares  []batchShare // of all lanes so far
	inputs  []ledger.Ref
	work    []float32 // [n,n]
	lane    int       // next lane
	open    bool
	began   int // shares at the start of the open lane
	dropped []string
	futures *futures
}

// stored gives the finished statistic of an earlier stay, if the ledger has its payload.
func storedHessian(ctx context.Context, s Store, id statID, n int) (*quant.Hessian, bool, error) {
	e, ok, err := s.Get(id.key())
	if err != nil || !ok {
		return nil, false, err
	}
	var rec StatisticRecord
	if err := readRecord(e, &rec); err != nil {
		return nil, false, err
	}
	if rec.N != n {
		return nil, false, fmt.Errorf("%s has %d columns in the ledger, %d in the model", e.Key, rec.N, n)
	}
	h := &quant.Hessian{N: n, H: make([]float32, n*n), Rows: rec.Rows, NativeRows: rec.NativeRows, Site: id.String(), SHA256: rec.SHA256}
	if rec.Rows == 0 {
		return h, true, nil
	}
	b, err := s.ReadPayload(ctx, e, "xtx")
	if err != nil && mayDerive(err) {
		return nil, false, nil // recompute; the digest is compared on append
	}
	if err != nil {
		return nil, false, err
	}
	tri := valuesOf[float32](b)
	square(h.H, tri, n)
	normalise(h)
	return h, true, nil
}

// normalise turns the sum XᵀX into the mean that solvers take: 2/rows·XᵀX, one rounding.
func normalise(h *quant.Hessian) {
	f := 2 / float64(h.Rows)
	for i := range h.N {
		row := h.H[i*h.N : (i+1)*h.N]
		for j := i; j < h.N; j++ {
			row[j] = float32(float64(row[j]) * f)
		}
	}
}

// begin opens the next lane. When the ledger has its partial with payload the lane is added at once and begin says false:
// no rows are wanted.
func (s *statistic) begin(lane int) (bool, error) {
	if s.open || lane != s.lane {
		panic(fmt.Sprintf("statistic %s: lane %d opened after %d", s.id, lane, s.lane)) // a bug
	}
	if s.sum == nil {
		s.sum, s.work = make([]float64, triangleLen(s.n)), make([]float32, s.n*s.n)
	}
	e, ok, err := s.store.Get(keyPartial(s.id.layer, s.id.site, s.id.who(), lane))
	if err != nil {
		return false, err
	}
	if ok {
		taken, err := s.takeStored(e)
		if err != nil || taken {
			s.lane++
			return false, err
		}
	}
	if s.gram == nil {
		s.gram = kernels.NewGram(s.n)
	} else {
		s.gram.Reset(s.n)
	}
	s.open, s.began = true, len(s.shares)
	return true, nil
}

func (s *statistic) takeStored(e ledger.Event) (bool, error) {
	var rec StatisticRecord
	if err := readRecord(e, &rec); err != nil {
		return false, err
	}
	if rec.Rows > 0 {
		sum, err := s.store.ReadPayload(s.ctx, e, "xtx")
		shares, serr := s.store.ReadPayload(s.ctx, e, "batches")
		for _, err := range []error{err, serr} {
			if err != nil && mayDerive(err) {
				return false, nil // the lane's rows are fed again; the digest is compared on append
			}
			if err != nil {
				return false, err
			}
		}
		kernels.AddPartial(s.sum, valuesOf[float32](sum))
		s.shares = append(s.shares, decodeShares(shares)...)
	}
	s.rows += rec.Rows
	s.native += rec.NativeRows
	s.inputs = append(s.inputs, e.Ref())
	return true, nil
}

// add gives the open lane the rows of one batch. Rows that hold a NaN or an infinity are named; they stop the run or are
// dropped.
func (s *statistic) add(batch int, x kernels.Rows) error {
	if x.M == 0 {
		return nil
	}
	share := batchShare{Batch: int32(batch)}
	from := 0
	flush := func(to int) {
		if to > from {
			s.gram.Add(s.pool, part(x, from, to))
			share.Rows += int32(to - from)
		}
	}
	for r := range x.M {
		sq := sumSquares(x, r)
		if sq-sq != 0 { // NaN or infinite
			at := fmt.Sprintf("%s, batch %d, row %d", s.id, batch, r)
			if !s.drop {
				return &Error{Code: "E0601", Exit: ExitNonFinite, What: "an activation is NaN or infinite", Where: at,
					Why: "the statistic of these rows would be useless",
					Try: fmt.Sprintf("look at calibration sample %d, or go on without such rows: --on-nonfinite drop-row", batch)}
			}
			s.dropped = append(s.dropped, at)
			flush(r)
			from = r + 1
			continue
		}
		share.SumSq += sq
	}
	flush(x.M)
	if last := len(s.shares) - 1; last >= s.began && s.shares[last].Batch == share.Batch {
		s.shares[last].Rows += share.Rows
		s.shares[last].SumSq += share.SumSq
		return nil
	}
	if share.Rows > 0 {
		s.shares = append(s.shares, share)
	}
	return nil
}

// end closes the lane: its partial becomes an event and joins the sum.
func (s *statistic) end(native int64) error {
	rec := StatisticRecord{Layer: s.id.layer, Site: s.id.site, Expert: s.id.expert, N: s.n, Rows: s.gram.Rows(), NativeRows: native}
	e := ledger.Event{Type: TypePartial, Schema: 1, Key: keyPartial(s.id.layer, s.id.site, s.id.who(), s.lane)}
	var blobs []blob
	if rec.Rows > 0 {
		s.gram.PartialParallel(s.pool, s.work)
		tri := triangle(make([]float32, 0, triangleLen(s.n)), s.work, s.n)
		if err := s.check(); err != nil {
			return err
		}
		kernels.AddPartial(s.sum, tri)
		raw := bytesOf(tri)
		rec.SHA256 = digest(raw)
		blobs = []blob{{role: "xtx", class: ledger.ClassOpen, segment: segmentOf(s.id.layer), codec: codec.Planes4, bytes: raw, discard: !s.keep}, s.shareTable(s.shares[s.began:])}
	}
	e.Record = record(rec)
	e = s.futures.write(s.ctx, s.store, e, blobs...)
	s.inputs = append(s.inputs, e.Ref())
	s.rows += rec.Rows
	s.native += native
	s.lane++
	s.open = false
	return nil
}

// shareTable is the payload of what each batch gave.
func (s *statistic) shareTable(shares []batchShare) blob {
	return blob{role: "batches", class: ledger.ClassPermanent, segment: segmentOf(s.id.layer), codec: codec.Planes4, bytes: encodeShares(shares)}
}

// check refuses a sum of squares that overflowed: rows with values near 1e19 or above.
func (s *statistic) check() error {
	for i := range s.n {
		if d := s.work[i*s.n+i]; d-d != 0 || d < 0 {
			return &Error{Code: "E0602", Exit: ExitNonFinite, What: fmt.Sprintf("the statistic of column %d is %v", i, d), Where: fmt.Sprintf("%s, lane %d", s.id, s.lane),
				Why: "activations of this column exceed what float32 sums can hold", Try: "look for an exploding activation with `quire trace`"}
		}
	}
	return nil
}

// finish sums the lanes up, writes the hessian event and gives the normalised statistic.
func (s *statistic) finish() (*quant.Hessian, ledger.Ref, error) {
	h := &quant.Hessian{N: s.n, H: s.work, Rows: s.rows, NativeRows: s.native, Site: s.id.String()}
	rec := StatisticRecord{Layer: s.id.layer, Site: s.id.site, Expert: s.id.expert, N: s.n, Rows: s.rows, NativeRows: s.native}
	e := ledger.Event{Type: TypeHessian, Schema: 1, Key: s.id.key(), Inputs: s.inputs}
	var blobs []blob
	if s.rows > 0 {
		tri := make([]float32, triangleLen(s.n))
		for i, v := range s.sum {
			tri[i] = float32(v)
		}
		raw := bytesOf(tri)
		rec.SHA256 = digest(raw)
		blobs = []blob{{role: "xtx", class: ledger.ClassOpen, segment: segmentOf(s.id.layer), codec: codec.Planes4, bytes: raw}, s.shareTable(s.shares)}
		square(h.H, tri, s.n)
		normalise(h)
	}
	h.SHA256 = rec.SHA256
	e.Record = record(rec)
	e = s.futures.write(s.ctx, s.store, e, blobs...)
	s.sum = nil
	return h, e.Ref(), nil
}

// part is rows [from,to) of x.
func part(x kernels.Rows, from, to int) kernels.Rows {
	y := x
	y.M = to - from
	if x.BF16 != nil {
		y.BF16 = x.BF16[from*x.Stride:]
	} else {
		y.F32 = x.F32[from*x.Stride:]
	}
	return y
}

// sumSquares is Σ x² of a row in float64: four chains over the columns modulo 4, added pairwise. Products of float32 are
// exact in float64, so fusing changes nothing.
func sumSquares(x kernels.Rows, r int) float64 {
	var s [4]float64
	if x.BF16 != nil {
		for i, u := range x.BF16[r*x.Stride:][:x.K] {
			v := float64(math.Float32frombits(uint32(u) << 16))
			s[i&3] += v * v
		}
	} else {
		for i, f := range x.F32[r*x.Stride:][:x.K] {
			v := float64(f)
			s[i&3] += v * v
		}
	}
	return (s[0] + s[1]) + (s[2] + s[3])
}
