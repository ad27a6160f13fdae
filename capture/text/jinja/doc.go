// Package jinja renders chat templates as Jinja2 3.1 does in the environment that transformers sets up: an immutable sandbox with
// trim_blocks, lstrip_blocks, loop controls and the {% generation %} block.
//
// It promises the same text as that environment, byte for byte, for what chat templates use: Python's numbers, their
// printing, string methods and slices, ordered dictionaries, the filters, tests and statements of the tables in filters.go, tests.go and
// parse.go. What it does not know it refuses when a template is compiled (statements) or reached (filters, methods), by
// name; it never skips anything. Inheritance, imports and inclusion are refused. Output, values, depth and steps are bounded
// (operators.go, eval.go), and no
// template can reach files, clocks or Go values.
//
//	source ──lex──▶ tokens (whitespace control resolved) ──parse──▶ tree ──Render──▶ text, generation spans
//
// Why not a library: github.com/ardanlabs/jinja v1.8.0 behind this package's own whitespace pre-pass gives 112 of the 200
// renderings and errors of shared/fixtures/chat. It prints 1.0 as 1, goes on where Jinja2 raises (a missing attribute, text + list), lacks bare
// tuples, loop.changed and numbers like 1e3, panics in one filter, and reports no generation spans; 11 of its failures are in published templates
// (qwen3, mistral, smollm2).
//
// Vocabulary: a value is nil (None), bool, int64, *big.Int, float64, string, *List, *Tuple, *Dict, *Namespace, a function, or Undefined.
package jinja
