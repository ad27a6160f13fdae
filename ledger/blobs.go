package ledger

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sync/semaphore"
)

// blobRequest is one part of a payload: up to eight chunks, and the header when it is the last.
type blobRequest struct {
	seg     *segment
	ordinal uint64
	first   uint32 // index of the first chunk
	chunks  [][]byte
	header  []byte // nil unless this part completes the payload
	weight  int64
	done    chan struct{}
	err     error

	seal bool // close the segment's handle instead
}

func (r *blobRequest) size() int64 {
	var n int64
	for _, c := range r.chunks {
		n += int64(len(c))
	}
	return n
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

// drop gives back what a part holds.
func (w *blobWriter) drop(r *blobRequest) {
	for _, c := range r.chunks {
		w.l.buffers.put(c)
	}
	r.chunks = nil
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
		if first.seal {
			first.err = w.close(first.seg)
			close(first.done)
			continue
		}
		group, size := []*blobRequest{first}, first.size()
		limit := w.l.opts.TransactionBytes + chunksPerPart*chunkOverhead // a full part and headers of others go together
	drain:
		for size <= limit && len(group) < 1024 {
			select {
			case r, ok := <-w.ch:
				if !ok {
					break drain
				}
				if r.seal || r.seg != first.seg || size+r.size() > limit {
					held = r
					break drain
				}
				group = append(group, r)
				size += r.size()
			default:
				break drain
			}
		}
		err := w.commit(first.seg, group)
		for _, r := range group {
			r.err = err
			w.drop(r)
			close(r.done)
		}
	}
}

// commit writes a group of parts of one segment in one transaction.
func (w *blobWriter) commit(seg *segment, group []*blobRequest) error {
	if err := w.l.usable(); err != nil {
		return err
	}
	if seg.failed != nil {
		return seg.failed
	}
	name := seg.rec.file()
	if seg.db == nil {
		var file *os.File
		db, err := openBolt(seg.path, name, bolt.Options{NoFreelistSync: true, InitialMmapSize: int(w.l.opts.SegmentBytes + 256<<20),
			OpenFile: func(name string, flag int, perm os.FileMode) (_ *os.File, err error) {
				file, err = os.OpenFile(name, flag, perm)
				return file, err
			}})
		if err != nil {
			return w.fail(seg, group, err)
		}
		db.AllocSize = 64 << 20
		seg.mu.Lock()
		seg.db, seg.dbFile = db, file
		seg.mu.Unlock()
	}
	if groupSize(group) >= writebackFrom {
		defer earlyWriteback(seg.dbFile)()
	}
	committing := false
	err := guarded(name, func() error {
		tx, err := seg.db.Begin(true)
		if err != nil {
			return err
		}
		defer func() {
			if !committing {
				_ = tx.Rollback()
			}
		}()
		parts, headers := tx.Bucket(bucketParts), tx.Bucket(bucketHeaders)
		parts.FillPercent, headers.FillPercent = 1, 1
		for _, r := range group {
			if len(r.chunks) > 0 {
				b, err := parts.CreateBucket(partKey(r.ordinal, r.first/chunksPerPart))
				if err != nil {
					return err
				}
				b.FillPercent = 1
				for i, c := range r.chunks {
					if err := b.Put(indexKey(r.first+uint32(i)), c); err != nil {
						return err
					}
				}
			}
			if r.header != nil {
				if err := headers.Put(seqKey(r.ordinal), r.header); err != nil {
					return err
				}
			}
		}
		failpoint("put.before-commit")
		committing = true
		return tx.Commit()
	})
	if err != nil {
		return w.fail(seg, group, err)
	}
	failpoint("put.committed")
	return nil
}

func groupSize(group []*blobRequest) (n int64) {
	for _, r := range group {
		n += r.size()
	}
	return n
}

// writebackFrom is the size of a transaction from which the disk is set to work before all pages were handed over.
const writebackFrom = 2 << 20

// earlyWriteback keeps the disk busy while bbolt writes the pages of a transaction one after the other: left alone, the
// kernel begins at the sync, when they all lie in its cache. It changes nothing in what is durable when. The function given
// ends it and waits.
func earlyWriteback(f *os.File) (end func()) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(700 * time.Microsecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				startWriteback(f)
			}
		}
	}()
	return func() {
		close(stop)
		<-done
	}
}

// fail turns a failed write into what callers should see. A full disk leaves the segment usable; after anything else the
// segment takes no more, and neither does the ledger.
func (w *blobWriter) fail(seg *segment, group []*blobRequest, err error) error {
	if isFull(err) {
		err = w.l.fullError(groupSize(group)+1<<20, err)
		w.l.setFull(err)
		return err
	}
	seg.failed = poisoned(fmt.Errorf("%s: %w", seg.rec.file(), err))
	w.l.poison(err)
	return seg.failed
}

func (w *blobWriter) close(seg *segment) error {
	seg.mu.Lock()
	db := seg.db
	seg.db = nil
	seg.mu.Unlock()
	if db == nil {
		return nil
	}
	return guarded(seg.rec.file(), db.Close)
}

// handle closes a segment's write handle, in order with the parts submitted before.
func (w *blobWriter) closeSegment(ctx context.Context, seg *segment) error {
	r := &blobRequest{seg: seg, seal: true, done: make(chan struct{})}
	if err := w.submit(ctx, r); err != nil {
		return err
	}
	<-r.done
	return r.err
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
