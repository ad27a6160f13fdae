// Package capture carries activations through a model: which batches make a lane, where hidden states lie, how lanes'
// statistics become one Hessian, and whole forward passes for evaluation and for tracing.
//
// # Promises
//
//   - Lanes depend on the lengths of the batches only. Statistics of a lane and the order in which lanes are added are
//     fixed, so no result depends on threads, memory or the order in which work finishes.
//   - Hidden states lie in memory up to a budget and beyond it in one file, with the same bits.
//   - A forward pass holds one layer (two while the next is read ahead, where the budget allows), or a batch of its experts.
//
// # Not promised
//
// Durability: what a Hidden spills is scratch. Durable captures are the ledger's; they implement the same Store.
//
// # Words
//
//	batch   one sequence of token ids; rows are its positions
//	lane    a fixed slice of the batches: lane(b) = ⌊lanes·rowsBefore(b)/rows⌋; fixes the order of addition
//	span    some consecutive batches of a lane, processed flattened; its size is a matter of memory only
//	store   hidden states [rows, hidden] by batch: a layer's input or output
//	partial the statistic of one lane, rounded to float32 once
//
// # A spilled Hidden
//
// One file without header: the rows of the batches that did not fit, in batch order, each row hidden elements of 2 (bf16) or
// 4 (float32) bytes, little-endian.
package capture
