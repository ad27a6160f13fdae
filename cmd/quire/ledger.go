package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strconv"

	"golang.org/x/mod/sumdb/note"

	"quire/ledger"
)

// LedgerCmd looks after ledgers.
type LedgerCmd struct {
	Ls      LedgerLsCmd      `cmd:"" help:"List events by key prefix."`
	Show    LedgerShowCmd    `cmd:"" help:"Show one event, or write one of its payloads."`
	Tail    LedgerTailCmd    `cmd:"" help:"Print the newest events, also of a running process."`
	Fsck    LedgerFsckCmd    `cmd:"" help:"Check a ledger; exit 12 when it is damaged."`
	Salvage LedgerSalvageCmd `cmd:"" help:"Copy what is sound in a damaged ledger into a new one."`
	Prove   LedgerProveCmd   `cmd:"" help:"Write a proof that an event is in the ledger, or that one state precedes another."`
	Check   LedgerCheckCmd   `cmd:"" help:"Check a proof offline, without the ledger."`
	Backup  LedgerBackupCmd  `cmd:"" help:"Copy a ledger, also while it is being written."`
}

// openedLedger answers alike for a closed ledger and for one that another process writes.
type openedLedger struct {
	r *ledger.Reader
	c *ledger.Client
}

func openLedger(ctx context.Context, run string) (*openedLedger, error) {
	r, err := ledger.OpenReader(run, ledger.Options{})
	if err == nil {
		return &openedLedger{r: r}, nil
	}
	if !errors.Is(err, ledger.ErrLocked) {
		return nil, err
	}
	c, derr := ledger.Dial(ctx, run)
	if derr != nil {
		return nil, err // locked, and nobody answers
	}
	return &openedLedger{c: c}, nil
}

func (l *openedLedger) close() {
	if l.r != nil {
		l.r.Close()
	} else {
		l.c.Close()
	}
}

func (l *openedLedger) located(e ledger.Event) (ledger.LiveEvent, error) {
	x := ledger.LiveEvent{Event: e}
	for _, p := range e.Payloads {
		loc, err := l.r.Locate(e, p.Role)
		if err != nil {
			return x, err
		}
		x.Where = append(x.Where, loc)
	}
	return x, nil
}

func (l *openedLedger) locatedAll(events iter.Seq2[ledger.Event, error]) iter.Seq2[ledger.LiveEvent, error] {
	return func(yield func(ledger.LiveEvent, error) bool) {
		for e, err := range events {
			x := ledger.LiveEvent{Event: e}
			if err == nil {
				x, err = l.located(e)
			}
			if !yield(x, err) || err != nil {
				return
			}
		}
	}
}

func (l *openedLedger) scan(prefix string) iter.Seq2[ledger.LiveEvent, error] {
	if l.c != nil {
		return l.c.Scan(prefix)
	}
	return l.locatedAll(l.r.Scan(prefix))
}

func (l *openedLedger) since(seq uint64, follow bool) iter.Seq2[ledger.LiveEvent, error] {
	if l.c != nil {
		return l.c.Since(seq, follow)
	}
	return l.locatedAll(l.r.Since(seq))
}

func (l *openedLedger) head() (ledger.Head, error) {
	if l.c != nil {
		return l.c.Head()
	}
	return l.r.Head(), nil
}

// find gives the event that a person names by number or key.
func (l *openedLedger) find(name string) (ledger.LiveEvent, error) {
	seq, err := strconv.ParseUint(name, 10, 64)
	isSeq := err == nil
	if l.c != nil {
		if isSeq {
			return l.c.At(seq)
		}
		return l.c.Get(name)
	}
	if isSeq {
		e, err := l.r.At(seq)
		if err != nil {
			return ledger.LiveEvent{}, err
		}
		return l.located(e)
	}
	e, ok, err := l.r.Get(name)
	if err != nil {
		return ledger.LiveEvent{}, err
	}
	if !ok {
		return ledger.LiveEvent{}, &ledgerError{code: "E1713", exit: 1, msg: fmt.Sprintf("no event has the key %q", name), try: "list keys with `quire ledger ls RUN [PREFIX]`"}
	}
	return l.located(e)
}

// ledgerError is a failure of these verbs themselves.
type ledgerError struct {
	code string
	exit int
	msg  string
	try  string
}

func (e *ledgerError) Error() string     { return e.msg }
func (e *ledgerError) ErrorCode() string { return e.code }
func (e *ledgerError) ExitCode() int     { return e.exit }
func (e *ledgerError) Remedy() string    { return e.try }

// printEvents writes a stream of events: one line each, or NDJSON.
func printEvents(o *output, asJSON bool, events iter.Seq2[ledger.LiveEvent, error]) error {
	if asJSON {
		writeHello(o.out)
	}
	n := 0
	for e, err := range events {
		if err != nil {
			return err
		}
		n++
		if asJSON {
			writeJSON(o.out, map[string]any{"type": "event", "event": e})
			continue
		}
		fmt.Fprintln(o.out, eventLine(e))
	}
	if asJSON {
		writeJSON(o.out, map[string]any{"type": "result", "events": n})
	}
	return nil
}

func eventLine(e ledger.LiveEvent) string {
	key := e.Key
	if key == "" {
		key = "-"
	}
	s := fmt.Sprintf("%8d  %s  %-12s %s", e.Seq, e.Time.UTC().Format("2006-01-02T15:04:05Z"), e.Type, key)
	for i, p := range e.Payloads {
		kind := "?"
		if i < len(e.Where) {
			kind = e.Where[i].Kind.String()
		}
		s += fmt.Sprintf("  %s:%d(%s)", p.Role, p.Length, kind)
	}
	return s
}

// LedgerLsCmd lists events.
type LedgerLsCmd struct {
	Run_   string `arg:"" name:"run" help:"Run directory."`
	Prefix string `arg:"" optional:"" help:"Key prefix; without it every event in order."`
	Type   string `help:"Only events of this type."`
	Limit  int    `help:"At most so many."`
	JSON   bool   `name:"json" help:"Print NDJSON."`
}

// Run lists.
func (c *LedgerLsCmd) Run(ctx context.Context, o *output) error {
	l, err := openLedger(ctx, c.Run_)
	if err != nil {
		return err
	}
	defer l.close()
	events := l.since(0, false)
	if c.Prefix != "" {
		events = l.scan(c.Prefix)
	}
	return printEvents(o, c.JSON, func(yield func(ledger.LiveEvent, error) bool) {
		n := 0
		for e, err := range events {
			if err == nil && c.Type != "" && e.Type != c.Type {
				continue
			}
			if !yield(e, err) || err != nil {
				return
			}
			if n++; n == c.Limit {
				return
			}
		}
	})
}

// LedgerShowCmd shows one event.
type LedgerShowCmd struct {
	Run_    string `arg:"" name:"run" help:"Run directory."`
	Event   string `arg:"" help:"Number or key of the event."`
	Payload string `help:"Write the payload with this role to --out, verified."`
	Out     string `help:"File for --payload; - is stdout." default:"-"`
	JSON    bool   `name:"json" help:"Print NDJSON."`
}

// Run shows.
func (c *LedgerShowCmd) Run(ctx context.Context, o *output) error {
	l, err := openLedger(ctx, c.Run_)
	if err != nil {
		return err
	}
	defer l.close()
	e, err := l.find(c.Event)
	if err != nil {
		return err
	}
	if c.Payload != "" {
		if l.c != nil {
			return &ledgerError{code: "E1702", exit: 11, msg: "payloads cannot be read while another process writes the ledger",
				try: "copy it first: `quire ledger backup " + c.Run_ + " DIR`, then read the copy"}
		}
		return c.write(ctx, o, l, e)
	}
	if c.JSON {
		writeHello(o.out)
		writeJSON(o.out, map[string]any{"type": "result", "event": e})
		return nil
	}
	fmt.Fprintln(o.out, eventLine(e))
	fmt.Fprintf(o.out, "hash    %s\nprev    %s\ncontent %s\n", e.Hash, e.Prev, e.Event.Digest())
	for _, r := range e.Inputs {
		fmt.Fprintf(o.out, "input   %s %s\n", r.Key, r.Digest)
	}
	for i, p := range e.Payloads {
		fmt.Fprintf(o.out, "payload %s: %d bytes, class %s, sha256 %s, %s\n", p.Role, p.Length, p.Class, p.SHA256, e.Where[i])
	}
	for _, part := range []struct {
		name string
		raw  json.RawMessage
	}{{"record", e.Record}, {"note", e.Note}} {
		if len(part.raw) > 0 {
			fmt.Fprintf(o.out, "%-7s %s\n", part.name, part.raw)
		}
	}
	return nil
}

func (c *LedgerShowCmd) write(ctx context.Context, o *output, l *openedLedger, e ledger.LiveEvent) (err error) {
	r, err := l.r.OpenPayload(ctx, e.Event, c.Payload)
	if err != nil {
		return err
	}
	defer r.Close()
	w := o.out
	if c.Out != "-" {
		f, err := os.Create(c.Out)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		w = f
	}
	_, err = io.Copy(w, r)
	return err
}

// LedgerTailCmd prints the newest events.
type LedgerTailCmd struct {
	Run_   string `arg:"" name:"run" help:"Run directory."`
	N      uint64 `short:"n" default:"20" help:"So many of the newest."`
	Follow bool   `short:"f" help:"Go on with what a running process appends."`
	JSON   bool   `name:"json" help:"Print NDJSON."`
}

// Run prints.
func (c *LedgerTailCmd) Run(ctx context.Context, o *output) error {
	l, err := openLedger(ctx, c.Run_)
	if err != nil {
		return err
	}
	defer l.close()
	h, err := l.head()
	if err != nil {
		return err
	}
	from := uint64(0)
	if h.Seq > c.N {
		from = h.Seq - c.N
	}
	err = printEvents(o, c.JSON, l.since(from, c.Follow))
	if ctx.Err() != nil && c.Follow {
		return nil // interrupted while following
	}
	return err
}

// LedgerFsckCmd checks.
type LedgerFsckCmd struct {
	Run_    string  `arg:"" name:"run" help:"Run directory."`
	Level   string  `default:"chain" enum:"quick,chain,structure,data,deep" help:"How much to read: ${enum}."`
	Percent float64 `help:"Share of payloads to read at the levels data and deep."`
	JSON    bool    `name:"json" help:"Print NDJSON."`
}

// Run checks.
func (c *LedgerFsckCmd) Run(ctx context.Context, o *output) error {
	level, err := ledger.ParseLevel(c.Level)
	if err != nil {
		return err
	}
	if c.JSON {
		writeHello(o.out)
	}
	rep, err := ledger.Fsck(ctx, c.Run_, ledger.FsckOptions{Level: level, Percent: c.Percent, Report: func(f ledger.Finding) {
		if c.JSON {
			writeJSON(o.out, f)
			return
		}
		fmt.Fprintf(o.out, "%s [%s/%s] %s\n  consequence: %s\n  repair: %s\n", f.Severity, f.Level, f.Code, f.What, f.Consequence, f.Repair)
	}})
	if err != nil {
		return err
	}
	if c.JSON {
		writeJSON(o.out, map[string]any{"type": "result", "level": rep.Level, "head": rep.Head, "events": rep.Events, "segments": rep.Segments,
			"payloads": rep.Payloads, "bytes": rep.Bytes, "findings": len(rep.Findings), "damaged": rep.Damaged()})
	} else {
		fmt.Fprintf(o.out, "level %s: event %d, root %s, %d events and %d payloads (%d bytes) read, %d findings\n", rep.Level, rep.Head.Seq, rep.Head.Root, rep.Events, rep.Payloads, rep.Bytes, len(rep.Findings))
	}
	if rep.Damaged() {
		return &ledgerError{code: "E1701", exit: 12, msg: fmt.Sprintf("the ledger is damaged: %d findings", len(rep.Findings)), try: "see the repairs above; `quire ledger salvage RUN DIR` copies what is sound"}
	}
	return nil
}

// LedgerSalvageCmd saves what is left.
type LedgerSalvageCmd struct {
	Run_ string `arg:"" name:"run" help:"Damaged run directory; it is not changed."`
	To   string `arg:"" help:"New directory."`
	JSON bool   `name:"json" help:"Print NDJSON."`
}

// Run salvages.
func (c *LedgerSalvageCmd) Run(ctx context.Context, o *output) error {
	if c.JSON {
		writeHello(o.out)
	}
	rep, err := ledger.Salvage(ctx, c.Run_, c.To, ledger.Options{})
	if err != nil {
		return err
	}
	for _, f := range rep.Lost {
		if c.JSON {
			writeJSON(o.out, f)
		} else {
			fmt.Fprintf(o.out, "lost: event %d %s %s: %s\n", f.Seq, f.Key, f.Role, f.What)
		}
	}
	if c.JSON {
		writeJSON(o.out, map[string]any{"type": "result", "events": rep.Events, "payloads": rep.Payloads, "bytes": rep.Bytes, "lost": len(rep.Lost)})
	} else {
		fmt.Fprintf(o.out, "%d events and %d payloads (%d bytes) copied to %s, %d things lost\n", rep.Events, rep.Payloads, rep.Bytes, c.To, len(rep.Lost))
	}
	if len(rep.Lost) > 0 {
		return &ledgerError{code: "E1701", exit: 3, msg: "not everything could be saved", try: "resume on the copy repeats what is missing"}
	}
	return nil
}

// LedgerProveCmd writes proofs.
type LedgerProveCmd struct {
	Run_  string `arg:"" name:"run" help:"Run directory."`
	Event string `arg:"" optional:"" help:"Number or key of the event."`
	Since uint64 `help:"Instead prove that the state after this event precedes the head."`
}

// Run writes the proof to stdout.
func (c *LedgerProveCmd) Run(ctx context.Context, o *output) error {
	if (c.Event == "") == (c.Since == 0) {
		return &ledgerError{code: "E1706", exit: 64, msg: "give an event or --since", try: "quire ledger prove RUN KEY"}
	}
	l, err := openLedger(ctx, c.Run_)
	if err != nil {
		return err
	}
	defer l.close()
	if c.Since != 0 {
		if l.r == nil {
			return &ledgerError{code: "E1702", exit: 11, msg: "a consistency proof needs a closed ledger", try: "copy it first with `quire ledger backup`"}
		}
		p, err := l.r.ProveConsistency(c.Since)
		if err != nil {
			return err
		}
		writeJSON(o.out, p)
		return nil
	}
	e, err := l.find(c.Event)
	if err != nil {
		return err
	}
	var p ledger.Proof
	if l.c != nil {
		p, err = l.c.Prove(e.Seq)
	} else {
		p, err = l.r.Prove(e.Seq)
	}
	if err != nil {
		return err
	}
	writeJSON(o.out, p)
	return nil
}

// LedgerCheckCmd checks a proof.
type LedgerCheckCmd struct {
	Proof string `arg:"" help:"File with the proof; - is stdin."`
	Head  string `help:"Signed head (HEAD.note) that the proof must end in."`
	Key   string `help:"Verifier key for --head."`
	Root  string `help:"Root in hexadecimal that the proof must end in."`
	JSON  bool   `name:"json" help:"Print NDJSON."`
}

// Run checks.
func (c *LedgerCheckCmd) Run(_ context.Context, o *output) error {
	var b []byte
	var err error
	if c.Proof == "-" {
		b, err = io.ReadAll(io.LimitReader(o.in, 64<<20))
	} else {
		b, err = os.ReadFile(c.Proof)
	}
	if err != nil {
		return err
	}
	var trusted *ledger.Head
	if c.Head != "" {
		msg, err := os.ReadFile(c.Head)
		if err != nil {
			return err
		}
		v, err := note.NewVerifier(c.Key)
		if err != nil {
			return &ledgerError{code: "E1706", exit: 64, msg: "verifier key: " + err.Error(), try: "give --key as name+hash+key"}
		}
		h, err := ledger.OpenHeadNote(msg, note.VerifierList(v))
		if err != nil {
			return err
		}
		trusted = &h
	}
	e, head, err := ledger.CheckProof(b, trusted)
	if err != nil {
		return err
	}
	if c.Root != "" && head.Root.String() != c.Root {
		return &ledgerError{code: "E1715", exit: 4, msg: "the proof holds for root " + head.Root.String() + ", not for the one given", try: "take the head of the same time"}
	}
	if c.JSON {
		writeHello(o.out)
		writeJSON(o.out, map[string]any{"type": "result", "head": head, "event": e})
		return nil
	}
	if e != nil {
		fmt.Fprintf(o.out, "event %d (%s %s) is in the ledger %s as of event %d, root %s\n", e.Seq, e.Type, e.Key, head.Run, head.Seq, head.Root)
	} else {
		fmt.Fprintf(o.out, "consistent up to event %d, root %s\n", head.Seq, head.Root)
	}
	return nil
}

// LedgerBackupCmd copies.
type LedgerBackupCmd struct {
	Run_    string `arg:"" name:"run" help:"Run directory."`
	To      string `arg:"" help:"New directory."`
	Compact bool   `help:"Leave out payloads that may be retired; decisions, hashes and proofs stay."`
	JSON    bool   `name:"json" help:"Print NDJSON."`
}

// Run copies.
func (c *LedgerBackupCmd) Run(ctx context.Context, o *output) error {
	l, err := openLedger(ctx, c.Run_)
	if err != nil {
		return err
	}
	defer l.close()
	opt := ledger.BackupOptions{Compact: c.Compact}
	if l.c != nil {
		err = l.c.Backup(c.To, opt)
	} else {
		err = l.r.Backup(ctx, c.To, opt)
	}
	if err != nil {
		return err
	}
	r, err := ledger.OpenReader(c.To, ledger.Options{})
	if err != nil {
		return err
	}
	defer r.Close()
	if c.JSON {
		writeHello(o.out)
		writeJSON(o.out, map[string]any{"type": "result", "to": c.To, "head": r.Head()})
	} else {
		fmt.Fprintf(o.out, "copied to %s: event %d, root %s\n", c.To, r.Head().Seq, r.Head().Root)
	}
	return nil
}
