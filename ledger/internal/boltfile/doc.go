// Package boltfile reads bbolt files by pread and believes nothing that it reads.
//
// bbolt maps the file and follows what stands in it: a damaged page makes it panic, fault, overflow its stack or loop.
// This reader checks every page number, length and offset against the file before it follows it, bounds the depth, and
// gives an *Error that names the page. It never maps, so a file that shrinks under it is an error and not a fault.
//
// Writer adds to such a file what bbolt would copy three times: see there.
//
// The format (bbolt v1.5.0, internal/common; little-endian hosts only):
//
//	page      id u64 | flags u16 | count u16 | overflow u32 | elements
//	meta      magic u32 | version u32 | page size u32 | flags u32 | root u64 | sequence u64 | freelist u64 | high-water u64 | txid u64 | FNV-1a-64
//	leaf      flags u32 | pos u32 | key size u32 | value size u32       (pos counts from the element's own start)
//	branch    pos u32 | key size u32 | page id u64
//	bucket    root page u64 | sequence u64, then an inline page when root is 0
package boltfile
