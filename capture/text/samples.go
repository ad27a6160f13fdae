package text

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
)

// LoadSamples reads a data set and gives the calibration: the batches a run is fed and the account of every entry. tok may be
// nil when the data is token ids, tmpl when it holds no conversation. Memory is bounded by what is kept and by a few MiB
// of records in flight, whatever the size of the data set.
//
// Without Shuffle the first Samples usable entries in reading order are taken; with it, those with the smallest keys of a
// permutation seeded by Seed, in the order of their keys. With Concat, samples are joined in that order and cut into
// Samples blocks of SeqLen tokens, and MinLen bounds the last block only.
func LoadSamples(ctx context.Context, tok *Tokenizer, tmpl *Template, files []string, o Options) (*Calibration, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	paths, err := ExpandFiles(files)
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, datasetError("", nil, "no calibration file is named", "give --calibration FILE")
	}
	l, err := newLoader(tok, tmpl, o)
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		if err := l.file(ctx, path); err != nil {
			return nil, err
		}
	}
	return l.finish()
}

// loader folds records, in reading order, into the draw and the list of fates.
type loader struct {
	prep    preparer
	o       Options
	threads int
	draw    draw
	fates   []Fate
	cal     *Calibration
	next    int // reading index of the next record
	looked  int // records turned into tokens or found unusable
	bad     []int
}

func newLoader(tok *Tokenizer, tmpl *Template, o Options) (*loader, error) {
	l := &loader{o: o, threads: o.Threads, cal: &Calibration{}}
	if l.threads <= 0 {
		l.threads = runtime.GOMAXPROCS(0)
	}
	l.draw = draw{want: o.Samples, byTok: o.Concat}
	if o.Concat {
		l.draw.want = o.Samples * o.SeqLen
	}
	l.prep = preparer{tok: tok, o: o, count: o.Count, bos: -1}
	if l.prep.count == "" {
		l.prep.count = CountAll
	}
	l.cal.BOS = BOSReport{ID: -1, Policy: "no tokenizer: ids as they are"}
	if tok != nil {
		l.cal.Tokenizer = tok.Digest()
		l.cal.BOS.Policy = "the tokenizer adds none"
		if id, content, ok := tok.BOS(); ok {
			l.prep.bos = id
			l.cal.BOS = BOSReport{ID: int(id), Token: content, Policy: "added by the post-processor, never doubled"}
			if !tok.AddsBOS() {
				l.prep.addBOS = true
				l.cal.BOS.Policy = "added because tokenizer_config.json says add_bos_token, never doubled"
			}
		}
	}
	if tmpl != nil {
		date := o.TemplateDate
		if date == "" {
			date = DefaultTemplateDate
		}
		dated, err := tmpl.At(date)
		if err != nil {
			return nil, &Error{Code: "E1204", Exit: exitUsage, What: fmt.Sprintf("template_date %q is not a date", date), Err: ErrOptions, Try: "write it as 2024-07-26"}
		}
		l.prep.tmpl = dated
		l.cal.Template = dated.Digest()
	}
	if len(o.TemplateKwargs) > 0 {
		l.prep.kwargs = map[string]json.RawMessage{}
		for k, v := range o.TemplateKwargs {
			raw, err := json.Marshal(v)
			if err != nil {
				return nil, &Error{Code: "E1204", Exit: exitUsage, What: fmt.Sprintf("chat_template_kwargs %q is not a JSON value", k), Err: ErrOptions, Try: "use strings, numbers, booleans"}
			}
			l.prep.kwargs[k] = raw
		}
	}
	return l, nil
}

const (
	chunkRecords = 256
	chunkBytes   = 8 << 20
)

func (l *loader) key(sample int) uint64 {
	if l.o.Shuffle {
		return shuffleKey(l.o.Seed, sample)
	}
	return uint64(sample)
}

// done says that no further record can be drawn: only without Shuffle, where keys grow.
func (l *loader) done() bool {
	return !l.o.Shuffle && !l.draw.wants(l.key(l.next), l.next)
}

func (l *loader) file(ctx context.Context, path string) error {
	f, err := openData(ctx, path, l.o.Stdin, l.o.TextSplit, l.o.SeqLen)
	if err != nil {
		return err
	}
	defer f.Close()
	damaged := func(err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return datasetError(path, err, "the calibration file is damaged", "check that the download is complete")
	}
	last := 0
	for {
		if l.done() {
			n, err := f.rest()
			if err != nil {
				return damaged(err)
			}
			if n > 0 {
				l.fates = append(l.fates, Fate{Sample: l.next, Count: n, File: path, Record: last + 1, Outcome: Dropped, Reason: ReasonBeyond, Batch: -1})
				l.next += n
			}
			break
		}
		var chunk []record
		size := 0
		end := false
		for len(chunk) < chunkRecords && size < chunkBytes {
			r, err := f.next()
			if err == io.EOF {
				end = true
				break
			}
			if err != nil {
				return damaged(err)
			}
			chunk = append(chunk, r)
			size += len(r.json) + len(r.text) + 4*len(r.ids)
			last = r.num
		}
		if err := l.fold(ctx, path, chunk); err != nil {
			return err
		}
		if end {
			break
		}
	}
	if _, err := io.Copy(io.Discard, f.drain()); err != nil {
		return damaged(err)
	}
	l.cal.Files = append(l.cal.Files, DataFile{Path: path, Size: f.consumed(), SHA256: f.sha256()})
	return nil
}

// fold prepares a chunk of records in parallel and takes them in, in order. A record whose key cannot be drawn any more
// is not tokenized; since the largest kept key only falls, doing it at the start of a chunk or later gives the same fate.
func (l *loader) fold(ctx context.Context, path string, chunk []record) error {
	out := make([]prepared, len(chunk))
	skip := make([]bool, len(chunk))
	for i := range chunk {
		skip[i] = !l.draw.wants(l.key(l.next+i), l.next+i)
	}
	var wg sync.WaitGroup
	var turn atomic.Int64
	for range min(l.threads, len(chunk)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				i := int(turn.Add(1)) - 1
				if i >= len(chunk) || ctx.Err() != nil {
					return
				}
				if !skip[i] {
					out[i] = l.prep.prepare(chunk[i], fmt.Sprintf("%s:%d", path, chunk[i].num))
				}
			}
		}()
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	for i, r := range chunk {
		if err := l.take(path, r.num, out[i], skip[i]); err != nil {
			return err
		}
	}
	return nil
}

// take gives one record its fate.
func (l *loader) take(path string, num int, s prepared, skipped bool) error {
	sample := l.next
	l.next++
	f := Fate{Sample: sample, Count: 1, File: path, Record: num, Batch: -1, Tokens: s.tokens}
	if skipped || !l.draw.wants(l.key(sample), sample) {
		f.Outcome, f.Reason, f.Tokens = Dropped, l.undrawn(), 0
		l.appendRun(f)
		return nil
	}
	if s.err != nil {
		return s.err
	}
	l.looked++
	if s.reason != "" {
		f.Outcome, f.Reason, f.Detail = Dropped, s.reason, s.detail
		if isBad(s.reason) {
			l.bad = append(l.bad, len(l.fates))
		}
		l.fates = append(l.fates, f)
		return nil
	}
	if s.starting {
		l.cal.BOS.Starting++
	}
	if s.bosRemoved {
		l.cal.BOS.Removed++
	}
	if s.bosDoubled {
		l.cal.BOS.Doubled++
	}
	f.Outcome = Used
	l.fates = append(l.fates, f)
	for _, c := range l.draw.add(&candidate{key: l.key(sample), sample: sample, fate: len(l.fates) - 1, ids: s.ids, mask: s.mask}) {
		out := &l.fates[c.fate]
		out.Outcome, out.Reason = Dropped, l.undrawn()
	}
	return nil
}

func (l *loader) undrawn() string {
	if l.o.Shuffle {
		return ReasonNotDrawn
	}
	return ReasonBeyond
}

// appendRun adds the fate of an unread record, joined with its neighbour where both are the same.
func (l *loader) appendRun(f Fate) {
	if n := len(l.fates); n > 0 {
		last := &l.fates[n-1]
		if last.Outcome == Dropped && last.Reason == f.Reason && last.Tokens == 0 && last.File == f.File && last.Sample+last.Count == f.Sample {
			last.Count++
			return
		}
	}
	l.fates = append(l.fates, f)
}

// isBad says whether a reason is a fault of the record, as against a choice of the options.
func isBad(reason string) bool {
	switch reason {
	case ReasonBadRecord, ReasonNoColumn, ReasonBadShape, ReasonBadID, ReasonTemplate, ReasonMaskLength:
		return true
	}
	return false
}

// finish cuts the drawn samples into batches and closes the account.
func (l *loader) finish() (*Calibration, error) {
	drawn := l.draw.sorted()
	if err := l.checkBad(); err != nil {
		return nil, err
	}
	var batches []Batch
	if l.o.Concat {
		batches = l.concat(drawn)
	} else {
		for _, c := range drawn {
			f := &l.fates[c.fate]
			f.Kept = len(c.ids)
			if f.Kept < f.Tokens {
				f.Outcome = Clipped
			}
			batches = append(batches, Batch{IDs: c.ids, Mask: c.mask, Samples: []int{c.sample}})
		}
	}
	switch l.o.Sort {
	case "asc":
		sort.SliceStable(batches, func(i, j int) bool { return len(batches[i].IDs) < len(batches[j].IDs) })
	case "desc":
		sort.SliceStable(batches, func(i, j int) bool { return len(batches[i].IDs) > len(batches[j].IDs) })
	}
	l.place(batches)
	c := l.cal
	c.Batches, c.Fates = batches, l.fates
	c.Counts = countFates(c.Fates, batches)
	c.Digest = DigestOf(batches)
	if len(batches) == 0 {
		try := "lower --min-len, or check the column names and the chat template"
		if c.Counts.DroppedBy[ReasonNoMask] == c.Counts.Dropped {
			try = "use --count all; assistant needs {% generation %} in the chat template (or prompt and completion), mask a mask column"
		}
		return nil, &Error{Code: "E1205", Exit: exitUsage, What: "no calibration sample is usable: " + c.Counts.String(), Err: ErrNoSamples, Try: try}
	}
	if n := c.BOS.Doubled; n > 0 {
		c.Warnings = append(c.Warnings, fmt.Sprintf("%d samples given as token ids start with two %s; ids are taken as they are", n, c.BOS.Token))
	}
	if l.o.Samples > 0 && len(batches) < l.o.Samples {
		c.Warnings = append(c.Warnings, fmt.Sprintf("%d of %d wanted calibration batches: %s", len(batches), l.o.Samples, c.Counts.String()))
	}
	return c, nil
}

// place tells each fate which batches hold its sample.
func (l *loader) place(batches []Batch) {
	at := make(map[int]int, len(l.fates))
	for i, f := range l.fates {
		if f.Count == 1 && f.Outcome != Dropped {
			at[f.Sample] = i
		}
	}
	for b, batch := range batches {
		for _, s := range batch.Samples {
			f := &l.fates[at[s]]
			switch {
			case f.Batch < 0:
				f.Batch = b
			default:
				f.Spans = max(f.Spans, 1) + 1
				f.Batch = min(f.Batch, b)
			}
		}
	}
}

// concat joins the drawn samples and cuts blocks of SeqLen tokens. A last block below MinLen is dropped, and so are tokens
// beyond the wanted number of blocks.
func (l *loader) concat(drawn []*candidate) []Batch {
	var out []Batch
	var open Batch
	masked := l.prep.count != CountAll
	for _, c := range drawn {
		for at := 0; at < len(c.ids); {
			if l.o.Samples > 0 && len(out) == l.o.Samples {
				break
			}
			n := min(l.o.SeqLen-len(open.IDs), len(c.ids)-at)
			open.IDs = append(open.IDs, c.ids[at:at+n]...)
			if masked {
				open.Mask = append(open.Mask, c.mask[at:at+n]...)
			}
			open.Samples = append(open.Samples, c.sample)
			l.fates[c.fate].Kept += n
			at += n
			if len(open.IDs) == l.o.SeqLen {
				out = append(out, open)
				open = Batch{}
			}
		}
	}
	if len(open.IDs) > 0 {
		if len(open.IDs) >= max(l.o.MinLen, 1) {
			out = append(out, open)
		} else {
			l.uncount(drawn, open)
		}
	}
	for _, c := range drawn {
		f := &l.fates[c.fate]
		switch {
		case f.Kept == f.Tokens:
			f.Outcome = Merged
		case f.Kept > 0:
			f.Outcome = Clipped
		default:
			f.Outcome, f.Reason = Dropped, ReasonTail
		}
	}
	return out
}

// uncount takes the tokens of a dropped last block off the account of its samples.
func (l *loader) uncount(drawn []*candidate, tail Batch) {
	left := len(tail.IDs)
	for i := len(drawn) - 1; i >= 0 && left > 0; i-- {
		f := &l.fates[drawn[i].fate]
		n := min(left, f.Kept)
		f.Kept -= n
		left -= n
	}
}

func (l *loader) checkBad() error {
	limit := l.o.MaxBad
	if limit == 0 {
		limit = 0.5
	}
	if len(l.bad) == 0 || limit >= 1 || float64(len(l.bad)) <= limit*float64(l.looked) {
		return nil
	}
	var first []string
	for _, i := range l.bad[:min(3, len(l.bad))] {
		f := l.fates[i]
		first = append(first, fmt.Sprintf("%s:%d %s (%s)", f.File, f.Record, f.Reason, f.Detail))
	}
	return &Error{Code: "E1206", Exit: exitUsage, Err: ErrTooManyBad,
		What: fmt.Sprintf("%d of %d calibration records are unusable, first: %s", len(l.bad), l.looked, strings.Join(first, "; ")),
		Try:  "repair the records named, or give the files that hold the data"}
}

// String says the counts in one line, reasons in alphabetical order.
func (c Counts) String() string {
	s := fmt.Sprintf("%d samples: %d used, %d clipped, %d merged, %d dropped", c.Samples, c.Used, c.Clipped, c.Merged, c.Dropped)
	if len(c.DroppedBy) == 0 {
		return s
	}
	var parts []string
	for r, n := range c.DroppedBy {
		parts = append(parts, fmt.Sprintf("%s %d", r, n))
	}
	slices.Sort(parts)
	return s + " (" + strings.Join(parts, ", ") + ")"
}
