// Package testdata holds small real inputs and embeds those that `quire demo` quantizes. Origins and licences stand in
// SOURCES.md.
package testdata

import "embed"

// Demo is a trained 1.9-million-parameter Qwen3-MoE checkpoint (demo/) with calibration and evaluation token ids
// (tokens/: little-endian uint16).
//
//go:embed demo tokens
var Demo embed.FS
