package model

import (
	"context"

	"quire/kernels"
)

// Compute is the arithmetic of the forward pass (doc.go, "Numbers").
type Compute int

const (
	// F32 computes everything in float32.
	F32 Compute = iota
	// BF16 rounds rows of sites, weights of linears and the residual at layer borders to bf16.
	BF16
)

// String gives the name that options take.
func (c Compute) String() string {
	if c == BF16 {
		return "bf16"
	}
	return "f32"
}

// ParseCompute reads "f32" or "bf16".
func ParseCompute(s string) (Compute, error) {
	switch s {
	case "f32":
		return F32, nil
	case "bf16":
		return BF16, nil
	}
	return F32, &Error{Kind: ErrInput, What: "compute " + s, Where: Where{Layer: -1, Row: -1}, Try: "f32 or bf16"}
}

// ElemBytes is the size of one element of a site row and of a stored hidden state.
func (c Compute) ElemBytes() int64 {
	if c == BF16 {
		return 2
	}
	return 4
}

// Options of Open.
type Options struct {
	Compute Compute
}

// Model is a checkpoint understood: dimensions, layers, linears, sites and claims. It holds no weights.
type Model struct {
	Family  string
	Hidden  int
	Vocab   int
	Compute Compute
	Layers  []*Layer
	// Tied says that the output head multiplies with the embedding matrix.
	Tied bool
	// Head is the output head; with Tied its source tensor is the embedding's.
	Head *Linear

	arch   *arch
	src    Source
	claims []Claim
	byName map[string]*Linear
	tensor map[string]Tensor
}

// Claims lists what the family says about every logical tensor, sorted by name.
func (m *Model) Claims() []Claim { return m.claims }

// Linear finds a linear by its output module name, nil if there is none.
func (m *Model) Linear(module string) *Linear { return m.byName[module] }

// Linears lists all linears of all layers in order of execution, the head last.
func (m *Model) Linears() []*Linear {
	var out []*Linear
	for _, l := range m.Layers {
		out = append(out, l.linears...)
	}
	if m.Head != nil {
		out = append(out, m.Head)
	}
	return out
}

// Open reads config and headers from src, resolves the family, claims every tensor and checks every shape. It reads no
// weight. The error is a Faults or an *Error.
func Open(ctx context.Context, src Source, o Options) (*Model, error) {
	name, a, err := resolve(src.ConfigJSON())
	if err != nil {
		return nil, err
	}
	m := &Model{Family: name, Hidden: a.hidden, Vocab: a.vocab, Compute: o.Compute, Tied: a.tied, arch: a, src: src}
	if err := m.claim(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

// RunnerOptions configure a Runner.
type RunnerOptions struct {
	Pool *kernels.Pool // nil runs inline
	// ScratchBytes bounds the temporary rows of experts and attention inside one call; 0 means 64 MiB. It changes no bit.
	ScratchBytes int64
}

// Runner executes a model with weights read on demand. It is used from one goroutine at a time; work inside a call is
// spread over the pool.
type Runner struct {
	m    *Model
	pool *kernels.Pool
	opt  RunnerOptions
}

// NewRunner makes a runner.
func (m *Model) NewRunner(o RunnerOptions) *Runner {
	if o.ScratchBytes <= 0 {
		o.ScratchBytes = 64 << 20
	}
	return &Runner{m: m, pool: o.Pool, opt: o}
}

// Model gives the model.
func (r *Runner) Model() *Model { return r.m }

// Model gives the model that the layer belongs to.
func (run *LayerRun) Model() *Model { return run.m }

// Pool gives the pool that the runner spreads its work over; nil runs inline.
func (r *Runner) Pool() *kernels.Pool { return r.pool }
