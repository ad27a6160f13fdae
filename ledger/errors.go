package ledger

import (
	"errors"
	"fmt"
	"time"
)

// Sentinels for errors.Is. Each typed error below wraps one of them.
var (
	// ErrDamaged says that bytes on disk are not what was written. Typically this means a failing disk or memory, or a
	// file that was cut or edited; `quire ledger fsck` locates it.
	ErrDamaged = errors.New("ledger: damaged")
	// ErrLocked says that another process writes the ledger. Typically this means that the run is still going.
	ErrLocked = errors.New("ledger: locked")
	// ErrDivergence says that a key already has another content. Typically this means that work was repeated with other
	// inputs, or that something is not deterministic.
	ErrDivergence = errors.New("ledger: divergence")
	// ErrNoLedger says that the directory holds no ledger. Typically this means a wrong path.
	ErrNoLedger = errors.New("ledger: no ledger here")
	// ErrExists says that the directory already holds a ledger.
	ErrExists = errors.New("ledger: a ledger is already here")
	// ErrDiskFull says that a write did not fit. What was acknowledged is intact and the handle stays usable.
	ErrDiskFull = errors.New("ledger: disk full")
	// ErrPoisoned says that a commit failed in a way that leaves the handle in doubt; close it and open again.
	ErrPoisoned = errors.New("ledger: handle unusable after a failed commit")
	// ErrClosed says that the ledger was closed.
	ErrClosed = errors.New("ledger: closed")
	// ErrRetired says that the payload was let go; the event that says so proves what it was.
	ErrRetired = errors.New("ledger: payload retired")
	// ErrElsewhere says that the payload lives in a file that this ledger has no decoder for.
	ErrElsewhere = errors.New("ledger: payload lives elsewhere")
	// ErrNotFound says that no event has the key, or the event has no payload of that role.
	ErrNotFound = errors.New("ledger: not found")
	// ErrRollback says that the ledger is older than HEAD. Typically this means that ledger.db was restored from a
	// copy, or that its newest header page was damaged.
	ErrRollback = errors.New("ledger: rolled back")
	// ErrNewer says that a newer version of quire wrote this ledger.
	ErrNewer = errors.New("ledger: written by a newer version")
	// ErrUsage says that the caller broke a rule of the API.
	ErrUsage = errors.New("ledger: usage")
	// ErrUnsafeFS says that the file system does not keep locks or syncs as a ledger needs.
	ErrUnsafeFS = errors.New("ledger: unsafe file system")
	// ErrBusy says that a segment still has payloads that no event names yet, so it cannot be retired.
	ErrBusy = errors.New("ledger: segment busy")
)

// Exit codes of the quire command for the errors below.
const (
	exitFailure   = 1
	exitMismatch  = 4
	exitDiverged  = 5
	exitNoRun     = 10
	exitLocked    = 11
	exitDamaged   = 12
	exitDiskShort = 21
	exitUsage     = 64
	exitTryAgain  = 75
)

// DamageError locates damage.
type DamageError struct {
	File  string // path inside the run directory
	Seq   uint64 // event, 0 if unknown
	Key   string // its natural key
	Role  string // payload, if one is concerned
	Chunk int64  // chunk index, -1 if none
	What  string
	Inner error
}

func (e *DamageError) Error() string {
	s := "ledger damaged: " + e.What
	if e.File != "" {
		s += " in " + e.File
	}
	if e.Seq != 0 {
		s += fmt.Sprintf(", event %d", e.Seq)
	}
	if e.Key != "" {
		s += fmt.Sprintf(" (%s)", e.Key)
	}
	if e.Role != "" {
		s += ", payload " + e.Role
	}
	if e.Chunk >= 0 && e.Role != "" {
		s += fmt.Sprintf(", chunk %d", e.Chunk)
	}
	if e.Inner != nil {
		s += ": " + e.Inner.Error()
	}
	return s
}

// Is matches ErrDamaged.
func (e *DamageError) Is(t error) bool { return t == ErrDamaged }

// Unwrap gives the cause.
func (e *DamageError) Unwrap() error { return e.Inner }

// ErrorCode gives the catalogue code.
func (e *DamageError) ErrorCode() string { return "E1701" }

// ExitCode gives the process exit code.
func (e *DamageError) ExitCode() int { return exitDamaged }

// Remedy says what to try.
func (e *DamageError) Remedy() string {
	return "run `quire ledger fsck RUN --level deep` to see what is concerned and the cheapest repair"
}

// LockedError says who holds the ledger.
type LockedError struct {
	Holder Holder
	Stale  bool // the holder is on another host and its heartbeat is old enough to be taken over only with TakeOver
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("ledger locked by %s since %s", e.Holder, e.Holder.Start.UTC().Format(time.RFC3339))
}

// Is matches ErrLocked.
func (e *LockedError) Is(t error) bool { return t == ErrLocked }

// ErrorCode gives the catalogue code.
func (e *LockedError) ErrorCode() string { return "E1702" }

// ExitCode gives the process exit code.
func (e *LockedError) ExitCode() int { return exitLocked }

// Remedy says what to try.
func (e *LockedError) Remedy() string {
	return "wait for it, look with `quire status RUN`, or, if that host is dead, repeat with --take-over"
}

// DivergenceError says that a key is bound to another content.
type DivergenceError struct {
	Key   string
	Field string // first field that differs
	Seq   uint64 // the event that holds the key
	Old   Digest // content digests
	New   Digest
}

func (e *DivergenceError) Error() string {
	return fmt.Sprintf("divergence at %s: %s differs from event %d (recorded %.12s, now %.12s)", e.Key, e.Field, e.Seq, e.Old, e.New)
}

// Is matches ErrDivergence.
func (e *DivergenceError) Is(t error) bool { return t == ErrDivergence }

// ErrorCode gives the catalogue code.
func (e *DivergenceError) ErrorCode() string { return "E1703" }

// ExitCode gives the process exit code.
func (e *DivergenceError) ExitCode() int { return exitDiverged }

// Remedy says what to try.
func (e *DivergenceError) Remedy() string {
	return "compare with `quire ledger show RUN " + e.Key + "`; start a new run directory if the inputs changed on purpose"
}

// DiskFullError says how much was wanted.
type DiskFullError struct {
	Dir    string
	Needed int64 // bytes
	Free   int64 // bytes when it was asked, -1 if unknown
	Inner  error
	Stop   bool // the run was under way and stopped at a durable point
}

func (e *DiskFullError) Error() string {
	return fmt.Sprintf("disk full: %d bytes needed in %s, %d free", e.Needed, e.Dir, e.Free)
}

// Is matches ErrDiskFull.
func (e *DiskFullError) Is(t error) bool { return t == ErrDiskFull }

// Unwrap gives the cause.
func (e *DiskFullError) Unwrap() error { return e.Inner }

// ErrorCode gives the catalogue code.
func (e *DiskFullError) ErrorCode() string { return "E1704" }

// ExitCode gives the process exit code.
func (e *DiskFullError) ExitCode() int {
	if e.Stop {
		return exitTryAgain
	}
	return exitDiskShort
}

// Remedy says what to try.
func (e *DiskFullError) Remedy() string {
	return "free the space and resume; nothing that was acknowledged is lost"
}

// ElsewhereError gives the location of a payload that this ledger cannot read itself.
type ElsewhereError struct {
	Location Location
	Role     string
	Key      string
}

func (e *ElsewhereError) Error() string {
	return fmt.Sprintf("payload %s of %s is not in the ledger: %s", e.Role, e.Key, e.Location)
}

// Is matches ErrElsewhere, and ErrRetired when the payload was let go.
func (e *ElsewhereError) Is(t error) bool {
	return t == ErrElsewhere || t == ErrRetired && e.Location.Kind == KindRetired
}

// ErrorCode gives the catalogue code.
func (e *ElsewhereError) ErrorCode() string { return "E1705" }

// ExitCode gives the process exit code.
func (e *ElsewhereError) ExitCode() int { return exitFailure }

// Remedy says what to try.
func (e *ElsewhereError) Remedy() string {
	if e.Location.Kind == KindRetired {
		return "it was let go by the retention policy; `quire replay` derives it again"
	}
	return "read it from the place named"
}

// simpleError is a failure without further structure: a sentinel, a message, a code and a remedy.
type simpleError struct {
	kind   error
	msg    string
	code   string
	exit   int
	remedy string
	inner  error
}

func (e *simpleError) Error() string {
	if e.inner != nil {
		return e.msg + ": " + e.inner.Error()
	}
	return e.msg
}
func (e *simpleError) Is(t error) bool   { return t == e.kind }
func (e *simpleError) Unwrap() error     { return e.inner }
func (e *simpleError) ErrorCode() string { return e.code }
func (e *simpleError) ExitCode() int     { return e.exit }
func (e *simpleError) Remedy() string    { return e.remedy }

func usage(format string, a ...any) error {
	return &simpleError{kind: ErrUsage, msg: "ledger: " + fmt.Sprintf(format, a...), code: "E1706", exit: exitUsage,
		remedy: "this is a mistake in the calling code"}
}

func noLedger(dir string) error {
	return &simpleError{kind: ErrNoLedger, msg: "no ledger in " + dir, code: "E1707", exit: exitNoRun,
		remedy: "give the run directory (by default OUT.run)"}
}

func exists(dir string) error {
	return &simpleError{kind: ErrExists, msg: "a ledger already exists in " + dir, code: "E1708", exit: exitUsage,
		remedy: "resume it, or choose another run directory"}
}

func poisoned(cause error) error {
	return &simpleError{kind: ErrPoisoned, msg: "a commit failed and the ledger was closed for writing", code: "E1709",
		exit: exitTryAgain, remedy: "check the disk and resume: what was acknowledged is on it", inner: cause}
}

func rolledBack(file, what string) error {
	return &simpleError{kind: ErrRollback, msg: "the ledger is older than its head: " + what + " (" + file + ")", code: "E1710",
		exit: exitDamaged, remedy: "restore the newer ledger.db, or accept the loss with --accept-rollback: the acceptance is recorded"}
}

func newer(what string) error {
	return &simpleError{kind: ErrNewer, msg: "this ledger was written by a newer quire: " + what, code: "E1711",
		exit: exitDamaged, remedy: "use the newer version"}
}

func unsafeFS(dir, what string) error {
	return &simpleError{kind: ErrUnsafeFS, msg: fmt.Sprintf("%s is on a file system that cannot hold a ledger: %s", dir, what),
		code: "E1712", exit: exitFailure, remedy: "put the run directory on a local disk (--run-dir)"}
}

func notFound(format string, a ...any) error {
	return &simpleError{kind: ErrNotFound, msg: "ledger: " + fmt.Sprintf(format, a...), code: "E1713", exit: exitFailure,
		remedy: "list what there is with `quire ledger ls RUN`"}
}

func busy(format string, a ...any) error {
	return &simpleError{kind: ErrBusy, msg: "ledger: " + fmt.Sprintf(format, a...), code: "E1714", exit: exitFailure,
		remedy: "append the events that name its payloads first"}
}

func proofFailed(format string, a ...any) error {
	return &simpleError{kind: ErrProof, msg: "proof does not hold: " + fmt.Sprintf(format, a...), code: "E1715", exit: exitMismatch,
		remedy: "compare with a head from another source"}
}

// ErrProof says that a proof does not hold. Typically this means that it belongs to another ledger, or that either was
// changed.
var ErrProof = errors.New("ledger: proof does not hold")

func damagedf(file string, format string, a ...any) *DamageError {
	return &DamageError{File: file, Chunk: -1, What: fmt.Sprintf(format, a...)}
}

// Catalogue explains this package's error codes.
func Catalogue() map[string]string {
	return map[string]string{
		"E1701": "The ledger is damaged: bytes on disk are not what was written. Cause: a failing disk, memory or cable, or a file that was cut or edited. `quire ledger fsck RUN --level deep` lists every event and payload concerned with the cheapest repair; `quire ledger salvage` copies what is sound.",
		"E1702": "Another process writes this ledger. It names host, pid and start. A dead holder on this host is taken over by itself; one on another host after 120 s without heartbeat, or at once with --take-over.",
		"E1703": "Work was repeated under the same key and gave another result. Cause: inputs changed under the run, another version, or a nondeterminism. The first differing field is named; the ledger keeps the first content.",
		"E1704": "The disk is full. Nothing acknowledged is lost. Free the bytes named and resume.",
		"E1705": "The payload is not in the ledger: it lives in an output tensor or a foreign file, was never kept, or was retired by the retention policy.",
		"E1706": "The ledger was called in a way it does not allow. This is a bug in the caller.",
		"E1707": "The directory holds no ledger. Give the run directory, by default the output path with .run behind it.",
		"E1708": "The directory already holds a ledger; nothing was overwritten.",
		"E1709": "A commit failed with an error other than a full disk. The handle was closed, because the state after a failed sync is unknown; opening again finds the last durable state.",
		"E1710": "ledger.db is older than HEAD: the newest commits are gone. Cause: ledger.db restored from a copy, or its newest header page damaged. With --accept-rollback the run goes on and the loss is recorded.",
		"E1711": "A newer version of quire wrote this ledger; this one cannot judge its records.",
		"E1712": "The file system failed the lock-and-sync self-test, so a second writer or a power cut could destroy the ledger. Use a local disk.",
		"E1713": "No event has this key, or the event has no payload of this role.",
		"E1714": "The segment holds payloads that no event names yet.",
		"E1715": "An inclusion or consistency proof does not hold against the head given.",
	}
}
