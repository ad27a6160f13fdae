//go:build !windows

package checkpoint

import "os"

// SyncDir makes the names in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return ioError(codeIOWrite, dir, err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return ioError(codeIOWrite, dir, err)
	}
	return nil
}
