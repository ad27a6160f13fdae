package ledger

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// LOCK is 512 bytes of text that people can read, its last 4 bytes a CRC-32C of the others:
//
//	quire-lock 1\nhost H\nboot B\npid N\nstart RFC3339\nheartbeat RFC3339\nstate open|closed\nunit U\n, then spaces
//
// The flock on the file is what excludes; the body says whom. unit is what the holder was working on.
const (
	lockFileName = "LOCK"
	lockSize     = 512

	// HeartbeatEvery is how often the holder renews LOCK, HeartbeatStale when another host may take over.
	HeartbeatEvery = 10 * time.Second
	HeartbeatStale = 120 * time.Second
)

// Holder is who holds, or held, the lock.
type Holder struct {
	Host      string    `json:"host"`
	Boot      string    `json:"boot,omitempty"`
	PID       int       `json:"pid"`
	Start     time.Time `json:"start"`
	Heartbeat time.Time `json:"heartbeat"`
	Closed    bool      `json:"closed"`         // it let go in order
	Unit      string    `json:"unit,omitempty"` // what it was working on
}

// String gives host:pid.
func (h Holder) String() string {
	if h.Host == "" {
		return "an unknown process"
	}
	return fmt.Sprintf("%s:%d", h.Host, h.PID)
}

func encodeLock(h Holder) []byte {
	state := "open"
	if h.Closed {
		state = "closed"
	}
	clean := func(s string, n int) string {
		s = strings.Map(func(r rune) rune {
			if r < ' ' {
				return '_'
			}
			return r
		}, s)
		if len(s) > n {
			s = strings.ToValidUTF8(s[:n], "")
		}
		return s
	}
	s := fmt.Sprintf("quire-lock 1\nhost %s\nboot %s\npid %d\nstart %s\nheartbeat %s\nstate %s\nunit %s\n",
		clean(h.Host, 100), clean(h.Boot, 64), h.PID, h.Start.UTC().Format(time.RFC3339Nano), h.Heartbeat.UTC().Format(time.RFC3339Nano), state, clean(h.Unit, 120))
	b := append([]byte(s), []byte(strings.Repeat(" ", lockSize))...)[:lockSize]
	b[lockSize-5] = '\n'
	binary.LittleEndian.PutUint32(b[lockSize-4:], crcOf(b[:lockSize-4]))
	return b
}

func decodeLock(b []byte) (Holder, error) {
	var h Holder
	if len(b) != lockSize {
		return h, fmt.Errorf("lock of %d bytes", len(b))
	}
	if got, want := crcOf(b[:lockSize-4]), binary.LittleEndian.Uint32(b[lockSize-4:]); got != want {
		return h, fmt.Errorf("lock checksum %08x, stored %08x", got, want)
	}
	lines := strings.Split(string(b[:lockSize-4]), "\n")
	if lines[0] != "quire-lock 1" {
		return h, fmt.Errorf("lock starts with %q", lines[0])
	}
	var err error
	for _, line := range lines[1:] {
		k, v, _ := strings.Cut(line, " ")
		var e error
		switch k {
		case "host":
			h.Host = v
		case "boot":
			h.Boot = v
		case "pid":
			h.PID, e = strconv.Atoi(v)
		case "start":
			h.Start, e = time.Parse(time.RFC3339Nano, v)
		case "heartbeat":
			h.Heartbeat, e = time.Parse(time.RFC3339Nano, v)
		case "state":
			h.Closed = v == "closed"
		case "unit":
			h.Unit = v
		}
		err = errors.Join(err, e)
	}
	return h, err
}

// dirLock is the lock of a run directory, held.
type dirLock struct {
	mu   sync.Mutex
	f    *os.File
	self Holder
}

// previous is what the lock said before it was taken.
type previous struct {
	holder Holder
	known  bool
}

// takeLock takes RUN/LOCK at once or says who holds it.
func takeLock(dir string, now func() time.Time, takeOver bool) (*dirLock, previous, error) {
	path := filepath.Join(dir, lockFileName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, previous{}, err
	}
	b := make([]byte, lockSize)
	n, _ := f.ReadAt(b, 0)
	held, err := tryLock(f)
	if err != nil {
		f.Close()
		return nil, previous{}, fmt.Errorf("ledger: lock %s: %w", path, err)
	}
	if !held {
		h, _ := decodeLock(b[:n])
		f.Close()
		return nil, previous{}, &LockedError{Holder: h}
	}
	n, _ = f.ReadAt(b, 0) // again: the holder may have changed it until now
	host, _ := os.Hostname()
	var was previous
	if n > 0 {
		h, err := decodeLock(b[:n])
		if err == nil {
			was = previous{holder: h, known: true}
			if !h.Closed && h.Host != host && !takeOver && now().Sub(h.Heartbeat) < HeartbeatStale {
				f.Close()
				return nil, previous{}, &LockedError{Holder: h, Stale: true}
			}
		}
	}
	l := &dirLock{f: f, self: Holder{Host: host, Boot: bootID(), PID: os.Getpid(), Start: now(), Heartbeat: now()}}
	if err := l.write(); err != nil {
		f.Close()
		return nil, previous{}, err
	}
	return l, was, nil
}

func (l *dirLock) write() error {
	_, err := l.f.WriteAt(encodeLock(l.self), 0)
	return err
}

// beat renews the heartbeat.
func (l *dirLock) beat(now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.self.Heartbeat = now
	return l.write()
}

func (l *dirLock) setUnit(unit string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.self.Unit == unit {
		return nil
	}
	l.self.Unit = unit
	return l.write()
}

// release lets go in order.
func (l *dirLock) release(now time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.self.Closed, l.self.Heartbeat, l.self.Unit = true, now, ""
	err := l.write()
	return errors.Join(err, unlock(l.f), l.f.Close())
}

// abandon lets go as a dying process would: the body stays open.
func (l *dirLock) abandon() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = unlock(l.f)
	_ = l.f.Close()
}

// ReadHolder tells who holds or last held the lock of a run directory, and whether it is held now.
func ReadHolder(dir string) (h Holder, held bool, err error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFileName), os.O_RDWR, 0)
	if err != nil {
		return h, false, err
	}
	defer f.Close()
	free, err := tryLock(f)
	if err != nil {
		return h, false, err
	}
	b := make([]byte, lockSize)
	n, _ := f.ReadAt(b, 0)
	h, err = decodeLock(b[:n])
	if free {
		_ = unlock(f)
	}
	return h, !free, err
}

// selfTest proves that two handles exclude each other and that a synced write is read back, as a network file system
// must before it may hold a ledger.
func selfTest(dir string) error {
	path := filepath.Join(dir, ".ledger-selftest")
	defer os.Remove(path)
	a, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := os.OpenFile(path, os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer b.Close()
	if held, err := tryLock(a); err != nil || !held {
		return fmt.Errorf("a lock cannot be taken (%v)", err)
	}
	if held, _ := tryLock(b); held {
		return errors.New("two handles hold the same lock")
	}
	want := encodeLock(Holder{Host: "self-test", PID: os.Getpid()})
	if _, err := a.WriteAt(want, 0); err != nil {
		return err
	}
	if err := a.Sync(); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	got := make([]byte, len(want))
	if _, err := b.ReadAt(got, 0); err != nil {
		return err
	}
	if _, err := decodeLock(got); err != nil {
		return fmt.Errorf("a synced write reads back differently: %w", err)
	}
	return unlock(a)
}
