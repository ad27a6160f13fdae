package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"quire/engine"
	"quire/ledger"
)

// StatusCmd looks at a run, also while another process writes it.
type StatusCmd struct {
	RunDir string `arg:"" name:"run" help:"Run directory."`
	JSON   bool   `name:"json" help:"Print NDJSON."`
}

// Run prints the status.
func (c *StatusCmd) Run(ctx context.Context, o *output) error {
	st, err := ledger.ReadStatus(ctx, c.RunDir)
	if err != nil {
		return err
	}
	if c.JSON {
		writeHello(o.out)
		writeJSON(o.out, struct {
			Result string `json:"type"`
			Status any    `json:"status"`
		}{"result", st})
		return nil
	}
	e, err := engineStatus(st)
	if err != nil {
		return err
	}
	describeStatus(o.out, c.RunDir, st, e)
	return nil
}

// engineStatus is the engine's part of a ledger's status.
func engineStatus(st ledger.Status) (e engine.Status, err error) {
	if len(st.Engine) > 0 {
		err = json.Unmarshal(st.Engine, &e)
	}
	return e, err
}

// stateOf says in words whether a run works, ended or died.
func stateOf(st ledger.Status, e engine.Status) string {
	state := e.State
	switch {
	case st.Live:
		state = fmt.Sprintf("running on %s, pid %d", st.Holder.Host, st.Holder.PID)
	case state == "" || state == "working":
		state = "not running: killed, or the machine went down; the same command goes on"
	}
	return state
}

func describeStatus(w io.Writer, runDir string, st ledger.Status, e engine.Status) {
	fmt.Fprintf(w, "%s: %s\n", runDir, stateOf(st, e))
	if e.Layers > 0 {
		at := ""
		if e.State != "finished" {
			at = e.Stage + "; "
		}
		fmt.Fprintf(w, "  layer %d of %d, %s%.0f tok/s; worst error %.4g (%s)\n", e.Layer+1, e.Layers, at, e.TokensPerS, e.WorstError, e.Worst)
		if e.Coverage.Experts > 0 {
			fmt.Fprintf(w, "  expert rows: least %d, 5th percentile %d, %d without any\n", e.Coverage.Min, e.Coverage.P5, e.Coverage.Zero)
		}
		eta := ""
		if st.Live && e.ETAS > 0 {
			eta = fmt.Sprintf("; ETA %s (%s)", (time.Duration(e.ETAS) * time.Second).String(), e.ETABasis)
		}
		fmt.Fprintf(w, "  memory %s of %s%s\n", amountOf(e.Memory, "bytes"), amountOf(e.Limit, "bytes"), eta)
	}
	fmt.Fprintf(w, "  %d events, newest durable %s\n", st.Stats.Head.Seq, st.Stats.DurableAt.Format("2006-01-02 15:04:05"))
}
