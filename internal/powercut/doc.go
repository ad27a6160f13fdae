// Package powercut gives tests a file system whose power can be cut.
//
// A Disk is an ext4 file system in a file on a loop device. Cut stops it through ext4's shutdown ioctl without flushing
// the journal: what was synced is on the disk, what was not synced is there or not as chance has it, and every later
// operation fails. Restore mounts it again, which replays the journal as the boot after a power cut does.
//
// It needs Linux, root, a free loop device and mkfs.ext4; Available says which of them is missing. A test that uses it:
//
//	if err := powercut.Available(); err != nil {
//		t.Logf("LEFT OUT: TestX: %v", err)
//		return
//	}
//	d, err := powercut.New(t.TempDir(), 256<<20)
//	defer d.Close()
//	start a process that writes below d.Dir(); wait; d.Cut(); kill the process and wait for it
//	d.Restore(); look at d.Dir()
//
// Unlike kill -9, which leaves the page cache alone, this loses whatever was written and not synced.
package powercut
