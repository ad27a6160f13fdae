package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// DigestCache remembers SHA-256 digests of files by size, modification time and inode. The zero value forgets everything
// at the end of the process; LoadDigestCache keeps it in a file.
type DigestCache struct {
	mu      sync.Mutex
	path    string
	entries map[string]digestEntry
}

type digestEntry struct {
	Size   int64  `json:"size"`
	TimeNS int64  `json:"mtime_ns"`
	Inode  uint64 `json:"inode"`
	SHA256 string `json:"sha256"`
}

// LoadDigestCache reads a cache file. A missing or unreadable one is an empty cache: the digests are computed again.
func LoadDigestCache(path string) *DigestCache {
	c := &DigestCache{path: path, entries: map[string]digestEntry{}}
	if b, err := os.ReadFile(path); err == nil {
		if json.Unmarshal(b, &c.entries) != nil {
			c.entries = map[string]digestEntry{}
		}
	}
	return c
}

// Digest gives the SHA-256 (hex) of a file; with fresh it is computed even if the cache knows it. progress hears of bytes
// read.
func (c *DigestCache) Digest(ctx context.Context, path string, fresh bool, progress func(done int64)) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", ioError(codeIORead, path, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", ioError(codeIORead, path, err)
	}
	now := digestEntry{Size: st.Size(), TimeNS: st.ModTime().UnixNano(), Inode: inode(st)}
	c.mu.Lock()
	was, ok := c.entries[path]
	c.mu.Unlock()
	if now.SHA256 = was.SHA256; ok && was == now && !fresh {
		progress(st.Size())
		return was.SHA256, nil
	}
	h := sha256.New()
	buf := make([]byte, 1<<20)
	var done int64
	for {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		n, err := f.Read(buf)
		h.Write(buf[:n])
		done += int64(n)
		progress(done)
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", ioError(codeIORead, path, err)
		}
	}
	now.SHA256 = hex.EncodeToString(h.Sum(nil))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[string]digestEntry{}
	}
	c.entries[path] = now
	c.save()
	return now.SHA256, nil
}

// save writes the cache file. A cache that cannot be written costs the next run a hash, nothing else; several processes
// may write it at once, so the temporary file has a name of its own.
func (c *DigestCache) save() {
	if c.path == "" {
		return
	}
	for p := range c.entries { // of files that are gone
		if _, err := os.Stat(p); errors.Is(err, fs.ErrNotExist) {
			delete(c.entries, p)
		}
	}
	b, err := json.Marshal(c.entries)
	if err != nil {
		return
	}
	f, err := os.CreateTemp(filepath.Dir(c.path), ".digests-*")
	if err != nil {
		return
	}
	_, err = f.Write(b)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), c.path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
}
