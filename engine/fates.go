package engine

import (
	"fmt"
	"regexp"
	"strings"

	"quire/capture/model"
	"quire/engine/format"
)

// ModulePlan is what becomes of one linear.
type ModulePlan struct {
	Module string     `json:"module"`
	Layer  int        `json:"layer"`
	Expert int        `json:"expert"`
	Role   model.Role `json:"role"`
	Out    int        `json:"out"`
	In     int        `json:"in"`
	Fate   model.Fate `json:"fate"`
	Reason string     `json:"reason"`
	Scheme *Scheme    `json:"scheme,omitempty"` // of a quantized module

	linear *model.Linear
}

// TensorPlan is what becomes of one source tensor.
type TensorPlan struct {
	Tensor  string     `json:"tensor"`
	Fate    model.Fate `json:"fate"`
	Reason  string     `json:"reason"`
	Outputs []string   `json:"outputs"`
}

// chooser decides fates from the family's defaults and the recipe.
type chooser struct {
	id     *Identity
	exact  map[string]bool
	regex  []*regexp.Regexp
	used   map[string]bool // ignore entries that matched something
	rules  []compiledRule
	format format.Format
}

type compiledRule struct {
	Rule
	re   *regexp.Regexp
	hits int
}

func newChooser(id *Identity) (*chooser, error) {
	f, err := format.Lookup(id.Format)
	if err != nil {
		return nil, err
	}
	c := &chooser{id: id, exact: map[string]bool{}, used: map[string]bool{}, format: f}
	for _, p := range id.Ignore {
		if re, ok := strings.CutPrefix(p, "re:"); ok {
			c.regex = append(c.regex, regexp.MustCompile(re))
		} else {
			c.exact[p] = true
		}
	}
	for _, r := range id.Dynamic {
		c.rules = append(c.rules, compiledRule{Rule: r, re: regexp.MustCompile(r.Pattern)})
	}
	return c, nil
}

// ignored says which entry of ignore excludes a module, or "".
func (c *chooser) ignored(module string) string {
	if c.exact[module] {
		c.used[module] = true
		return module
	}
	for _, re := range c.regex {
		if re.MatchString(module) {
			c.used["re:"+re.String()] = true
			return "re:" + re.String()
		}
	}
	return ""
}

// module decides about one linear.
func (c *chooser) module(l *model.Linear) (ModulePlan, error) {
	p := ModulePlan{Module: l.Module, Layer: l.Layer, Expert: l.Expert, Role: l.Role, Out: l.Out, In: l.In, Fate: l.Fate, Reason: l.Reason, linear: l}
	s := c.id.Scheme
	quantize := l.Fate == model.FateQuantize || l.Role == model.RoleHead && c.id.LMHead
	if quantize && p.Fate != model.FateQuantize {
		p.Fate, p.Reason = model.FateQuantize, "asked for by lm_head"
	}
	if quantize && c.id.CopyLatent && latent(l.Role) {
		quantize = false
		p.Fate, p.Reason = copyFate(l), "sglang, a target, reads latent projections unquantized; a dynamic rule opts in"
	}
	for i := range c.rules {
		r := &c.rules[i]
		if !r.re.MatchString(l.Module) {
			continue
		}
		r.hits++
		if r.Skip {
			if quantize {
				p.Fate, p.Reason = copyFate(l), "dynamic rule -:"+r.Pattern
			}
			quantize = false
			break
		}
		var err error
		if s, err = r.apply(s); err != nil {
			return p, err
		}
		if !quantize && optIn(l.Role) { // naming such a module in a rule is how it is opted in
			quantize = true
			p.Fate, p.Reason = model.FateQuantize, "dynamic rule +:"+r.Pattern
		}
		break
	}
	if by := c.ignored(l.Module); by != "" {
		if quantize {
			p.Fate, p.Reason = copyFate(l), "ignore "+by
		}
		quantize = false
	}
	if !quantize {
		return p, nil
	}
	if s.Method == "rtn" { // no column order without feedback
		s.ActGroupAware, s.DescAct = false, false
	}
	if s.GroupSize == -1 {
		s.ActGroupAware = false
	}
	p.Scheme = &s
	m := p.formatModule(c.id.ScaleDType)
	if err := c.format.Check(m, s.natural(c.id.StaticGroups)); err != nil {
		return p, &Error{Code: "E0130", Exit: ExitUsage, What: fmt.Sprintf("module %s [%d, %d] cannot be written as %s", l.Module, l.Out, l.In, c.id.Format), Err: err,
			Try: fmt.Sprintf("choose another group size, or leave it out with --ignore %s", l.Module)}
	}
	return p, nil
}

// optIn says whether a role is copied by default but may be quantized when a rule names it.
func optIn(r model.Role) bool {
	return r == model.RoleKVB || r == model.RoleHead || latent(r)
}

// latent says whether a role is one of the projections around the compressed keys and queries of latent attention.
func latent(r model.Role) bool { return r == model.RoleQA || r == model.RoleQB || r == model.RoleKVA }

// copyFate is the fate of a linear that is left alone.
func copyFate(l *model.Linear) model.Fate {
	if l.Fate == model.FateDecode {
		return model.FateDecode
	}
	return model.FateCopy
}

// formatModule is the module as a format plans it.
func (p *ModulePlan) formatModule(scaleDType string) *format.Module {
	return &format.Module{Name: p.Module, Out: p.Out, In: p.In, Bits: p.Scheme.Bits, GroupSize: p.Scheme.GroupSize, Sym: p.Scheme.Sym, ScaleDType: scaleDTypeOf(scaleDType)}
}

func scaleDTypeOf(s string) format.DType {
	switch s {
	case "bf16":
		return format.BF16
	case "f16":
		return format.F16
	}
	return format.F32
}

// checkSets refuses rules that treat parts of what loaders fuse differently.
func (c *chooser) checkSets(modules []ModulePlan) error {
	sum := &format.Summary{}
	for _, m := range modules {
		if m.Scheme != nil {
			sum.Modules = append(sum.Modules, m.written(c.id.StaticGroups))
		} else {
			sum.Left = append(sum.Left, m.Module)
		}
	}
	if err := sum.CheckFused(); err != nil {
		return &Error{Code: "E0131", Exit: ExitUsage, What: "the recipe splits modules that loaders build as one", Err: err,
			Try: "widen the ignore or dynamic pattern so that it matches all of them"}
	}
	return nil
}

// unusedEntries lists ignore entries and rules that matched nothing: most often slips.
func (c *chooser) unusedEntries() []string {
	var out []string
	for _, p := range c.id.Ignore {
		if !c.used[p] && p != "lm_head" {
			out = append(out, "ignore "+p)
		}
	}
	for _, r := range c.rules {
		if r.hits == 0 {
			out = append(out, "dynamic "+r.Pattern)
		}
	}
	return out
}
