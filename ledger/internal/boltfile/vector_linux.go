package boltfile

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// writeVector writes pieces one behind the other from off on, in one call where the kernel takes them all.
func writeVector(f *os.File, pieces [][]byte, off int64) error {
	conn, err := f.SyscallConn() // keeps the descriptor from being closed, and its number from being given to another file
	if err != nil {
		return err
	}
	list := make([][]byte, 0, len(pieces))
	for _, p := range pieces {
		if len(p) > 0 {
			list = append(list, p)
		}
	}
	for len(list) > 0 {
		var n int
		if cerr := conn.Control(func(fd uintptr) { n, err = unix.Pwritev(int(fd), list[:min(len(list), 1024)], off) }); cerr != nil {
			return os.ErrClosed
		}
		if err == unix.EINTR {
			continue
		}
		if err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		if err != nil {
			return fmt.Errorf("write %s: %w", f.Name(), err)
		}
		off += int64(n)
		for n > 0 {
			if n < len(list[0]) {
				list[0] = list[0][n:]
				break
			}
			n -= len(list[0])
			list = list[1:]
		}
	}
	return nil
}
