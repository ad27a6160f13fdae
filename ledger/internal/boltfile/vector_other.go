//go:build !linux

package boltfile

import "os"

// writeVector writes pieces one behind the other from off on.
func writeVector(f *os.File, pieces [][]byte, off int64) error {
	for _, p := range pieces {
		if _, err := f.WriteAt(p, off); err != nil {
			return err
		}
		off += int64(len(p))
	}
	return nil
}
