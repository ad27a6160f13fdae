package engine

import "time"

// Observer hears what a run does. Calls come from one goroutine at a time and must return soon.
type Observer interface {
	Observe(Progress)
}

// Progress is one observation. Fields that do not apply are zero.
type Progress struct {
	Kind        string // plan, hash, precheck, layer, stage, heartbeat, layer-done, note, finding, publish
	Message     string
	Layer       int
	Layers      int
	Stage       string
	Done, Total int64 // of the unit in Unit
	Unit        string
	TokensPerS  float64
	Coverage    Coverage
	WorstError  float64 // relative output error, worst module so far
	WorstModule string
	Memory      int64 // resident anonymous bytes
	MemoryLimit int64
	DiskFree    int64
	ETA         time.Duration
	ETABasis    string
	SafeSeq     uint64 // newest durable event
	SafeAt      time.Time
}

// Coverage says how well the experts of a layer are covered by natively routed rows.
type Coverage struct {
	Experts int   `json:"experts"`
	Min     int64 `json:"min_rows"`
	P5      int64 `json:"p5_rows"`
	Zero    int   `json:"zero_rows"` // experts that no row reached
	Below   int   `json:"below_min_rows"`
}

// Silent is the Observer that hears nothing.
type Silent struct{}

// Observe drops p.
func (Silent) Observe(Progress) {}
