package ledger_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
)

// region is a run of bytes of a file that serve one purpose.
type region struct {
	class    string
	from, to int64
}

// boltRegions says what each byte of a sound bbolt file is for. It is written after bbolt's format and knows nothing of
// package boltfile, which is under test.
func boltRegions(t testing.TB, path, kind string) []region {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	u16, u32, u64 := binary.LittleEndian.Uint16, binary.LittleEndian.Uint32, binary.LittleEndian.Uint64
	size := int64(u32(b[16+8:]))
	newest, older := int64(0), size
	if u64(b[size+16+48:]) > u64(b[16+48:]) {
		newest, older = size, 0
	}
	meta := b[newest+16:]
	high := int64(u64(meta[40:]))
	var list []region
	add := func(class string, from, n int64) {
		if n > 0 {
			list = append(list, region{kind + " " + class, from, from + n})
		}
	}
	add("newest file header", newest, 80)
	add("older file header", older, 80)
	var page func(at int64, bucket string)
	elements := func(at int64, bucket string) {
		flags, count := u16(b[at+8:]), int64(u16(b[at+10:]))
		add("page header", at, 16)
		for i := range count {
			e := at + 16 + 16*i
			if flags&1 != 0 { // a branch
				add("branch element", e, 16)
				pos, n := int64(u32(b[e:])), int64(u32(b[e+4:]))
				add("branch key", e+pos, n)
				page(int64(u64(b[e+8:]))*size, bucket)
				continue
			}
			add("leaf element", e, 16)
			pos, kn, vn := int64(u32(b[e+4:])), int64(u32(b[e+8:])), int64(u32(b[e+12:]))
			key := string(b[e+pos : e+pos+kn])
			v := e + pos + kn
			if u32(b[e:])&1 == 0 {
				add("key in table "+bucket, e+pos, kn)
				add("value in table "+bucket, v, vn)
				continue
			}
			name := bucket
			if bucket == "" {
				name = key
			} else {
				name += " (nested)"
			}
			add("name of a table", e+pos, kn)
			add("root of a table", v, 16)
			if root := int64(u64(b[v:])); root != 0 {
				page(root*size, name)
			} else {
				inlinePage(b, v+16, func(class string, from, n int64) { add(strings.ReplaceAll(class, "@", name), from, n) })
			}
		}
	}
	page = func(at int64, bucket string) { elements(at, bucket) }
	page(int64(u64(meta[16:]))*size, "")
	if fl := int64(u64(meta[32:])); uint64(fl) != ^uint64(0) {
		add("header of the free list", fl*size, 16)
		add("free list", fl*size+16, 8*int64(u16(b[fl*size+10:])))
	}
	// What is left is room that nothing refers to.
	sort.Slice(list, func(i, j int) bool { return list[i].from < list[j].from })
	var rest []region
	at := int64(0)
	for _, r := range list {
		if r.from > at {
			rest = append(rest, region{kind + " unused room", at, r.from})
		}
		at = max(at, r.to)
	}
	if end := high * size; end > at {
		rest = append(rest, region{kind + " unused room", at, end})
	}
	return append(list, rest...)
}

// inlinePage gives the regions of a small table that lies inside its parent's value.
func inlinePage(b []byte, at int64, add func(class string, from, n int64)) {
	add("page header", at, 16)
	for i := range int64(binary.LittleEndian.Uint16(b[at+10:])) {
		e := at + 16 + 16*i
		pos, kn, vn := int64(binary.LittleEndian.Uint32(b[e+4:])), int64(binary.LittleEndian.Uint32(b[e+8:])), int64(binary.LittleEndian.Uint32(b[e+12:]))
		add("leaf element", e, 16)
		add("key in table @", e+pos, kn)
		add("value in table @", e+pos+kn, vn)
	}
}

// regionsOf names what every byte of a closed ledger is for, by file.
func regionsOf(t testing.TB, dir string) map[string][]region {
	t.Helper()
	all := map[string][]region{
		"HEAD":      {{"HEAD slot 0", 0, 512}, {"HEAD slot 1", 512, 1024}},
		"LOCK":      {{"LOCK", 0, 512}},
		"ledger.db": boltRegions(t, filepath.Join(dir, "ledger.db"), "ledger.db"),
	}
	files, err := filepath.Glob(filepath.Join(dir, "segments", "*.db"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		all["segments/"+filepath.Base(f)] = boltRegions(t, f, "segment")
	}
	return all
}
