package engine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"quire/ledger"
)

// deathsAt counts how often in a row the run died, without closing, in the unit of work in which it died last. The newest
// death stands in LOCK, those before it in the `opened` events.
func deathsAt(runDir string) (unit string, deaths int, err error) {
	holder, held, err := ledger.ReadHolder(runDir)
	if err != nil || held || holder.Closed || holder.PID == 0 {
		return "", 0, nil // no lock, a live one (opening will say so), or an orderly end
	}
	r, err := ledger.OpenReader(runDir, ledger.Options{})
	if err != nil {
		return "", 0, nil // opening for writing will say what is wrong
	}
	defer r.Close()
	unit, deaths = holder.Unit, 1
	var earlier []string
	for e, err := range r.Since(0) {
		if err != nil {
			return unit, deaths, err
		}
		if e.Type != ledger.TypeOpened {
			continue
		}
		var note struct {
			Previous ledger.Previous `json:"previous"`
		}
		if err := json.Unmarshal(e.Note, &note); err != nil || !note.Previous.Known || note.Previous.Closed {
			earlier = nil
			continue
		}
		earlier = append(earlier, note.Previous.Holder.Unit)
	}
	for i := len(earlier) - 1; i >= 0 && earlier[i] == unit; i-- {
		deaths++
	}
	return unit, deaths, nil
}

// afterDeaths makes the budget more frugal when the run keeps dying at one place, most likely for memory: from the second
// death on expert batch and queues are halved each time, the fourth stops the run.
func (rs *runState) afterDeaths() error {
	if _, err := os.Stat(filepath.Join(rs.settings.RunDir, "ledger.db")); err != nil {
		return nil
	}
	unit, deaths, err := deathsAt(rs.settings.RunDir)
	if err != nil || deaths < 2 {
		return err
	}
	if deaths >= 4 {
		return &Error{Code: "E0205", Exit: ExitMemoryShort, What: fmt.Sprintf("the run died %d times in a row", deaths), Where: unit,
			Why: fmt.Sprintf("it was predicted to need %s, the limit is %s", sizeOf(rs.plan.Advice.Memory.Bytes), sizeOf(rs.budget.LimitBytes)),
			Try: fmt.Sprintf("give the machine or the container more than %s, or lower --max-memory below what it really has", sizeOf(rs.plan.Advice.Memory.Bytes*2))}
	}
	for range deaths - 1 {
		rs.budget.ExpertBatch = max(1, rs.budget.ExpertBatch/2)
		rs.budget.WriterBytes = max(1<<20, rs.budget.WriterBytes/2)
		rs.budget.SpanRows = max(256, rs.budget.SpanRows/2)
	}
	rs.observer.Observe(Progress{Kind: "note", Message: fmt.Sprintf("the run died %d times at %s: going on with expert batches of %d and smaller queues", deaths, unit, rs.budget.ExpertBatch)})
	return nil
}
