package engine

import (
	"fmt"
	"strings"
)

// Exit codes of the quire command; the table stands in README.md.
const (
	ExitOK             = 0
	ExitFailure        = 1
	ExitFindings       = 3
	ExitMismatch       = 4
	ExitDiverged       = 5
	ExitNonFinite      = 6
	ExitNoRun          = 10
	ExitLocked         = 11
	ExitLedgerDamaged  = 12
	ExitIdentity       = 13
	ExitMemoryShort    = 20
	ExitDiskShort      = 21
	ExitUsage          = 64
	ExitStoppedDurably = 75
)

// Error is a failure a user can act on: what happened, where, why, and one thing to try. Code indexes the catalogue
// that `quire explain` prints.
type Error struct {
	Code  string // E0xxx
	Exit  int    // one of the Exit constants
	What  string
	Where string // file:line, tensor, module, event
	Why   string
	Try   string
	Err   error // cause, optional
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.What)
	if e.Where != "" {
		fmt.Fprintf(&b, " (%s)", e.Where)
	}
	if e.Why != "" {
		fmt.Fprintf(&b, ": %s", e.Why)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// ErrorCode gives the catalogue code.
func (e *Error) ErrorCode() string { return e.Code }

// ExitCode gives the process exit code.
func (e *Error) ExitCode() int { return e.Exit }

// Remedy gives the thing to try.
func (e *Error) Remedy() string { return e.Try }

// usage builds the error of a recipe or flag that cannot be meant.
func usage(code, where, try, format string, args ...any) *Error {
	return &Error{Code: code, Exit: ExitUsage, What: fmt.Sprintf(format, args...), Where: where, Try: try}
}
