//go:build !linux

package powercut

import "errors"

// Disk is a file system whose power can be cut; there is none here.
type Disk struct{}

var errNone = errors.New("power cuts need Linux")

// Available says what is missing for power cuts here, nil when nothing is.
func Available() error { return errNone }

// New fails here.
func New(string, int64) (*Disk, error) { return nil, errNone }

// Dir is where the file system is mounted.
func (*Disk) Dir() string { return "" }

// Cut cuts the power.
func (*Disk) Cut() error { return errNone }

// Shutdown fails here.
func Shutdown(string) error { return errNone }

// Abort fails here.
func (*Disk) Abort() error { return errNone }

// Restore mounts the file system again.
func (*Disk) Restore() error { return errNone }

// Close unmounts the file system and removes its image.
func (*Disk) Close() error { return nil }
