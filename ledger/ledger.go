package ledger

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sync/semaphore"

	"quire/ledger/internal/boltfile"
)

// Ledger is a ledger open for writing. Its methods may be called from many goroutines.
type Ledger struct {
	view

	dir  string
	opts Options
	run  RunID

	lock     *dirLock
	previous Previous
	findings []Finding

	db          *bolt.DB
	events      *eventWriter
	eventBudget int64
	blobs       *blobWriter
	segments    *segmentSet
	buffers     buffers
	claims      claims
	retireMu    sync.RWMutex // held for writing while segments are unlinked

	sendMu     sync.RWMutex
	sendClosed bool

	head    atomic.Pointer[Head]
	grown   notifier // woken after each commit
	stats   stats
	status  atomic.Pointer[json.RawMessage]
	full    atomic.Pointer[fullState]
	broken  atomic.Pointer[error]
	closing atomic.Bool

	server *server
	care   sync.WaitGroup
	stop   chan struct{}
}

// Previous tells how the stay before this one ended.
type Previous struct {
	Known    bool   `json:"known"`    // there was one
	Closed   bool   `json:"closed"`   // it ended in order
	Holder   Holder `json:"holder"`   // who it was, as far as LOCK tells
	TookOver bool   `json:"tookover"` // its lock was taken over
}

// Genesis begins a ledger.
type Genesis struct {
	Record json.RawMessage // what identifies the run: plan digest, inputs digest, recipe
	Note   json.RawMessage
	Inputs []Ref
}

// Create makes a ledger in dir, which may exist and hold other files, with its genesis event, and opens it. A crash at
// any instant leaves no ledger or a whole one.
func Create(ctx context.Context, dir string, g Genesis, o Options) (*Ledger, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := makeDirs(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, segmentDir), 0o755); err != nil {
		return nil, err
	}
	if err := judgeFileSystem(dir); err != nil {
		return nil, err
	}
	lock, was, err := takeLock(dir, o.Now, o.TakeOver)
	if err != nil {
		return nil, err
	}
	if err := createFiles(dir, g, o); err != nil {
		lock.abandon()
		return nil, err
	}
	return openLocked(ctx, dir, o, lock, was)
}

// createFiles writes ledger.db under a temporary name, HEAD, and then renames.
func createFiles(dir string, g Genesis, o Options) error {
	path := filepath.Join(dir, databaseName)
	if _, err := os.Stat(path); err == nil {
		return exists(dir)
	}
	if h, _, err := readHead(dir); err == nil && h.Seq > 1 {
		return damagedf(databaseName, "the file is missing although HEAD names event %d", h.Seq)
	}
	var run RunID
	random := o.Random
	if random == nil {
		random = rand.Reader
	}
	if _, err := io.ReadFull(random, run[:]); err != nil {
		return err
	}
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !os.IsNotExist(err) {
		return err
	}
	db, err := openBolt(tmp, databaseName, bolt.Options{PageSize: o.PageSize})
	if err != nil {
		return err
	}
	head := Head{Run: run}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, b := range databaseBuckets {
			if _, err := tx.CreateBucket(b); err != nil {
				return err
			}
		}
		m := tx.Bucket(bucketMeta)
		if err := m.Put(formatKey, binary.LittleEndian.AppendUint32(nil, databaseFormat)); err != nil {
			return err
		}
		if err := m.Put(runKey, run[:]); err != nil {
			return err
		}
		e := Event{Type: TypeGenesis, Schema: 1, Key: "genesis", Record: g.Record, Note: g.Note, Inputs: g.Inputs}
		if err := e.check(); err != nil {
			return err
		}
		c, t := chain{head: head}, newTables(tx)
		it := item{ev: e, buf: encodeBody(&e)}
		envelope, payloads := c.next(&it, o.Now())
		if err := c.add(t, &it.ev, envelope, payloads); err != nil {
			return err
		}
		if err := c.seal(t); err != nil {
			return err
		}
		head = c.head
		return nil
	})
	err = causeOf(err)
	if cerr := db.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = syncFile(tmp)
	}
	if err != nil {
		os.Remove(tmp)
		return err
	}
	failpoint("create.database")
	if err := createHead(dir, head); err != nil {
		return err
	}
	failpoint("create.head")
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	failpoint("create.renamed")
	return syncDir(dir)
}

// Open opens the ledger in dir for writing: takes the lock, checks, finishes what a crash interrupted, drops what no
// event names, and appends an `opened` event.
func Open(ctx context.Context, dir string, o Options) (*Ledger, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := present(dir); err != nil {
		return nil, err
	}
	if err := judgeFileSystem(dir); err != nil {
		return nil, err
	}
	lock, was, err := takeLock(dir, o.Now, o.TakeOver)
	if err != nil {
		return nil, err
	}
	return openLocked(ctx, dir, o, lock, was)
}

// present says whether dir holds a ledger, or what is left of one.
func present(dir string) error {
	_, err := os.Stat(filepath.Join(dir, databaseName))
	if err == nil {
		return nil
	}
	if !os.IsNotExist(err) {
		return err
	}
	if h, _, herr := readHead(dir); herr == nil && h.Seq > 1 {
		return damagedf(databaseName, "the file is missing although HEAD names event %d", h.Seq)
	}
	return noLedger(dir)
}

func judgeFileSystem(dir string) error {
	name, network := fileSystem(dir)
	if !network {
		return nil
	}
	if err := selfTest(dir); err != nil {
		return unsafeFS(dir, fmt.Sprintf("%s failed the lock-and-sync self-test: %v", name, err))
	}
	return nil
}

func openLocked(ctx context.Context, dir string, o Options, lock *dirLock, was previous) (*Ledger, error) {
	l := &Ledger{dir: dir, opts: o, lock: lock, stop: make(chan struct{}), eventBudget: max(o.InFlightBytes/8, 4<<20)}
	l.previous = Previous{Known: was.known, Closed: was.holder.Closed, Holder: was.holder, TookOver: was.known && !was.holder.Closed}
	l.buffers.size = o.ChunkBytes + chunkOverhead + 64
	l.stats.init()
	ok := false
	defer func() {
		if !ok {
			if l.segments != nil {
				_ = l.segments.closeFiles()
			}
			if l.events != nil {
				_ = l.events.closeFiles()
			}
			if l.db != nil {
				_ = guarded(databaseName, l.db.Close)
			}
			lock.abandon()
		}
	}()
	rec, err := l.recover()
	if err != nil {
		return nil, err
	}
	if o.ReserveBytes > 0 {
		if err := makeReserve(l.path(reserveName), o.ReserveBytes); err != nil {
			if isDiskFull(err) {
				return nil, l.fullError(o.ReserveBytes, err)
			}
			return nil, err
		}
	}
	if l.events.journal, err = l.newJournal(); err != nil {
		return nil, err
	}
	l.events.start()
	l.blobs.start()
	if err := l.announce(ctx, rec); err != nil {
		l.shutdown()
		ok = true // shutdown closed everything
		lock.abandon()
		return nil, err
	}
	l.care.Add(1)
	go l.careTaker()
	if !o.NoServe {
		if l.server, err = startServer(l); err != nil {
			o.Log.Warn("no live inspection: the socket could not be opened", "err", err)
		}
	}
	l.writeStatus()
	ok = true
	return l, nil
}

func (l *Ledger) path(name string) string { return filepath.Join(l.dir, filepath.FromSlash(name)) }

// Dir is the run directory.
func (l *Ledger) Dir() string { return l.dir }

// Run is the ledger's id.
func (l *Ledger) Run() RunID { return l.run }

// Head is the newest durable state.
func (l *Ledger) Head() Head { return *l.head.Load() }

// Previous tells how the stay before this one ended, and in which unit when it did not close.
func (l *Ledger) Previous() Previous { return l.previous }

// Findings is what opening found and could live with: missing or damaged segments, a damaged HEAD slot, dropped orphans.
func (l *Ledger) Findings() []Finding { return l.findings }

// SetUnit notes what the process is working on. It is not durable against power loss, but survives the process: the next
// stay's Previous tells it.
func (l *Ledger) SetUnit(unit string) {
	if err := l.lock.setUnit(unit); err != nil {
		l.opts.Log.Warn("LOCK could not be written", "err", err)
	}
}

// usable says why nothing can be written, if so.
func (l *Ledger) usable() error {
	if p := l.broken.Load(); p != nil {
		return poisoned(*p)
	}
	return nil
}

// poison ends writing for good: the state on disk is in doubt until the ledger is opened again.
func (l *Ledger) poison(err error) {
	if l.broken.CompareAndSwap(nil, &err) {
		l.opts.Log.Error("the ledger takes no more writes", "err", err)
	}
}

// admit says whether new work may begin.
func (l *Ledger) admit() error {
	if l.closing.Load() {
		return ErrClosed
	}
	if err := l.usable(); err != nil {
		return err
	}
	return l.stillFull()
}

// publish tells readers about a commit.
func (l *Ledger) publish(h *Head, batch []*request, took time.Duration) {
	l.head.Store(h)
	n := 0
	for _, r := range batch {
		if r.failErr != nil {
			continue
		}
		for i := range r.items {
			if !r.items[i].old {
				n++
				for j := range r.items[i].ev.Payloads {
					if ref := r.items[i].ev.Payloads[j].Ref; ref != nil {
						ref.named()
					}
				}
			}
		}
	}
	l.stats.commit(n, took, l.opts.Now())
	l.grown.wake()
}

// careTaker renews the heartbeat and status.json.
func (l *Ledger) careTaker() {
	defer l.care.Done()
	beat := time.NewTicker(HeartbeatEvery)
	show := time.NewTicker(2 * time.Second)
	defer beat.Stop()
	defer show.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-beat.C:
			if err := l.lock.beat(l.opts.Now()); err != nil {
				l.opts.Log.Warn("LOCK could not be written", "err", err)
			}
		case <-show.C:
			l.writeStatus()
		}
	}
}

// Close waits for what was appended, records why the stay ends, and lets go. reason goes into the `closed` event.
func (l *Ledger) Close(ctx context.Context, reason string) error {
	if !l.closing.CompareAndSwap(false, true) {
		return ErrClosed
	}
	l.blobs.stop()
	_ = l.releaseReserve() // a full disk must not keep the last event out
	r := &request{barrier: true, closing: true}
	_, err := l.submit(ctx, r, Event{Type: TypeClosed, Schema: 1, Record: mustJSON(map[string]string{"reason": reason})}).All(ctx)
	failpoint("close.recorded")
	if err == nil {
		err = l.signHead()
	}
	if l.server != nil {
		if err == nil {
			l.server.finish()
		}
		l.server.close()
	}
	l.writeStatus()
	applied := err == nil // up to the last event everything is in ledger.db
	err = errors.Join(err, l.shutdown())
	if applied {
		err = errors.Join(err, removeJournal(l.dir))
		failpoint("close.journal-removed")
	}
	if l.broken.Load() != nil || err != nil {
		l.lock.abandon()
		return err
	}
	return l.lock.release(l.opts.Now())
}

// Abandon lets go as a killed process would: nothing more is written, the stay counts as died. Tests and emergency exits
// use it.
func (l *Ledger) Abandon() {
	if !l.closing.CompareAndSwap(false, true) {
		return
	}
	if l.server != nil {
		l.server.close()
	}
	l.poison(errors.New("abandoned"))
	l.blobs.stop()
	_ = l.shutdown()
	l.lock.abandon()
}

// shutdown ends the goroutines and closes the files.
func (l *Ledger) shutdown() error {
	l.sendMu.Lock()
	if !l.sendClosed {
		l.sendClosed = true
		close(l.events.ch)
	}
	l.sendMu.Unlock()
	l.blobs.stop()
	l.events.wg.Wait()
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.care.Wait()
	l.grown.wake()
	return errors.Join(l.segments.closeFiles(), l.events.closeFiles(), guarded(databaseName, l.db.Close))
}

func newWriters(l *Ledger, hf *headFile, c chain, t *tail) {
	l.events = &eventWriter{l: l, ch: make(chan *request, queueLength), sem: semaphore.NewWeighted(l.eventBudget),
		headFile: hf, chain: c, tail: t, lastSync: l.opts.Now()}
	l.blobs = &blobWriter{l: l, ch: make(chan *blobRequest, 256), sem: semaphore.NewWeighted(l.opts.InFlightBytes)}
	head := c.head
	l.head.Store(&head)
}

// trimSegment cuts what bbolt set aside behind the last page of a closed segment, and gives what its record remembers:
// length and newest transaction.
func trimSegment(path, name string) (size int64, txid uint64, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	b, err := boltfile.Open(f, st.Size())
	if err != nil {
		return 0, 0, &DamageError{File: name, Chunk: -1, What: "file header", Inner: err}
	}
	if size = b.Used(); size < st.Size() {
		if err := f.Truncate(size); err != nil {
			return 0, 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, 0, err
		}
	}
	failpoint("segment.trimmed")
	return size, b.Meta.TxID, nil
}
