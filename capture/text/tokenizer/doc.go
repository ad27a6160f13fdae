// Package tokenizer turns text into token ids and back, with the ids of the reference library for tokenizer.json.
//
// # Promises
//
// Ids equal the reference's (golden files: every part and option, nine real vocabularies, whole files by digest), or the file
// is refused by the name of the part that is not implemented. A Tokenizer is immutable and safe for concurrent use; what it
// gives does not depend on caches or threads. Damaged files give errors, never a panic.
//
// # Not promised
//
// Character classes and normal forms follow the Unicode tables of Go and x/text (15.0 for Go 1.26); characters assigned later may
// differ from a reference built on newer tables. BPE dropout is refused, since it is random. Invalid UTF-8 is refused.
//
// # The way of a text
//
//	text ─ added tokens (raw) ─ normalizer ─ added tokens (normalized) ─ pre-tokenizer ─ model ─ post-processor ─ ids
//
// A piece of text on this way is an nstr: normalized bytes that know their source, for offsets. Where the pre-tokenizer is made of
// well-known patterns, hand-written scanners (scan.go) cut without storing pieces, and byte-level models work on raw bytes;
// tests hold both against the general way. Other patterns are Oniguruma's, translated (regex.go) and run by regexp2.
//
// Besides tokenizer.json, SentencePiece models (spm.go) and tiktoken files of known classes (tiktoken.go) are read.
//
// # Vocabulary
//
// A piece or word is what the model sees at once; a token is an entry of the vocabulary; an added token is found in the text itself,
// before the model; a special token is one that Decode may leave out and that a post-processor may add.
package tokenizer
