package kernels

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
)

// ContractID names the numeric contract that every operation of this package
// obeys (docs/contract-cpu-1.md). Any change of a result bit is a new id.
const ContractID = "cpu-1"

// Level is an instruction-set level. Levels are ordered: a CPU that has one
// has all the lower ones. The level never changes a result, only its speed.
type Level int32

// The levels, lowest first.
const (
	// LevelScalar is the generic Go twin; every architecture has it.
	LevelScalar Level = iota
	// LevelAVX2 needs AVX2 and FMA (x86-64-v3).
	LevelAVX2
	// LevelAVX512 needs AVX-512 F, BW, DQ and VL.
	LevelAVX512
	// LevelAVX512BF16 adds VDPBF16PS with the semantics the contract relies on.
	LevelAVX512BF16
)

var levelNames = [...]string{"scalar", "avx2", "avx512", "avx512bf16"}

// String gives the name that QUIRE_CPU takes.
func (l Level) String() string {
	if l < 0 || int(l) >= len(levelNames) {
		return fmt.Sprintf("level(%d)", int32(l))
	}
	return levelNames[l]
}

// ParseLevel reads a name as QUIRE_CPU takes it.
func ParseLevel(name string) (Level, error) {
	for i, n := range levelNames {
		if strings.EqualFold(name, n) {
			return Level(i), nil
		}
	}
	return 0, fmt.Errorf("kernels: unknown CPU level %q: use one of %s", name, strings.Join(levelNames[:], ", "))
}

// CPUStatus says which level runs and why.
type CPUStatus struct {
	// Detected is the highest level that the CPU and the operating system announce.
	Detected Level
	// Level is the level in use.
	Level Level
	// Reasons explains, in order, every step from Detected down to Level:
	// a failed self-test, the QUIRE_CPU variable. Empty when they are equal.
	Reasons []string
}

var (
	levelOnce   sync.Once
	levelStatus CPUStatus
	activeLevel atomic.Int32 // valid after levelOnce
)

// selfTests are run once, lowest level first, before a level is used. A test
// gets a level and compares that level's kernels with the scalar twin on small
// shapes; an error disables the level and all above it. Files append to this
// list from init functions.
var selfTests []func(Level) error

// pickLevel detects, tests and lowers. QUIRE_CPU can only lower.
func pickLevel() {
	st := CPUStatus{Detected: detectLevel()}
	limit := st.Detected
	var reasons []string
	if name := os.Getenv("QUIRE_CPU"); name != "" {
		l, err := ParseLevel(name)
		switch {
		case err != nil:
			reasons = append(reasons, fmt.Sprintf("QUIRE_CPU ignored: %v", err))
		case l > limit:
			reasons = append(reasons, fmt.Sprintf("QUIRE_CPU=%s ignored: this CPU has %s", l, limit))
		case l < limit:
			limit = l
			reasons = append(reasons, "QUIRE_CPU="+l.String())
		}
	}
	st.Level = LevelScalar
	for l := LevelAVX2; l <= limit; l++ {
		if err := testLevel(l); err != nil {
			reasons = append(reasons, fmt.Sprintf("self-test of %s failed: %v", l, err))
			break
		}
		st.Level = l
	}
	st.Reasons = reasons
	levelStatus = st
	activeLevel.Store(int32(st.Level))
}

// testLevel runs every self-test for one level.
func testLevel(l Level) error {
	for _, t := range selfTests {
		if err := t(l); err != nil {
			return err
		}
	}
	return nil
}

// Status reports the detected level, the level in use and the reasons.
func Status() CPUStatus {
	levelOnce.Do(pickLevel)
	st := levelStatus
	st.Level = Level(activeLevel.Load())
	return st
}

// CPULevel is the level in use: picked once from the CPU, the self-tests and
// QUIRE_CPU, which can only lower it.
func CPULevel() Level {
	levelOnce.Do(pickLevel)
	return Level(activeLevel.Load())
}

// ForceLevel lowers the level in use and returns the function that restores it.
// A level that the CPU does not have is clamped to the one picked at start.
// For tests and benchmarks: it is process-wide, so callers must not overlap.
func ForceLevel(l Level) (restore func()) {
	levelOnce.Do(pickLevel)
	before := activeLevel.Load()
	activeLevel.Store(int32(max(LevelScalar, min(l, levelStatus.Level))))
	return func() { activeLevel.Store(before) }
}

// Levels lists the levels this process can run, lowest first.
func Levels() []Level {
	levelOnce.Do(pickLevel)
	var ls []Level
	for l := LevelScalar; l <= levelStatus.Level; l++ {
		ls = append(ls, l)
	}
	return ls
}
