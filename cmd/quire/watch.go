package main

import (
	"context"
	"fmt"
	"time"

	"quire/engine"
	"quire/ledger"
)

// WatchCmd follows a run of another process until it ends.
type WatchCmd struct {
	RunDir   string        `arg:"" name:"run" help:"Run directory."`
	Interval time.Duration `default:"2s" help:"Time between two looks."`
	JSON     bool          `name:"json" help:"Print NDJSON: one status a look."`
}

// Run prints a status whenever it has changed. It ends with the run: with 0 if the run finished, else with the code for
// a run that the same command goes on with.
func (c *WatchCmd) Run(ctx context.Context, o *output) error {
	if c.Interval < 10*time.Millisecond {
		return &engine.Error{Code: "E0124", Exit: engine.ExitUsage, What: fmt.Sprintf("interval %s is too short", c.Interval), Try: "use --interval 2s"}
	}
	tick := time.NewTicker(c.Interval)
	defer tick.Stop()
	redraw := isTerminal(o.out)
	var told string
	for first := true; ; first = false {
		st, err := ledger.ReadStatus(ctx, c.RunDir)
		if err != nil {
			return err
		}
		e, err := engineStatus(st)
		if err != nil {
			return err
		}
		if first && c.JSON {
			writeHello(o.out)
		}
		now := fmt.Sprint(st.Stats.Head.Seq, st.Live, e.State, e.Layer, e.Stage)
		switch {
		case c.JSON && st.Live:
			writeJSON(o.out, st)
		case c.JSON:
		case redraw:
			if !first {
				fmt.Fprint(o.out, "\x1b[H\x1b[J")
			}
			describeStatus(o.out, c.RunDir, st, e)
		case now != told:
			fmt.Fprintf(o.out, "%s  layer %d/%d %s, %.0f tok/s, worst error %.4g, memory %s, event %d: %s\n", st.Written.Format("15:04:05"), e.Layer+1, e.Layers, e.Stage, e.TokensPerS,
				e.WorstError, amountOf(e.Memory, "bytes"), st.Stats.Head.Seq, stateOf(st, e))
		}
		told = now
		if !st.Live {
			exit := engine.ExitOK
			if e.State != "finished" {
				exit = engine.ExitStoppedDurably
			}
			if c.JSON {
				writeJSON(o.out, map[string]any{"type": "result", "exit": exit, "status": st})
			}
			if exit == engine.ExitOK {
				return nil
			}
			return &silentExit{exit, "the run is not finished: " + stateOf(st, e)}
		}
		select {
		case <-ctx.Done():
			return nil // who watches may go
		case <-tick.C:
		}
	}
}

// silentExit ends with a code after everything has been said.
type silentExit struct {
	exit int
	what string
}

func (e *silentExit) Error() string     { return e.what }
func (e *silentExit) ErrorCode() string { return "E0701" }
func (e *silentExit) ExitCode() int     { return e.exit }
func (e *silentExit) Remedy() string    { return "" }
func (e *silentExit) Silent() bool      { return true }
