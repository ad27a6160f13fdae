package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"quire/engine"
	"quire/kernels"
	"quire/ledger"
	"quire/ledger/codec"
)

// DoctorCmd looks at what a run would find on this machine.
type DoctorCmd struct {
	Dir  string `arg:"" optional:"" default:"." help:"Where output and run directory would be."`
	JSON bool   `name:"json" help:"Print NDJSON."`
}

// symptom is one thing looked at.
type symptom struct {
	Type  string `json:"type"` // "check"
	What  string `json:"what"`
	State string `json:"state"` // ok, warning, error
	Text  string `json:"text"`
	Try   string `json:"hint,omitempty"`
}

// Run looks at processor, memory and disk. An error means that no run would work here.
func (c *DoctorCmd) Run(ctx context.Context, o *output) error {
	var all []symptom
	all = append(all, lookAtCPU(), lookAtMemory())
	all = append(all, lookAtDisk(ctx, c.Dir)...)
	worst := "ok"
	if c.JSON {
		writeHello(o.out)
	}
	for _, s := range all {
		if s.State == "error" || worst == "ok" {
			worst = s.State
		}
		if c.JSON {
			s.Type = "check"
			writeJSON(o.out, s)
			continue
		}
		fmt.Fprintf(o.out, "%-8s %-7s %s\n", s.What, s.State, s.Text)
		if s.Try != "" {
			fmt.Fprintf(o.out, "                 try: %s\n", s.Try)
		}
	}
	exit := engine.ExitOK
	if worst == "error" {
		exit = engine.ExitFailure
	}
	if c.JSON {
		writeJSON(o.out, map[string]any{"type": "result", "exit": exit, "state": worst})
	}
	if exit != engine.ExitOK {
		return &silentExit{exit, "no run would work here"}
	}
	return nil
}

func lookAtCPU() symptom {
	st := kernels.Status()
	s := symptom{What: "cpu", State: "ok", Text: fmt.Sprintf("%s/%s, %d threads, kernels %s, contract %s", runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), st.Level, kernels.ContractID)}
	if len(st.Reasons) > 0 {
		s.State, s.Try = "warning", "results are the same at every level, only slower; unset QUIRE_CPU, or report a failed self-test"
		s.Text += fmt.Sprintf("; the CPU has %s: %s", st.Detected, strings.Join(st.Reasons, "; "))
	} else if st.Level == kernels.LevelScalar {
		s.State = "warning"
		s.Text += "; there are no vector kernels for this machine yet, expect a tenth of the speed"
	}
	return s
}

func lookAtMemory() symptom {
	limit := engine.DefaultMemoryLimit()
	s := symptom{What: "memory", State: "ok", Text: fmt.Sprintf("a run would keep to %s, nine tenths of what cgroup or host allow", amountOf(limit, "bytes"))}
	if limit < 1<<30 {
		s.State, s.Try = "warning", "`quire plan` says what a model needs"
	}
	return s
}

// lookAtDisk writes a small ledger, reads it back and removes it.
func lookAtDisk(ctx context.Context, dir string) []symptom {
	fail := func(err error) []symptom {
		return []symptom{{What: "disk", State: "error", Text: err.Error(), Try: "choose a directory on a local disk that may be written"}}
	}
	tmp, err := os.MkdirTemp(dir, ".quire-doctor-*")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(tmp)
	const commits, payload = 32, 32 << 20
	l, err := ledger.Create(ctx, tmp, ledger.Genesis{Record: json.RawMessage(`{}`)}, ledger.Options{Types: []ledger.Type{{Name: "probe", Schema: 1}}})
	if err != nil {
		return fail(err)
	}
	var found []symptom
	probe := func() error {
		began := time.Now()
		for i := range commits {
			if _, err := l.Append(ctx, ledger.Event{Type: "probe", Schema: 1, Key: fmt.Sprintf("probe/%d", i), Record: json.RawMessage(`{}`)}).All(ctx); err != nil {
				return err
			}
		}
		commit := time.Since(began) / commits
		data := bytes.Repeat([]byte("a payload that is written and read back. "), payload/40)
		began = time.Now()
		ref, err := l.PutBytes(ctx, ledger.ClassOpen, "probe", codec.None, data)
		if err != nil {
			return err
		}
		e, err := l.Append(ctx, ledger.Event{Type: "probe", Schema: 1, Key: "payload", Payloads: []ledger.Payload{ref.Payload("bytes")}}).All(ctx)
		if err != nil {
			return err
		}
		rate := float64(len(data)) / time.Since(began).Seconds()
		back, err := l.ReadPayload(ctx, e[0], "bytes")
		if err != nil {
			return err
		}
		if !bytes.Equal(back, data) {
			return errors.New("a payload reads back differently: do not trust this disk")
		}
		free := l.Stats().FreeBytes
		s := symptom{What: "disk", State: "ok", Text: fmt.Sprintf("%s free; a durable commit takes %s, payloads are written at %.0f MB/s, read back equal", amountOf(free, "bytes"), commit.Round(10*time.Microsecond), rate/1e6)}
		if commit > 50*time.Millisecond {
			s.State, s.Try = "warning", "a local disk would commit faster; a run makes a few commits a module"
		}
		found = append(found, s)
		return nil
	}
	err = probe()
	if cerr := l.Close(ctx, "looked"); err == nil {
		err = cerr
	}
	if err != nil {
		return fail(err)
	}
	return found
}
