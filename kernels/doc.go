// Package kernels holds the numbers of quire: matrix products, statistics,
// factorisations, the inner steps of GPTQ, attention and the element-wise
// functions between them.
//
// # Promises
//
// Every operation obeys one numeric contract, [ContractID], written out in
// docs/contract-cpu-1.md: the bits of a result depend on the operands only, not
// on the instruction-set level, the number of threads, or the order in which
// tiles happen to run. Every assembly kernel has a generic Go twin that defines
// it; a level is used only after a start-up self-test against that twin.
//
// # Not promised
//
// The sign and payload of a NaN. Speed of the scalar twin: it emulates the
// fused multiply-add exactly and reaches about 1 GF.
//
// # Vocabulary
//
//	level    instruction set in use (scalar, avx2, avx512, avx512bf16)
//	row      one token's vector; matrices of rows are row-major [M,K]
//	panel    32 adjacent output features (or statistic columns) stored
//	         [k][32], the vector side of every kernel
//	K block  256 adjacent k; each has a fresh accumulator
//	slab     32 output channels of a weight matrix as [column][32], the
//	         unit of work of GPTQ
//
// Shapes that do not fit together are programming errors and panic, as in BLAS;
// a matrix that cannot be factored is a value ([Pivot]).
package kernels
