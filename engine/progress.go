package engine

import (
	"fmt"
	"sort"
	"strings"
	"sync"
	"time"

	"quire/ledger"
)

// progressState is what heartbeats and status tell.
type progressState struct {
	mu        sync.Mutex
	now       Progress
	layerTime []time.Duration // of finished layers in this stay
	tokens    int
}

func (p *progressState) layer(l, layers int) {
	p.mu.Lock()
	p.now.Layer, p.now.Layers, p.now.Stage = l, layers, "input"
	p.mu.Unlock()
}

func (p *progressState) stage(name string) {
	p.mu.Lock()
	p.now.Stage = name
	p.mu.Unlock()
}

func (p *progressState) layerDone(rec *LayerRecord, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.layerTime = append(p.layerTime, took)
	if rec.Coverage != nil {
		p.now.Coverage = *rec.Coverage
	}
	if rec.WorstRel >= p.now.WorstError {
		p.now.WorstError, p.now.WorstModule = rec.WorstRel, rec.Worst
	}
	if p.tokens > 0 && took > 0 {
		p.now.TokensPerS = float64(p.tokens) / took.Seconds()
	}
	left := p.now.Layers - p.now.Layer - 1
	times := p.layerTime
	if len(times) > 1 { // the first layer warms caches up
		times = times[1:]
	}
	var sum time.Duration
	for _, t := range times {
		sum += t
	}
	p.now.ETA = sum / time.Duration(len(times)) * time.Duration(left)
	p.now.ETABasis = fmt.Sprintf("from %d layers", len(times))
}

func (p *progressState) snapshot(kind string) Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.now
	e.Kind = kind
	return e
}

// observe hands an observation on; observers hear one at a time.
func (rs *runState) observe(p Progress) {
	rs.observeMu.Lock()
	defer rs.observeMu.Unlock()
	if p.Kind == "heartbeat" || p.Kind == "layer-done" {
		st := rs.store.Stats()
		p.SafeSeq, p.SafeAt = st.Head.Seq, st.DurableAt
		p.Memory, p.MemoryLimit, p.DiskFree = currentRSS(), rs.budget.LimitBytes, st.FreeBytes
		rs.publishStatus(p, "working")
	}
	rs.observer.Observe(p)
}

// Status is what a run tells of itself to other processes, inside the ledger's status.
type Status struct {
	State      string   `json:"state"` // working, finished, or why the run stopped
	PlanDigest string   `json:"plan_digest"`
	Output     string   `json:"output"`
	Layer      int      `json:"layer"`
	Layers     int      `json:"layers"`
	Stage      string   `json:"stage"`
	TokensPerS float64  `json:"tokens_per_s"`
	Coverage   Coverage `json:"coverage"`
	WorstError float64  `json:"worst_rel_error"`
	Worst      string   `json:"worst_module"`
	Memory     int64    `json:"memory_bytes"`
	Limit      int64    `json:"memory_limit_bytes"`
	ETAS       float64  `json:"eta_s"`
	ETABasis   string   `json:"eta_basis"`
	Stopping   string   `json:"stopping,omitempty"`
}

// publishStatus tells other processes; a status that cannot be published stops no run.
func (rs *runState) publishStatus(p Progress, state string) {
	_ = rs.store.PublishStatus(Status{State: state, PlanDigest: rs.plan.Digest, Output: rs.settings.Output, Layer: p.Layer, Layers: p.Layers, Stage: p.Stage, TokensPerS: p.TokensPerS, Coverage: p.Coverage,
		WorstError: p.WorstError, Worst: p.WorstModule, Memory: p.Memory, Limit: p.MemoryLimit, ETAS: p.ETA.Seconds(), ETABasis: p.ETABasis, Stopping: rs.stop.why()})
}

func (rs *runState) heartbeat() { rs.observe(rs.progress.snapshot("heartbeat")) }

func (lr *layerRun) observeStage(name string) {
	lr.progress.stage(name)
	lr.hooks.ran("stage", fmt.Sprintf("L%04d/%s", lr.layer.Index, name))
	p := lr.progress.snapshot("stage")
	lr.observe(p)
}

// minFreeDisk is the free space below which a run stops at the next durable point.
const minFreeDisk = 64 << 20

// lookAround asks for a stop when disk or memory run short.
func (rs *runState) lookAround() {
	if st := rs.store.Stats(); st.Full || st.FreeBytes >= 0 && st.FreeBytes < minFreeDisk {
		rs.stop.ask(fmt.Sprintf("the disk is nearly full: %s free", sizeOf(st.FreeBytes)))
	}
	if rss := currentRSS(); rs.budget.LimitBytes > 0 && rss > rs.budget.LimitBytes+rs.budget.LimitBytes/10 {
		rs.stop.ask(fmt.Sprintf("memory pressure: %s resident, the limit is %s", sizeOf(rss), sizeOf(rs.budget.LimitBytes)))
	}
}

// finding records something people should know.
func (rs *runState) finding(f Finding) {
	rs.findingsMu.Lock()
	rs.findings = append(rs.findings, f)
	rs.findingsMu.Unlock()
	rs.findingFutures.add(rs.store.Find(rs.findingCtx, "finding/"+f.Code+"/"+f.Where, record(f)))
}

// Fails says whether findings reach what --fail-on names.
func (s *Settings) Fails(findings []Finding) bool {
	for _, on := range s.FailOn {
		for _, f := range findings {
			switch {
			case on == "undercalibrated" && f.Code == "F_UNDERCALIBRATED",
				on == "fallback" && f.Code == "F_UNDERCALIBRATED",
				on == "nonfinite" && f.Code == "F_NONFINITE",
				on == "target" && strings.HasPrefix(f.Code, "E_"):
				return true
			}
		}
	}
	return false
}

// coverageOf sums up how natively routed rows spread over experts.
func coverageOf(rows []int64, floor int64) *Coverage {
	sorted := append([]int64(nil), rows...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i] < sorted[j] })
	c := &Coverage{Experts: len(rows), Min: sorted[0], P5: sorted[len(sorted)/20]}
	for _, r := range rows {
		if r == 0 {
			c.Zero++
		}
		if r < floor {
			c.Below++
		}
	}
	return c
}

// counters tell which paths a run took.
type counters struct {
	mu sync.Mutex
	w  Work
}

func (c *counters) sawExpertBatch() {
	c.mu.Lock()
	c.w.ExpertBatches++
	c.mu.Unlock()
}

func (c *counters) spill(n int64) {
	c.mu.Lock()
	c.w.SpilledBytes += n
	c.mu.Unlock()
}

func (c *counters) sum() Work {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.w
}

var _ Store = (*ledger.Ledger)(nil)
