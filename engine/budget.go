package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"quire/capture/model"
	"quire/kernels"
)

// Budget divides a memory limit. Nothing in it changes a byte of the result.
type Budget struct {
	LimitBytes   int64
	WriterBytes  int64 // payload in flight to the ledger
	ScratchBytes int64 // temporary rows inside one forward call
	SpanRows     int   // rows of a span at most
	ExpertBatch  int   // experts whose statistics are held at once
	Resident     bool  // all rows of a layer stay in memory between stages; else spans are parked in spill files
}

// Estimate is a predicted need with its parts.
type Estimate struct {
	Bytes int64  `json:"bytes"`
	Limit int64  `json:"limit_bytes,omitempty"`
	Parts []Part `json:"parts"`
	Floor string `json:"floor,omitempty"` // what sets the least that is possible
}

// Part is one summand of an estimate.
type Part struct {
	What  string `json:"what"`
	Bytes int64  `json:"bytes"`
}

func (e *Estimate) add(bytes int64, format string, args ...any) {
	e.Parts = append(e.Parts, Part{fmt.Sprintf(format, args...), bytes})
	e.Bytes += bytes
}

// baseBytes is what the process needs whatever the model: code, heap overhead, bbolt's pages.
const baseBytes = 48 << 20

// memoryLimit is the limit to keep: what was asked for, else nine tenths of the cgroup's or the host's memory.
func memoryLimit(asked int64) int64 {
	if asked > 0 {
		return asked
	}
	for _, p := range []memlimit.Provider{memlimit.FromCgroup, memlimit.FromSystem} {
		if b, err := p(); err == nil && b > 0 && b < 1<<60 {
			return int64(b) / 10 * 9
		}
	}
	return 8 << 30
}

// estimate fills in memory, disk and the budget, and refuses what cannot fit.
func (p *Plan) estimate() error {
	limit := memoryLimit(p.Settings.MaxMemory)
	var needs Estimate
	for _, try := range p.budgets(limit) {
		needs = p.memoryOf(try)
		p.budget = try
		if needs.Bytes <= limit {
			break
		}
	}
	needs.Limit = limit
	p.Advice.Memory = needs
	p.Advice.Disk = p.diskOf()
	if needs.Bytes > limit {
		return &Error{Code: "E0201", Exit: ExitMemoryShort, What: fmt.Sprintf("the run needs at least %s of memory, the limit is %s", sizeOf(needs.Bytes), sizeOf(limit)),
			Where: needs.Floor, Try: fmt.Sprintf("raise --max-memory to %s, or lower --threads or --seq-len", sizeOf(needs.Bytes))}
	}
	if d := p.Settings.MaxDisk; d > 0 && p.Advice.Disk.Bytes > d {
		return &Error{Code: "E0202", Exit: ExitDiskShort, What: fmt.Sprintf("the run needs %s of disk, --max-disk allows %s", sizeOf(p.Advice.Disk.Bytes), sizeOf(d)),
			Try: fmt.Sprintf("raise --max-disk to %s, or use --retain none", sizeOf(p.Advice.Disk.Bytes))}
	}
	return nil
}

// budgets lists divisions of the limit from generous to frugal.
func (p *Plan) budgets(limit int64) []Budget {
	experts := 1
	for _, l := range p.model.Layers {
		if l.Block != nil {
			experts = max(experts, l.Block.Experts)
		}
	}
	batch := experts
	if p.Settings.LoopOrder == "expert-outer" {
		batch = min(experts, max(1, p.Settings.Threads))
	}
	if n := p.Settings.ExpertBatch; n > 0 {
		batch = min(n, experts)
	}
	resident := p.Settings.LoopOrder != "lane-outer"
	var out []Budget
	for _, r := range []bool{true, false} {
		if r && !resident {
			continue
		}
		for b := batch; ; b = (b + 1) / 2 {
			for _, small := range []int64{1, 4} {
				out = append(out, Budget{LimitBytes: limit, WriterBytes: min(64<<20, limit/16) / small, ScratchBytes: min(64<<20, limit/16) / small,
					SpanRows: 8192 / int(small), ExpertBatch: b, Resident: r})
			}
			if b == 1 {
				break
			}
		}
	}
	return out
}

// memoryOf predicts what a run needs under a budget: the largest layer decides.
func (p *Plan) memoryOf(b Budget) Estimate {
	var worst Estimate
	if !p.calibrated() {
		for i := range p.Advice.Modules {
			m := &p.Advice.Modules[i]
			if m.Scheme == nil {
				continue
			}
			var e Estimate
			e.Floor = m.Module
			e.add(baseBytes, "process")
			e.add(b.WriterBytes*5/2, "ledger writer: 2.5 × %s in flight", sizeOf(b.WriterBytes))
			e.add(int64(m.Out)*int64(m.In)*(4+1+1+4), "weight, codes, packed codes and output of the largest module")
			if e.Bytes > worst.Bytes {
				worst = e
			}
		}
		return worst
	}
	longest := 0
	total := 0
	for _, bt := range p.Calibration.Batches {
		longest = max(longest, len(bt.IDs))
		total += len(bt.IDs)
	}
	threads := int64(p.Settings.Threads)
	for _, l := range p.model.Layers {
		var e Estimate
		e.Floor = fmt.Sprintf("layer %d", l.Index)
		e.add(baseBytes, "process")
		e.add(b.WriterBytes*5/2, "ledger writer: 2.5 × %s in flight", sizeOf(b.WriterBytes))
		e.add(p.model.LayerBytes(l.Index)+p.model.LoadBytes(l.Index), "weights of the layer outside routed experts, and one unpacked")
		held := min(total, max(b.SpanRows, longest))
		if b.Resident {
			e.add(p.model.SpanBytes(l.Index, total), "all %d rows between stages", total)
			e.add(int64(total)*int64(p.model.Hidden)*p.model.Compute.ElemBytes(), "the next layer's input")
		} else {
			e.add(p.model.SpanBytes(l.Index, held), "one span of %d rows; the others are parked on disk", held)
		}
		e.add(p.model.ScratchNeeded(l.Index, longest, b.ScratchBytes), "scratch of one forward call")
		stat := int64(0)
		wide, widest := 0, ""
		for _, s := range l.Sites() {
			if s.In > wide && p.quantizesAny(s.Linears) {
				wide, widest = s.In, s.Key()
			}
		}
		n := int64(wide)
		stat = kernels.GramBytes(wide) + 8*n*n/2 + 4*n*n // Gram, float64 sum, float32 square
		solve := 4*n*n*3 + p.largestModule(l.Linears())*(4+4+1+1+4)
		if l.Block != nil {
			par := min(threads, int64(b.ExpertBatch))
			e.add(int64(b.ExpertBatch)*(p.model.ExpertBytes(l.Index)+2*stat/2), "%d experts at once: weights and statistics over %d columns", b.ExpertBatch, wide)
			e.add(int64(min(held, total))*int64(l.Block.TopK)*(n+int64(l.Block.Inter))*p.model.Compute.ElemBytes()*2, "rows gathered for them")
			e.add(par*solve, "%d solves side by side", par)
		} else {
			e.add(stat+solve, "statistic over %d columns and one solve", wide)
		}
		if widest != "" {
			e.Floor += ", " + widest
		}
		if e.Bytes > worst.Bytes {
			worst = e
		}
	}
	var h Estimate
	h.Floor = "output head"
	h.add(baseBytes, "process")
	h.add(p.model.HeadBytes(), "output head")
	h.add(int64(headRows)*int64(p.model.Vocab)*4, "logits of %d rows", headRows)
	if h.Bytes > worst.Bytes {
		worst = h
	}
	return worst
}

func (p *Plan) largestModule(ls []*model.Linear) int64 {
	var n int64
	for _, l := range ls {
		n = max(n, l.Elements())
	}
	return n
}

func (p *Plan) quantizesAny(ls []*model.Linear) bool {
	for _, l := range ls {
		if m := p.module(l.Module); m != nil && m.Scheme != nil {
			return true
		}
	}
	return false
}

// diskOf predicts the most that output and run directory take together.
func (p *Plan) diskOf() Estimate {
	var e Estimate
	var out, codes, groups int64
	for _, s := range p.Advice.Shards {
		out += s.Bytes
	}
	perLayer := map[int]int64{}
	for i := range p.Advice.Modules {
		m := &p.Advice.Modules[i]
		if m.Scheme == nil {
			continue
		}
		g := int64(1)
		if m.Scheme.GroupSize > 0 {
			g = int64((m.In + m.Scheme.GroupSize - 1) / m.Scheme.GroupSize)
		}
		groups += int64(m.Out) * g * 14
		n := int64(m.Out) * int64(m.In)
		if m.Scheme.Bits <= 4 {
			n = (n + 1) / 2
		}
		perLayer[m.Layer] += n
	}
	for _, n := range perLayer {
		codes = max(codes, n)
	}
	e.add(out, "output")
	for _, f := range p.checkpoint.SideFiles() {
		e.add(f.Size, "side file %s", f.Name)
	}
	e.add(groups, "group tables of every decision, kept")
	e.add(codes, "codes of one layer until they are in the output")
	if p.calibrated() {
		rows := int64(p.Calibration.Tokens())
		e.add(3*rows*int64(p.model.Hidden)*p.model.Compute.ElemBytes(), "layer inputs: previous, current and next layer")
		var stats, routes int64
		for _, l := range p.model.Layers {
			var s int64
			for _, site := range l.Sites() {
				if p.quantizesAny(site.Linears) {
					t := 4 * int64(triangleLen(site.In))
					if p.keepPartials(site.In) {
						t *= int64(1 + p.Settings.Identity.Lanes)
					}
					s += t
				}
			}
			stats = max(stats, s)
			if l.Block != nil {
				routes += 2 * rows * int64(l.Block.TopK)
			}
		}
		e.add(stats, "statistics of one layer")
		e.add(routes, "routing, kept")
		if !p.budget.Resident {
			var spill int64
			for _, l := range p.model.Layers {
				spill = max(spill, p.model.SpanBytes(l.Index, int(rows)))
			}
			e.add(spill, "parked spans")
		}
	}
	e.add(64<<20, "events, indexes, reserve")
	return e
}

// preflight refuses a run whose disk need exceeds what is free.
func (rs *runState) preflight() error {
	need := rs.plan.Advice.Disk.Bytes
	dir := existingParent(rs.settings.Output)
	free, err := freeBytes(dir)
	if err != nil || free >= need {
		return nil // unknown free space is found out by writing
	}
	return &Error{Code: "E0203", Exit: ExitDiskShort, What: fmt.Sprintf("the run needs %s of disk, %s are free", sizeOf(need), sizeOf(free)), Where: dir,
		Try: "free some space, or put -o and --run-dir on another disk"}
}

func existingParent(p string) string {
	p, err := filepath.Abs(p)
	if err != nil {
		return "."
	}
	for {
		if st, err := os.Stat(p); err == nil && st.IsDir() {
			return p
		}
		up := filepath.Dir(p)
		if up == p {
			return p
		}
		p = up
	}
}

// expertBatch is how many experts of a block are in work at once.
func (lr *layerRun) expertBatch(experts int) int { return max(1, min(lr.budget.ExpertBatch, experts)) }

// sizeOf spells bytes for people.
func sizeOf(n int64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", (n+1023)>>10)
}

// obeyLimit tells Go's collector the limit, so that garbage does not break it.
func obeyLimit(limit int64) { debug.SetMemoryLimit(limit - limit/10) }
