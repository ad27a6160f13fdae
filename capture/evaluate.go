package capture

import (
	"context"
	"fmt"
	"math"
	"slices"

	"quire/capture/model"
	"quire/kernels"
)

// EvalOptions of Evaluate.
type EvalOptions struct {
	// Window is the number of tokens that see each other; see Windows.
	Window int
	// BOS is put before every window when it is not negative; its own position predicts the window's first token.
	BOS int32
	// MemoryBytes bounds weights, spans and hidden states together; 0 means no bound.
	MemoryBytes int64
	// Dir holds hidden states that do not fit; "" is the system's directory for temporary files.
	Dir string
	// Progress is told after every layer of every model.
	Progress func(done, total int)
}

// EvalResult is what Evaluate found. The Quantized, KL and Top1 fields are set only when two models were compared.
type EvalResult struct {
	Tokens     int64   // predicted positions
	Windows    int     // sequences evaluated
	Perplexity float64 // e^(mean negative log-likelihood)
	NLL        float64 // mean, nats

	QuantizedPerplexity float64
	QuantizedNLL        float64
	KLMean, KLP99       float64 // KL(original ‖ quantized), nats per predicted position over the full vocabulary
	Top1                float64 // share of positions whose most likely token agrees
	Layers              []LayerError
	SpilledBytes        int64
}

// LayerError is ‖h_quantized − h_original‖ / ‖h_original‖ (Frobenius) of the residual stream behind a layer.
type LayerError struct {
	Layer    int
	Relative float64
}

// Windows cuts sequences into windows of n tokens. A sequence shorter than n is one window by itself; what lies behind the
// last whole window of a longer one is dropped and counted, as scripts/peers/torch_eval.py does for raw files. keepRest keeps
// it as a shorter window instead (its rule for .jsonl).
func Windows(seqs [][]int32, n int, keepRest bool) (windows [][]int32, dropped int64) {
	n = max(n, 2) // a window of one token predicts nothing
	for _, s := range seqs {
		if len(s) < n {
			if len(s) > 1 {
				windows = append(windows, s)
			} else {
				dropped += int64(len(s))
			}
			continue
		}
		for len(s) >= n {
			windows = append(windows, s[:n])
			s = s[n:]
		}
		if keepRest && len(s) > 1 {
			windows = append(windows, s)
		} else {
			dropped += int64(len(s))
		}
	}
	return windows, dropped
}

// Evaluate measures perplexity of one model, or of an original and a quantized one with their divergence. Both stream layer by
// layer over the same windows; log-sum-exp is float64.
func Evaluate(ctx context.Context, original, quantized *model.Runner, windows [][]int32, o EvalOptions) (*EvalResult, error) {
	m := original.Model()
	runners := []*model.Runner{original}
	if quantized != nil {
		q := quantized.Model()
		if q.Hidden != m.Hidden || q.Vocab != m.Vocab || len(q.Layers) != len(m.Layers) {
			return nil, &Error{Kind: ErrPair, What: fmt.Sprintf("layers, hidden, vocabulary: %d, %d, %d and %d, %d, %d", len(m.Layers), m.Hidden, m.Vocab, len(q.Layers), q.Hidden, q.Vocab),
				Try: "give the checkpoint that the quantized one was made from"}
		}
		runners = append(runners, quantized)
	}
	batches, lengths := make([][]int32, len(windows)), make([]int, len(windows))
	res := &EvalResult{Windows: len(windows)}
	for i, w := range windows {
		batches[i] = w
		if o.BOS >= 0 {
			batches[i] = append([]int32{o.BOS}, w...)
		}
		lengths[i] = len(batches[i])
		res.Tokens += int64(lengths[i] - 1)
	}
	if res.Tokens == 0 {
		return nil, &Error{Kind: ErrTokens, What: "no position to predict", Try: "give a text of at least two tokens"}
	}
	stores := make([]*Hidden, len(runners))
	defer func() {
		for _, s := range stores {
			if s != nil {
				s.Close()
			}
		}
	}()
	budget := int64(-1)
	fo := ForwardOptions{MemoryBytes: o.MemoryBytes}
	if o.MemoryBytes > 0 { // a quarter for hidden states of all streams, the rest for weights and spans
		budget = o.MemoryBytes / 4 / int64(len(runners))
		fo.MemoryBytes = o.MemoryBytes - o.MemoryBytes/4
	}
	for i, r := range runners {
		var err error
		if stores[i], err = NewHidden(lengths, m.Hidden, r.Model().Compute, budget, o.Dir); err != nil {
			return nil, err
		}
		res.SpilledBytes += stores[i].SpilledBytes()
		if err := Embed(ctx, r, batches, stores[i]); err != nil {
			return nil, err
		}
	}
	if err := evalLayers(ctx, runners, stores, lengths, fo, o, res); err != nil {
		return nil, err
	}
	return res, evalHead(ctx, runners, stores, batches, lengths, o.MemoryBytes, res)
}

// evalLayers takes the models through their layers side by side.
func evalLayers(ctx context.Context, runners []*model.Runner, stores []*Hidden, lengths []int, fo ForwardOptions, o EvalOptions, res *EvalResult) error {
	n := len(runners[0].Model().Layers)
	if len(runners) == 1 {
		return Layers(ctx, runners[0], lengths, stores[0], fo, func(i int) error {
			if o.Progress != nil {
				o.Progress(i+1, n)
			}
			return nil
		})
	}
	for i := range n {
		for k, r := range runners {
			run, err := r.OpenLayer(ctx, i)
			if err != nil {
				return err
			}
			err = Forward(ctx, run, lengths, stores[k], stores[k], fo)
			run.Close()
			if err != nil {
				return err
			}
			if o.Progress != nil {
				o.Progress(2*i+k+1, 2*n)
			}
		}
		e, err := relativeError(ctx, stores[0], stores[1], lengths)
		if err != nil {
			return err
		}
		res.Layers = append(res.Layers, LayerError{i, e})
	}
	return nil
}

// wide reads a batch as float32.
func wide(ctx context.Context, h *Hidden, b int) ([]float32, error) {
	x := newRows(h.bf16, h.lengths[b], h.width)
	if err := h.Get(ctx, b, x); err != nil {
		return nil, err
	}
	out := make([]float32, x.M*x.K)
	model.CopyF32(out, x)
	return out, nil
}

func relativeError(ctx context.Context, a, b *Hidden, lengths []int) (float64, error) {
	var diff, norm float64
	for i, n := range lengths {
		if n == 0 {
			continue
		}
		x, err := wide(ctx, a, i)
		if err != nil {
			return 0, err
		}
		y, err := wide(ctx, b, i)
		if err != nil {
			return 0, err
		}
		for j, v := range x {
			d := float64(y[j]) - float64(v)
			diff += float64(d * d)
			norm += float64(float64(v) * float64(v))
		}
	}
	if norm == 0 {
		return 0, nil
	}
	return math.Sqrt(diff / norm), nil
}

// position is what one predicted position contributes.
type position struct {
	nll, qnll, kl float64
	agree         bool
}

// evalHead computes logits in chunks of rows and folds the positions in order.
func evalHead(ctx context.Context, runners []*model.Runner, stores []*Hidden, batches [][]int32, lengths []int, limit int64, res *EvalResult) error {
	m := runners[0].Model()
	heads := make([]*model.Head, len(runners))
	for i, r := range runners {
		var err error
		if heads[i], err = r.OpenHead(ctx); err != nil {
			return err
		}
	}
	bytes := int64(128 << 20)
	if limit > 0 {
		bytes = min(bytes, limit/8)
	}
	step := int(max(1, min(1024, bytes/(4*int64(m.Vocab)*int64(len(runners))))))
	logits := make([][]float32, len(runners))
	for i := range logits {
		logits[i] = make([]float32, step*m.Vocab)
	}
	var kls []float64
	agree := int64(0)
	for b, ids := range batches {
		if err := ctx.Err(); err != nil {
			return err
		}
		xs := make([]kernels.Rows, len(runners))
		for i := range runners {
			xs[i] = newRows(stores[i].bf16, lengths[b], m.Hidden)
			if err := stores[i].Get(ctx, b, xs[i]); err != nil {
				return err
			}
		}
		for lo := 0; lo < lengths[b]-1; lo += step {
			hi := min(lo+step, lengths[b]-1)
			for i, h := range heads {
				h.Logits(rowsOf(xs[i], lo, hi), logits[i])
			}
			out := make([]position, hi-lo)
			runners[0].Pool().Do(hi-lo, func(_, t int) {
				row := func(i int) []float32 {
					if i >= len(logits) {
						return nil
					}
					return logits[i][t*m.Vocab : (t+1)*m.Vocab]
				}
				out[t] = compare(row(0), row(1), ids[lo+t+1])
			})
			for t, p := range out {
				if p.nll-p.nll != 0 || p.qnll-p.qnll != 0 {
					return &model.Error{Kind: model.ErrNonFinite, What: fmt.Sprintf("logits of window %d, position %d", b, lo+t), Where: model.Where{Layer: -1, Row: -1, Site: "lm_head"}}
				}
				res.NLL += p.nll
				res.QuantizedNLL += p.qnll
				res.KLMean += p.kl
				if len(runners) > 1 {
					kls = append(kls, p.kl)
				}
				if p.agree {
					agree++
				}
			}
		}
	}
	n := float64(res.Tokens)
	res.NLL /= n
	res.Perplexity = kernels.Exp64(res.NLL)
	if len(runners) > 1 {
		res.QuantizedNLL /= n
		res.QuantizedPerplexity = kernels.Exp64(res.QuantizedNLL)
		res.KLMean /= n
		slices.Sort(kls)
		res.KLP99 = kls[max(0, int(math.Ceil(0.99*n))-1)]
		res.Top1 = float64(agree) / n
	}
	return nil
}

// compare gives the negative log-likelihoods of the next token and KL(p‖q) of two rows of logits; q may be nil.
func compare(p, q []float32, next int32) position {
	lp := kernels.LogSumExp64(p)
	out := position{nll: lp - float64(p[next])}
	if q == nil {
		return out
	}
	lq := kernels.LogSumExp64(q)
	out.qnll = lq - float64(q[next])
	best, bestQ := 0, 0
	for i, v := range p {
		a, b := float64(v)-lp, float64(q[i])-lq
		out.kl += float64(kernels.Exp64(a) * float64(a-b))
		if v > p[best] {
			best = i
		}
		if q[i] > q[bestQ] {
			bestQ = i
		}
	}
	out.agree = best == bestQ
	return out
}
