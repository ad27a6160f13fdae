package engine

import (
	"context"
	"fmt"

	"quire/capture"
	"quire/capture/model"
	"quire/kernels"
)

// precheckRows is about how many calibration rows the original model is measured on before layer 0.
const precheckRows = 512

// precheck runs the original model over a few calibration rows. A loss near that of guessing means a damaged checkpoint, a
// tokenizer of another model, or a forward pass that does not fit: a run would waste its hours.
func (rs *runState) precheck(ctx context.Context) error {
	if !rs.settings.Precheck || !rs.plan.calibrated() {
		return nil
	}
	if _, begun, err := rs.store.Get(keyLayer(0)); err != nil || begun {
		return err
	}
	var windows [][]int32
	rows := 0
	for _, b := range rs.batches {
		if len(b.IDs) > 1 && rows < precheckRows {
			ids := b.IDs[:min(len(b.IDs), precheckRows)]
			windows = append(windows, ids)
			rows += len(ids)
		}
	}
	if rows == 0 {
		return nil
	}
	runner := rs.model.NewRunner(model.RunnerOptions{Pool: rs.pool, ScratchBytes: rs.budget.ScratchBytes})
	res, err := capture.Evaluate(ctx, runner, nil, windows, capture.EvalOptions{Window: precheckRows, BOS: -1, MemoryBytes: rs.budget.LimitBytes / 2, Dir: rs.settings.RunDir})
	if err != nil {
		return err
	}
	guess := kernels.Log64(float64(rs.model.Vocab))
	rs.observe(Progress{Kind: "note", Message: fmt.Sprintf("precheck: the original model has a loss of %.3f on %d calibration rows (guessing: %.3f)", res.NLL, rows, guess)})
	if res.NLL > 0.9*guess {
		return &Error{Code: "E0620", Exit: ExitUsage, What: fmt.Sprintf("the original model does not predict the calibration text: loss %.3f, guessing has %.3f", res.NLL, guess),
			Why: "the checkpoint is damaged, or tokenizer and model do not belong together", Try: "look at `quire samples` and `quire eval MODEL`; --no-precheck goes on regardless"}
	}
	return nil
}

// calibrationPerplexity is the perplexity of the quantized model on the first rows of its own calibration data, from the
// captured output of the last layer: an eighth of the rows, so that it costs little beside the layers whatever the
// vocabulary, and no more than 4,096.
func (rs *runState) calibrationPerplexity(ctx context.Context, runner *model.Runner, hidden *hiddenStates) error {
	most := int(min(4096, max(rs.countedRows/8, precheckRows)))
	if hidden == nil {
		var err error
		if hidden, err = rs.layerInput(ctx, runner, len(rs.model.Layers)); err != nil {
			return err
		}
	}
	head, err := runner.OpenHead(ctx)
	if err != nil {
		return err
	}
	var loss float64
	n := 0
	logits := make([]float32, headRows*rs.model.Vocab)
	losses := make([]float64, headRows)
	for b, batch := range rs.batches {
		if n >= most {
			break
		}
		x, err := hidden.peek(b)
		if err != nil {
			return err
		}
		for r := 0; r+1 < x.M; r += headRows {
			rows := part(x, r, min(r+headRows, x.M-1))
			head.Logits(rows, logits[:rows.M*rs.model.Vocab])
			rs.pool.Do(rows.M, func(_, i int) {
				row := logits[i*rs.model.Vocab : (i+1)*rs.model.Vocab]
				losses[i] = kernels.LogSumExp64(row) - float64(row[batch.IDs[r+i+1]])
			})
			for _, l := range losses[:rows.M] {
				loss += l
				n++
			}
		}
	}
	if n > 0 {
		rs.calibrationPPL = kernels.Exp64(loss / float64(n))
	}
	return nil
}
