package writelog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Record runs cmd to its end and gives what it did below root, an absolute path that is empty or absent when it starts.
// After limit the program is killed and an error given.
func Record(cmd *exec.Cmd, root string, limit time.Duration) (*Log, error) {
	type result struct {
		log *Log
		err error
	}
	done := make(chan result, 1)
	go func() {
		// The thread that starts the child is the only one that may trace it; it ends with the goroutine.
		runtime.LockOSThread()
		log, err := record(cmd, root, limit)
		done <- result{log, err}
	}()
	r := <-done
	return r.log, r.err
}

// recorder is the state of a recording.
type recorder struct {
	root  string
	log   *Log
	clock int
	err   error

	fds   map[int]*descriptor
	names map[string]int // files by name, as they are now
	dirs  map[string]bool
	files int

	calls map[int]*call // by thread
}

type descriptor struct {
	file int // 0 for a directory
	dir  string
	pos  int64
}

// call is a system call under way.
type call struct {
	nr   uint64
	args [6]uint64
	op   *Op // recorded when it began
	data []byte
}

// syscallInfo is struct ptrace_syscall_info.
type syscallInfo struct {
	op   uint8
	_    [3]byte
	arch uint32
	ip   uint64
	sp   uint64
	a    [8]uint64 // entry: number, six arguments; exit: result, is-error
}

const (
	infoEntry = 1
	infoExit  = 2
)

func record(cmd *exec.Cmd, root string, limit time.Duration) (*Log, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	pid := cmd.Process.Pid
	timedOut := make(chan struct{})
	timer := time.AfterFunc(limit, func() { close(timedOut); _ = syscall.Kill(pid, syscall.SIGKILL) })
	defer timer.Stop()
	r := &recorder{root: root, log: &Log{}, fds: map[int]*descriptor{}, names: map[string]int{}, dirs: map[string]bool{}, calls: map[int]*call{}}
	status, err := r.follow(pid)
	if err != nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		return nil, err
	}
	select {
	case <-timedOut:
		return nil, fmt.Errorf("the program did not end within %s", limit)
	default:
	}
	if r.err != nil {
		return nil, r.err
	}
	if !status.Exited() || status.ExitStatus() != 0 {
		return nil, fmt.Errorf("the program ended with status %#x", uint32(status))
	}
	sort.SliceStable(r.log.Ops, func(i, j int) bool { return r.log.Ops[i].Start < r.log.Ops[j].Start })
	r.log.End = r.clock + 1
	return r.log, nil
}

// follow runs the program from stop to stop.
func (r *recorder) follow(pid int) (syscall.WaitStatus, error) {
	var ws syscall.WaitStatus
	if _, err := wait4(pid, &ws); err != nil {
		return ws, err
	}
	if !ws.Stopped() {
		return ws, errors.New("the program could not be traced")
	}
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_EXITKILL
	if err := syscall.PtraceSetOptions(pid, options); err != nil {
		return ws, fmt.Errorf("ptrace: %w", err)
	}
	known := map[int]bool{pid: true}
	resume := func(tid int, sig syscall.Signal) error {
		if err := syscall.PtraceSyscall(tid, int(sig)); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("ptrace: %w", err)
		}
		return nil
	}
	if err := resume(pid, 0); err != nil {
		return ws, err
	}
	for {
		tid, err := wait4(-1, &ws)
		if err != nil {
			return ws, err
		}
		if ws.Exited() || ws.Signaled() {
			if tid == pid {
				return ws, nil
			}
			continue
		}
		sig := ws.StopSignal()
		switch {
		case sig == syscall.SIGTRAP|0x80:
			r.clock++
			r.stop(tid)
			sig = 0
		case sig == syscall.SIGTRAP: // a thread was made
			sig = 0
		case sig == syscall.SIGSTOP && !known[tid]: // the first stop of a thread
			sig = 0
		}
		known[tid] = true
		if err := resume(tid, sig); err != nil {
			return ws, err
		}
	}
}

// wait4 waits for a child of this thread.
func wait4(pid int, ws *syscall.WaitStatus) (int, error) {
	for {
		got, err := syscall.Wait4(pid, ws, syscall.WALL|unix.WNOTHREAD, nil)
		if !errors.Is(err, syscall.EINTR) {
			return got, err
		}
	}
}

func (r *recorder) fail(format string, a ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, a...)
	}
}

// stop looks at a thread that begins or ends a system call.
func (r *recorder) stop(tid int) {
	var info syscallInfo
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 {
		if errno != unix.ESRCH {
			r.fail("ptrace: %v", errno)
		}
		return
	}
	switch info.op {
	case infoEntry:
		c := &call{nr: info.a[0]}
		copy(c.args[:], info.a[1:7])
		r.calls[tid] = c
		r.begin(tid, c)
	case infoExit:
		if c := r.calls[tid]; c != nil {
			delete(r.calls, tid)
			r.end(tid, c, int64(info.a[0]))
		}
	}
}

// add records an operation that began now; it ends when its call does.
func (r *recorder) add(c *call, op Op) {
	op.Start, op.End = r.clock, never
	c.op = &op
}

// begin handles what must be known when a call starts.
func (r *recorder) begin(tid int, c *call) {
	fd := r.fds[int(int32(c.args[0]))]
	switch c.nr {
	case unix.SYS_WRITE, unix.SYS_PWRITE64:
		if fd == nil {
			if c.args[0] == 1 {
				op := Op{Kind: Say, Data: r.memory(tid, c.args[1], c.args[2])}
				r.add(c, op)
			}
			return
		}
		off := fd.pos
		if c.nr == unix.SYS_PWRITE64 {
			off = int64(c.args[3])
		}
		r.add(c, Op{Kind: Write, File: fd.file, Off: off, Data: r.memory(tid, c.args[1], c.args[2])})
	case unix.SYS_FSYNC, unix.SYS_FDATASYNC:
		if fd == nil {
			return
		}
		if fd.file == 0 {
			r.add(c, Op{Kind: SyncDir, Name: fd.dir})
		} else {
			r.add(c, Op{Kind: Sync, File: fd.file})
		}
	case unix.SYS_FTRUNCATE:
		if fd != nil {
			r.add(c, Op{Kind: Truncate, File: fd.file, Size: int64(c.args[1])})
		}
	case unix.SYS_CLOSE:
		delete(r.fds, int(int32(c.args[0]))) // now: the number may be used again before this call's end is seen
	case unix.SYS_MMAP:
		if fd := r.fds[int(int32(c.args[4]))]; fd != nil && c.args[2]&unix.PROT_WRITE != 0 && c.args[3]&unix.MAP_SHARED != 0 {
			r.fail("a file is mapped for writing: its writes cannot be seen")
		}
	case unix.SYS_PWRITEV:
		if fd != nil { // the offset is the low half of two arguments, whole on 64 bits
			r.add(c, Op{Kind: Write, File: fd.file, Off: int64(c.args[3]), Data: r.vector(tid, c.args[1], c.args[2])})
		}
	case unix.SYS_WRITEV, unix.SYS_PWRITEV2, unix.SYS_FALLOCATE,
		unix.SYS_DUP, unix.SYS_DUP3, unix.SYS_IOCTL:
		if fd != nil {
			r.fail("system call %d on a recorded file is not known to the recorder", c.nr)
		}
	case unix.SYS_COPY_FILE_RANGE, unix.SYS_SENDFILE, unix.SYS_SPLICE:
		r.fail("system call %d is not known to the recorder", c.nr)
	case unix.SYS_TRUNCATE, unix.SYS_LINKAT, unix.SYS_SYMLINKAT:
		r.fail("system call %d is not known to the recorder", c.nr)
	case unix.SYS_OPENAT, unix.SYS_UNLINKAT, unix.SYS_MKDIRAT:
		c.data = []byte(r.path(tid, c.args[1]))
		c.op = &Op{Start: r.clock, End: never}
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2:
		c.data = []byte(r.path(tid, c.args[1]))
		c.op = &Op{Start: r.clock, End: never, To: r.path(tid, c.args[3])}
	}
}

// end handles the result of a call.
func (r *recorder) end(tid int, c *call, result int64) {
	keep := func(op Op) {
		op.Start, op.End = c.op.Start, r.clock
		r.log.Ops = append(r.log.Ops, op)
	}
	switch c.nr {
	case unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_PWRITEV:
		if c.op == nil || result < 0 {
			return
		}
		op := *c.op
		op.Data = op.Data[:min(int64(len(op.Data)), result)]
		keep(op)
		if fd := r.fds[int(int32(c.args[0]))]; fd != nil && c.nr == unix.SYS_WRITE {
			fd.pos += result
		}
	case unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_FTRUNCATE:
		if c.op != nil && result == 0 {
			keep(*c.op)
		}
	case unix.SYS_LSEEK:
		if fd := r.fds[int(int32(c.args[0]))]; fd != nil && result >= 0 {
			fd.pos = result
		}
	case unix.SYS_FCNTL:
		if fd := r.fds[int(int32(c.args[0]))]; fd != nil && (c.args[1] == unix.F_DUPFD || c.args[1] == unix.F_DUPFD_CLOEXEC) && result >= 0 {
			r.fds[int(result)] = fd
		}
	case unix.SYS_OPENAT:
		name, inside := r.relative(string(c.data))
		if !inside || result < 0 {
			return
		}
		flags := c.args[2]
		if r.dirs[name] || name == "." {
			r.fds[int(result)] = &descriptor{dir: name}
			return
		}
		id, ok := r.names[name]
		if !ok {
			if flags&unix.O_CREAT == 0 {
				r.fail("%s was there before the recording", name)
				return
			}
			r.files++
			id = r.files
			r.names[name] = id
			keep(Op{Kind: Create, Name: name, File: id})
		} else if flags&unix.O_TRUNC != 0 {
			keep(Op{Kind: Truncate, File: id})
		}
		if flags&unix.O_APPEND != 0 {
			r.fail("%s is opened for appending: not known to the recorder", name)
		}
		r.fds[int(result)] = &descriptor{file: id}
	case unix.SYS_MKDIRAT:
		if name, inside := r.relative(string(c.data)); inside && result == 0 {
			r.dirs[name] = true
			if name != "." {
				keep(Op{Kind: Mkdir, Name: name})
			}
		}
	case unix.SYS_UNLINKAT:
		if name, inside := r.relative(string(c.data)); inside && result == 0 {
			if c.args[2]&unix.AT_REMOVEDIR != 0 {
				r.fail("%s is removed: not known to the recorder", name)
			}
			delete(r.names, name)
			keep(Op{Kind: Unlink, Name: name})
		}
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2:
		from, inside1 := r.relative(string(c.data))
		to, inside2 := r.relative(c.op.To)
		if result != 0 || !inside1 && !inside2 {
			return
		}
		id, ok := r.names[from]
		if !ok || !inside2 {
			r.fail("%s is renamed to %s: not known to the recorder", from, to)
			return
		}
		delete(r.names, from)
		r.names[to] = id
		keep(Op{Kind: Rename, Name: from, To: to})
	}
}

// relative says whether a path lies in the recorded directory, and where.
func (r *recorder) relative(path string) (string, bool) {
	path = filepath.Clean(path)
	if path == r.root {
		return ".", true
	}
	return strings.CutPrefix(path, r.root+"/")
}

// memory reads n bytes of the program's memory.
func (r *recorder) memory(tid int, addr, n uint64) []byte {
	b := make([]byte, n)
	for got := 0; got < len(b); {
		local := []unix.Iovec{{Base: &b[got], Len: uint64(len(b) - got)}}
		k, err := unix.ProcessVMReadv(tid, local, []unix.RemoteIovec{{Base: uintptr(addr) + uintptr(got), Len: len(b) - got}}, 0)
		if err != nil || k == 0 {
			r.fail("memory of the program cannot be read: %v", err)
			return b
		}
		got += k
	}
	return b
}

// vector reads the memory that n struct iovec name.
func (r *recorder) vector(tid int, addr, n uint64) []byte {
	var b []byte
	for list := r.memory(tid, addr, 16*n); len(list) > 0; list = list[16:] {
		b = append(b, r.memory(tid, binary.NativeEndian.Uint64(list), binary.NativeEndian.Uint64(list[8:]))...)
	}
	return b
}

// path reads a string that ends with a zero.
func (r *recorder) path(tid int, addr uint64) string {
	var s []byte
	var page [256]byte
	for len(s) < 8192 {
		n := len(page) - int(addr%uint64(len(page))) // never across a page of memory
		k, err := unix.ProcessVMReadv(tid, []unix.Iovec{{Base: &page[0], Len: uint64(n)}}, []unix.RemoteIovec{{Base: uintptr(addr), Len: n}}, 0)
		if err != nil || k == 0 {
			r.fail("a path in the program's memory cannot be read: %v", err)
			return ""
		}
		if i := bytes.IndexByte(page[:k], 0); i >= 0 {
			return string(append(s, page[:i]...))
		}
		s = append(s, page[:k]...)
		addr += uint64(k)
	}
	return string(s)
}
