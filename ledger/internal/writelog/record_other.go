//go:build !linux

package writelog

import (
	"errors"
	"os/exec"
	"time"
)

// Record needs ptrace as Linux has it.
func Record(*exec.Cmd, string, time.Duration) (*Log, error) {
	return nil, errors.New("writelog: recording needs Linux")
}
