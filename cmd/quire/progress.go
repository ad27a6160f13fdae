package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"quire/engine"
)

// newProgress picks the form of progress: bars on a terminal, one durable line a layer and a heartbeat elsewhere, NDJSON,
// or nothing. The caller closes it.
func newProgress(mode string, quiet bool, errw io.Writer, jsonOut io.Writer) progress {
	switch {
	case quiet || mode == "none":
		return silentProgress{}
	case mode == "json":
		return &jsonProgress{w: jsonOut}
	case mode == "plain" || mode == "auto" && !isTerminal(errw):
		return &plainProgress{w: errw, began: time.Now()}
	}
	return newBars(errw)
}

type progress interface {
	engine.Observer
	Close()
}

// isTerminal says whether w is a terminal that wants bars.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}

type silentProgress struct{ engine.Silent }

func (silentProgress) Close() {}

// jsonProgress writes every observation as an NDJSON line.
type jsonProgress struct {
	mu sync.Mutex
	w  io.Writer
}

func (p *jsonProgress) Observe(e engine.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := map[string]any{"type": "progress", "kind": e.Kind, "layer": e.Layer, "layers": e.Layers, "stage": e.Stage, "message": e.Message}
	if e.Total > 0 {
		m["done"], m["total"], m["unit"] = e.Done, e.Total, e.Unit
	}
	if e.Kind == "heartbeat" || e.Kind == "layer-done" {
		m["memory_bytes"], m["memory_limit_bytes"], m["disk_free_bytes"] = e.Memory, e.MemoryLimit, e.DiskFree
		m["eta_s"], m["worst_rel_error"], m["worst_module"], m["safe_seq"] = e.ETA.Seconds(), e.WorstError, e.WorstModule, e.SafeSeq
		m["coverage"], m["tokens_per_s"] = e.Coverage, e.TokensPerS
	}
	writeJSON(p.w, m)
}

func (p *jsonProgress) Close() {}

// plainProgress writes lines that survive in a log file.
type plainProgress struct {
	w     io.Writer
	began time.Time
}

func (p *plainProgress) Observe(e engine.Progress) {
	switch e.Kind {
	case "stage":
		return
	case "hash":
		if e.Done != e.Total {
			return
		}
	}
	fmt.Fprintf(p.w, "[%8s] %s\n", time.Since(p.began).Round(time.Second), describe(e))
}

func (p *plainProgress) Close() {}

// describe is an observation as one line for people.
func describe(e engine.Progress) string {
	var b strings.Builder
	switch e.Kind {
	case "heartbeat":
		fmt.Fprintf(&b, "layer %d/%d, %s", e.Layer+1, e.Layers, e.Stage)
	case "layer-done":
		fmt.Fprintf(&b, "layer %d/%d done", e.Layer+1, e.Layers)
	default:
		b.WriteString(e.Message)
		if e.Total > 0 {
			fmt.Fprintf(&b, " %s of %s", amountOf(e.Done, e.Unit), amountOf(e.Total, e.Unit))
		}
		return b.String()
	}
	if e.TokensPerS > 0 {
		fmt.Fprintf(&b, ", %.0f tok/s", e.TokensPerS)
	}
	if c := e.Coverage; c.Experts > 0 {
		fmt.Fprintf(&b, ", expert rows min %d p5 %d", c.Min, c.P5)
	}
	if e.WorstModule != "" {
		fmt.Fprintf(&b, ", worst error %.4g (%s)", e.WorstError, e.WorstModule)
	}
	if e.MemoryLimit > 0 {
		fmt.Fprintf(&b, ", memory %s/%s", amountOf(e.Memory, "bytes"), amountOf(e.MemoryLimit, "bytes"))
	}
	if e.DiskFree > 0 {
		fmt.Fprintf(&b, ", disk %s free", amountOf(e.DiskFree, "bytes"))
	}
	if e.ETA > 0 {
		fmt.Fprintf(&b, ", ETA %s (%s)", e.ETA.Round(time.Second), e.ETABasis)
	}
	if e.SafeSeq > 0 {
		fmt.Fprintf(&b, ", safe to stop: yes (event %d, %s ago)", e.SafeSeq, time.Since(e.SafeAt).Round(time.Second))
	}
	return b.String()
}

// amountOf spells a count with its unit.
func amountOf(n int64, unit string) string {
	if unit != "bytes" {
		return fmt.Sprintf("%d %s", n, unit)
	}
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 10<<20:
		return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20))
	case n >= 10<<10:
		return fmt.Sprintf("%.0f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}

// bars shows layers and the work inside the current one.
type bars struct {
	p      *mpb.Progress
	layers *mpb.Bar
	inner  *mpb.Bar
	mu     sync.Mutex
	line   string
	stage  string
}

func newBars(w io.Writer) *bars {
	return &bars{p: mpb.New(mpb.WithOutput(w), mpb.WithWidth(40), mpb.WithRefreshRate(200*time.Millisecond))}
}

func (b *bars) Observe(e engine.Progress) {
	if e.Kind == "note" || e.Kind == "finding" || e.Kind == "publish" {
		fmt.Fprintln(b.p, describe(e)) // without the lock: the renderer takes it
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.Layers > 0 && b.layers == nil {
		b.layers = b.p.AddBar(int64(e.Layers), mpb.PrependDecorators(decor.Name("layers "), decor.CountersNoUnit("%d/%d")),
			mpb.AppendDecorators(decor.Any(func(decor.Statistics) string { b.mu.Lock(); defer b.mu.Unlock(); return b.line })))
		b.inner = b.p.AddBar(1, mpb.PrependDecorators(decor.Any(func(decor.Statistics) string { b.mu.Lock(); defer b.mu.Unlock(); return b.stage })))
	}
	switch e.Kind {
	case "stage":
		b.stage = e.Stage + " "
		if b.inner != nil && e.Total > 0 {
			b.inner.SetTotal(e.Total, false)
			b.inner.SetCurrent(e.Done)
		}
	case "heartbeat":
		b.line = describe(e)
	case "layer-done":
		b.line = describe(e)
		if b.layers != nil {
			b.layers.SetCurrent(int64(e.Layer + 1))
		}
	}
}

func (b *bars) Close() {
	if b.layers != nil {
		b.layers.Abort(false)
		b.inner.Abort(true)
	}
	b.p.Wait()
}
