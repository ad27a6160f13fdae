package main

import (
	"context"
	"math"
	"regexp"
	"slices"
	"testing"
)

// tiny is a bench whose measurements run at their smallest size.
func tiny(t *testing.T) (*bench, *[]Result) {
	var got []Result
	b := &bench{ctx: context.Background(), dir: t.TempDir(), quick: true, tiny: true, report: func(r Result) {
		r.judge()
		got = append(got, r)
	}}
	return b, &got
}

// TestMeasurements runs every group small: each line is there and holds figures that can be.
func TestMeasurements(t *testing.T) {
	t.Parallel()
	for _, g := range []struct {
		name  string
		lines int
		run   func(*bench) error
	}{{"blobs", 4, (*bench).blobs}, {"events", 2, (*bench).events}, {"codec", 6, (*bench).codec}, {"replay", 1, (*bench).replay}, {"large", 5, (*bench).large}} {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			b, got := tiny(t)
			if err := g.run(b); err != nil {
				t.Fatal(err)
			}
			if len(*got) != g.lines {
				t.Errorf("%d lines, not %d: %+v", len(*got), g.lines, *got)
			}
			for _, r := range *got {
				sane := func(v float64) bool {
					return (v > 0 || r.Unit == "MiB") && v >= 0 && !math.IsInf(v, 0) && !math.IsNaN(v)
				}
				switch {
				case r.Name == "" || r.Unit == "" || r.Runs < 1:
					t.Errorf("%+v", r)
				case r.Of != "" && (!sane(r.Ours) || !sane(r.Median) || r.Target <= 0):
					t.Errorf("%+v", r)
				case r.Of == "ratio" && (!sane(r.Alternative) || !sane(r.Ratio) || !sane(r.MedianRatio) || r.Against == ""):
					t.Errorf("%+v", r)
				case r.Most && r.Ours > r.Median, !r.Most && r.Ours < r.Median:
					t.Errorf("the best is worse than the median: %+v", r)
				case r.Name == "write amplification, 8 MiB with an event" && r.Of != "" && r.Ours < 1:
					t.Errorf("less was written than there is: %+v", r)
				}
			}
		})
	}
}

// TestJudge compares with the target.
func TestJudge(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		r            Result
		best, median bool
	}{
		"at least, holds":         {Result{Ours: 5, Median: 4, Target: 4, Of: "ours"}, true, true},
		"at least, best only":     {Result{Ours: 5, Median: 3, Target: 4, Of: "ours"}, true, false},
		"at least, misses":        {Result{Ours: 3, Median: 2, Target: 4, Of: "ours"}, false, false},
		"at most, holds":          {Result{Ours: 1, Median: 1.06, Target: 1.06, Of: "ours", Most: true}, true, true},
		"at most, best only":      {Result{Ours: 1, Median: 1.07, Target: 1.06, Of: "ours", Most: true}, true, false},
		"at most, misses":         {Result{Ours: 2, Median: 2, Target: 1.06, Of: "ours", Most: true}, false, false},
		"ratio, not the rate":     {Result{Ours: 1000, Median: 1000, Ratio: 0.7, MedianRatio: 0.6, Target: 0.8, Of: "ratio"}, false, false},
		"ratio, holds":            {Result{Ours: 1, Ratio: 0.8, MedianRatio: 0.8, Target: 0.8, Of: "ratio"}, true, true},
		"ratio, the median apart": {Result{Ours: 1, Ratio: 0.9, MedianRatio: 0.7, Target: 0.8, Of: "ratio"}, true, false},
	} {
		if c.r.judge(); c.r.Holds != c.best || c.r.MedianHolds != c.median {
			t.Errorf("%s: %v, %v", name, c.r.Holds, c.r.MedianHolds)
		}
		want := "hold"
		if !c.best {
			want = "miss"
		} else if !c.median {
			want = `hold \(best; the median misses\)`
		}
		if row := c.r.row(); !regexp.MustCompile(": " + want + "$").MatchString(row) {
			t.Errorf("%s: %q", name, row)
		}
	}
}

// TestPairs: ours and the alternative run in turn, each first every second time, and the figures are of the right side.
func TestPairs(t *testing.T) {
	t.Parallel()
	b, got := tiny(t)
	var order []string
	rates := func(name string, v ...float64) func() (float64, error) {
		return func() (float64, error) {
			order = append(order, name)
			x := v[0]
			v = v[1:]
			return x, nil
		}
	}
	if err := b.pairs(Result{Target: 1, Of: "ratio"}, 3, rates("o", 10, 40, 20), rates("a", 10, 10, 30)); err != nil {
		t.Fatal(err)
	}
	r := (*got)[0]
	if !slices.Equal(order, []string{"o", "a", "a", "o", "o", "a"}) {
		t.Error(order)
	}
	if r.Ours != 40 || r.Median != 20 || r.Alternative != 30 || r.Ratio != 40.0/30 || r.MedianRatio != 1 || r.Runs != 3 || !r.Holds || !r.MedianHolds {
		t.Errorf("%+v", r)
	}
}
