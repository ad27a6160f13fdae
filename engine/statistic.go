package engine

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync"

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
	rows    int64
	shares  []batchShare // of all lanes so far
	lane    int          // next lane
	open    bool
	began   int // shares at the start of the open lane
	dropped []string
	futures *futures

	// The lane before the open one may still be closing, beside the caller.
	closing chan struct{} // nil: none is
	sum     []float64     // upper triangle
	inputs  []ledger.Ref
}

// settle waits until no lane is closing.
func (s *statistic) settle() {
	if s.closing != nil {
		<-s.closing
		s.closing = nil
	}
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
	normalised(nil, h, valuesOf[float32](b))
	return h, true, nil
}

// normalised fills in the mean that solvers take from the sum XᵀX: 2/rows·XᵀX, one rounding. tri is the upper triangle, row
// after row; the lower half of h is left alone.
func normalised(pool *kernels.Pool, h *quant.Hessian, tri []float32) {
	f := 2 / float64(h.Rows)
	const rows = 64 // a task
	pool.Do((h.N+rows-1)/rows, func(_, task int) {
		for i := task * rows; i < min(h.N, (task+1)*rows); i++ {
			row := h.H[i*h.N+i : (i+1)*h.N]
			for j, v := range tri[i*h.N-i*(i-1)/2:][:len(row)] {
				row[j] = float32(float64(v) * f)
			}
		}
	})
}

// begin opens the next lane. When the ledger has its partial with payload the lane is added at once and begin says false:
// no rows are wanted.
func (s *statistic) begin(lane int) (bool, error) {
	if s.open || lane != s.lane {
		panic(fmt.Sprintf("statistic %s: lane %d opened after %d", s.id, lane, s.lane)) // a bug
	}
	if s.sum == nil {
		s.sum = *borrow[float64](&totals, triangleLen(s.n))
		clear(s.sum)
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
		s.gram, _ = grams.Get().(*kernels.Gram)
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
	s.settle()
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

// batchRows are rows of one batch among the rows that are added together: [from,to).
type batchRows struct{ batch, from, to int }

// add gives the open lane the rows of some batches, which follow each other in x. Rows that hold a NaN or an infinity are
// named; they stop the run or are dropped.
func (s *statistic) add(x kernels.Rows, batches []batchRows) error {
	squares := make([]float64, x.M)
	const rows = 64 // a task
	s.pool.Do((x.M+rows-1)/rows, func(_, task int) {
		for r := task * rows; r < min(x.M, (task+1)*rows); r++ {
			squares[r] = sumSquares(x, r)
		}
	})
	from := 0 // rows before it are in the statistic, or dropped
	flush := func(to int) {
		if to > from {
			s.gram.Add(s.pool, part(x, from, to))
		}
	}
	for _, b := range batches {
		share := batchShare{Batch: int32(b.batch)}
		for r := b.from; r < b.to; r++ {
			if sq := squares[r]; sq-sq == 0 {
				share.SumSq += sq
				share.Rows++
				continue
			}
			at := fmt.Sprintf("%s, batch %d, row %d", s.id, b.batch, r-b.from) // NaN or infinite
			if !s.drop {
				return &Error{Code: "E0601", Exit: ExitNonFinite, What: "an activation is NaN or infinite", Where: at,
					Why: "the statistic of these rows would be useless",
					Try: fmt.Sprintf("look at calibration sample %d, or go on without such rows: --on-nonfinite drop-row", b.batch)}
			}
			s.dropped = append(s.dropped, at)
			flush(r)
			from = r + 1
		}
		if share.Rows == 0 {
			continue
		}
		if last := len(s.shares) - 1; last >= s.began && s.shares[last].Batch == share.Batch {
			s.shares[last].Rows += share.Rows
			s.shares[last].SumSq += share.SumSq
			continue
		}
		s.shares = append(s.shares, share)
	}
	flush(x.M)
	return nil
}

// end closes the lane: its partial becomes an event and joins the sum, beside the caller.
func (s *statistic) end(native int64) error {
	s.settle()
	lane, shares := s.lane, s.shares[s.began:]
	rec := StatisticRecord{Layer: s.id.layer, Site: s.id.site, Expert: s.id.expert, N: s.n, Rows: s.gram.Rows(), NativeRows: native}
	var tri *[]float32
	if rec.Rows > 0 {
		tri = borrow[float32](&triangles, triangleLen(s.n))
		s.gram.Triangle(s.pool, *tri)
		if err := s.check(*tri); err != nil {
			return err
		}
	}
	s.rows += rec.Rows
	s.native += native
	s.lane++
	s.open = false
	closing := make(chan struct{})
	s.closing = closing
	s.futures.tasks.Go(func() {
		defer close(closing)
		var blobs []blob
		if tri != nil {
			kernels.AddPartial(s.sum, *tri)
			var xtx blob
			xtx, rec.SHA256 = s.triangleBlob(*tri)
			xtx.discard = !s.keep
			blobs = []blob{xtx, s.shareTable(shares)}
		}
		e := ledger.Event{Type: TypePartial, Schema: 1, Key: keyPartial(s.id.layer, s.id.site, s.id.who(), lane), Record: record(rec)}
		e = s.futures.write(s.ctx, s.store, e, blobs...)
		s.inputs = append(s.inputs, e.Ref())
		if tri != nil && !s.keep { // nobody reads it any more
			triangles.Put(tri)
		}
	})
	return nil
}

// triangleBlob is the payload of a sum, with its digest.
func (s *statistic) triangleBlob(tri []float32) (blob, string) {
	raw := bytesOf(tri)
	sum := payloadDigest(raw)
	b := blob{role: "xtx", class: ledger.ClassOpen, segment: segmentOf(s.id.layer), codec: codec.Planes4, bytes: raw, sum: &sum}
	if digestsOff {
		return b, ""
	}
	return b, sum.String()
}

// shareTable is the payload of what each batch gave.
func (s *statistic) shareTable(shares []batchShare) blob {
	return blob{role: "batches", class: ledger.ClassPermanent, segment: segmentOf(s.id.layer), codec: codec.Planes4, bytes: encodeShares(shares)}
}

// check refuses a sum of squares that overflowed: rows with values near 1e19 or above.
func (s *statistic) check(tri []float32) error {
	at := 0
	for i := range s.n {
		if d := tri[at]; d-d != 0 || d < 0 {
			return &Error{Code: "E0602", Exit: ExitNonFinite, What: fmt.Sprintf("the statistic of column %d is %v", i, d), Where: fmt.Sprintf("%s, lane %d", s.id, s.lane),
				Why: "activations of this column exceed what float32 sums can hold", Try: "look for an exploding activation with `quire trace`"}
		}
		at += s.n - i
	}
	return nil
}

// finish sums the lanes up, writes the hessian event and gives the normalised statistic.
func (s *statistic) finish() (*quant.Hessian, ledger.Ref, error) {
	s.settle()
	h := &quant.Hessian{N: s.n, H: make([]float32, s.n*s.n), Rows: s.rows, NativeRows: s.native, Site: s.id.String()}
	rec := StatisticRecord{Layer: s.id.layer, Site: s.id.site, Expert: s.id.expert, N: s.n, Rows: s.rows, NativeRows: s.native}
	e := ledger.Event{Type: TypeHessian, Schema: 1, Key: s.id.key(), Inputs: s.inputs}
	var blobs []blob
	if s.rows > 0 {
		tri := make([]float32, triangleLen(s.n))
		for i, v := range s.sum {
			tri[i] = float32(v)
		}
		var xtx blob
		xtx, rec.SHA256 = s.triangleBlob(tri)
		blobs = []blob{xtx, s.shareTable(s.shares)}
		normalised(s.pool, h, tri)
	}
	h.SHA256 = rec.SHA256
	e.Record = record(rec)
	e = s.futures.write(s.ctx, s.store, e, blobs...)
	if sum := s.sum; sum != nil {
		totals.Put(&sum)
	}
	if s.gram != nil {
		grams.Put(s.gram)
	}
	s.sum, s.gram = nil, nil
	return h, e.Ref(), nil
}

// Memory of a statistic that the next one takes over.
var grams, totals, triangles sync.Pool

// borrow gives n elements of any value.
func borrow[T any](from *sync.Pool, n int) *[]T {
	if s, ok := from.Get().(*[]T); ok && cap(*s) >= n {
		*s = (*s)[:n]
		return s
	}
	s := make([]T, n)
	return &s
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
	var s0, s1, s2, s3 float64 // not an array: they stay in registers
	var last [4]float64
	if x.BF16 != nil {
		wide := func(u uint16) float64 { return float64(math.Float32frombits(uint32(u) << 16)) }
		row := x.BF16[r*x.Stride:][:x.K]
		for ; len(row) >= 4; row = row[4:] {
			a, b, c, d := wide(row[0]), wide(row[1]), wide(row[2]), wide(row[3])
			s0 += a * a
			s1 += b * b
			s2 += c * c
			s3 += d * d
		}
		for i, u := range row {
			last[i&3] = wide(u) * wide(u)
		}
	} else {
		row := x.F32[r*x.Stride:][:x.K]
		for ; len(row) >= 4; row = row[4:] {
			a, b, c, d := float64(row[0]), float64(row[1]), float64(row[2]), float64(row[3])
			s0 += a * a
			s1 += b * b
			s2 += c * c
			s3 += d * d
		}
		for i, f := range row {
			last[i&3] = float64(f) * float64(f)
		}
	}
	return ((s0 + last[0]) + (s1 + last[1])) + ((s2 + last[2]) + (s3 + last[3]))
}
