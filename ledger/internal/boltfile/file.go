package boltfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

const (
	magic   = 0xED0CDAED
	version = 2

	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagMeta     = 0x04
	flagFreelist = 0x10

	bucketLeaf = 0x01

	pageHeader = 16
	elemSize   = 16
	metaSize   = 64
	maxDepth   = 48

	// noFreelist marks a file whose free list is not kept on disk.
	noFreelist = ^uint64(0)
)

// ErrFormat is what every *Error is.
var ErrFormat = errors.New("boltfile: not a sound bbolt file")

// Error locates damage.
type Error struct {
	Page uint64
	What string
}

func (e *Error) Error() string { return fmt.Sprintf("page %d: %s", e.Page, e.What) }

// Is matches ErrFormat.
func (e *Error) Is(t error) bool { return t == ErrFormat }

func bad(page uint64, format string, a ...any) error {
	return &Error{Page: page, What: fmt.Sprintf(format, a...)}
}

// Meta is a file header.
type Meta struct {
	Page     uint64 // 0 or 1
	PageSize int
	Root     uint64
	Freelist uint64
	High     uint64 // first page number that was never used
	TxID     uint64
}

// NoFreelist says that the free list is not stored.
func (m Meta) NoFreelist() bool { return m.Freelist == noFreelist }

// Used is the length of the part of the file that the state needs; what follows was only set aside.
func (f *File) Used() int64 { return int64(f.Meta.High) * int64(f.pageSize) }

// File is a bbolt file, or a consistent state of one that is being written.
type File struct {
	r        io.ReaderAt
	pageSize int
	pages    uint64 // pages that may be followed
	Meta     Meta
	Other    error // what is wrong with the other header, if anything
}

func parseMeta(page uint64, b []byte) (Meta, error) {
	if len(b) < pageHeader+metaSize {
		return Meta{}, bad(page, "header cut short")
	}
	m := b[pageHeader:]
	if binary.LittleEndian.Uint32(m) != magic {
		return Meta{}, bad(page, "header magic %08x", binary.LittleEndian.Uint32(m))
	}
	if v := binary.LittleEndian.Uint32(m[4:]); v != version {
		return Meta{}, bad(page, "header version %d", v)
	}
	h := fnv.New64a()
	h.Write(m[:56])
	if h.Sum64() != binary.LittleEndian.Uint64(m[56:]) {
		return Meta{}, bad(page, "header checksum differs")
	}
	return Meta{Page: page, PageSize: int(binary.LittleEndian.Uint32(m[8:])), Root: binary.LittleEndian.Uint64(m[16:]),
		Freelist: binary.LittleEndian.Uint64(m[32:]), High: binary.LittleEndian.Uint64(m[40:]), TxID: binary.LittleEndian.Uint64(m[48:])}, nil
}

// Open reads the headers and picks the newest sound one, as bbolt does.
func Open(r io.ReaderAt, size int64) (*File, error) {
	b := make([]byte, pageHeader+metaSize)
	read := func(page uint64, off int64) (Meta, error) {
		if _, err := r.ReadAt(b, off); err != nil {
			return Meta{}, bad(page, "header: %v", err)
		}
		return parseMeta(page, b)
	}
	m0, err0 := read(0, 0)
	var m1 Meta
	var err1 error
	if err0 == nil {
		m1, err1 = read(1, int64(m0.PageSize))
	} else {
		for ps := int64(1 << 10); ps <= 1<<16; ps <<= 1 {
			if m1, err1 = read(1, ps); err1 == nil && int64(m1.PageSize) == ps {
				break
			}
		}
	}
	f := &File{r: r}
	switch {
	case err0 != nil && err1 != nil:
		return nil, fmt.Errorf("%w: both headers are damaged: %w; %w", ErrFormat, err0, err1)
	case err0 != nil:
		f.Meta, f.Other = m1, err0
	case err1 != nil:
		f.Meta, f.Other = m0, err1
	case m1.TxID > m0.TxID:
		f.Meta = m1
	default:
		f.Meta = m0
	}
	ps := f.Meta.PageSize
	if ps < 1<<10 || ps > 1<<24 || ps&(ps-1) != 0 {
		return nil, bad(f.Meta.Page, "page size %d", ps)
	}
	f.pageSize = ps
	f.pages = f.Meta.High
	if have := uint64(size) / uint64(ps); f.pages > have {
		return nil, bad(f.Meta.Page, "file of %d pages was cut: %d pages are in use", have, f.pages)
	}
	if f.Meta.Root >= f.pages {
		return nil, bad(f.Meta.Page, "root page %d beyond %d", f.Meta.Root, f.pages)
	}
	return f, nil
}

// At gives a reader of the state whose pages a bbolt transaction pins: bucket roots come from it.
func At(r io.ReaderAt, size int64, pageSize int) *File {
	return &File{r: r, pageSize: pageSize, pages: uint64(size) / uint64(pageSize)}
}

// page is a B+tree page: its first bytes, and where it starts and ends in the file.
type page struct {
	id    uint64
	flags uint16
	count int
	off   int64 // in the file; -1 for an inline page
	size  int64
	buf   []byte // the first pageSize bytes, or more if the element table needs them
}

func (f *File) readPage(id uint64) (*page, error) {
	if id < 2 || id >= f.pages {
		return nil, bad(id, "number outside 2..%d", f.pages)
	}
	buf := make([]byte, f.pageSize)
	off := int64(id) * int64(f.pageSize)
	if _, err := f.r.ReadAt(buf, off); err != nil {
		return nil, bad(id, "read: %v", err)
	}
	p, err := f.parse(id, buf, off)
	if err != nil {
		return nil, err
	}
	if table := int64(pageHeader + p.count*elemSize); table > int64(len(p.buf)) {
		if table > p.size {
			return nil, bad(id, "%d elements do not fit", p.count)
		}
		p.buf = make([]byte, table)
		if _, err := f.r.ReadAt(p.buf, off); err != nil {
			return nil, bad(id, "read: %v", err)
		}
	}
	return p, nil
}

// parse reads the header of a page whose first bytes are in buf.
func (f *File) parse(id uint64, buf []byte, off int64) (*page, error) {
	over := uint64(binary.LittleEndian.Uint32(buf[12:]))
	if id+over >= f.pages {
		return nil, bad(id, "%d further pages end beyond %d", over, f.pages)
	}
	return parsePage(id, buf, off, int64(over+1)*int64(f.pageSize))
}

func parsePage(id uint64, buf []byte, off, size int64) (*page, error) {
	if len(buf) < pageHeader {
		return nil, bad(id, "page cut short")
	}
	p := &page{id: id, buf: buf, off: off, size: size, flags: binary.LittleEndian.Uint16(buf[8:]), count: int(binary.LittleEndian.Uint16(buf[10:]))}
	if off >= 0 {
		if self := binary.LittleEndian.Uint64(buf); self != id {
			return nil, bad(id, "calls itself %d", self)
		}
	}
	if p.flags != flagBranch && p.flags != flagLeaf {
		return nil, bad(id, "kind %#x is neither branch nor leaf", p.flags)
	}
	if p.flags == flagBranch && p.count == 0 {
		return nil, bad(id, "branch without children")
	}
	if int64(pageHeader+p.count*elemSize) > size {
		return nil, bad(id, "%d elements do not fit", p.count)
	}
	return p, nil
}

// span is a stretch of a page.
type span struct{ off, n int64 }

// bytes gives a stretch of the page, without copying where it is in the buffer.
func (f *File) bytes(p *page, s span) ([]byte, error) {
	if s.off+s.n <= int64(len(p.buf)) {
		return p.buf[s.off : s.off+s.n], nil
	}
	b := make([]byte, s.n)
	return b, f.readInto(p, s, b)
}

func (f *File) readInto(p *page, s span, dst []byte) error {
	if s.off+s.n <= int64(len(p.buf)) {
		copy(dst, p.buf[s.off:s.off+s.n])
		return nil
	}
	if _, err := f.r.ReadAt(dst[:s.n], p.off+s.off); err != nil {
		return bad(p.id, "read: %v", err)
	}
	return nil
}

func (p *page) leaf(i int) (key, val span, isBucket bool, err error) {
	at := int64(pageHeader + i*elemSize)
	e := p.buf[at:]
	flags := binary.LittleEndian.Uint32(e)
	pos, ks, vs := int64(binary.LittleEndian.Uint32(e[4:])), int64(binary.LittleEndian.Uint32(e[8:])), int64(binary.LittleEndian.Uint32(e[12:]))
	if flags > bucketLeaf {
		return key, val, false, bad(p.id, "element %d has flags %#x", i, flags)
	}
	if pos < int64(p.count-i)*elemSize || at+pos+ks+vs > p.size || ks == 0 {
		return key, val, false, bad(p.id, "element %d (%d+%d+%d) leaves the page", i, pos, ks, vs)
	}
	return span{at + pos, ks}, span{at + pos + ks, vs}, flags == bucketLeaf, nil
}

func (p *page) branch(i int) (key span, child uint64, err error) {
	at := int64(pageHeader + i*elemSize)
	e := p.buf[at:]
	pos, ks := int64(binary.LittleEndian.Uint32(e)), int64(binary.LittleEndian.Uint32(e[4:]))
	if pos < int64(p.count-i)*elemSize || at+pos+ks > p.size {
		return key, 0, bad(p.id, "element %d (%d+%d) leaves the page", i, pos, ks)
	}
	return span{at + pos, ks}, binary.LittleEndian.Uint64(e[8:]), nil
}
