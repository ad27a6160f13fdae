// Command bench measures the kernels against the limits of this machine and
// against OpenBLAS, in one process:
//
//	go run ./kernels/bench [-quick] [-json] [-match REGEXP]
//
// Absolute rates on a shared machine mean little, so every measurement is a
// ratio: to the multiply-add peak (or memory rate) measured in the same seconds,
// and to the alternative run in turn with ours. A sample counts only if a
// one-millisecond peak loop before and after it reaches 90 % of the best seen;
// contenders are interleaved and the fastest accepted sample of each is kept.
//
// OpenBLAS is loaded at run time where libopenblas.so.0 is installed (Debian:
// libopenblas0-pthread); OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE are removed from the
// environment first, since a wrong core type halves its speed.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
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
	// Gated says how many samples passed the gate. With none the best of all
	// samples is shown, and the machine was too busy to conclude anything.
	Gated int `json:"gated_samples"`
}

func main() {
	quick := flag.Bool("quick", false, "fewer sizes and samples: under 40 s")
	asJSON := flag.Bool("json", false, "one JSON object a measurement")
	match := flag.String("match", "", "only measurements whose name matches")
	flag.Parse()
	filter, err := regexp.Compile(*match)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: -match:", err)
		os.Exit(2)
	}
	withoutOverrides()
	b := newBench(*quick)
	defer b.close()
	status := kernels.Status()
	if *asJSON {
		fmt.Printf("{\"type\":\"hello\",\"level\":%q,\"detected\":%q,\"threads\":%d,\"openblas\":%q}\n", status.Level, status.Detected, b.threads, b.blas.name())
	} else {
		fmt.Printf("level %s (detected %s), %s/%s, %d threads, OpenBLAS %s\n", status.Level, status.Detected, runtime.GOOS, runtime.GOARCH, b.threads, b.blas.name())
		fmt.Printf("%-38s %3s %9s %-5s %7s %-7s %9s %6s\n", "what", "thr", "ours", "unit", "share", "of", "OpenBLAS", "ratio")
	}
	b.report = func(r Result) {
		if *asJSON {
			line, err := json.Marshal(r)
			if err != nil {
				panic(err) // plain numbers and strings
			}
			fmt.Println(string(line))
			return
		}
		fmt.Println(r.row())
	}
	b.wanted = func(name string) bool { return filter.MatchString(name) }
	b.run()
}

// row is the result as a line of the table.
func (r Result) row() string {
	share, other, ratio := "", "", ""
	if r.Peak > 0 {
		share = fmt.Sprintf("%.1f %%", 100*r.Share)
	}
	if r.Alternative > 0 {
		other, ratio = fmt.Sprintf("%.1f", r.Alternative), fmt.Sprintf("%.2f", r.Ratio)
	}
	note := ""
	if r.Gated == 0 {
		note = "  (busy machine: no sample passed the gate)"
	}
	return strings.TrimRight(fmt.Sprintf("%-38s %3d %9.1f %-5s %7s %-7s %9s %6s%s", r.Name, r.Threads, r.Ours, r.Unit, share, r.Limit, other, ratio, note), " ")
}
