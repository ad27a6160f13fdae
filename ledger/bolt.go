package ledger

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"

	"quire/ledger/internal/boltfile"
)

// openTimeout bounds every wait for bbolt: its file lock, and a damaged free list that makes it loop.
const openTimeout = 8 * time.Second

// guarded runs f so that a panic or fault of bbolt on damaged pages becomes an error that names the file.
func guarded(file string, f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = &DamageError{File: file, Chunk: -1, What: "a page does not hold what it should", Inner: fmt.Errorf("%v", r)}
		}
	}()
	return f()
}

// growError is an error of bbolt with the cause that its text alone had.
type growError struct {
	error
	cause syscall.Errno
}

func (e *growError) Unwrap() []error { return []error{e.error, e.cause} }

// causeOf gives an error of a commit its cause back: what fails while bbolt makes the file longer it hands on as text.
func causeOf(err error) error {
	if err == nil {
		return nil
	}
	for _, n := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.EROFS} {
		if !errors.Is(err, n) && strings.HasSuffix(err.Error(), ": "+n.Error()) {
			return &growError{err, n}
		}
	}
	return err
}

// checkPages reads the page structure of a bbolt file without trusting it, so that bbolt can be let at it.
func checkPages(path, name string, depth boltfile.Depth) (*boltfile.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() == 0 {
		return nil, damagedf(name, "the file is empty")
	}
	b, err := boltfile.Open(f, st.Size())
	if err != nil {
		return nil, &DamageError{File: name, Chunk: -1, What: "file header", Inner: err}
	}
	ahead := make(chan struct{})
	go func() {
		defer close(ahead)
		if name == databaseName { // all of its pages are looked at; most of a segment is the inside of long ones
			adviseSequential(f, 0, b.Used())
		}
	}()
	problems := b.Check(depth)
	<-ahead
	if len(problems) > 0 {
		return nil, &DamageError{File: name, Chunk: -1, What: "page structure", Inner: errors.Join(problems...)}
	}
	return b, nil
}

// openBolt opens a database for writing; pages were checked before.
func openBolt(path, name string, o bolt.Options) (*bolt.DB, error) {
	o.Timeout = openTimeout / 2
	o.FreelistType = bolt.FreelistMapType
	o.NoStatistics = true
	if runtime.GOOS == "windows" || ^uint(0)>>32 == 0 {
		o.InitialMmapSize = 0 // Windows would grow the file to it; 32 bits have no room
	}
	type result struct {
		db  *bolt.DB
		err error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		r.err = guarded(name, func() (err error) {
			r.db, err = bolt.Open(path, 0o644, &o)
			return err
		})
		done <- r
	}()
	timer := time.NewTimer(openTimeout)
	defer timer.Stop()
	select {
	case r := <-done:
		if r.err != nil && !errors.Is(r.err, ErrDamaged) && !isDiskFull(r.err) {
			r.err = fmt.Errorf("ledger: open %s: %w", name, r.err)
		}
		return r.db, r.err
	case <-timer.C:
		go func() { // if it ends after all, the file must not stay locked
			if r := <-done; r.db != nil {
				_ = guarded(name, r.db.Close)
			}
		}()
		return nil, fmt.Errorf("ledger: opening %s did not end within %s: the disk stalls, or a page leads in circles; `quire ledger fsck --level structure` tells which", name, openTimeout)
	}
}
