// Command quire quantizes mixture-of-experts language models and records every decision in a ledger.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"

	"quire/engine"
)

// cli is the whole command line: one field a verb, each verb in its own file.
type cli struct {
	Demo     DemoCmd     `cmd:"" help:"See it work: quantize, kill, resume, compare, explain. Under a minute."`
	Inspect  InspectCmd  `cmd:"" help:"Describe a checkpoint from its headers: architecture, experts, dtypes, bytes."`
	Plan     PlanCmd     `cmd:"" help:"Resolve everything from headers: fates, memory, disk, findings."`
	Run      RunCmd      `cmd:"" help:"Quantize a model; the same command resumes."`
	Resume   ResumeCmd   `cmd:"" help:"Go on with a run."`
	Status   StatusCmd   `cmd:"" help:"Look at a run, also while it works."`
	Watch    WatchCmd    `cmd:"" help:"Follow a run of another process until it ends."`
	Audit    AuditCmd    `cmd:"" help:"Explain a scale: range, solver, statistic, batches, samples."`
	Replay   ReplayCmd   `cmd:"" help:"Recompute a layer and compare every digest."`
	Verify   VerifyCmd   `cmd:"" help:"Check a run or an output directory, byte by byte."`
	Eval     EvalCmd     `cmd:"" help:"Perplexity, KL and top-1 agreement, layer by layer in bounded memory."`
	Trace    TraceCmd    `cmd:"" help:"Write what the forward pass saw."`
	Tokenize TokenizeCmd `cmd:"" help:"Turn text into token ids."`
	Render   RenderCmd   `cmd:"" help:"Show what a chat template makes of conversations."`
	Samples  SamplesCmd  `cmd:"" help:"Show the calibration samples as a run would see them."`
	Solve    SolveCmd    `cmd:"" help:"Quantize one matrix outside any run."`
	Explain  ExplainCmd  `cmd:"" help:"Print the error catalogue."`
	Lint     LintCmd     `cmd:"" help:"Check any published quantized checkpoint."`
	Ledger   LedgerCmd   `cmd:"" help:"Look after ledgers."`
	Doctor   DoctorCmd   `cmd:"" help:"Look at processor, memory and disk as a run would use them."`
	Version  VersionCmd  `cmd:"" help:"Print the build identity."`

	Completion kongcompletion.Completion `cmd:"" help:"Print what a shell needs to complete quire's words."`
}

// output is what a verb may write to: results on out, progress and logs on err.
type output struct {
	out io.Writer
	err io.Writer
	in  io.Reader
}

func main() { os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// noticing remembers whether a verb has written anything.
type noticing struct {
	io.Writer
	written bool
}

func (n *noticing) Write(b []byte) (int, error) {
	n.written = true
	return n.Writer.Write(b)
}

// Main runs one command line and gives its exit code.
func Main(args []string, in io.Reader, stdout, errw io.Writer) int {
	out := &noticing{Writer: stdout}
	var c cli
	asJSON := false
	for _, a := range args {
		if a == "--json" {
			asJSON = true
		}
	}
	exited := -1
	parser, err := kong.New(&c, kong.Name("quire"),
		kong.Description("Post-training quantization of mixture-of-experts models, resumable and explainable."),
		kong.Writers(out, errw), kong.Exit(func(code int) { exited = code }),
		kong.UsageOnError(), kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}))
	if err != nil {
		panic(err) // a malformed command struct is a bug
	}
	kongcompletion.Register(parser, kongcompletion.WithExitFunc(func(code int) { exited = code }))
	if exited >= 0 { // the shell asked for completions
		return exited
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal kills: what is durable stays so
	kctx, err := parser.Parse(joinNegative(args))
	if exited >= 0 { // --help
		return exited
	}
	if err == nil {
		kctx.BindTo(ctx, (*context.Context)(nil))
		err = kctx.Run(&output{out: out, err: errw, in: in})
	} else {
		try := "see `quire --help` or `quire VERB --help`"
		if len(args) > 0 && strings.HasPrefix(args[0], "-") {
			try = "put the verb first, then its flags: quire VERB " + args[0]
		}
		err = &engine.Error{Code: "E0100", Exit: engine.ExitUsage, What: err.Error(), Try: try}
	}
	return report(err, asJSON, out, errw)
}

// joinNegative makes "--group-size -1" one word: the parser takes a word with a minus sign for a flag of its own.
func joinNegative(args []string) []string {
	var joined []string
	for i := 0; i < len(args); i++ {
		if i+1 < len(args) && strings.HasPrefix(args[i], "--") && !strings.Contains(args[i], "=") {
			if _, err := strconv.Atoi(args[i+1]); err == nil && args[i+1][0] == '-' {
				joined = append(joined, args[i]+"="+args[i+1])
				i++
				continue
			}
		}
		joined = append(joined, args[i])
	}
	return joined
}

// coded is what an error of any package offers to the person who reads it.
type coded interface {
	error
	ErrorCode() string
	ExitCode() int
	Remedy() string
}

// report prints an error once, in the form asked for, and gives the exit code.
func report(err error, asJSON bool, out, errw io.Writer) int {
	if err == nil {
		return engine.ExitOK
	}
	code, exit, try := "E0001", engine.ExitFailure, ""
	var c coded
	if errors.As(err, &c) {
		code, exit, try = c.ErrorCode(), c.ExitCode(), c.Remedy()
	}
	var quiet interface{ Silent() bool }
	if errors.As(err, &quiet) && quiet.Silent() { // the verb has printed its findings already
		return exit
	}
	if asJSON {
		if w, ok := out.(*noticing); ok && !w.written {
			writeHello(out)
		}
		writeJSON(out, map[string]any{"type": "error", "code": code, "exit": exit, "message": err.Error(), "hint": try})
		return exit
	}
	text := strings.TrimSpace(err.Error())
	if try != "" { // some errors end with their remedy, for those who print only the error
		text = strings.TrimSuffix(text, "; "+try)
	}
	fmt.Fprintf(errw, "error[%s] %s\n", code, text)
	if try != "" {
		fmt.Fprintf(errw, "  try: %s\n", try)
	}
	return exit
}
