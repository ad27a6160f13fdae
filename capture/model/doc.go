// Package model knows model families: which tensor is what, where experts hide in fused tensors, and what the
// forward pass between the inputs of linears is.
//
// # Promises
//
//   - Open works from headers and config.json alone. Every tensor of the checkpoint is claimed exactly once,
//     with a role, a default fate and a reason; every tensor that the family needs is there with the shape that its
//     *stated* layout demands. Anything else is an error that names the tensor. No layout is guessed from a shape.
//   - A layer runs as stages between sites. What a stage computes depends on the rows and the weights only: any
//     number of sequences at a time, any thread count, CPU level, expert batch or loop order gives the same bits.
//   - Rows of a site are exactly the bits that its linears multiply.
//   - Weights are read by layer and by expert; nothing holds the model. LayerBytes, ExpertBytes and SpanBytes say
//     beforehand what is held.
//   - A non-finite weight or activation is an error with tensor and row, never a number that goes on.
//
// # Not promised
//
// Bits of another framework (tolerances: fixtures/arch). Generation: there is no key-value cache.
//
// # Words
//
//	linear   a matrix multiplied with rows; Module is its output name without ".weight"
//	site     the place where the input of a set of linears can be looked at
//	stage    the arithmetic between two sites
//	span     the activations of consecutive batches inside one layer, rows flattened; a lane is one or several spans
//	mixer    what mixes positions in a layer; attention and MLA now, others fit the same interface
//	block    a mixture-of-experts feed-forward
//	routing  the router's choice for the rows of a span, as a value
//
// # A layer
//
//	x ──norm──▶ site attn_in ─ q,k,v ─ rope ─ attention ──▶ site attn_out ─ o ──▶ x+ ──norm──┐
//	            (MLA: q_a, kv_a ──norms──▶ sites q_b, kv_b ─ attention)                       │
//	┌─────────────────────────────────────────────────────────────────────────────────────────┘
//	├ dense ▶ site mlp_in ─ gate,up ──▶ site mlp_mid ─ down ──▶ x+
//	└ block ▶ site block_in ─ router ─▶ Routing
//	            ├ per expert e: rows gathered by id ▶ site expert_in ─ gate,up ──▶ site expert_mid ─ down ─▶ ·weight ─▶ Σ
//	            └ shared: block_in ─ gate,up ──▶ site shared_mid ─ down ─▶ (·σ(shared gate)) ─▶ Σ, last ─▶ x+
//
// A caller walks the stages of Layer.Stages over all spans; between two stages it may look at rows, solve, and
// Replace weights; then Span.Advance computes what the next stage's sites see. In the block stage it walks experts:
//
//	run := runner.OpenLayer(ctx, i)                        // norms, router, attention, dense weights
//	for every span: span := run.NewSpan(lengths, x)        // rows of the first stage's sites are there
//	for stage := range layer.Stages {
//	    for every span, every site of the stage that is no expert's: statistics of span.Rows(site)
//	    solve; run.Replace(linear, w)
//	    if stage.Block != nil {                            // expert-outer; lane-outer swaps the loops, same bits
//	        for e := range experts {
//	            run.LoadExperts(ctx, e, e+1)
//	            for every span: statistics of span.ExpertRows(e, ids)
//	            solve gate, up; run.Replace
//	            for every span: mid := span.ExpertMid(e, rows); statistics of mid
//	            solve down; run.Replace
//	            for every span: span.AddExpert(e, mid)     // in ascending e
//	            run.UnloadExperts(e, e+1)
//	        }
//	        shared: span.SharedMid, statistics, solve, Replace
//	    }
//	    for every span: span.Advance(ctx)                  // the stage's linears with what weights they have now
//	}
//	span.Output()                                          // next layer's input
//
// Experts that were not added one by one are run by Advance itself.
//
// # Numbers
//
// Compute F32: everything is float32; weights have their stored value. Compute BF16: the rows of every site are
// rounded to bf16, the weights of linears act as bf16, the residual stream is rounded at layer borders and is
// float32 inside a layer, as are attention and activation functions. Routers use rows as rounded, weights in
// the stored dtype and give float32; correction biases are float32.
package model
