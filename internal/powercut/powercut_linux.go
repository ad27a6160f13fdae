package powercut

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Disk is an ext4 file system on a loop device.
type Disk struct {
	image, dir string
	mounted    bool
}

// EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH: nothing more reaches the disk, not even the journal's tail.
const (
	ioctlShutdown = 0x8004587d
	noLogFlush    = 2
)

var available = sync.OnceValue(func() error {
	if os.Getuid() != 0 {
		return errors.New("power cuts need root")
	}
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		return fmt.Errorf("power cuts need mkfs.ext4 (package e2fsprogs): %w", err)
	}
	dir, err := os.MkdirTemp("", "powercut")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d, err := New(dir, 16<<20)
	if err != nil {
		return fmt.Errorf("power cuts need a loop device and the right to mount ext4: %w", err)
	}
	defer d.Close()
	if err := d.Cut(); err != nil {
		return fmt.Errorf("power cuts need ext4's shutdown ioctl: %w", err)
	}
	if err := os.WriteFile(filepath.Join(d.Dir(), "x"), []byte("x"), 0o644); err == nil {
		return errors.New("power cuts need ext4's shutdown ioctl: a file system that was shut down still takes writes")
	}
	return d.Restore()
})

// Available says what is missing for power cuts here, nil when nothing is. It tries one out.
func Available() error { return available() }

// New makes a file system of a size in a file below dir and mounts it below dir. Close unmounts it; whoever made dir
// removes it.
func New(dir string, bytes int64) (*Disk, error) {
	d := &Disk{image: filepath.Join(dir, "disk.img"), dir: filepath.Join(dir, "disk")}
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(d.image, nil, 0o644); err != nil {
		return nil, err
	}
	if err := os.Truncate(d.image, bytes); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "mkfs.ext4", "-q", "-F", d.image).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mkfs.ext4: %w: %s", err, out)
	}
	if err := d.mount(); err != nil {
		return nil, err
	}
	return d, nil
}

// Dir is where the file system is mounted.
func (d *Disk) Dir() string { return d.dir }

// Cut cuts the power.
func (d *Disk) Cut() error { return Shutdown(d.dir) }

// Shutdown cuts the power of the Disk mounted at dir. A process that is to die at the same instant calls it itself.
func Shutdown(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	flag := uint32(noLogFlush)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), ioctlShutdown, uintptr(unsafe.Pointer(&flag))); errno != 0 {
		return fmt.Errorf("shutdown ioctl on %s: %w", dir, errno)
	}
	return nil
}

// Abort makes the file system read-only, as its own errors do: files that are open stay open, and every write fails.
// Restore makes it writable again.
func (d *Disk) Abort() error {
	return unix.Mount("", d.dir, "", unix.MS_REMOUNT, "abort")
}

// Restore mounts the file system again. Processes that had files of it open must have ended.
func (d *Disk) Restore() error {
	if err := d.unmount(); err != nil {
		return err
	}
	return d.mount()
}

// Close unmounts the file system and removes its image.
func (d *Disk) Close() error {
	return errors.Join(d.unmount(), os.Remove(d.image))
}

// mount attaches the image to a free loop device, which lets go of it by itself when it is unmounted.
func (d *Disk) mount() error {
	image, err := os.OpenFile(d.image, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer image.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer control.Close()
	for try := 0; ; try++ {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return fmt.Errorf("no free loop device: %w", err)
		}
		path := fmt.Sprintf("/dev/loop%d", n)
		loop, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &unix.LoopConfig{Fd: uint32(image.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}})
		if err == nil {
			err = unix.Mount(path, d.dir, "ext4", 0, "")
			d.mounted = err == nil
			loop.Close()
			if err != nil {
				return fmt.Errorf("mount %s on %s: %w", path, d.dir, err)
			}
			return nil
		}
		loop.Close()
		if !errors.Is(err, unix.EBUSY) || try == 50 { // another process was faster
			return fmt.Errorf("%s: %w", path, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// unmount waits for those who were killed a moment ago and still hold files.
func (d *Disk) unmount() error {
	if !d.mounted {
		return nil
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Unmount(d.dir, 0)
		if err == nil {
			d.mounted = false
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("unmount %s: %w", d.dir, err)
		}
	}
}
