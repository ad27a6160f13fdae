package ledger

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

func fdatasync(f *os.File) error {
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if err != unix.EINTR {
			return err
		}
	}
}

// startWriteback asks the kernel to begin writing what is dirty of a stretch, and waits for nothing.
func startWriteback(f *os.File, off, n int64) {
	if c, err := f.SyscallConn(); err == nil {
		_ = c.Control(func(fd uintptr) { _ = unix.SyncFileRange(int(fd), off, n, unix.SYNC_FILE_RANGE_WRITE) })
	}
}

// bootID tells boots of one host apart.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// File systems whose locks and syncs depend on a server.
var networkFS = map[int64]string{0x6969: "nfs", 0x517b: "smb", 0xff534d42: "cifs", 0xfe534d42: "smb2", 0x0bd00bd0: "lustre", 0x47504653: "gpfs", 0x65735546: "fuse"}

// fileSystem names dir's file system when it is a network one.
func fileSystem(dir string) (name string, network bool) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return "", false
	}
	name, network = networkFS[int64(uint32(st.Type))]
	return name, network
}

// adviseSequential tells the kernel that [off, off+n) will be read soon and in order.
func adviseSequential(f *os.File, off, n int64) {
	const step = 128 << 10 // one call reads no further than the read-ahead limit, by default this
	for end := off + n; off < end; off += step {
		_ = unix.Fadvise(int(f.Fd()), off, min(step, end-off), unix.FADV_WILLNEED)
	}
}

// socketAddress gives a path by which path can be bound or reached although sun_path holds 108 bytes. release lets the
// directory go.
func socketAddress(dir, base string) (addr string, release func(), err error) {
	full := dir + "/" + base
	if len(full) <= 100 {
		return full, func() {}, nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), base), func() { d.Close() }, nil
}
