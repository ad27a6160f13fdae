// Package engine turns a published model into a quantized one and writes down everything it saw and decided.
//
// A run, as data:
//
//	headers + config + recipe + calibration ──Plan──▶ identity, fates, budget     genesis, source, calibration
//	samples ──▶ batches                                                           batch
//	embedding ──▶ layer-0 input                                                   capture
//	for each layer:
//	  for each stage:
//	     rows of its sites, lane by lane ──▶ Gram statistics                      partial, hessian
//	     every module of the site solved                                          decision
//	     the stage's output with the quantized weights feeds the next stage
//	  last output = next layer's input                                            capture
//	  codes packed into output shards, read back, compared                        shard, layer
//	  payload that nothing needs any more is let go                               retired
//	head and side files, index, config ──▶ OUT.partial ──▶ OUT                    sealed, finished
//
// Promises. What an event names is durable before the event is; a run that is killed at any instant goes on with the
// same command and ends with the same bytes; at most one layer's forward pass is repeated and no acknowledged decision
// is computed again. The bytes of the result depend on model, calibration, recipe and numeric contract only. The package
// prints nothing: it reports through Observer.
//
// Words are those of DESIGN section 2: sample, batch, row, lane, layer, stage, site, stream, capture, partial, hessian,
// decision.
package engine
