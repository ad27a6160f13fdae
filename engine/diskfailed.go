package engine

import (
	"errors"
	"syscall"

	"quire/ledger"
)

// whereDiskFailed says of an error that came from a disk which takes no more that the run can be gone on with: what was
// acknowledged is durable, and files that were being written have temporary names.
func whereDiskFailed(err error) error {
	var own *Error
	var full *ledger.DiskFullError
	switch {
	case errors.As(err, &own) && own.Exit == ExitStoppedDurably, errors.As(err, &full) && full.Stop:
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, ledger.ErrDiskFull):
		return &Error{Code: "E0206", Exit: ExitStoppedDurably, What: "the run stopped: the disk is full", Err: err, Try: "free space and give the same command again: it goes on where it stopped"}
	case errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EIO), errors.Is(err, ledger.ErrPoisoned):
		return &Error{Code: "E0207", Exit: ExitStoppedDurably, What: "the run stopped: the disk failed or takes no more writes", Err: err,
			Try: "look at the system's log, make the disk writable, and give the same command again: it goes on where it stopped"}
	}
	return err
}
