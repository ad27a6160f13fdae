// Package audit walks the references of a ledger backwards from a stored scale to the calibration samples behind it:
// stored code ← scale ← range or search candidate ← the module's statistic ← rows and Σ‖x‖² of every batch ← batches ←
// samples ← file digests. It holds no table of its own: every step is a reference that a decision made.
package audit

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"sort"

	"quire/engine"
	"quire/ledger"
)

// Source is a ledger to be asked: a Reader of a closed run.
type Source interface {
	Get(key string) (ledger.Event, bool, error)
	ReadPayload(ctx context.Context, e ledger.Event, role string) ([]byte, error)
}

// Trail is the derivation of one scale, from the newest link to the oldest.
type Trail struct {
	Module  string `json:"module"`
	Layer   int    `json:"layer"`
	Expert  int    `json:"expert"`
	Channel int    `json:"channel"`
	Group   int    `json:"group"`

	Scale     Scale                 `json:"scale"`
	Decision  Link                  `json:"decision"`
	Record    engine.DecisionRecord `json:"record"`
	Statistic []Statistic           `json:"statistics"` // own first, then the common one of a blend
	Sources   []Link                `json:"sources"`
	Samples   []Sample              `json:"samples"` // those of the batches behind the statistic, most rows first
}

// Scale is the stored value with what it was made from.
type Scale struct {
	Value     float32 `json:"value"`
	Bits      string  `json:"bits"` // float32 bit pattern
	DType     string  `json:"dtype"`
	Zero      int     `json:"zero"`
	Lo        float32 `json:"lo"` // least weight of the group after error feedback, at most 0
	Hi        float32 `json:"hi"`
	Candidate *int    `json:"candidate,omitempty"` // step of the clip search that won: range·(1−i/100)
	Formula   string  `json:"formula"`
	FirstCol  int     `json:"first_column"` // natural groups only
	LastCol   int     `json:"last_column"`
}

// Link is an event that the trail passes.
type Link struct {
	Key    string `json:"key"`
	Seq    uint64 `json:"seq"`
	Digest string `json:"digest"`
}

// Statistic is one second-moment statistic with the batches that fed it.
type Statistic struct {
	Link
	Record   engine.StatisticRecord `json:"record"`
	Partials []Link                 `json:"partials"` // lanes in order
	Batches  []Batch                `json:"batches"`
}

// Batch is what one batch gave to a statistic.
type Batch struct {
	Link
	Batch   int     `json:"batch"`
	Rows    int     `json:"rows"`
	SumSq   float64 `json:"sum_sq"`
	Samples []int   `json:"samples"`
}

// Sample is a calibration sample behind the scale.
type Sample struct {
	Sample int    `json:"sample"`
	File   string `json:"file"`
	Record int    `json:"record"`
	Fate   string `json:"fate"`
	Tokens int    `json:"tokens"`
}

func link(e *ledger.Event) Link { return Link{e.Key, e.Seq, e.Digest().String()} }

// Of traces the scale of one output channel and group of a module.
func Of(ctx context.Context, src Source, key string, channel, group int) (*Trail, error) {
	e, ok, err := src.Get(key)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, &engine.Error{Code: "E0713", Exit: engine.ExitUsage, What: "no decision about this module", Where: key, Try: "list modules with `quire audit RUN`"}
	}
	t := &Trail{Channel: channel, Group: group, Decision: link(&e)}
	if err := json.Unmarshal(e.Record, &t.Record); err != nil {
		return nil, fmt.Errorf("record of %s: %w", key, err)
	}
	t.Module, t.Layer, t.Expert = t.Record.Module, t.Record.Layer, t.Record.Expert
	if err := t.scale(ctx, src, e); err != nil {
		return nil, err
	}
	for _, in := range e.Inputs {
		ie, ok, err := src.Get(in.Key)
		if err != nil {
			return nil, err
		}
		if !ok || ie.Digest() != in.Digest {
			return nil, &engine.Error{Code: "E0905", Exit: engine.ExitLedgerDamaged, What: "an event that a decision refers to is missing or differs", Where: in.Key,
				Try: "run `quire ledger fsck RUN --level deep`"}
		}
		if ie.Type == engine.TypeSource {
			t.Sources = append(t.Sources, link(&ie))
			continue
		}
		st, err := statistic(ctx, src, ie)
		if err != nil {
			return nil, err
		}
		t.Statistic = append(t.Statistic, *st)
	}
	return t, t.samples(ctx, src)
}

func (t *Trail) scale(ctx context.Context, src Source, e ledger.Event) error {
	s := t.Record.Solver
	groups := (s.In + s.GroupSize - 1) / s.GroupSize
	if t.Channel < 0 || t.Channel >= s.Out || t.Group < 0 || t.Group >= groups {
		return &engine.Error{Code: "E0714", Exit: engine.ExitUsage, What: fmt.Sprintf("no channel %d, group %d", t.Channel, t.Group), Where: t.Module,
			Try: fmt.Sprintf("--channel is 0..%d, --group 0..%d", s.Out-1, groups-1)}
	}
	raw, err := src.ReadPayload(ctx, e, "groups")
	if err != nil {
		return err
	}
	tab, err := engine.DecodeGroups(raw, s.Out*groups)
	if err != nil {
		return err
	}
	i := t.Channel*groups + t.Group
	t.Scale = Scale{Value: tab.Scales[i], Bits: fmt.Sprintf("%08x", math.Float32bits(tab.Scales[i])), DType: s.ScaleDType, Zero: int(tab.Zeros[i]), Lo: tab.Lo[i], Hi: tab.Hi[i],
		FirstCol: t.Group * s.GroupSize, LastCol: min((t.Group+1)*s.GroupSize, s.In) - 1}
	maxq := 1<<s.Bits - 1
	if s.Sym {
		t.Scale.Formula = fmt.Sprintf("2·max(|%g|, |%g|)/%d, rounded to %s", tab.Lo[i], tab.Hi[i], maxq, s.ScaleDType)
	} else {
		t.Scale.Formula = fmt.Sprintf("(%g − %g)/%d, rounded to %s", tab.Hi[i], tab.Lo[i], maxq, s.ScaleDType)
	}
	if tab.Candidate != nil {
		c := int(tab.Candidate[i] & 0x7f)
		t.Scale.Candidate = &c
		t.Scale.Formula = fmt.Sprintf("range·(1 − %d/100): ", c) + t.Scale.Formula
	}
	return nil
}

func statistic(ctx context.Context, src Source, e ledger.Event) (*Statistic, error) {
	st := &Statistic{Link: link(&e)}
	if err := json.Unmarshal(e.Record, &st.Record); err != nil {
		return nil, fmt.Errorf("record of %s: %w", e.Key, err)
	}
	for _, in := range e.Inputs {
		p, ok, err := src.Get(in.Key)
		if err != nil || !ok {
			return nil, fmt.Errorf("partial %s is not in the ledger: %w", in.Key, err)
		}
		st.Partials = append(st.Partials, link(&p))
	}
	if _, ok := e.Payload("batches"); !ok {
		return st, nil
	}
	raw, err := src.ReadPayload(ctx, e, "batches")
	if err != nil {
		return nil, err
	}
	for ; len(raw) >= 16; raw = raw[16:] {
		b := Batch{Batch: int(binary.LittleEndian.Uint32(raw)), Rows: int(binary.LittleEndian.Uint32(raw[4:])), SumSq: math.Float64frombits(binary.LittleEndian.Uint64(raw[8:]))}
		be, ok, err := src.Get(engine.KeyBatch(b.Batch))
		if err != nil || !ok {
			return nil, fmt.Errorf("batch %d is not in the ledger: %w", b.Batch, err)
		}
		b.Link = link(&be)
		var rec struct {
			Samples []int `json:"samples"`
		}
		if err := json.Unmarshal(be.Record, &rec); err != nil {
			return nil, err
		}
		b.Samples = rec.Samples
		st.Batches = append(st.Batches, b)
	}
	return st, nil
}

// samples lists the data set entries behind the statistics' batches.
func (t *Trail) samples(ctx context.Context, src Source) error {
	rows := map[int]int{}
	for _, st := range t.Statistic {
		for _, b := range st.Batches {
			for _, s := range b.Samples {
				rows[s] += b.Rows
			}
		}
	}
	if len(rows) == 0 {
		return nil
	}
	e, ok, err := src.Get(engine.KeyCalibration())
	if err != nil || !ok {
		return fmt.Errorf("the calibration event is not in the ledger: %w", err)
	}
	raw, err := src.ReadPayload(ctx, e, "fates")
	if err != nil {
		return err
	}
	var fates []struct {
		Sample, Record, Tokens int
		File, Fate             string
	}
	if err := json.Unmarshal(raw, &fates); err != nil {
		return err
	}
	for _, f := range fates {
		if _, ok := rows[f.Sample]; ok {
			t.Samples = append(t.Samples, Sample{f.Sample, f.File, f.Record, f.Fate, f.Tokens})
		}
	}
	sort.SliceStable(t.Samples, func(i, j int) bool { return rows[t.Samples[i].Sample] > rows[t.Samples[j].Sample] })
	return nil
}
