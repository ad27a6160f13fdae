// Package text turns calibration data into token ids: it loads tokenizers and chat templates, reads data sets, and
// accounts for every sample.
//
// # Promises
//
// LoadSamples gives an ordered list of batches and its digest. Both depend on the bytes of the data, the tokenizer, the
// template and the options, never on threads, on how many records are in flight, on the clock or on map order. Every
// entry of a data set ends in one Fate (used, clipped, merged, dropped with a reason) and the counts add up to the number
// of entries. No sequence is padded, and none begins with two beginning-of-sequence tokens. A data set is streamed: memory
// follows what is kept.
//
// Token ids equal those of the reference implementation of tokenizer.json, or the tokenizer is refused by the name of the
// part that is not implemented. The same holds for templates.
//
// # Not promised
//
// Characters assigned after the Unicode version of the Go tables (15.0 for Go 1.26) may fall into other classes than in
// a reference built on newer tables. Invalid UTF-8 is refused, not repaired. No pickle and no remote code is ever read.
//
// # Vocabulary
//
// A sample is one entry of a data set before tokenization; a batch is one calibration sequence of token ids; a row is a
// token that counts (see Batch.Mask and Options.Count); a fate is what became of a sample.
//
// # Layout
//
//	tokenizer   text -> ids: normalizer, pre-tokenizer, model, post-processor, decoder
//	chat        messages -> text: templates
//	text        data sets -> samples -> batches (this package)
//
// Raw token files (.u16, .u32) are little-endian ids without a header:
//
//	.u16  | id 0 lo hi | id 1 lo hi | …        .u32  | id 0, 4 bytes | id 1, 4 bytes | …
package text
