// Command bench measures the kernels against the limits of this machine and
// against OpenBLAS, in one process:
//
//	go run ./kernels/bench [-quick] [-json] [-match REGEXP]
//
// Absolute rates on a shared machine mean little, so every measurement is a
// ratio: to the multiply-add peak or memory rate measured by the same process, and
// to the alternative run in turn with ours. A sample counts only if a one-millisecond
// peak loop before and after it reaches 90 % of the best seen; contenders are
// interleaved and the fastest accepted sample of each is kept. Work on one thread is
// timed by the CPU clock of the thread (Linux), so another process on the core costs
// no measured time; work on several threads is timed by the wall clock and counts only
// if no thread was pre-empted.
//
// OpenBLAS is loaded at run time where libopenblas.so.0 is installed (Debian:
// libopenblas0-pthread); OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE are removed from the
// environment first, since a wrong core type halves its speed.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"strings"

	"quire/kernels"
)

// Result is one measurement, one JSON object a line with -json.
type Result struct {
	Name    string  `json:"name"`
	Threads int     `json:"threads"`
	Unit    string  `json:"unit"`
	Ours    float64 `json:"ours"`
	// Peak is the limit named by Limit, in the same unit; Share is Ours/Peak.
	Peak  float64 `json:"peak,omitempty"`
	Limit string  `json:"limit,omitempty"`
	Share float64 `json:"share,omitempty"`
	// Alternative is what Against reached; Ratio is Ours/Alternative.
	Alternative float64 `json:"alternative,omitempty"`
	Against     string  `json:"against,omitempty"`
	Ratio       float64 `json:"ratio,omitempty"`
	// Target is what the design asks for on this CPU level, as share, ratio or
	// value; Holds says whether it is reached.
	Target string `json:"target,omitempty"`
	Holds  *bool  `json:"holds,omitempty"`
	// Gated says how many samples passed the gate. With none the best of all
	// samples is shown, and the machine was too busy to conclude anything.
	Gated int `json:"gated_samples"`
}

// want sets the target: at least least of "share", "ratio" or "value"; 0 is no target.
func (r *Result) want(of string, least float64) {
	value := map[string]float64{"share": r.Share, "ratio": r.Ratio, "value": r.Ours}[of]
	if least == 0 || value == 0 {
		return
	}
	r.Target = fmt.Sprintf("%s >= %.2f", of, least)
	holds := value >= least
	r.Holds = &holds
}

func main() {
	withoutOverrides()
	os.Exit(run(os.Args[1:], full, os.Stdout, os.Stderr))
}

// run measures at the given scale, or at quick where the flag says so.
func run(args []string, size scale, out, errs io.Writer) int {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(errs)
	isQuick := flags.Bool("quick", false, "fewer sizes and samples: under 40 s")
	asJSON := flags.Bool("json", false, "one JSON object a measurement")
	match := flags.String("match", "", "only measurements whose name matches")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	filter, err := regexp.Compile(*match)
	if err != nil {
		fmt.Fprintln(errs, "bench: -match:", err)
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(errs, "bench: unexpected argument %q\n", flags.Arg(0))
		return 2
	}
	if *isQuick && size == full {
		size = quick
	}
	b := newBench(size)
	defer b.close()
	status := kernels.Status()
	if *asJSON {
		hello := struct {
			Type     string `json:"type"`
			Level    string `json:"level"`
			Detected string `json:"detected"`
			Threads  int    `json:"threads"`
			OpenBLAS string `json:"openblas"`
		}{"machine", status.Level.String(), status.Detected.String(), b.threads, b.blas.name()}
		writeJSON(out, hello)
	} else {
		fmt.Fprintf(out, "level %s (detected %s), %s/%s, threads: %d, OpenBLAS: %s\n", status.Level, status.Detected, runtime.GOOS, runtime.GOARCH, b.threads, b.blas.name())
		fmt.Fprintf(out, "%-30s %3s %8s %-5s %7s %-15s %8s %5s  %s\n", "what", "thr", "ours", "unit", "share", "of", "OpenBLAS", "ratio", "target")
	}
	b.report = func(r Result) {
		if *asJSON {
			writeJSON(out, r)
			return
		}
		fmt.Fprintln(out, r.row())
	}
	b.wanted = filter.MatchString
	if err := b.all(); err != nil {
		fmt.Fprintln(errs, "bench:", err)
		return 1
	}
	return 0
}

func writeJSON(out io.Writer, v any) {
	line, err := json.Marshal(v)
	if err != nil {
		panic(err) // plain numbers and strings
	}
	fmt.Fprintln(out, string(line))
}

// row is the result as a line of the table.
func (r Result) row() string {
	share, other, ratio, note := "", "", "", r.Target
	if r.Peak > 0 {
		share = fmt.Sprintf("%.1f %%", 100*r.Share)
	}
	if r.Alternative > 0 {
		other, ratio = fmt.Sprintf("%.1f", r.Alternative), fmt.Sprintf("%.2f", r.Ratio)
	}
	if r.Holds != nil && !*r.Holds {
		note += ": below"
	}
	if r.Gated == 0 {
		note += " (busy machine: no sample passed the gate)"
	}
	return strings.TrimRight(fmt.Sprintf("%-30s %3d %8.2f %-5s %7s %-15s %8s %5s  %s", r.Name, r.Threads, r.Ours, r.Unit, share, r.Limit, other, ratio, note), " ")
}
