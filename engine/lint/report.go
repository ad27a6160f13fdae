package lint

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"quire/engine/format"
)

// Finding is one thing that is wrong or worth knowing.
type Finding struct {
	Code     string   `json:"code"`
	Severity Severity `json:"severity"`
	Profile  string   `json:"profile,omitempty"` // the loader concerned; empty: any
	Subject  string   `json:"subject"`           // module, tensor, file or config key
	Message  string   `json:"message"`
	Remedy   string   `json:"remedy"`
}

// Report is everything that was found.
type Report struct {
	Dir       string        `json:"dir"`
	Method    string        `json:"method,omitempty"` // quant_method and format
	Scheme    string        `json:"scheme,omitempty"`
	Shards    int           `json:"shards"`
	Tensors   int           `json:"tensors"`
	Quantized int           `json:"quantized_modules"`
	Left      int           `json:"left_modules"`
	Profiles  []string      `json:"profiles"`
	Findings  []Finding     `json:"findings"`
	More      []More        `json:"more,omitempty"` // findings beyond the limit of one code
	TP        []TPRow       `json:"tensor_parallel,omitempty"`
	Against   *AgainstTable `json:"against,omitempty"`
}

// More counts the findings of one code and profile that are not listed.
type More struct {
	Code    string `json:"code"`
	Profile string `json:"profile,omitempty"`
	Count   int    `json:"count"`
}

// Failed says whether a finding above a note was made: exit code 3.
func (r *Report) Failed() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Severity != Note })
}

// Count gives the number of findings of a severity, unlisted ones included.
func (r *Report) Count(s Severity) int {
	n := 0
	for _, f := range r.Findings {
		if f.Severity == s {
			n++
		}
	}
	for _, m := range r.More {
		if byID[m.Code].Severity == s {
			n += m.Count
		}
	}
	return n
}

// collector gathers findings from several goroutines.
type collector struct {
	mu  sync.Mutex
	all []Finding
}

// add records a finding that concerns every loader.
func (c *collector) add(code, subject, msg string, args ...any) {
	c.addFor("", code, subject, msg, args...)
}

// addFor records a finding that concerns one loader.
func (c *collector) addFor(profile, code, subject, msg string, args ...any) {
	t, ok := byID[code]
	if !ok {
		panic("finding code not in the table: " + code)
	}
	f := Finding{Code: code, Severity: t.Severity, Profile: profile, Subject: subject, Message: fmt.Sprintf(msg, args...), Remedy: t.Remedy}
	c.mu.Lock()
	c.all = append(c.all, f)
	c.mu.Unlock()
}

// finish sorts by severity, code, profile and subject, so that the order in which goroutines found things never shows,
// and keeps at most limit of one code and profile.
func (c *collector) finish(limit int) ([]Finding, []More) {
	rank := map[Severity]int{Error: 0, Warning: 1, Note: 2}
	order := map[string]int{}
	for i, t := range table {
		order[t.ID] = i
	}
	slices.SortStableFunc(c.all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(rank[a.Severity], rank[b.Severity]), cmp.Compare(order[a.Code], order[b.Code]), cmp.Compare(a.Profile, b.Profile),
			format.CompareNames(a.Subject, b.Subject), cmp.Compare(a.Message, b.Message))
	})
	c.all = slices.Compact(c.all)
	type key struct{ code, profile string }
	seen := map[key]int{}
	keep := []Finding{}
	var more []More
	at := map[key]int{}
	for _, f := range c.all {
		k := key{f.Code, f.Profile}
		if seen[k]++; limit <= 0 || seen[k] <= limit {
			keep = append(keep, f)
			continue
		}
		if _, ok := at[k]; !ok {
			at[k] = len(more)
			more = append(more, More{Code: f.Code, Profile: f.Profile})
		}
		more[at[k]].Count++
	}
	return keep, more
}
