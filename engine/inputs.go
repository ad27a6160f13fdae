package engine

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"

	"quire/capture/text"
	"quire/kernels"
	"quire/ledger"
	"quire/ledger/codec"
	"quire/resume"
)

// eventTypes registers the types that a run writes.
func eventTypes() []ledger.Type {
	var out []ledger.Type
	for _, t := range []string{TypeSource, TypeCalibration, TypeBatch, TypeCapture, TypeRouting, TypePartial, TypeHessian, TypeDecision, TypeShard, TypeLayer, TypeSealed, TypeFinished} {
		out = append(out, ledger.Type{Name: t, Schema: 1, Permanent: true})
	}
	return out
}

// stayFacts tells this stay apart from others in its `opened` event.
func (rs *runState) stayFacts() map[string]any {
	return map[string]any{"threads": rs.settings.Threads, "memory_limit": rs.budget.LimitBytes, "cpu_level": kernels.CPULevel().String(),
		"contract": kernels.ContractID, "expert_batch": rs.budget.ExpertBatch, "resident": rs.budget.Resident}
}

// hashInputs gives the digest of every shard and the digest over all of them. It reads all weights once; a cache keyed by
// size, time and inode spares it the next time.
func (rs *runState) hashInputs(ctx context.Context, fresh bool) (string, []FileDigest, error) {
	var total, done, told int64
	shards := rs.plan.checkpoint.Shards()
	for _, f := range shards {
		total += f.Size
	}
	var out []FileDigest
	for _, f := range shards {
		base := done
		sum, err := rs.plan.checkpoint.HashShard(ctx, f, fresh, func(n int64) {
			if base+n == told {
				return
			}
			told = base + n
			rs.observe(Progress{Kind: "hash", Message: "hashing sources", Done: told, Total: total, Unit: "bytes"})
		})
		if err != nil {
			return "", nil, err
		}
		done += f.Size
		out = append(out, FileDigest{Name: f.Name, Size: f.Size, SHA256: sum})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	all, err := digestJSON(out)
	return all, out, err
}

// checkIdentity compares the plan and the sources with what the ledger began with.
func (rs *runState) checkIdentity(inputs string) error {
	e, ok, err := rs.store.Get(keyGenesis())
	if err != nil {
		return err
	}
	if !ok {
		return &Error{Code: "E0903", Exit: ExitLedgerDamaged, What: "the ledger has no genesis", Where: rs.settings.RunDir, Try: "run `quire ledger fsck RUN`"}
	}
	var g GenesisRecord
	if err := readRecord(e, &g); err != nil {
		return err
	}
	var diff []string
	if g.PlanDigest != rs.plan.Digest {
		was, err := canonicalJSON(g.Identity)
		if err != nil {
			return err
		}
		now, err := canonicalJSON(rs.plan.Identity)
		if err != nil {
			return err
		}
		diff = resume.Diff(was, now)
		if len(diff) == 0 {
			diff = []string{fmt.Sprintf("plan_digest: %s, now %s", g.PlanDigest, rs.plan.Digest)}
		}
	}
	if g.InputsDigest != inputs {
		diff = append(diff, "contents of the source shards have changed")
	}
	if len(diff) == 0 {
		return nil
	}
	return &Error{Code: "E0703", Exit: ExitIdentity, What: "this run directory belongs to another run", Where: rs.settings.RunDir,
		Why: strings.Join(diff, "; "), Try: "give the settings and files that the run began with, or choose another -o and --run-dir"}
}

// recordInputs makes sources, calibration and batches events, and from then on takes the batches from the ledger.
func (rs *runState) recordInputs(ctx context.Context, sources []FileDigest) error {
	var f futures
	refs := map[string]ledger.Ref{}
	for _, s := range sources {
		e := ledger.Event{Type: TypeSource, Schema: 1, Key: keySource(s.Name), Record: record(s)}
		f.add(rs.store.Append(ctx, e))
		refs[s.Name] = e.Ref()
	}
	rs.plan.checkpoint.SetSourceRefs(refs)
	if cal := rs.plan.Calibration; cal != nil {
		if err := rs.recordCalibration(ctx, cal, &f); err != nil {
			return err
		}
		rs.batches = cal.Batches
	}
	return f.wait(ctx)
}

// calibrationRecord accounts for every sample; the fates are its payload, as JSON.
type calibrationRecord struct {
	Digest string         `json:"digest"`
	Counts text.Counts    `json:"counts"`
	BOS    text.BOSReport `json:"bos"`
	Files  []FileDigest   `json:"files"`
}

// batchRecord describes a batch: payload "ids" is int32 [tokens], "mask" uint8 [tokens] where not every token counts.
type batchRecord struct {
	Tokens  int   `json:"tokens"`
	Rows    int   `json:"rows"`
	Samples []int `json:"samples"`
}

func (rs *runState) recordCalibration(ctx context.Context, cal *text.Calibration, f *futures) error {
	if _, ok, err := rs.store.Get(keyCalibration()); err != nil {
		return err
	} else if ok {
		return rs.mendBatches(ctx, cal)
	}
	var events []ledger.Event
	for b, batch := range cal.Batches {
		ids := bytesOf(batch.IDs)
		ref, err := rs.store.PutBytes(ctx, ledger.ClassPermanent, segmentOf(-1), codec.Planes4, ids)
		if err != nil {
			return err
		}
		e := ledger.Event{Type: TypeBatch, Schema: 1, Key: keyBatch(b), Record: record(batchRecord{Tokens: len(batch.IDs), Rows: batch.Rows(), Samples: batch.Samples}),
			Payloads: []ledger.Payload{ref.Payload("ids")}}
		if batch.Mask != nil {
			mask := make([]byte, len(batch.Mask))
			for i, m := range batch.Mask {
				if m {
					mask[i] = 1
				}
			}
			if ref, err = rs.store.PutBytes(ctx, ledger.ClassPermanent, segmentOf(-1), codec.Planes4, mask); err != nil {
				return err
			}
			e.Payloads = append(e.Payloads, ref.Payload("mask"))
		}
		events = append(events, e)
	}
	fates, err := canonicalJSON(cal.Fates)
	if err != nil {
		return err
	}
	ref, err := rs.store.PutBytes(ctx, ledger.ClassPermanent, segmentOf(-1), codec.Zstd, fates)
	if err != nil {
		return err
	}
	rec := calibrationRecord{Digest: cal.Digest, Counts: cal.Counts, BOS: cal.BOS}
	for _, d := range cal.Files {
		rec.Files = append(rec.Files, FileDigest{Name: baseName(d.Path), Size: d.Size, SHA256: d.SHA256})
	}
	f.add(rs.store.AppendAll(ctx, append(events, ledger.Event{Type: TypeCalibration, Schema: 1, Key: keyCalibration(), Record: record(rec),
		Payloads: []ledger.Payload{ref.Payload("fates")}})))
	return nil
}

// mendBatches stores the tokens of a batch anew where they are damaged. The batches at hand have the digest on record.
func (rs *runState) mendBatches(ctx context.Context, cal *text.Calibration) error {
	for b, batch := range cal.Batches {
		e, ok, err := rs.store.Get(keyBatch(b))
		if err != nil || !ok {
			return errors.Join(err, &Error{Code: "E0905", Exit: ExitLedgerDamaged, What: "the tokens of a batch are missing", Where: keyBatch(b), Try: "run `quire ledger fsck RUN --level deep`"})
		}
		if _, err := rs.store.ReadPayload(ctx, e, "ids"); !errors.Is(err, ledger.ErrDamaged) {
			continue
		}
		ref, err := rs.store.PutBytes(ctx, ledger.ClassPermanent, segmentOf(-1), codec.Planes4, bytesOf(batch.IDs))
		if err != nil {
			return err
		}
		for i := range e.Payloads {
			if e.Payloads[i].Role == "ids" {
				e.Payloads[i].Ref = &ref
			}
		}
		if _, err := rs.store.Append(ctx, e).All(ctx); err != nil {
			return err
		}
	}
	return nil
}

func baseName(p string) string {
	if i := strings.LastIndexAny(p, `/\`); i >= 0 {
		return p[i+1:]
	}
	return p
}
