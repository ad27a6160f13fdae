package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"quire/capture/model"
	"quire/kernels"
	"quire/ledger"
)

// Budget divides a memory limit. Nothing in it changes a byte of the result.
type Budget struct {
	LimitBytes   int64
	WriterBytes  int64 // payload in flight to the ledger
	ScratchBytes int64 // temporary rows inside one forward call
	SpanRows     int   // rows of a span at most
	ExpertBatch  int   // experts whose statistics are held at once
	KeepMids     bool  // middle rows of the experts held at once are kept from their statistic to their output
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
	p.Advice.Order = p.order()
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

// order says how the experts of a layer will be walked.
func (p *Plan) order() string {
	most := 0
	for _, l := range p.model.Layers {
		if l.Block != nil {
			most = max(most, l.Block.Experts)
		}
	}
	if most == 0 || !p.calibrated() {
		return ""
	}
	at := fmt.Sprintf("%d of %d experts at once", min(p.budget.ExpertBatch, most), most)
	if p.budget.Resident {
		return "expert-outer, " + at + ", all rows of a layer in memory"
	}
	return "lane-outer, " + at + ", rows parked on disk between stages"
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
				each := Budget{LimitBytes: limit, WriterBytes: min(64<<20, limit/16) / small, ScratchBytes: min(64<<20, limit/16) / small,
					SpanRows: 8192 / int(small), ExpertBatch: b, Resident: r, KeepMids: r}
				if out = append(out, each); r {
					each.KeepMids = false
					out = append(out, each)
				}
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
		// Statistics and solves of experts, and of every other site, are never in memory together.
		one := p.statisticOf(l, false)
		if l.Block != nil {
			each := p.statisticOf(l, true)
			par := min(threads, int64(b.ExpertBatch))
			n := int64(each.columns)
			var experts Estimate
			experts.add(int64(b.ExpertBatch)*(p.model.ExpertBytes(l.Index)+each.bytes), "%d experts at once: weights and statistics over %d columns", b.ExpertBatch, each.columns)
			experts.add(int64(min(held, total))*int64(l.Block.TopK)*(n+int64(l.Block.Inter))*p.model.Compute.ElemBytes()*2, "rows gathered for them")
			if b.KeepMids {
				most := int64(total) * int64(min(l.Block.TopK, b.ExpertBatch))
				experts.add(most*int64(l.Block.Inter)*p.model.Compute.ElemBytes(), "their middle rows, kept for their outputs")
			}
			experts.add(par*each.solve, "%d solves side by side", par)
			if experts.Bytes >= one.bytes+one.solve {
				e.Parts, e.Bytes = append(e.Parts, experts.Parts...), e.Bytes+experts.Bytes
				e.Floor += ", " + each.site
				one.site = ""
			}
		}
		if one.site != "" {
			e.add(one.bytes+one.solve, "statistic over %d columns and one solve", one.columns)
			e.Floor += ", " + one.site
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

// statisticNeed is what the widest statistic among sites takes.
type statisticNeed struct {
	site    string // "" if there is none
	columns int
	bytes   int64 // Gram, float64 sum, float32 square
	solve   int64 // one solve of its largest module
}

func (p *Plan) statisticOf(l *model.Layer, experts bool) statisticNeed {
	var need statisticNeed
	var largest int64
	for _, s := range l.Sites() {
		if s.Expert >= 0 != experts || !p.quantizesAny(s.Linears) {
			continue
		}
		if s.In > need.columns {
			need.columns, need.site = s.In, s.Key()
		}
		largest = max(largest, p.largestModule(s.Linears))
	}
	n := int64(need.columns)
	need.bytes = kernels.GramBytes(need.columns) + 8*n*n/2 + 4*n*n
	need.solve = 4*n*n*3 + largest*(4+4+1+1+4)
	return need
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
	store := func(class ledger.Class, bytes int64, kept, format string, args ...any) {
		p.Advice.Stored = append(p.Advice.Stored, StoredRow{Class: string(class), What: fmt.Sprintf(format, args...), Bytes: bytes, Kept: kept})
	}
	store(ledger.ClassPermanent, groups, "for good", "group tables of every decision")
	store(ledger.ClassCodes, codes, "until they are in the output", "codes of one layer")
	if p.calibrated() {
		rows := int64(p.Calibration.Tokens())
		store(ledger.ClassPermanent, 4*rows, "for good", "token ids of %d batches", len(p.Calibration.Batches))
		store(ledger.ClassLayer, 3*rows*int64(p.model.Hidden)*p.model.Compute.ElemBytes(), p.keptInputs(), "inputs of the previous, the current and the next layer")
		p.storedStatistics(store)
		var routes int64
		for _, l := range p.model.Layers {
			if l.Block != nil {
				routes += 2 * rows * int64(l.Block.TopK)
			}
		}
		if routes > 0 {
			store(ledger.ClassPermanent, routes, "for good", "routing: expert ids and weights")
		}
		if !p.budget.Resident {
			var spill int64
			for _, l := range p.model.Layers {
				spill = max(spill, p.model.SpanBytes(l.Index, int(rows)))
			}
			e.add(spill, "parked spans, outside the ledger")
		}
	}
	for _, r := range p.Advice.Stored {
		if r.Bytes > 0 {
			e.add(r.Bytes, "%s: %s, kept %s", r.Class, r.What, r.Kept)
		}
	}
	if n := int64(len(p.model.Layers)); p.Settings.Retain != "none" && p.calibrated() {
		e.add((n-1)*p.retainedPerLayer(), "what --retain %s keeps of the other layers", p.Settings.Retain)
	}
	e.add(64<<20, "events, indexes, reserve")
	return e
}

// StoredRow is one kind of payload of the ledger.
type StoredRow struct {
	Class string `json:"class"`
	What  string `json:"what"`
	Bytes int64  `json:"bytes"` // at one time; 0 with a reason for what is not stored
	Kept  string `json:"kept"`
}

// keptInputs says how long layer inputs stay.
func (p *Plan) keptInputs() string {
	switch p.Settings.Retain {
	case "none", "statistics":
		return "until the layer after is done"
	}
	return "as --retain " + p.Settings.Retain + " says"
}

// storedStatistics lists hessians and partials of the layer that has most of them, by number of columns.
func (p *Plan) storedStatistics(store func(class ledger.Class, bytes int64, kept, format string, args ...any)) {
	kept := "until the layer is done"
	if r := p.Settings.Retain; r == "statistics" || r == "all" {
		kept = "for good"
	}
	var most map[int]int64 // columns → sites
	var worst int64
	for _, l := range p.model.Layers {
		sites := map[int]int64{}
		var bytes int64
		for _, s := range l.Sites() {
			if p.quantizesAny(s.Linears) {
				sites[s.In]++
				bytes += 4 * int64(triangleLen(s.In))
			}
		}
		if bytes > worst {
			most, worst = sites, bytes
		}
	}
	widths := make([]int, 0, len(most))
	for n := range most {
		widths = append(widths, n)
	}
	slices.Sort(widths)
	for _, n := range widths {
		each := 4 * int64(triangleLen(n))
		store(ledger.ClassOpen, most[n]*each, kept, "%d statistics of %d columns", most[n], n)
		lanes := int64(p.Settings.Identity.Lanes)
		switch why := p.partialsWhy(n); {
		case p.keepPartials(n):
			store(ledger.ClassOpen, most[n]*each*lanes, kept+" ("+why+")", "partials of %d columns in %d lanes", n, lanes)
		default:
			store(ledger.ClassOpen, 0, "not at all ("+why+")", "partials of %d columns", n)
		}
	}
}

// partialsWhy is the reason of keepPartials.
func (p *Plan) partialsWhy(n int) string {
	if p.Settings.StorePartials != "auto" {
		return "--store-partials " + p.Settings.StorePartials
	}
	if p.keepPartials(n) {
		return "writing them costs little beside the work they save"
	}
	return "over 256 KiB each: they are computed again where a layer is"
}

// retainedPerLayer is what stays of a finished layer beside what every run keeps.
func (p *Plan) retainedPerLayer() int64 {
	var n int64
	every := int64(1)
	_, _ = fmt.Sscanf(p.Settings.Retain, "every=%d", &every) // other words leave it at 1
	for _, r := range p.Advice.Stored {
		switch {
		case r.Class == string(ledger.ClassLayer) && p.Settings.Retain != "statistics":
			n += r.Bytes / 3 / every
		case r.Class == string(ledger.ClassOpen) && (p.Settings.Retain == "statistics" || p.Settings.Retain == "all"):
			n += r.Bytes
		}
	}
	return n
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

// DefaultMemoryLimit is the limit of a run that is given none.
func DefaultMemoryLimit() int64 { return memoryLimit(0) }
