// Package ledger is an event store that loses nothing it acknowledged and can show that it did not change.
//
// A ledger is a directory that one process writes. It holds *events* (small typed records in one order) and *payloads*
// (blobs, bytes to gigabytes, that events name by role, length and SHA-256).
//
// # Promises
//
//   - What a Future or Put acknowledged survives kill -9 and power loss at any instant.
//   - A payload exists once an event that names it does, whole; an event never names a payload that is not durable.
//   - One natural key has one content for ever: the same content again gives the old event, another is a *DivergenceError.
//   - Damage is detected and located (file, event, payload, chunk); it is never a panic, a hang or wrong bytes.
//   - Loss of the newest commits (a restored snapshot, a flipped bit in a file header) is noticed through HEAD.
//   - Memory is bounded by Options.InFlightBytes and the size of one transaction, never by the size of a payload.
//
// # No promises
//
// The hash chain makes changes evident to whoever holds an older head; it does not stop one who can rewrite the whole
// directory and every copy of its heads. Stored bytes are not reproducible (only content is). One process writes; there
// is no merging. Files are for little-endian machines.
//
// # Words
//
//	event      a record with a type, a natural key, inputs and payload names; immutable, numbered from 1 (seq)
//	key        natural key of an event: '/'-separated, sortable, unique in the ledger
//	content    type, schema, key, record, inputs and payload names: what Digest covers and what a key binds
//	note       bytes beside the content (times, host) that a repetition need not match
//	payload    bytes named by an event: role, retention class, length, SHA-256
//	location   where a payload's bytes are now: inline, segment, tensor, foreign, none, retired. Not part of the chain
//	segment    one bbolt file of payloads of one retention class and segment key (a layer); retired by unlinking
//	stay       the time between an opening for writing and its close
//	head       seq, event hash and Merkle root of the newest event; in HEAD, in proofs and in signed notes
//
// # Layout
//
//	RUN/ledger.db               all events; bbolt, 16 KiB pages, synced free list; never pruned
//	RUN/segments/CLASS-KEY-NNN.db   payloads; bbolt, 4 KiB pages
//	RUN/journal                 events that are durable and not in ledger.db yet; while somebody writes, and after a crash
//	RUN/HEAD                    two 512-byte slots, written alternately after each group of events
//	RUN/LOCK                    who writes, since when, still alive
//	RUN/status.json             for those who cannot use the socket
//	RUN/ledger.sock             live inspection
//	RUN/reserve                 space that is given back when the disk is full
//
// docs/ledger.md draws every record byte by byte.
package ledger
