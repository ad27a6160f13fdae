package lint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Options of a check.
type Options struct {
	Profiles []string // loaders whose rules are checked; nil: all
	Against  string   // directory of the original; empty: none
	TP       []int    // tensor-parallel sizes that must work
	Headers  bool     // do not read any tensor's content
	Limit    int      // findings listed of one code and profile; 0: 20, negative: all
	MaxError float64  // relative error above which --against reports a module; 0: a bound by bits
}

// ErrOptions is in the chain of errors about options.
var ErrOptions = errors.New("bad lint option")

type optionError struct{ what, try string }

func (e *optionError) Error() string     { return e.what }
func (e *optionError) Unwrap() error     { return ErrOptions }
func (e *optionError) ErrorCode() string { return "E1550" }
func (e *optionError) ExitCode() int     { return 64 }
func (e *optionError) Remedy() string    { return e.try }

// profiles gives the loaders to check, after a look at the options.
func (o *Options) profiles() ([]string, error) {
	for _, p := range o.Profiles {
		if !slices.Contains(Profiles(), p) {
			return nil, &optionError{fmt.Sprintf("unknown loader profile %q", p), "use " + strings.Join(Profiles(), ", ")}
		}
	}
	for _, t := range o.TP {
		if t < 1 {
			return nil, &optionError{fmt.Sprintf("tensor-parallel size %d", t), "use a size of 1 or more"}
		}
	}
	if len(o.Profiles) == 0 {
		return Profiles(), nil
	}
	return o.Profiles, nil
}

func (o *Options) limit() int {
	if o.Limit == 0 {
		return 20
	}
	return o.Limit
}

// Run checks the checkpoint in dir. The error is about options or a context that ended; what is wrong with the
// checkpoint, down to a directory that is not there, is in the report.
func Run(ctx context.Context, dir string, o Options) (*Report, error) {
	profiles, err := o.profiles()
	if err != nil {
		return nil, err
	}
	c := &collector{}
	r := &Report{Dir: dir, Profiles: profiles}
	files := openFiles(dir, c)
	defer files.close() //nolint:errcheck // read only
	if len(files.names) > 0 {
		m := groupModules(files, readConfig(files, c), c)
		m.checkModules()
		m.checkWidths()
		if !o.Headers {
			m.checkContents(ctx)
		}
		m.checkSiblings()
		m.checkHeaders(profiles, o, r)
		if o.Against != "" && !o.Headers {
			r.Against = m.compareWith(ctx, o.Against, o.MaxError)
		}
		m.describe(r)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.Findings, r.More = c.finish(o.limit())
	return r, nil
}

// describe fills the head of the report.
func (m *subject) describe(r *Report) {
	r.Shards, r.Tensors = len(m.files.shards), len(m.files.tensors)
	for _, mod := range m.modules {
		if mod.quantized() {
			r.Quantized++
		} else {
			r.Left++
		}
	}
	if m.quantBlock {
		r.Method = m.quant.method
		if m.quant.storage != "" && m.quant.storage != m.quant.method {
			r.Method += " (" + m.quant.storage + ")"
		}
		if m.quant.known {
			r.Scheme = m.quant.base.String()
		}
	}
}
