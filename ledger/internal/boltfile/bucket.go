package boltfile

import (
	"bytes"
	"encoding/binary"
	"io"
)

// Bucket is a B+tree of keys; some values are buckets themselves.
type Bucket struct {
	f      *File
	root   uint64
	inline *page // when the tree is one small page inside its parent's value
}

// Root is the bucket of top-level buckets.
func (f *File) Root() Bucket { return Bucket{f: f, root: f.Meta.Root} }

// BucketAt gives the bucket whose tree starts at a page.
func (f *File) BucketAt(root uint64) Bucket { return Bucket{f: f, root: root} }

// Value is a value that may be read in place.
type Value struct {
	f    *File
	p    *page
	s    span
	size int64
}

// Len is the value's length.
func (v Value) Len() int64 { return v.size }

// Read copies the value into dst, which holds Len bytes.
func (v Value) Read(dst []byte) error { return v.f.readInto(v.p, v.s, dst) }

// Offset gives where the value starts in the file, or -1 for a value inside an inline bucket.
func (v Value) Offset() int64 {
	if v.p.off < 0 {
		return -1
	}
	return v.p.off + v.s.off
}

func (b Bucket) top() (*page, error) {
	if b.inline != nil {
		return b.inline, nil
	}
	return b.f.readPage(b.root)
}

func (b Bucket) fromValue(p *page, s span) (Bucket, error) {
	raw, err := b.f.bytes(p, s)
	if err != nil {
		return Bucket{}, err
	}
	if len(raw) < 16 {
		return Bucket{}, bad(p.id, "bucket header of %d bytes", len(raw))
	}
	root := binary.LittleEndian.Uint64(raw)
	if root != 0 {
		return Bucket{f: b.f, root: root}, nil
	}
	in, err := parsePage(p.id, raw[16:], -1, int64(len(raw)-16))
	if err != nil {
		return Bucket{}, err
	}
	if in.flags != flagLeaf {
		return Bucket{}, bad(p.id, "inline bucket is no leaf")
	}
	return Bucket{f: b.f, inline: in}, nil
}

// find gives the leaf that would hold key, and the index of the first element not below it.
func (b Bucket) find(key []byte) (p *page, i int, exact bool, err error) {
	p, err = b.top()
	for depth := 0; ; depth++ {
		if err != nil {
			return nil, 0, false, err
		}
		if depth > maxDepth {
			return nil, 0, false, bad(p.id, "tree deeper than %d", maxDepth)
		}
		lo, hi := 0, p.count
		for lo < hi {
			mid := (lo + hi) / 2
			var ks span
			if p.flags == flagLeaf {
				ks, _, _, err = p.leaf(mid)
			} else {
				ks, _, err = p.branch(mid)
			}
			if err != nil {
				return nil, 0, false, err
			}
			k, err := b.f.bytes(p, ks)
			if err != nil {
				return nil, 0, false, err
			}
			c := bytes.Compare(k, key)
			if c == 0 {
				lo, exact = mid, true
				break
			}
			if c < 0 {
				lo = mid + 1
			} else {
				hi = mid
			}
		}
		if p.flags == flagLeaf {
			return p, lo, exact, nil
		}
		if !exact && lo > 0 {
			lo--
		}
		exact = false
		_, child, err2 := p.branch(lo)
		if err2 != nil {
			return nil, 0, false, err2
		}
		p, err = b.f.readPage(child)
	}
}

// Value finds a key's value. ok is false when there is none or it is a bucket.
func (b Bucket) Value(key []byte) (v Value, ok bool, err error) {
	p, i, exact, err := b.find(key)
	if err != nil || !exact {
		return Value{}, false, err
	}
	_, s, isBucket, err := p.leaf(i)
	if err != nil || isBucket {
		return Value{}, false, err
	}
	return Value{f: b.f, p: p, s: s, size: s.n}, true, nil
}

// Get gives a copy of a key's value.
func (b Bucket) Get(key []byte) ([]byte, bool, error) {
	v, ok, err := b.Value(key)
	if err != nil || !ok {
		return nil, false, err
	}
	dst := make([]byte, v.size)
	return dst, true, v.Read(dst)
}

// Bucket finds a nested bucket.
func (b Bucket) Bucket(key []byte) (Bucket, bool, error) {
	p, i, exact, err := b.find(key)
	if err != nil || !exact {
		return Bucket{}, false, err
	}
	_, s, isBucket, err := p.leaf(i)
	if err != nil || !isBucket {
		return Bucket{}, false, err
	}
	n, err := b.fromValue(p, s)
	return n, err == nil, err
}

// Entry is one key of a walk. Key is valid during the call.
type Entry struct {
	Key      []byte
	IsBucket bool
	b        Bucket
	p        *page
	s        span
}

// Value gives the entry's value in place.
func (e Entry) Value() Value { return Value{f: e.b.f, p: e.p, s: e.s, size: e.s.n} }

// Bytes gives the value; valid during the call.
func (e Entry) Bytes() ([]byte, error) { return e.b.f.bytes(e.p, e.s) }

// Bucket opens a nested bucket.
func (e Entry) Bucket() (Bucket, error) { return e.b.fromValue(e.p, e.s) }

// Walk calls fn for every key ≥ from in order until it gives an error; io.EOF from fn ends the walk without one.
func (b Bucket) Walk(from []byte, fn func(Entry) error) error {
	p, err := b.top()
	if err != nil {
		return err
	}
	left := b.f.pages
	err = b.walk(p, from, 0, &left, fn)
	if err == io.EOF {
		return nil
	}
	return err
}

// walk goes through the tree under p. left counts the pages that a sound file can still hold: a tree that reaches its
// pages more than once ends with an error instead of in an explosion.
func (b Bucket) walk(p *page, from []byte, depth int, left *uint64, fn func(Entry) error) error {
	if depth > maxDepth {
		return bad(p.id, "tree deeper than %d", maxDepth)
	}
	if p.flags == flagLeaf {
		for i := range p.count {
			ks, vs, isBucket, err := p.leaf(i)
			if err != nil {
				return err
			}
			k, err := b.f.bytes(p, ks)
			if err != nil {
				return err
			}
			if bytes.Compare(k, from) < 0 {
				continue
			}
			if err := fn(Entry{Key: k, IsBucket: isBucket, b: b, p: p, s: vs}); err != nil {
				return err
			}
		}
		return nil
	}
	start := 0
	if len(from) > 0 {
		for i := 1; i < p.count; i++ {
			ks, _, err := p.branch(i)
			if err != nil {
				return err
			}
			k, err := b.f.bytes(p, ks)
			if err != nil {
				return err
			}
			if bytes.Compare(k, from) > 0 {
				break
			}
			start = i
		}
	}
	for i := start; i < p.count; i++ {
		_, child, err := p.branch(i)
		if err != nil {
			return err
		}
		c, err := b.f.readPage(child)
		if err != nil {
			return err
		}
		if *left == 0 {
			return bad(p.id, "tree reaches pages more than once")
		}
		*left--
		if err := b.walk(c, from, depth+1, left, fn); err != nil {
			return err
		}
	}
	return nil
}

// Last gives the greatest key and its value; ok is false for an empty bucket.
func (b Bucket) Last() (key, val []byte, ok bool, err error) {
	p, err := b.top()
	for depth := 0; ; depth++ {
		if err != nil {
			return nil, nil, false, err
		}
		if depth > maxDepth {
			return nil, nil, false, bad(p.id, "tree deeper than %d", maxDepth)
		}
		if p.count == 0 {
			return nil, nil, false, nil
		}
		if p.flags == flagLeaf {
			ks, vs, _, err := p.leaf(p.count - 1)
			if err != nil {
				return nil, nil, false, err
			}
			k, err := b.f.bytes(p, ks)
			if err != nil {
				return nil, nil, false, err
			}
			v, err := b.f.bytes(p, vs)
			return bytes.Clone(k), bytes.Clone(v), err == nil, err
		}
		_, child, err2 := p.branch(p.count - 1)
		if err2 != nil {
			return nil, nil, false, err2
		}
		p, err = b.f.readPage(child)
	}
}
