package engine

import (
	"encoding/binary"
	"fmt"
	"sort"
	"strings"

	"quire/engine/format"
	"quire/engine/lint"
)

// judgeTargets holds the planned result against the loaders it is for, as lint would when it is written: which schemes
// they run, what they make of the exclusions, which degrees of tensor parallelism every width allows.
func (p *Plan) judgeTargets(outs []OutTensor) error {
	conf, err := p.format.Config(p.plannedSummary())
	if err != nil {
		return err
	}
	config, err := p.checkpoint.OutputConfig(conf.QuantizationConfig)
	if err != nil {
		return err
	}
	planned := lint.Planned{Files: map[string][]byte{"config.json": config}}
	for name, b := range conf.Files {
		planned.Files[name] = b
	}
	for _, t := range outs {
		pt := lint.PlannedTensor{Name: t.Name, DType: t.DType, Shape: t.Shape}
		if strings.HasSuffix(t.Name, ".weight_shape") {
			m := p.module(t.Module)
			pt.Data = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(m.Out)), uint64(m.In))
		}
		planned.Tensors = append(planned.Tensors, pt)
	}
	report, err := lint.Check(planned, lint.Options{Profiles: p.Settings.Target, Limit: 3})
	if err != nil {
		return err
	}
	p.Advice.TP = report.TP
	for _, f := range report.Findings {
		if f.Severity == lint.Note {
			continue
		}
		text := f.Message
		if f.Profile != "" {
			text = f.Profile + ": " + text
		}
		if p.Settings.StrictTarget && f.Severity == lint.Error {
			return usage("E0134", f.Subject, f.Remedy+"; without --strict-target this is a warning", "a target could not load the result: %s (%s)", text, f.Code)
		}
		p.Advice.Findings = append(p.Advice.Findings, Finding{Code: f.Code, Where: f.Subject, Text: text})
	}
	for _, m := range report.More {
		p.Advice.Warnings = append(p.Advice.Warnings, fmt.Sprintf("%d more of %s", m.Count, m.Code))
	}
	return nil
}

// plannedSummary is what the config will say if every module takes the scheme that is planned for it.
func (p *Plan) plannedSummary() *format.Summary {
	sum := &format.Summary{Producer: "quire"}
	quantized := map[string]bool{}
	for i := range p.Advice.Modules {
		if m := &p.Advice.Modules[i]; m.Scheme != nil {
			quantized[m.Module] = true
			sum.Modules = append(sum.Modules, m.written(p.Settings.Identity.StaticGroups))
		}
	}
	sum.Left = p.left(quantized)
	return sum
}

// written describes a planned module to its format.
func (m *ModulePlan) written(staticGroups bool) format.Written {
	return format.Written{Name: m.Module, Scheme: format.Scheme{Bits: m.Scheme.Bits, GroupSize: m.Scheme.GroupSize, Sym: m.Scheme.Sym}, GIdx: !m.Scheme.natural(staticGroups)}
}

// left lists the matrices that are not quantized, by the names loaders give them.
func (p *Plan) left(quantized map[string]bool) []string {
	left := map[string]bool{}
	for _, cl := range p.model.Claims() {
		if len(cl.Tensor.Shape) < 2 {
			continue
		}
		names := []string{strings.TrimSuffix(cl.Tensor.Name, ".weight")}
		if len(cl.Linears) > 0 {
			names = names[:0]
			for _, l := range cl.Linears {
				names = append(names, l.Module)
			}
		}
		for _, n := range names {
			if !quantized[n] {
				left[n] = true
			}
		}
	}
	out := make([]string, 0, len(left))
	for n := range left {
		out = append(out, n)
	}
	sort.Strings(out)
	return out
}
