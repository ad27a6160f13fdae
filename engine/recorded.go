package engine

import (
	"context"
	"errors"
	"io/fs"

	"quire/capture/text"
	"quire/ledger"
)

// ResumePlan is BuildPlan for a run that has begun: its batches come from the ledger, so that it needs neither the
// calibration files nor the tokenizer again.
func ResumePlan(ctx context.Context, r *Recipe) (*Plan, error) {
	return buildPlan(ctx, r, true)
}

// recordedCalibration reads back what a run began with, or nil where nothing was recorded yet. Fates and file sizes
// stay in the ledger.
func recordedCalibration(ctx context.Context, runDir string) (*text.Calibration, error) {
	r, err := ledger.OpenReader(runDir, ledger.Options{})
	if errors.Is(err, ledger.ErrNoLedger) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer r.Close()
	e, ok, err := r.Get(keyCalibration())
	if err != nil || !ok {
		return nil, err
	}
	var rec calibrationRecord
	if err := readRecord(e, &rec); err != nil {
		return nil, err
	}
	cal := &text.Calibration{Digest: rec.Digest, Counts: rec.Counts, BOS: rec.BOS}
	for b := range rec.Counts.Batches {
		batch, err := recordedBatch(ctx, r, b)
		if err != nil {
			return nil, err
		}
		cal.Batches = append(cal.Batches, batch)
	}
	return cal, nil
}

func recordedBatch(ctx context.Context, r *ledger.Reader, b int) (text.Batch, error) {
	e, ok, err := r.Get(keyBatch(b))
	if err != nil {
		return text.Batch{}, err
	}
	if !ok {
		return text.Batch{}, &Error{Code: "E0905", Exit: ExitLedgerDamaged, What: "the tokens of a batch are missing", Where: keyBatch(b), Try: "run `quire ledger fsck RUN --level deep`"}
	}
	var rec batchRecord
	if err := readRecord(e, &rec); err != nil {
		return text.Batch{}, err
	}
	ids, err := r.ReadPayload(ctx, e, "ids")
	if err != nil {
		return text.Batch{}, err
	}
	batch := text.Batch{IDs: valuesOf[int32](ids), Samples: rec.Samples}
	if _, ok := e.Payload("mask"); ok {
		mask, err := r.ReadPayload(ctx, e, "mask")
		if err != nil {
			return text.Batch{}, err
		}
		batch.Mask = make([]bool, len(mask))
		for i, m := range mask {
			batch.Mask[i] = m != 0
		}
	}
	return batch, nil
}

// sameCalibration checks that recorded batches are what their digest says; a ledger that lost some is not gone on with.
func sameCalibration(cal *text.Calibration) error {
	if got := text.DigestOf(cal.Batches); got != cal.Digest {
		return &Error{Code: "E0905", Exit: ExitLedgerDamaged, What: "the recorded batches differ from their digest", Where: keyCalibration(), Try: "run `quire ledger fsck RUN --level deep`"}
	}
	return nil
}

// missing says whether an error is about a file that is not there.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
