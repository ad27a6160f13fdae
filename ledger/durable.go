package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// makeDirs makes a directory and those above it, durable: a power cut must not take away the directory whose files were
// synced with such care. The entry of dir itself is synced even if it was there: whoever made it may have died before it was.
// A parent that may not be opened, or that nobody can write, is left alone.
func makeDirs(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	parents := []string{filepath.Dir(dir)}
	for p := parents[0]; ; p = filepath.Dir(p) {
		if _, err := os.Stat(p); !os.IsNotExist(err) || p == filepath.Dir(p) {
			break
		}
		parents = append(parents, filepath.Dir(p))
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, p := range parents {
		if err := syncDir(p); err != nil && !os.IsPermission(err) && !errors.Is(err, syscall.EROFS) {
			return err
		}
	}
	return nil
}

// writeFileDurably puts a whole file in place atomically: temporary name, sync, rename, sync of the directory.
func writeFileDurably(path string, b []byte) error {
	return putFileDurably(path, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
}

// putFileDurably is writeFileDurably for what fill writes.
func putFileDurably(path string, fill func(f *os.File) error) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if err := fill(f); err != nil {
		f.Close()
		os.Remove(tmp)
		return err
	}
	if err := f.Sync(); err != nil {
		f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// writeFileAtomically is writeFileDurably without the syncs: for files whose loss costs nothing.
func writeFileAtomically(path string, b []byte) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, b, 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// syncFile makes a closed file's content durable.
func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// makeReserve allocates n bytes on disk that can be given back.
func makeReserve(path string, n int64) error {
	if st, err := os.Stat(path); err == nil && st.Size() >= n {
		return nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	zero := make([]byte, 1<<20)
	for n > 0 {
		k := min(n, int64(len(zero)))
		if _, err := f.Write(zero[:k]); err != nil {
			os.Remove(path)
			return err
		}
		n -= k
	}
	return f.Sync()
}

// FreeBytes gives the bytes that an unprivileged writer may still use in dir's file system.
func FreeBytes(dir string) (int64, error) {
	n, err := freeBytes(dir)
	if err != nil {
		return 0, fmt.Errorf("ledger: free space of %s: %w", dir, err)
	}
	return n, nil
}
