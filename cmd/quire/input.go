package main

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"time"

	"quire/engine"
)

// readInput reads a file, or stdin for "-".
func readInput(path string, o *output) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(o.in)
	}
	return os.ReadFile(path)
}

// logObserver writes everything observed to the run directory's log.jsonl and hands it on.
type logObserver struct {
	next engine.Observer
	f    *os.File
	w    *bufio.Writer
}

// openLog appends to RUN/log.jsonl.
func openLog(runDir string, next engine.Observer) (*logObserver, error) {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(runDir, "log.jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	return &logObserver{next: next, f: f, w: bufio.NewWriter(f)}, nil
}

func (l *logObserver) Observe(p engine.Progress) {
	line, err := json.Marshal(struct {
		Time time.Time `json:"time"`
		engine.Progress
	}{time.Now().UTC(), p})
	if err == nil {
		_, _ = l.w.Write(append(line, '\n')) // a log that cannot be written stops no run
		if p.Kind != "stage" && p.Kind != "hash" {
			_ = l.w.Flush()
		}
	}
	l.next.Observe(p)
}

func (l *logObserver) Close() {
	_ = l.w.Flush()
	_ = l.f.Close()
}
