package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"slices"
	"sync"
)

// growBytes is the step in which a file is made longer. What is not written yet takes no space.
const growBytes = 64 << 20

// Writer adds keys to the top-level buckets of a bbolt file without bbolt: pages of bulk data are written by their owners,
// side by side and straight from where the bytes lie, before the transaction that makes them part of the file. Like bbolt
// it never overwrites a page of the newest durable state, and the newest sound header is the state.
//
// It knows files whose free list is not stored, and removes nothing. Reserve, Release, WriteLeaf, View and WriteTo may be
// called at any time; Commit by one goroutine at a time.
type Writer struct {
	f    *os.File
	sync func(*os.File) error
	ps   int
	// Wrote, when set, is told of each long stretch that WriteLeaf has handed to the kernel.
	Wrote func(f *os.File, off, n int64)

	pin sync.RWMutex // held for reading while pages of some state are read

	mu     sync.Mutex
	header [metaSize]byte // of the newest state
	meta   Meta
	high   uint64 // pages taken, by this state or by what is reserved
	size   int64  // bytes of the file
	free   []run  // in order, apart from each other
	freed  []run  // by the newest commit: a reader may still look at them
	losses int    // syncs that failed: what was written before one of them may be gone
	lost   error  // the newest such failure
	failed error  // the state on disk is in doubt
	closed bool
}

type run struct{ at, n uint64 }

// Extent is a row of pages set aside for one leaf.
type Extent struct {
	Page, Pages uint64
	losses      int
}

// Item is one key of a leaf; its value is given in pieces.
type Item struct {
	Key   []byte
	Value [][]byte
	// Ready, when set, is called before the pieces are read: a checksum is computed when its bytes are about to be copied, so that
	// the disk already works for those before, and they are in the processor's cache.
	Ready func()
}

func (i Item) ready() {
	if i.Ready != nil {
		i.Ready()
	}
}

func (i Item) size() (n int64) {
	for _, v := range i.Value {
		n += int64(len(v))
	}
	return n
}

// Put is a key to be put into a top-level bucket. With Bucket, Value is what Extent.Bucket or InlineBucket gave.
type Put struct {
	Table, Key, Value []byte
	Bucket            bool
}

// ErrWriterClosed says that the writer was closed.
var ErrWriterClosed = errors.New("boltfile: the writer is closed")

// NewWriter takes over a file open for reading and writing; sync makes its content durable.
func NewWriter(f *os.File, sync func(*os.File) error) (*Writer, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	file, err := Open(f, st.Size())
	if err != nil {
		return nil, err
	}
	if !file.Meta.NoFreelist() {
		return nil, bad(file.Meta.Page, "the free list is stored")
	}
	w := &Writer{f: f, sync: sync, ps: file.pageSize, meta: file.Meta, high: file.Meta.High, size: st.Size()}
	if _, err := f.ReadAt(w.header[:], int64(file.Meta.Page)*int64(w.ps)+pageHeader); err != nil {
		return nil, err
	}
	c := file.check(Pages)
	if len(c.problems) > 0 {
		return nil, errors.Join(c.problems...)
	}
	for p := uint64(2); p < w.high; p++ {
		if c.used[p/64]>>(p%64)&1 == 1 {
			continue
		}
		if n := len(w.free); n > 0 && w.free[n-1].at+w.free[n-1].n == p {
			w.free[n-1].n++
		} else {
			w.free = append(w.free, run{p, 1})
		}
	}
	return w, nil
}

// PageSize of the file in bytes.
func (w *Writer) PageSize() int { return w.ps }

// Close waits for readers and closes the file.
func (w *Writer) Close() error {
	w.pin.Lock()
	defer w.pin.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	return w.f.Close()
}

// Reserve sets pages aside for n bytes.
func (w *Writer) Reserve(n int64) (Extent, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return Extent{}, ErrWriterClosed
	}
	if w.failed != nil { // the state in doubt may need any page that seems free
		return Extent{}, w.failed
	}
	pages := max(1, (uint64(n)+uint64(w.ps)-1)/uint64(w.ps))
	at, err := w.take(pages)
	return Extent{Page: at, Pages: pages, losses: w.losses}, err
}

// Release gives pages back that no commit has named.
func (w *Writer) Release(e Extent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.give(run{e.Page, e.Pages})
}

// Lost says why what was written to an extent may not be what is on disk: a sync failed since it was reserved, and the kernel
// tells that once.
func (w *Writer) Lost(e Extent) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.losses != w.losses {
		return w.lost
	}
	return nil
}

// take finds n pages in a row. Freed ones are used first; otherwise the file grows.
func (w *Writer) take(n uint64) (uint64, error) {
	for i, r := range w.free {
		if r.n < n {
			continue
		}
		if r.n == n {
			w.free = slices.Delete(w.free, i, i+1)
		} else {
			w.free[i] = run{r.at + n, r.n - n}
		}
		return r.at, nil
	}
	at := w.high
	if end := int64(at+n) * int64(w.ps); end > w.size {
		size := (end + growBytes - 1) / growBytes * growBytes
		if err := w.f.Truncate(size); err != nil {
			return 0, err
		}
		w.size = size
	}
	w.high += n
	return at, nil
}

// give puts pages among the free ones.
func (w *Writer) give(r run) {
	i, _ := slices.BinarySearchFunc(w.free, r, func(a, b run) int {
		if a.at < b.at {
			return -1
		}
		return 1
	})
	w.free = slices.Insert(w.free, i, r)
	if i+1 < len(w.free) && r.at+r.n == w.free[i+1].at {
		w.free[i].n += w.free[i+1].n
		w.free = slices.Delete(w.free, i+1, i+2)
	}
	if i > 0 && w.free[i-1].at+w.free[i-1].n == r.at {
		w.free[i-1].n += w.free[i].n
		w.free = slices.Delete(w.free, i, i+1)
	}
}

// LeafBytes is the length of a leaf with such items.
func LeafBytes(items []Item) int64 {
	n := int64(pageHeader)
	for _, it := range items {
		n += elemSize + int64(len(it.Key)) + it.size()
	}
	return n
}

// Inlines says whether a bucket whose only leaf has n bytes stands inside its parent, by bbolt's rule.
func (w *Writer) Inlines(n int64) bool { return n <= int64(w.ps/4) }

// leafTable is the part of a leaf before its keys and values.
func leafTable(id, pages uint64, items []Item) []byte {
	b := make([]byte, pageHeader, pageHeader+len(items)*elemSize)
	putPageHeader(b, id, flagLeaf, len(items), pages)
	at := int64(len(items)) * elemSize // of a key, behind the element that names it
	for _, it := range items {
		b = binary.LittleEndian.AppendUint32(b, 0)
		b = binary.LittleEndian.AppendUint32(b, uint32(at))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(it.Key)))
		b = binary.LittleEndian.AppendUint32(b, uint32(it.size()))
		at += int64(len(it.Key)) + it.size() - elemSize
	}
	return b
}

func putPageHeader(b []byte, id uint64, flags uint16, count int, pages uint64) {
	binary.LittleEndian.PutUint64(b, id)
	binary.LittleEndian.PutUint16(b[8:], flags)
	binary.LittleEndian.PutUint16(b[10:], uint16(count))
	binary.LittleEndian.PutUint32(b[12:], uint32(pages-1))
}

// wroteBytes is the least that Wrote is told of.
const wroteBytes = 1 << 20

// WriteLeaf writes a leaf into the pages of an extent, which are as many as it needs. It is durable with the next commit
// that begins after the call returned.
func (w *Writer) WriteLeaf(e Extent, items []Item) error {
	off := int64(e.Page) * int64(w.ps)
	pieces := [][]byte{leafTable(e.Page, e.Pages, items)}
	n := int64(len(pieces[0]))
	flush := func() error {
		if err := writeVector(w.f, pieces, off); err != nil {
			return err
		}
		if w.Wrote != nil && n >= wroteBytes {
			w.Wrote(w.f, off, n)
		}
		off, n, pieces = off+n, 0, pieces[:0]
		return nil
	}
	add := func(b []byte) {
		pieces = append(pieces, b)
		n += int64(len(b))
	}
	for _, it := range items {
		it.ready()
		add(it.Key)
		for _, v := range it.Value {
			add(v)
		}
		if n >= wroteBytes {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	add(make([]byte, int64(e.Page+e.Pages)*int64(w.ps)-off-n))
	return flush()
}

// Bucket is the value of a nested bucket whose only leaf is in the extent.
func (e Extent) Bucket() []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, e.Page), 0)
}

// InlineBucket is the value of a nested bucket that stands inside its parent.
func InlineBucket(items []Item) []byte {
	b := append(make([]byte, 16), leafTable(0, 1, items)...)
	for _, it := range items {
		it.ready()
		b = append(b, it.Key...)
		for _, v := range it.Value {
			b = append(b, v...)
		}
	}
	return b
}

// View calls f with the top-level bucket of the newest state, read through r; no page of it changes meanwhile.
func (w *Writer) View(r io.ReaderAt, f func(root Bucket) error) error {
	w.pin.RLock()
	defer w.pin.RUnlock()
	w.mu.Lock()
	meta, closed := w.meta, w.closed
	w.mu.Unlock()
	if closed {
		return ErrWriterClosed
	}
	return f((&File{r: r, pageSize: w.ps, pages: meta.High, Meta: meta}).Root())
}

// WriteTo copies the newest state, as a file of its own.
func (w *Writer) WriteTo(dst io.Writer) (int64, error) {
	w.pin.RLock()
	defer w.pin.RUnlock()
	w.mu.Lock()
	meta, header, closed := w.meta, w.header, w.closed
	w.mu.Unlock()
	if closed {
		return 0, ErrWriterClosed
	}
	pages := make([]byte, 2*w.ps)
	for i := range uint64(2) { // the same state twice, under the numbers of two transactions, as bbolt does
		binary.LittleEndian.PutUint64(header[48:], meta.TxID-i)
		putMeta(pages[i*uint64(w.ps):], i, &header)
	}
	n, err := dst.Write(pages)
	if err != nil {
		return int64(n), err
	}
	m, err := io.Copy(dst, io.NewSectionReader(w.f, int64(len(pages)), int64(meta.High)*int64(w.ps)-int64(len(pages))))
	return int64(n) + m, err
}

// putMeta writes a header page's beginning; header gets its checksum.
func putMeta(b []byte, page uint64, header *[metaSize]byte) {
	h := fnv.New64a()
	h.Write(header[:56])
	binary.LittleEndian.PutUint64(header[56:], h.Sum64())
	putPageHeader(b, page, flagMeta, 0, 1)
	copy(b[pageHeader:], header[:])
}

// Commit makes puts, and everything that was written before it, durable. After an error the state is the one
// before; if that is not certain, every later call fails too.
func (w *Writer) Commit(puts []Put) error {
	w.mu.Lock()
	failed := w.failed
	if w.closed {
		failed = ErrWriterClosed
	}
	if w.pin.TryLock() { // nobody reads: those who come see the newest state only
		for _, r := range w.freed {
			w.give(r)
		}
		w.freed = nil
		w.pin.Unlock()
	}
	w.mu.Unlock()
	if failed != nil {
		return failed
	}
	tx := &transaction{w: w}
	root, err := tx.apply(puts)
	if err == nil {
		if err = w.sync(w.f); err != nil {
			w.mu.Lock()
			w.losses++
			w.lost = err
			w.mu.Unlock()
		}
	}
	if err != nil {
		w.mu.Lock()
		for _, r := range tx.taken {
			w.give(r)
		}
		w.mu.Unlock()
		return err
	}
	w.mu.Lock()
	meta, header := w.meta, w.header
	meta.Root, meta.High, meta.TxID = root, w.high, meta.TxID+1
	w.mu.Unlock()
	meta.Page = 1 - meta.Page // bbolt writes to the other one too, but for a file that WriteTo made
	binary.LittleEndian.PutUint64(header[16:], meta.Root)
	binary.LittleEndian.PutUint64(header[40:], meta.High)
	binary.LittleEndian.PutUint64(header[48:], meta.TxID)
	page := make([]byte, pageHeader+metaSize)
	putMeta(page, meta.Page, &header)
	_, err = w.f.WriteAt(page, int64(meta.Page)*int64(w.ps))
	if err == nil {
		err = w.sync(w.f)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil { // either header may be the newest one now
		w.failed = &DoubtError{err}
		return w.failed
	}
	w.meta, w.header = meta, header
	w.freed = append(w.freed, tx.freed...)
	return nil
}

// DoubtError says that a commit may or may not have happened.
type DoubtError struct{ Inner error }

func (e *DoubtError) Error() string {
	return "the header of a commit could not be made durable: " + e.Inner.Error()
}

// Unwrap gives the failure.
func (e *DoubtError) Unwrap() error { return e.Inner }

// transaction is the work of one commit.
type transaction struct {
	w            *Writer
	taken, freed []run
}

// element of a page being rewritten: a leaf's, or with child a branch's.
type element struct {
	key, val []byte
	flags    uint32
	child    uint64
}

func (t *transaction) file() *File {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	return &File{r: t.w.f, pageSize: t.w.ps, pages: t.w.high, Meta: t.w.meta}
}

// apply writes the pages that change and gives the new root.
func (t *transaction) apply(puts []Put) (root uint64, err error) {
	f := t.file()
	top, err := f.readPage(f.Meta.Root)
	if err != nil {
		return 0, err
	}
	var changed []element
	for len(puts) > 0 {
		table := puts[0].Table
		var mine []element
		puts = slices.DeleteFunc(slices.Clone(puts), func(e Put) bool {
			if !bytes.Equal(e.Table, table) {
				return false
			}
			el := element{key: e.Key, val: e.Value}
			if e.Bucket {
				el.flags = bucketLeaf
			}
			mine = append(mine, el)
			return true
		})
		slices.Reverse(mine) // of two with one key the later one stays
		slices.SortStableFunc(mine, func(a, b element) int { return bytes.Compare(a.key, b.key) })
		mine = slices.CompactFunc(mine, func(a, b element) bool { return bytes.Equal(a.key, b.key) })
		b, ok, err := f.Root().Bucket(table)
		if err == nil && !ok {
			err = bad(top.id, "no bucket %q", table)
		}
		if err != nil {
			return 0, err
		}
		p, err := b.top()
		if err != nil {
			return 0, err
		}
		id, err := t.rewrite(f, p, mine)
		if err != nil {
			return 0, err
		}
		// The bucket's sequence, the other half of its value, is not used.
		changed = append(changed, element{key: table, flags: bucketLeaf, val: binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, id), 0)})
	}
	slices.SortFunc(changed, func(a, b element) int { return bytes.Compare(a.key, b.key) })
	return t.rewrite(f, top, changed)
}

// rewrite puts elements into the tree under p and gives the page of its new root.
func (t *transaction) rewrite(f *File, p *page, batch []element) (uint64, error) {
	list, err := t.insert(f, p, batch, 0)
	for err == nil && len(list) > 1 {
		list, err = t.spill(list, flagBranch)
	}
	if err != nil {
		return 0, err
	}
	return list[0].child, nil
}

// insert puts elements, which are in order, into the tree under p, and gives the pages that replace p.
func (t *transaction) insert(f *File, p *page, batch []element, depth int) ([]element, error) {
	if depth > maxDepth {
		return nil, bad(p.id, "tree deeper than %d", maxDepth)
	}
	if p.off >= 0 {
		t.freed = append(t.freed, run{p.id, uint64(p.size) / uint64(f.pageSize)})
	}
	old, err := elements(f, p)
	if err != nil {
		return nil, err
	}
	if p.flags == flagLeaf {
		return t.spill(merge(old, batch), flagLeaf)
	}
	var list []element
	for i, c := range old {
		n := len(batch)
		if i+1 < len(old) {
			n, _ = slices.BinarySearchFunc(batch, old[i+1].key, func(e element, k []byte) int { return bytes.Compare(e.key, k) })
		}
		if n == 0 {
			list = append(list, c)
			continue
		}
		child, err := f.readPage(c.child)
		if err != nil {
			return nil, err
		}
		sub, err := t.insert(f, child, batch[:n], depth+1)
		if err != nil {
			return nil, err
		}
		list, batch = append(list, sub...), batch[n:]
	}
	return t.spill(list, flagBranch)
}

// merge gives the elements of both in order; of two with one key that of batch.
func merge(old, batch []element) []element {
	list := make([]element, 0, len(old)+len(batch))
	for len(old) > 0 && len(batch) > 0 {
		switch c := bytes.Compare(old[0].key, batch[0].key); {
		case c < 0:
			list, old = append(list, old[0]), old[1:]
		case c == 0:
			old = old[1:]
		default:
			list, batch = append(list, batch[0]), batch[1:]
		}
	}
	return append(append(list, old...), batch...)
}

// elements gives what a page holds.
func elements(f *File, p *page) ([]element, error) {
	list := make([]element, p.count)
	for i := range list {
		var ks, vs span
		var isBucket bool
		var err error
		e := &list[i]
		if p.flags == flagBranch {
			ks, e.child, err = p.branch(i)
		} else if ks, vs, isBucket, err = p.leaf(i); err == nil {
			e.val, err = f.bytes(p, vs)
		}
		if err == nil {
			e.key, err = f.bytes(p, ks)
		}
		if err != nil {
			return nil, err
		}
		if isBucket {
			e.flags = bucketLeaf
		}
	}
	return list, nil
}

// spill writes elements into as many pages as they need, full ones first, and gives an element of a branch for each.
func (t *transaction) spill(list []element, flags uint16) (pages []element, err error) {
	for first := true; first || len(list) > 0; first = false {
		n, size := 0, pageHeader
		for n < len(list) {
			s := elemSize + len(list[n].key) + len(list[n].val)
			if n > 0 && size+s > t.w.ps {
				break
			}
			n, size = n+1, size+s
		}
		if flags == flagBranch && n > 2 && n == len(list)-1 {
			n-- // bbolt does not bear a branch with one child
		}
		id, err := t.write(list[:n], flags)
		if err != nil {
			return nil, err
		}
		e := element{child: id}
		if n > 0 {
			e.key = list[0].key
		}
		pages, list = append(pages, e), list[n:]
	}
	return pages, nil
}

// write writes one page.
func (t *transaction) write(list []element, flags uint16) (uint64, error) {
	size := pageHeader
	for _, e := range list {
		size += elemSize + len(e.key) + len(e.val)
	}
	n := uint64((size + t.w.ps - 1) / t.w.ps)
	t.w.mu.Lock()
	id, err := t.w.take(n)
	t.w.mu.Unlock()
	if err != nil {
		return 0, err
	}
	t.taken = append(t.taken, run{id, n})
	b := make([]byte, n*uint64(t.w.ps))
	putPageHeader(b, id, flags, len(list), n)
	at := pageHeader + len(list)*elemSize
	for i, e := range list {
		el := b[pageHeader+i*elemSize:]
		pos := uint32(at - pageHeader - i*elemSize)
		if flags == flagBranch {
			binary.LittleEndian.PutUint32(el, pos)
			binary.LittleEndian.PutUint32(el[4:], uint32(len(e.key)))
			binary.LittleEndian.PutUint64(el[8:], e.child)
		} else {
			binary.LittleEndian.PutUint32(el, e.flags)
			binary.LittleEndian.PutUint32(el[4:], pos)
			binary.LittleEndian.PutUint32(el[8:], uint32(len(e.key)))
			binary.LittleEndian.PutUint32(el[12:], uint32(len(e.val)))
		}
		at += copy(b[at:], e.key)
		at += copy(b[at:], e.val)
	}
	if _, err := t.w.f.WriteAt(b, int64(id)*int64(t.w.ps)); err != nil {
		return 0, fmt.Errorf("page %d: %w", id, err)
	}
	return id, nil
}
