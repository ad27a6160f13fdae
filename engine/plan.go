package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"quire/capture/checkpoint"
	"quire/capture/model"
	"quire/capture/text"
	"quire/engine/format"
	"quire/engine/lint"
	"quire/kernels"
	"quire/ledger"
)

// Plan is everything that can be said before any weight is read.
type Plan struct {
	Identity PlanIdentity `json:"identity"`
	Advice   Advice       `json:"advice"`
	Digest   string       `json:"plan_digest"` // SHA-256 of the canonical JSON of Identity

	Settings    *Settings         `json:"-"`
	Calibration *text.Calibration `json:"-"`

	recipe     *Recipe
	checkpoint Checkpoint
	model      *model.Model
	byModule   map[string]*ModulePlan
	format     format.Format
	budget     Budget
	decoded    map[string]bool // logical tensors that are made from codes and scales
}

// PlanIdentity is what decides the bytes of the result, apart from the contents of the shards.
type PlanIdentity struct {
	Settings    Identity     `json:"settings"`
	Contract    string       `json:"contract"`
	Solver      string       `json:"solver"`
	Family      string       `json:"family"`
	Headers     string       `json:"headers"` // SHA-256 over names, dtypes, shapes and places of all stored tensors
	Config      string       `json:"config"`
	SideFiles   []FileDigest `json:"side_files"`            // tokenizer, templates, generation config, remote code
	Calibration string       `json:"calibration,omitempty"` // digest of the batches of token ids
	Batches     int          `json:"batches"`
}

// solverVersion changes when a solver gives other codes for the same input.
const solverVersion = "quire-solver-1"

// Advice is the part of a plan that changes no byte.
type Advice struct {
	Modules   []ModulePlan       `json:"modules"`
	Tensors   []TensorPlan       `json:"tensors"`
	Shards    []ShardPlan        `json:"shards"`
	Findings  []Finding          `json:"findings"`
	Memory    Estimate           `json:"memory"`
	Disk      Estimate           `json:"disk"`
	Counts    Modules            `json:"counts"`
	TP        []lint.TPRow       `json:"tensor_parallel"`
	Warnings  []string           `json:"warnings,omitempty"`
	Stored    []StoredRow        `json:"stored"`
	Coverage  []CoverageForecast `json:"coverage,omitempty"`
	Work      Operations         `json:"work"`
	Order     string             `json:"loop_order"`
	BatchRows int64              `json:"calibration_rows"`
}

// BuildPlan resolves a recipe against the headers of its model. Nothing is written and no weight is read; calibration
// files are read and tokenized.
func BuildPlan(ctx context.Context, r *Recipe) (*Plan, error) {
	return buildPlan(ctx, r, false)
}

func buildPlan(ctx context.Context, r *Recipe, resume bool) (*Plan, error) {
	if deref(r.Model, "") == "" {
		return nil, usage("E0110", "MODEL", "give the directory of the checkpoint", "no model")
	}
	ck, err := OpenCheckpoint(ctx, *r.Model)
	if err != nil {
		return nil, err
	}
	return planFor(ctx, r, ck, resume)
}

func planFor(ctx context.Context, r *Recipe, ck Checkpoint, resume bool) (*Plan, error) {
	s, err := r.Resolve(ck.WeightDType())
	if err != nil {
		return nil, err
	}
	compute, err := model.ParseCompute(s.Identity.Compute)
	if err != nil {
		return nil, err
	}
	m, err := model.Open(ctx, ck, model.Options{Compute: compute})
	if err != nil {
		return nil, err
	}
	if s.Identity.LMHead && m.Tied && !s.Identity.Untie {
		return nil, usage("E0132", "lm_head", "add --untie to give the head a tensor of its own, or leave lm_head off",
			"the output head is tied to the embedding")
	}
	p := &Plan{recipe: r, Settings: s, checkpoint: ck, model: m, byModule: map[string]*ModulePlan{}}
	if p.format, err = format.Lookup(s.Identity.Format); err != nil {
		return nil, err
	}
	if err := p.decideFates(); err != nil {
		return nil, err
	}
	if p.calibrated() {
		if err := p.chooseCalibration(ctx, resume); err != nil {
			return nil, err
		}
	}
	outs, err := p.outTensors()
	if err != nil {
		return nil, err
	}
	p.Advice.Shards = planShards(outs, s.Identity.MaxShardSize)
	if err := p.judgeTargets(outs); err != nil {
		return nil, err
	}
	id := &p.Identity
	id.Settings, id.Contract, id.Solver, id.Family = s.Identity, kernels.ContractID, solverVersion, m.Family
	id.Headers, id.Config = ck.HeadersDigest(), digest(ck.ConfigJSON())
	if id.SideFiles, err = ck.SideFileDigests(); err != nil {
		return nil, err
	}
	for _, f := range ck.Unused() {
		p.Advice.Warnings = append(p.Advice.Warnings, fmt.Sprintf("%s is no part of the checkpoint: the index does not name it, and it is neither read nor copied", f.Name))
	}
	if p.Calibration != nil {
		id.Calibration, id.Batches = p.Calibration.Digest, len(p.Calibration.Batches)
	}
	if p.Digest, err = digestJSON(id); err != nil {
		return nil, err
	}
	if err := p.forecast(); err != nil {
		return nil, err
	}
	return p, p.estimate()
}

// calibrated says whether any module needs calibration data.
func (p *Plan) calibrated() bool {
	for i := range p.Advice.Modules {
		if s := p.Advice.Modules[i].Scheme; s != nil && s.Method != "rtn" {
			return true
		}
	}
	return false
}

func (p *Plan) module(name string) *ModulePlan { return p.byModule[name] }

// keepPartials says whether the payload of a partial over n columns is stored. Under auto it is where that costs nothing
// to speak of: up to 256 KiB, or 361 columns. A larger one takes about as long to encode and write as to compute again
// from a thousand rows, and the layer's forward pass, without which there are no rows, is repeated in either case.
func (p *Plan) keepPartials(n int) bool {
	switch p.Settings.StorePartials {
	case "always":
		return true
	case "never":
		return false
	}
	return 4*triangleLen(n) <= 256<<10
}

// sourceRefs names the source events that a module's weight comes from.
func (p *Plan) sourceRefs(m *ModulePlan) []ledger.Ref {
	return p.checkpoint.SourceRefs(m.linear.Tensor())
}

func (p *Plan) decideFates() error {
	c, err := newChooser(&p.Settings.Identity)
	if err != nil {
		return err
	}
	linears := p.model.Linears()
	p.Advice.Modules = make([]ModulePlan, 0, len(linears))
	for _, l := range linears {
		mp, err := c.module(l)
		if err != nil {
			return err
		}
		p.Advice.Modules = append(p.Advice.Modules, mp)
		if mp.Scheme != nil {
			p.Advice.Counts.Quantized++
		} else {
			p.Advice.Counts.Copied++
		}
	}
	for i := range p.Advice.Modules {
		p.byModule[p.Advice.Modules[i].Module] = &p.Advice.Modules[i]
	}
	if err := c.checkSets(p.Advice.Modules); err != nil {
		return err
	}
	for _, e := range c.unusedEntries() {
		p.Advice.Findings = append(p.Advice.Findings, Finding{Code: "F_UNUSED", Where: e, Text: "matches no module"})
	}
	if p.Advice.Counts.Quantized == 0 {
		return usage("E0133", "recipe", "loosen ignore and dynamic", "no module would be quantized")
	}
	p.decoded = map[string]bool{}
	for _, cl := range p.model.Claims() {
		if cl.Tensor.Decoded {
			p.decoded[cl.Tensor.Name] = true
		}
		t := TensorPlan{Tensor: cl.Tensor.Name, Fate: cl.Fate, Reason: cl.Reason, Outputs: cl.Outputs}
		if len(cl.Linears) > 0 && cl.Role != model.RoleBias {
			mp := p.byModule[cl.Linears[0].Module]
			t.Fate, t.Reason = mp.Fate, mp.Reason
		}
		p.Advice.Tensors = append(p.Advice.Tensors, t)
	}
	return nil
}

// chooseCalibration takes the batches from the ledger of a run that is resumed, and from the calibration files
// otherwise. Files that have gone since a run began are not needed again.
func (p *Plan) chooseCalibration(ctx context.Context, resume bool) error {
	var err error
	if !resume {
		if p.Calibration, err = loadCalibration(ctx, p.Settings, p.model.Vocab, os.Stdin); err != nil && !missing(err) {
			return err
		}
	}
	if p.Calibration == nil {
		cal, lerr := recordedCalibration(ctx, p.Settings.RunDir)
		switch {
		case lerr != nil && (resume || !errors.Is(lerr, ledger.ErrDamaged)):
			return lerr
		case cal == nil && err != nil:
			return err
		case cal == nil:
			if cal, err = loadCalibration(ctx, p.Settings, p.model.Vocab, os.Stdin); err != nil {
				return err
			}
		default:
			if err := sameCalibration(cal); err != nil {
				return err
			}
			if !resume {
				p.Advice.Warnings = append(p.Advice.Warnings, fmt.Sprintf("calibration: %v; the batches recorded in %s are used", err, p.Settings.RunDir))
			}
		}
		p.Calibration = cal
	}
	p.Advice.Warnings = append(p.Advice.Warnings, p.Calibration.Warnings...)
	p.Advice.BatchRows = int64(p.Calibration.Counts.Rows)
	return nil
}

// CalibrationOf reads calibration files as a run with this recipe would. vocab bounds the token ids, 0 for no bound;
// stdin is what the file name - reads. Of the model directory it needs tokenizer and template only.
func CalibrationOf(ctx context.Context, r *Recipe, vocab int, stdin io.Reader) (*text.Calibration, error) {
	s, err := r.Resolve("BF16")
	if err != nil {
		return nil, err
	}
	return loadCalibration(ctx, s, vocab, stdin)
}

// loadCalibration turns the calibration files into batches.
func loadCalibration(ctx context.Context, s *Settings, vocab int, stdin io.Reader) (*text.Calibration, error) {
	if len(s.Calibration) == 0 {
		return nil, usage("E0140", "--calibration", "give --calibration FILE (.jsonl, .txt, .parquet, .u16 …), or use --method rtn", "method %s needs calibration data", s.Identity.Method)
	}
	files, err := text.ExpandFiles(s.Calibration)
	if err != nil {
		return nil, err
	}
	id := &s.Identity
	o := text.Options{Samples: id.Samples, SeqLen: id.SeqLen, MinLen: id.MinLen, Seed: int64(id.Seed), Concat: id.Concat, Shuffle: id.Shuffle,
		Count: text.Count(id.Count), TemplateDate: id.TemplateDate, VocabSize: vocab, Stdin: stdin, Threads: s.Threads}
	if id.Sort != "none" {
		o.Sort = id.Sort
	}
	var tok *text.Tokenizer
	var tmpl *text.Template
	if mayHoldText(files) { // what is missing is reported by the record that needs it
		dir, err := checkpoint.Directory(s.Model)
		if err != nil {
			return nil, err
		}
		tok, o.NoTokenizer = text.LoadTokenizer(dir)
		tmpl, o.NoTemplate = text.LoadTemplate(dir, "")
	}
	return text.LoadSamples(ctx, tok, tmpl, files, o)
}

// mayHoldText says whether any file may hold something else than token ids.
func mayHoldText(files []string) bool {
	for _, f := range files {
		f = strings.TrimSuffix(strings.TrimSuffix(f, ".gz"), ".zst")
		if !strings.HasSuffix(f, ".u16") && !strings.HasSuffix(f, ".u32") {
			return true
		}
	}
	return false
}

// outTensors lists the tensors of the result.
func (p *Plan) outTensors() ([]OutTensor, error) {
	var out []OutTensor
	for _, cl := range p.model.Claims() {
		quantized := false
		for _, l := range cl.Linears {
			mp := p.byModule[l.Module]
			if mp == nil || mp.Scheme == nil || cl.Role == model.RoleBias {
				continue
			}
			quantized = true
			specs, err := p.format.Plan(mp.formatModule(p.Settings.Identity.ScaleDType))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", mp.Module, err)
			}
			for _, s := range specs {
				out = append(out, OutTensor{Name: s.Name, DType: string(s.DType), Shape: s.Shape, Bytes: s.Bytes(), Module: mp.Module, Layer: cl.Layer})
			}
		}
		if !quantized || p.model.Tied && cl.Role == model.RoleEmbed {
			out = append(out, p.plain(cl)...)
		}
	}
	seen := map[string]string{}
	for _, t := range out {
		if was, ok := seen[t.Name]; ok {
			return nil, fmt.Errorf("two tensors of the result are called %s (from %s and %s)", t.Name, was, t.Source+t.Module)
		}
		seen[t.Name] = t.Source + t.Module
	}
	return out, nil
}

// plain lists the output tensors of a claim that is copied or decoded.
func (p *Plan) plain(cl model.Claim) []OutTensor {
	dt := cl.Tensor.DType
	if cl.Tensor.Decoded {
		dt = "BF16"
	}
	whole := OutTensor{Name: cl.Tensor.Name, DType: dt, Shape: cl.Tensor.Shape, Bytes: cl.Tensor.Elements() * dtypeBytes(dt), Source: cl.Tensor.Name, Layer: cl.Layer}
	if cl.Role != model.RoleBias || len(cl.Outputs) < 2 || !p.expertsQuantized(cl) {
		return []OutTensor{whole}
	}
	var out []OutTensor // biases of fused experts, one for each quantized expert linear
	for _, name := range cl.Outputs {
		l := p.model.Linear(strings.TrimSuffix(name, ".bias"))
		out = append(out, OutTensor{Name: name, DType: dt, Shape: []int{l.Out}, Bytes: int64(l.Out) * dtypeBytes(dt), Source: cl.Tensor.Name, Layer: cl.Layer, bias: l})
	}
	return out
}

func (p *Plan) expertsQuantized(cl model.Claim) bool {
	mp := p.byModule[strings.TrimSuffix(cl.Outputs[0], ".bias")]
	return mp != nil && mp.Scheme != nil
}

func dtypeBytes(dt string) int64 {
	switch dt {
	case "F64", "I64", "U64":
		return 8
	case "F32", "I32", "U32":
		return 4
	case "F16", "BF16", "I16", "U16":
		return 2
	}
	return 1
}
