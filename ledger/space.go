package ledger

import (
	"errors"
	"os"
)

const reserveName = "reserve"

// fullState remembers that the disk was full and how much was wanted.
type fullState struct{ err *DiskFullError }

func (l *Ledger) fullError(needed int64, inner error) *DiskFullError {
	var have *DiskFullError
	if errors.As(inner, &have) {
		return have
	}
	free, err := freeBytes(l.dir)
	if err != nil {
		free = -1
	}
	return &DiskFullError{Dir: l.dir, Needed: needed + max(l.opts.ReserveBytes, 0), Free: free, Inner: inner, Stop: true}
}

// setFull stops admission until there is room again.
func (l *Ledger) setFull(err error) {
	var d *DiskFullError
	if errors.As(err, &d) {
		l.full.Store(&fullState{d})
	}
}

// stillFull says whether the disk is still full. When room was made, the reserve is set aside again and work goes on.
func (l *Ledger) stillFull() error {
	s := l.full.Load()
	if s == nil {
		return nil
	}
	free, err := freeBytes(l.dir)
	if err != nil || free < s.err.Needed+(1<<20) {
		e := *s.err
		if err == nil {
			e.Free = free
		}
		return &e
	}
	if l.opts.ReserveBytes > 0 {
		if err := makeReserve(l.path(reserveName), l.opts.ReserveBytes); err != nil {
			return l.fullError(s.err.Needed, err)
		}
	}
	l.full.CompareAndSwap(s, nil)
	return nil
}

// releaseReserve gives the reserve back to the file system and says whether there was one.
func (l *Ledger) releaseReserve() bool { return os.Remove(l.path(reserveName)) == nil }

// Preflight says whether bytes more would fit beside the reserve; ask before a layer starts.
func (l *Ledger) Preflight(bytes int64) error {
	free, err := FreeBytes(l.dir)
	if err != nil {
		return err
	}
	if free < bytes {
		return &DiskFullError{Dir: l.dir, Needed: bytes, Free: free, Stop: true}
	}
	return nil
}

// Reserve changes the size of the reserve file: what is given back to finish the last commits when the disk is full.
func (l *Ledger) Reserve(bytes int64) error {
	l.opts.ReserveBytes = bytes
	if bytes <= 0 {
		l.releaseReserve()
		return nil
	}
	if err := makeReserve(l.path(reserveName), bytes); err != nil {
		if isDiskFull(err) {
			return &DiskFullError{Dir: l.dir, Needed: bytes, Free: 0, Inner: err}
		}
		return err
	}
	return nil
}
