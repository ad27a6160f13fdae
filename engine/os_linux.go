package engine

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// currentRSS is the process's anonymous and shared resident memory in bytes, 0 if unknown. File pages are left out: the
// kernel takes them back when it needs them.
func currentRSS() int64 { return statusKB("RssAnon:") + statusKB("RssShmem:") }

// peakRSS is the largest resident set so far in bytes, file pages included.
func peakRSS() int64 { return statusKB("VmHWM:") }

func statusKB(field string) int64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	i := bytes.Index(b, []byte("\n"+field))
	if i < 0 {
		return 0
	}
	fields := bytes.Fields(b[i+1+len(field):])
	if len(fields) == 0 {
		return 0
	}
	n, err := strconv.ParseInt(string(fields[0]), 10, 64)
	if err != nil {
		return 0
	}
	return n << 10
}

// freeBytes is what an ordinary user may still write on the file system of dir.
func freeBytes(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * st.Bsize, nil
}
