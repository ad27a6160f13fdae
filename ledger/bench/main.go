// Command bench measures the ledger against plain files and bbolt on the disk of this machine, in one process:
//
//	go run ./ledger/bench [-quick] [-json] [-match REGEXP] [-dir DIR]
//
// Disks and shared machines have noisy phases in which every sync is several times slower, so a comparison runs ours and
// the alternative in turn, pair by pair. Best is the ratio of the fastest run of each; median is the median over pairs. What has
// no alternative is repeated, and the best and the median are shown. Each line says whether the target holds. Missing one
// is no error: the exit status is non-zero only when something could not be measured.
//
// The files go into a temporary directory below DIR, by default the system's, which should lie on a real disk.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
)

// Result is one measurement, one JSON object a line with -json.
type Result struct {
	Name string  `json:"name"`
	Unit string  `json:"unit"`
	Ours float64 `json:"ours"` // best
	// Median of ours over the runs.
	Median float64 `json:"median"`
	// Alternative is the best of what Against did; Ratio is Ours/Alternative, MedianRatio the median over pairs.
	Alternative float64 `json:"alternative,omitempty"`
	Against     string  `json:"against,omitempty"`
	Ratio       float64 `json:"ratio,omitempty"`
	MedianRatio float64 `json:"median_ratio,omitempty"`
	Runs        int     `json:"runs"`
	// Target is for Of ("ours" or "ratio"): at least, or with Most at most.
	Target float64 `json:"target,omitempty"`
	Of     string  `json:"target_of,omitempty"`
	Most   bool    `json:"target_is_maximum,omitempty"`
	Holds  bool    `json:"holds"`
	// MedianHolds is the stricter answer.
	MedianHolds bool   `json:"median_holds"`
	Note        string `json:"note,omitempty"`
}

// bench is the place and the extent of the measurements.
type bench struct {
	ctx    context.Context
	dir    string
	quick  bool
	tiny   bool // for tests: every measurement at its smallest
	wanted func(name string) bool
	report func(Result)
	n      int // directories made
}

// fresh gives the name of a new directory.
func (b *bench) fresh() string {
	b.n++
	return fmt.Sprintf("%s/%03d", b.dir, b.n)
}

// pick gives a figure for a whole measurement, a quick one and one of a test.
func (b *bench) pick(whole, quick, tiny int) int {
	switch {
	case b.tiny:
		return tiny
	case b.quick:
		return quick
	}
	return whole
}

func main() {
	quick := flag.Bool("quick", false, "fewer runs: under 40 s on an idle machine")
	asJSON := flag.Bool("json", false, "one JSON object a measurement")
	match := flag.String("match", "", "only groups whose name matches: blobs, events, codec, replay, large")
	profile := flag.String("cpuprofile", "", "write a processor profile of the measurements to this file")
	where := flag.String("dir", "", "directory for the files; by default the system's temporary one")
	flag.Parse()
	filter, err := regexp.Compile(*match)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench: -match:", err)
		os.Exit(2)
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench: -cpuprofile:", err)
			os.Exit(2)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err = run(ctx, *where, *quick, *asJSON, filter)
	stop()
	pprof.StopCPUProfile()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, where string, quick, asJSON bool, filter *regexp.Regexp) (err error) {
	dir, err := os.MkdirTemp(where, "ledger-bench-")
	if err != nil {
		return err
	}
	defer func() {
		if rerr := os.RemoveAll(dir); err == nil {
			err = rerr
		}
	}()
	b := &bench{ctx: ctx, dir: dir, quick: quick, wanted: filter.MatchString}
	fs := fileSystem(dir)
	if asJSON {
		fmt.Printf("{\"type\":\"hello\",\"os\":%q,\"arch\":%q,\"threads\":%d,\"file_system\":%q,\"load\":%q}\n", runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), fs, load())
	} else {
		fmt.Printf("%s/%s, %d threads, files on %s, load %s\n", runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), fs, load())
		fmt.Printf("%-44s %10s %10s %-6s %11s %6s %7s  %s\n", "what", "best", "median", "unit", "alternative", "ratio", "median", "target")
	}
	b.report = func(r Result) {
		r.judge()
		if asJSON {
			line, err := json.Marshal(r)
			if err != nil {
				panic(err) // plain numbers and strings
			}
			fmt.Println(string(line))
			return
		}
		fmt.Println(r.row())
	}
	for _, g := range []struct {
		name string
		run  func() error
	}{{"blobs", b.blobs}, {"events", b.events}, {"codec", b.codec}, {"replay", b.replay}, {"large", b.large}} {
		if !b.wanted(g.name) {
			continue
		}
		if err := g.run(); err != nil {
			return fmt.Errorf("%s: %w", g.name, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// judge compares with the target.
func (r *Result) judge() {
	best, median := r.Ours, r.Median
	if r.Of == "ratio" {
		best, median = r.Ratio, r.MedianRatio
	}
	if r.Most {
		r.Holds, r.MedianHolds = best <= r.Target, median <= r.Target
	} else {
		r.Holds, r.MedianHolds = best >= r.Target, median >= r.Target
	}
}

// row is the result as a line of the table.
func (r Result) row() string {
	other, ratio, median := "", "", ""
	if r.Alternative > 0 {
		other, ratio, median = figure(r.Alternative), fmt.Sprintf("%.2f", r.Ratio), fmt.Sprintf("%.2f", r.MedianRatio)
	}
	target := ""
	if r.Of != "" {
		sign, verdict := ">=", "miss"
		if r.Most {
			sign = "<="
		}
		switch {
		case r.Holds && r.MedianHolds:
			verdict = "hold"
		case r.Holds:
			verdict = "hold (best; the median misses)"
		}
		target = fmt.Sprintf("%s %s %s: %s", r.Of, sign, figure(r.Target), verdict)
	}
	if r.Note != "" {
		target += "  (" + r.Note + ")"
	}
	return strings.TrimRight(fmt.Sprintf("%-44s %10s %10s %-6s %11s %6s %7s  %s", r.Name, figure(r.Ours), figure(r.Median), r.Unit, other, ratio, median, target), " ")
}

func figure(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// least gives the best of runs where less is better, most where more is, and both the median.
func least(v []float64) (best, median float64) { s := sorted(v); return s[0], s[len(s)/2] }
func most(v []float64) (best, median float64)  { s := sorted(v); return s[len(s)-1], s[len(s)/2] }

func sorted(v []float64) []float64 {
	s := slices.Clone(v)
	slices.Sort(s)
	return s
}

// pairs runs ours and the alternative in turn, each giving a rate, and fills in the result.
func (b *bench) pairs(r Result, n int, ours, other func() (float64, error)) error {
	var us, them, ratios []float64
	for i := range n {
		var x, y float64
		var err error
		first, second := ours, other
		if i%2 == 1 { // neither always follows the other's writeback
			first, second = other, ours
		}
		if x, err = first(); err != nil {
			return err
		}
		if y, err = second(); err != nil {
			return err
		}
		if i%2 == 1 {
			x, y = y, x
		}
		us, them, ratios = append(us, x), append(them, y), append(ratios, x/y)
		if err := b.ctx.Err(); err != nil {
			return err
		}
	}
	r.Ours, r.Median = most(us)
	r.Alternative, _ = most(them)
	r.Ratio = r.Ours / r.Alternative
	_, r.MedianRatio = most(ratios)
	r.Runs = n
	b.report(r)
	return nil
}
