//go:build !windows

package ledger_test

import (
	"os"
	"syscall"
)

// die ends the process as kill -9 does.
func die() {
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
	select {}
}

// askStacks makes a Go process print its goroutines and end.
func askStacks(p *os.Process) error { return p.Signal(syscall.SIGQUIT) }
