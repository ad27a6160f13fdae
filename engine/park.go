package engine

import (
	"fmt"
	"os"
	"path/filepath"
)

// Parked spans lie in RUN/spill while other spans are in work. The files are scratch of one stay: nothing reads them
// after a crash, and a new stay removes them.
const spillDir = "spill"

// park moves the rows of a span to disk when not all of them may stay in memory.
func (lr *layerRun) park(sp *laneSpan) error {
	if lr.budget.Resident || sp.span == nil || sp.parked {
		return nil
	}
	path := lr.spillFile(sp)
	f, err := os.Create(path)
	if err != nil {
		return spillError(path, err)
	}
	err = sp.span.Save(f)
	if st, serr := f.Stat(); serr == nil {
		lr.counters.spill(st.Size())
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return spillError(path, err)
	}
	sp.span, sp.parked = nil, true
	return nil
}

// wake takes the rows of a parked span back.
func (lr *layerRun) wake(sp *laneSpan) error {
	if !sp.parked {
		return nil
	}
	path := lr.spillFile(sp)
	f, err := os.Open(path)
	if err != nil {
		return spillError(path, err)
	}
	defer f.Close()
	if sp.span, err = lr.run.LoadSpan(f); err != nil {
		return spillError(path, err)
	}
	sp.parked = false
	return os.Remove(path)
}

func (lr *layerRun) spillFile(sp *laneSpan) string {
	return filepath.Join(lr.settings.RunDir, spillDir, fmt.Sprintf("span-b%07d", sp.batches[0]))
}

func spillError(path string, err error) error {
	return &Error{Code: "E0204", Exit: ExitStoppedDurably, What: "rows cannot be parked on disk", Where: path, Err: err, Try: "free disk space and resume, or raise --max-memory"}
}

// clearSpill removes what an earlier stay left.
func clearSpill(runDir string) error {
	dir := filepath.Join(runDir, spillDir)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.MkdirAll(dir, 0o755)
}
