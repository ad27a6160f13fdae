// Package lint checks a published quantized checkpoint without loading it and without a ledger: ours or anybody's.
//
// Promises. Every finding has a code of one table (codes.go), a place and a remedy; docs/lint.md is that table with the
// planted faults that prove it. Damage is a finding, never a panic and never an early end: one broken shard does not
// hide what the others show. Exclusion lists, targets and per-module rules are evaluated as each loader evaluates them
// (loaders.go), not as they look. Memory is bounded by a few modules at a time.
//
// Not promised: that a loader release which changed its rules still behaves as written here; float formats (fp8, nvfp4,
// mxfp4) beyond files, names and scales.
//
// # Words
//
//	profile    a loader whose rules are checked: vllm, sglang, transformers
//	module     a linear by its name without ".weight"; quantized when packed tensors of it exist, left alone otherwise
//	truth      what the tensors say, against which config and exclusion lists are held
//	severity   error: will not load, or loads wrong; warning: likely not meant; note: worth knowing, no finding for the
//	           exit code
//
// # Order of work
//
//	files.go      shards, index, side files                   → tensors
//	config.go     quantization_config of gptq, awq, compressed-tensors → schemes, exclusions
//	modules.go    tensors grouped by module; names, dtypes, shapes against the scheme
//	contents.go   scales, zeros, g_idx, codes, a few modules at a time
//	siblings.go   what loaders fuse: schemes, scales, experts
//	loaders.go    exclusions and targets as each loader reads them
//	profiles.go   what each loader can run
//	parallel.go   tensor-parallel sizes
//	against.go    errors against the original
package lint
