package boltfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// maxProblems bounds what one check reports.
const maxProblems = 100

// Depth says how much of each page a check reads.
type Depth int

// Pages checks page headers and branches: what a reader must be able to follow without looping. Elements also checks the
// order and bounds of every key.
const (
	Pages Depth = iota
	Elements
)

// checker walks every tree of a file.
type checker struct {
	f        *File
	depth    Depth
	used     []uint64 // bitmap of pages
	problems []error
	head     []byte // the beginning of the page looked at, at depth Pages
}

// headBytes of a page hold its element table unless its elements are many and small.
const headBytes = 4 << 10

// Check walks the whole file and gives what is wrong. An empty answer means that bbolt can follow every page number in
// it without a panic or a loop, and, at depth Elements, that every tree is in order and every page is used exactly once.
func (f *File) Check(depth Depth) []error { return f.check(depth).problems }

func (f *File) check(depth Depth) *checker {
	c := &checker{f: f, depth: depth, used: make([]uint64, f.pages/64+1), head: make([]byte, min(headBytes, f.pageSize))}
	c.mark(0, 1)
	c.mark(1, 1)
	c.tree(f.Root(), nil, nil, 0)
	c.freelist()
	return c
}

func (c *checker) report(err error) {
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, err)
	}
}

// mark claims pages and says whether nobody had.
func (c *checker) mark(id, n uint64) bool {
	for i := id; i < id+n; i++ {
		if c.used[i/64]>>(i%64)&1 == 1 {
			return false
		}
		c.used[i/64] |= 1 << (i % 64)
	}
	return true
}

// tree checks the tree under b whose keys lie in [lo, hi).
func (c *checker) tree(b Bucket, lo, hi []byte, level int) {
	p, err := b.top()
	if err != nil {
		c.report(err)
		return
	}
	c.page(b, p, lo, hi, level)
}

func (c *checker) page(b Bucket, p *page, lo, hi []byte, level int) {
	if level > maxDepth {
		c.report(bad(p.id, "tree deeper than %d", maxDepth))
		return
	}
	if p.off >= 0 && !c.mark(p.id, uint64(p.size)/uint64(c.f.pageSize)) {
		c.report(bad(p.id, "is reached twice"))
		return
	}
	if len(c.problems) >= maxProblems {
		return
	}
	if p.flags == flagLeaf {
		c.leaf(b, p, lo, hi, level)
		return
	}
	var keys [][]byte
	for i := range p.count {
		ks, _, err := p.branch(i)
		if err != nil {
			c.report(err)
			return
		}
		k, err := c.f.bytes(p, ks)
		if err != nil {
			c.report(err)
			return
		}
		keys = append(keys, k)
		if i > 0 && bytes.Compare(keys[i-1], k) >= 0 {
			c.report(bad(p.id, "branch keys %d and %d out of order", i-1, i))
			return
		}
	}
	for i := range p.count {
		_, child, err := p.branch(i)
		if err != nil {
			c.report(err)
			return
		}
		cp, err := c.read(child)
		if err != nil {
			c.report(fmt.Errorf("under page %d: %w", p.id, err))
			continue
		}
		next := hi
		if i+1 < p.count {
			next = keys[i+1]
		}
		first := keys[i]
		if i == 0 {
			first = lo // the first key of a branch may lag behind its child's
		}
		c.page(b, cp, first, next, level+1)
	}
}

// read gives a page. At depth Pages that is, of a leaf, only its beginning, in memory that the next call uses again: a large
// file is opened in the time of reading a quarter of it.
func (c *checker) read(id uint64) (*page, error) {
	if c.depth >= Elements || id < 2 || id >= c.f.pages {
		return c.f.readPage(id)
	}
	off := int64(id) * int64(c.f.pageSize)
	if _, err := c.f.r.ReadAt(c.head, off); err != nil {
		return nil, bad(id, "read: %v", err)
	}
	if flags, count := binary.LittleEndian.Uint16(c.head[8:]), int(binary.LittleEndian.Uint16(c.head[10:])); flags != flagLeaf || pageHeader+count*elemSize > len(c.head) {
		return c.f.readPage(id)
	}
	return c.f.parse(id, c.head, off)
}

func (c *checker) leaf(b Bucket, p *page, lo, hi []byte, level int) {
	var prev []byte
	for i := range p.count {
		ks, vs, isBucket, err := p.leaf(i)
		if err != nil {
			c.report(err)
			return
		}
		if c.depth >= Elements {
			k, err := c.f.bytes(p, ks)
			if err != nil {
				c.report(err)
				return
			}
			switch {
			case i > 0 && bytes.Compare(prev, k) >= 0:
				c.report(bad(p.id, "keys %d and %d out of order", i-1, i))
				return
			case lo != nil && bytes.Compare(k, lo) < 0, hi != nil && bytes.Compare(k, hi) >= 0:
				c.report(bad(p.id, "key %d is outside what its branch says", i))
				return
			}
			prev = k
		}
		if isBucket {
			if &p.buf[0] == &c.head[0] { // the tree below needs it
				p.buf = bytes.Clone(p.buf)
			}
			n, err := b.fromValue(p, vs)
			if err != nil {
				c.report(err)
				continue
			}
			c.tree(n, nil, nil, level+1)
		}
	}
}

// freelist checks the stored list of free pages against the pages in use.
func (c *checker) freelist() {
	m := c.f.Meta
	if m.NoFreelist() || m.PageSize == 0 {
		return
	}
	id := m.Freelist
	head := make([]byte, pageHeader+8)
	if id < 2 || id >= c.f.pages {
		c.report(bad(id, "free list outside 2..%d", c.f.pages))
		return
	}
	off := int64(id) * int64(c.f.pageSize)
	if _, err := c.f.r.ReadAt(head, off); err != nil {
		c.report(bad(id, "free list: %v", err))
		return
	}
	over := uint64(binary.LittleEndian.Uint32(head[12:]))
	switch {
	case binary.LittleEndian.Uint64(head) != id:
		c.report(bad(id, "free list calls itself %d", binary.LittleEndian.Uint64(head)))
		return
	case binary.LittleEndian.Uint16(head[8:]) != flagFreelist:
		c.report(bad(id, "free list has kind %#x", binary.LittleEndian.Uint16(head[8:])))
		return
	case id+over >= c.f.pages:
		c.report(bad(id, "free list ends beyond %d", c.f.pages))
		return
	}
	count, skip := uint64(binary.LittleEndian.Uint16(head[10:])), int64(0)
	if count == 0xffff {
		count, skip = binary.LittleEndian.Uint64(head[pageHeader:]), 8
	}
	if count > (uint64(over+1)*uint64(c.f.pageSize)-pageHeader-uint64(skip))/8 {
		c.report(bad(id, "free list of %d pages does not fit", count))
		return
	}
	if !c.mark(id, over+1) {
		c.report(bad(id, "free list lies on a page in use"))
		return
	}
	ids := make([]byte, count*8)
	if _, err := c.f.r.ReadAt(ids, off+pageHeader+skip); err != nil {
		c.report(bad(id, "free list: %v", err))
		return
	}
	for i := uint64(0); i < count; i++ {
		x := binary.LittleEndian.Uint64(ids[8*i:])
		if x < 2 || x >= c.f.pages {
			c.report(bad(id, "free page %d outside 2..%d", x, c.f.pages))
			return
		}
		if !c.mark(x, 1) {
			c.report(bad(id, "page %d is both free and in use, or free twice", x))
			return
		}
	}
	if c.depth < Elements {
		return
	}
	for x := uint64(2); x < c.f.pages; x++ {
		if c.used[x/64]>>(x%64)&1 == 0 {
			c.report(bad(x, "is neither in use nor free"))
			return
		}
	}
}
