//go:build !linux

package ledger

import (
	"fmt"
	"os"
)

func fdatasync(f *os.File) error { return f.Sync() }

// bootID is not known here: locks are judged by host and heartbeat.
func bootID() string { return "" }

// fileSystem does not tell network file systems apart here.
func fileSystem(string) (name string, network bool) { return "", false }

func startWriteback(*os.File, int64, int64) {}

func adviseSequential(*os.File, int64, int64) {}

func socketAddress(dir, base string) (addr string, release func(), err error) {
	full := dir + string(os.PathSeparator) + base
	if len(full) > 100 {
		return "", nil, fmt.Errorf("ledger: socket path of %d bytes is too long here", len(full))
	}
	return full, func() {}, nil
}
