package ledger

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sync/semaphore"

	"quire/ledger/internal/boltfile"
)

// blobRequest is one part of a payload: up to eight chunks, and the header when it is the last.
type blobRequest struct {
	seg     *segment
	ordinal uint64
	first   uint32 // index of the first chunk
	chunks  []chunk
	header  []byte // nil unless this part completes the payload
	weight  int64
	done    chan struct{}
	err     error

	bytes  int64 // stored, of all chunks
	w      *boltfile.Writer
	bucket []byte          // what leads to the chunks, once they are written
	extent boltfile.Extent // where they are; no pages when they stand in bucket
}

// write hands the chunks to the kernel. It runs in the goroutine of who puts, several side by side: a payload whose bytes
// are stored as they are goes from the caller's memory to the kernel's without a copy between.
func (r *blobRequest) write() error {
	if len(r.chunks) == 0 {
		return nil
	}
	var err error
	if r.w, err = r.seg.writer(); err != nil {
		return err
	}
	items := make([]boltfile.Item, len(r.chunks))
	for i := range r.chunks {
		items[i] = r.chunks[i].item(r.ordinal, r.first+uint32(i))
	}
	n := boltfile.LeafBytes(items)
	if r.w.Inlines(n) {
		r.bucket = boltfile.InlineBucket(items)
		return nil
	}
	if r.extent, err = r.w.Reserve(n); err != nil {
		return err
	}
	r.bucket = r.extent.Bucket()
	return r.w.WriteLeaf(r.extent, items)
}

// blobWriter owns the segment files. It is apart from the event writer so that no decision waits behind a capture.
type blobWriter struct {
	l   *Ledger
	ch  chan *blobRequest
	sem *semaphore.Weighted
	wg  sync.WaitGroup

	mu     sync.RWMutex
	closed bool
}

func (w *blobWriter) start() {
	w.wg.Add(1)
	go w.run()
}

func (w *blobWriter) acquire(ctx context.Context, weight int64) error {
	if w.sem.TryAcquire(weight) {
		return nil
	}
	stop := w.l.stats.wait()
	defer stop()
	if err := w.sem.Acquire(ctx, weight); err != nil {
		return context.Cause(ctx)
	}
	return nil
}

// submit queues a part; once it succeeds the part will be answered.
func (w *blobWriter) submit(ctx context.Context, r *blobRequest) error {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.closed {
		return ErrClosed
	}
	select {
	case w.ch <- r:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// drop gives back what a part holds; what became no part of the file, also its place.
func (w *blobWriter) drop(r *blobRequest, failed bool) {
	for _, c := range r.chunks {
		w.l.buffers.put(c.buf)
	}
	r.chunks = nil
	if failed && r.extent.Pages > 0 {
		r.w.Release(r.extent)
	}
	if r.weight > 0 {
		w.sem.Release(r.weight)
		r.weight = 0
	}
}

func (w *blobWriter) stop() {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.ch)
	}
	w.mu.Unlock()
	w.wg.Wait()
}

func (w *blobWriter) run() {
	defer w.wg.Done()
	var held *blobRequest // taken from the queue, for the next group
	for {
		first := held
		held = nil
		if first == nil {
			r, ok := <-w.ch
			if !ok {
				return
			}
			first = r
		}
		group, size := []*blobRequest{first}, first.bytes
		limit := w.l.opts.TransactionBytes + chunksPerPart*chunkOverhead // a full part and headers of others go together
	drain:
		for size <= limit && len(group) < 1024 {
			select {
			case r, ok := <-w.ch:
				if !ok {
					break drain
				}
				if r.seg != first.seg || size+r.bytes > limit {
					held = r
					break drain
				}
				group = append(group, r)
				size += r.bytes
			default:
				break drain
			}
		}
		err := w.commit(first.seg, group)
		for _, r := range group {
			if r.err == nil {
				r.err = err
			}
			w.drop(r, r.err != nil)
			close(r.done)
		}
	}
}

// commit makes a group of parts of one segment durable, and part of the file, in one transaction.
func (w *blobWriter) commit(seg *segment, group []*blobRequest) error {
	if err := w.l.usable(); err != nil {
		return err
	}
	if err := seg.broken(); err != nil {
		return err
	}
	sw, err := seg.writer()
	if err != nil {
		return w.fail(seg, groupSize(group), err)
	}
	var puts []boltfile.Put
	for _, r := range group {
		if r.extent.Pages > 0 {
			if err := sw.Lost(r.extent); err != nil {
				r.err = w.fail(seg, r.bytes, err)
				continue
			}
		}
		if r.bucket != nil {
			puts = append(puts, boltfile.Put{Table: bucketParts, Key: partKey(r.ordinal, r.first/chunksPerPart), Value: r.bucket, Bucket: true})
		}
		if r.header != nil {
			puts = append(puts, boltfile.Put{Table: bucketHeaders, Key: seqKey(r.ordinal), Value: r.header})
		}
	}
	failpoint("put.before-commit")
	if err := sw.Commit(puts); err != nil {
		return w.fail(seg, groupSize(group), err)
	}
	failpoint("put.committed")
	return nil
}

func groupSize(group []*blobRequest) (n int64) {
	for _, r := range group {
		n += r.bytes
	}
	return n
}

// fail turns a failed write into what callers should see. A full disk leaves the segment usable, unless a header was not
// written; after anything else the segment takes no more, and neither does the ledger.
func (w *blobWriter) fail(seg *segment, size int64, err error) error {
	if errors.Is(err, boltfile.ErrWriterClosed) || errors.Is(err, os.ErrClosed) {
		return ErrClosed
	}
	if isFull(err) && !errors.As(err, new(*boltfile.DoubtError)) {
		err = w.l.fullError(size+1<<20, err)
		w.l.setFull(err)
		return err
	}
	w.l.poison(err)
	seg.mu.Lock()
	defer seg.mu.Unlock()
	if seg.failed == nil {
		seg.failed = poisoned(fmt.Errorf("%s: %w", seg.rec.file(), err))
	}
	return seg.failed
}

// buffers recycles chunk buffers.
type buffers struct {
	pool sync.Pool
	size int
}

func (b *buffers) get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return (*p)[:0]
	}
	return make([]byte, 0, b.size)
}

func (b *buffers) put(p []byte) {
	if cap(p) >= b.size && cap(p) <= b.size+b.size/4+4096 {
		p = p[:0]
		b.pool.Put(&p)
	}
}
