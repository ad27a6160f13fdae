package quant

import (
	"fmt"
	"sync"

	"quire/kernels"
)

// dampingTries bounds the ladder of one precision: the share grows by DampIncrement that often.
const dampingTries = 12

// Prepared is what all linears that read one statistic share: order, dead columns, damping and U. It is read-only after
// Prepare and may be used by any number of Solve calls at once.
type Prepared struct {
	o    Options
	h    Hessian
	n    int
	dead []int32 // columns
	perm []int32 // nil = natural
	inv  []int32 // inverse of perm
	kind string  // order

	position []int32 // position → group
	gidx     []int32 // column → group, nil = natural

	damping Damping
	block   int
	diagU   []float32 // U[i,i] in visiting order; nil when no factor exists
	factor  *kernels.Factor
	added   []float64 // diagonal of the damped statistic less that of H, by column; 0 for a dead column

	formsOnce sync.Once
	forms     *errorForms
}

// Prepare checks a statistic and computes what its linears share. It returns a *ValueError for a statistic that no
// solve may see, an *OptionError for options that contradict each other, and ErrNotPositiveDefinite if nothing of the
// ladder helps and Options.Fallback is "fail". h.H is read, not changed; h must not change while the result is in use.
func Prepare(pool *kernels.Pool, h Hessian, o Options) (*Prepared, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if err := h.Check(); err != nil {
		return nil, err
	}
	n := h.N
	p := &Prepared{o: o, h: h, n: n, block: o.block(n)}
	diag := make([]float32, n)
	var live int
	var sum float64
	for i := range n {
		d := h.H[i*n+i]
		diag[i] = d
		if d == 0 {
			p.dead = append(p.dead, int32(i))
			continue
		}
		live++
		sum += float64(d)
	}
	quirk := o.Parity != ""
	if quirk {
		// The libraries put 1 on the diagonal of a dead column before they sort and before they take the mean.
		for _, d := range p.dead {
			diag[d] = 1
			sum++
		}
		live = n
	}
	p.perm, p.kind = o.order(diag)
	if p.perm != nil {
		p.inv = make([]int32, n)
		for at, c := range p.perm {
			p.inv[c] = int32(at)
		}
	}
	p.position, p.gidx = o.groupOfPosition(p.perm, n)
	if live == 0 {
		// Nothing was ever active: there is no output error to minimise.
		p.damping = Damping{Precision: precisionNone}
		return p, nil
	}
	mean := sum / float64(live)
	p.damping.Mean = mean
	if !quirk {
		for _, d := range p.dead {
			diag[d] = float32(mean)
		}
	}
	p.factorize(pool, diag)
	if p.diagU != nil {
		p.added = make([]float64, n)
		for c, d := range diag {
			if v := h.H[c*n+c]; v != 0 {
				damped := float64(d) + p.damping.Added
				if p.damping.Precision == precisionF32 {
					damped = float64(float32(damped))
				}
				p.added[c] = damped - float64(v)
			}
		}
	}
	if p.diagU == nil && o.Fallback == "fail" {
		last := p.damping.Tries[len(p.damping.Tries)-1]
		return nil, fmt.Errorf("%w: statistic %s [%d,%d] of %d rows, last try damp %.3g in %s stopped at pivot %d (%.3g); raise damp_percent, use more calibration rows, or fallback rtn",
			ErrNotPositiveDefinite, h.Site, n, n, h.Rows, last.Share, last.Precision, last.Pivot, last.Value)
	}
	return p, nil
}

// Dead gives the columns without activity.
func (p *Prepared) Dead() []int32 { return p.dead }

// Order gives perm[new position] = column, nil for the natural order.
func (p *Prepared) Order() []int32 { return p.perm }

// Factored tells whether the statistic could be factorized. If not, Solve rounds to nearest and says so.
func (p *Prepared) Factored() bool { return p.diagU != nil }

// Damping gives the ladder's outcome.
func (p *Prepared) Damping() Damping { return p.damping }
