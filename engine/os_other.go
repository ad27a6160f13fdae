//go:build !linux

package engine

import (
	"errors"
	"runtime"
)

// currentRSS is what the Go runtime holds from the system, the nearest thing that is portable.
func currentRSS() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys - m.HeapReleased)
}

// peakRSS is the same: there is no portable peak.
func peakRSS() int64 { return currentRSS() }

func freeBytes(string) (int64, error) { return 0, errors.ErrUnsupported }
