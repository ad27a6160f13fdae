package capture

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strings"

	"quire/capture/model"
	"quire/kernels"
)

// TraceTensor is one recorded tensor: F32 unless it holds integers.
type TraceTensor struct {
	Name  string
	Shape []int
	F32   []float32
	I32   []int32
}

// Bytes is the little-endian form, as safetensors stores it.
func (t TraceTensor) Bytes() []byte {
	out := make([]byte, 0, 4*(len(t.F32)+len(t.I32)))
	for _, v := range t.F32 {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	for _, v := range t.I32 {
		out = binary.LittleEndian.AppendUint32(out, uint32(v))
	}
	return out
}

// DType is F32 or I32.
func (t TraceTensor) DType() string {
	if t.I32 != nil {
		return "I32"
	}
	return "F32"
}

// SHA256 is the digest of Bytes in hex.
func (t TraceTensor) SHA256() string {
	s := sha256.Sum256(t.Bytes())
	return hex.EncodeToString(s[:])
}

// TraceOptions of Trace.
type TraceOptions struct {
	// Sites names layers whose linears' inputs are recorded as p{i}.in.PATH, with p{i}.rows.PATH for routed experts.
	Sites []int
	// Emit gets every tensor, in a fixed order.
	Emit func(TraceTensor) error
	// Routers is told the native rows by expert of every block, over all prompts.
	Routers func(layer int, c *Coverage)
}

// Trace runs the prompts one by one and emits what the forward saw, under the key names of fixtures/arch: p{i}.input_ids,
// p{i}.embed, p{i}.hidden.{L}, p{i}.router_logits.{L}, p{i}.router_topk.{L}, p{i}.router_weights.{L}, p{i}.final_norm,
// p{i}.logits. PATH of an input is the source tensor's name without ".weight"; linears of a fused tensor add ".{expert}".
func Trace(ctx context.Context, r *model.Runner, prompts [][]int32, o TraceOptions) error {
	m := r.Model()
	x := make([]kernels.Rows, len(prompts))
	for p, ids := range prompts {
		var err error
		if x[p], err = r.Embed(ctx, ids); err != nil {
			return err
		}
		if err := o.Emit(TraceTensor{Name: fmt.Sprintf("p%d.input_ids", p), Shape: []int{len(ids)}, I32: ids}); err != nil {
			return err
		}
		if err := o.emit(fmt.Sprintf("p%d.embed", p), x[p]); err != nil {
			return err
		}
	}
	for i, l := range m.Layers {
		run, err := r.OpenLayer(ctx, i)
		if err != nil {
			return err
		}
		cov := &Coverage{}
		for p := range prompts {
			if x[p], err = o.layer(ctx, run, p, x[p], cov); err != nil {
				run.Close()
				return err
			}
		}
		run.Close()
		if l.Block != nil && o.Routers != nil {
			o.Routers(i, cov)
		}
	}
	h, err := r.OpenHead(ctx)
	if err != nil {
		return err
	}
	for p := range prompts {
		if err := o.emit(fmt.Sprintf("p%d.final_norm", p), h.Normed(x[p])); err != nil {
			return err
		}
		y := make([]float32, x[p].M*m.Vocab)
		h.Logits(x[p], y)
		if err := o.Emit(TraceTensor{Name: fmt.Sprintf("p%d.logits", p), Shape: []int{x[p].M, m.Vocab}, F32: y}); err != nil {
			return err
		}
	}
	return nil
}

func (o TraceOptions) emit(name string, x kernels.Rows) error {
	v := make([]float32, x.M*x.K)
	model.CopyF32(v, x)
	return o.Emit(TraceTensor{Name: name, Shape: []int{x.M, x.K}, F32: v})
}

func (o TraceOptions) wants(layer int) bool {
	for _, l := range o.Sites {
		if l == layer {
			return true
		}
	}
	return false
}

// layer runs one prompt through one layer.
func (o TraceOptions) layer(ctx context.Context, run *model.LayerRun, p int, x kernels.Rows, cov *Coverage) (kernels.Rows, error) {
	i := run.Layer.Index
	s, err := run.NewSpan([]int{x.M}, x)
	if err != nil {
		return x, err
	}
	for !s.Done() {
		st := run.Layer.Stages[s.Stage()]
		if o.wants(i) {
			for _, site := range st.Sites {
				rows, err := s.Rows(site)
				if err != nil {
					return x, err
				}
				for _, l := range site.Linears {
					if err := o.emit(fmt.Sprintf("p%d.in.%s", p, Path(l)), rows); err != nil {
						return x, err
					}
				}
			}
		}
		if st.Block != nil {
			if err := o.block(ctx, run, s, p, cov); err != nil {
				return x, err
			}
		}
		if err := s.Advance(ctx); err != nil {
			return x, err
		}
	}
	y, err := s.Output()
	if err != nil {
		return x, err
	}
	return y, o.emit(fmt.Sprintf("p%d.hidden.%d", p, i), y)
}

// Path is the source tensor of a linear without ".weight", with the expert's number when the tensor holds several.
func Path(l *model.Linear) string {
	path := strings.TrimSuffix(l.Tensor(), ".weight")
	if l.Fused() {
		path = fmt.Sprintf("%s.%d", path, l.Expert)
	}
	return path
}

func (o TraceOptions) block(ctx context.Context, run *model.LayerRun, s *model.Span, p int, cov *Coverage) error {
	i, r := run.Layer.Index, s.Routing()
	cov.Add(r.Rows(), r.Counts())
	for _, t := range []TraceTensor{
		{Name: fmt.Sprintf("p%d.router_logits.%d", p, i), Shape: []int{r.Rows(), r.Experts}, F32: r.Logits},
		{Name: fmt.Sprintf("p%d.router_topk.%d", p, i), Shape: []int{r.Rows(), r.TopK}, I32: r.Choice},
		{Name: fmt.Sprintf("p%d.router_weights.%d", p, i), Shape: []int{r.Rows(), r.TopK}, F32: r.Weight},
	} {
		if err := o.Emit(t); err != nil {
			return err
		}
	}
	if !o.wants(i) {
		return nil
	}
	var in, mid model.RowBuf
	for e := range run.Layer.Block.Experts {
		ids, _ := r.Native(e)
		if len(ids) == 0 {
			continue
		}
		if err := run.LoadExperts(ctx, e, e+1); err != nil {
			return err
		}
		a, err := s.ExpertRows(&in, e, ids)
		if err != nil {
			return err
		}
		b, err := s.ExpertMid(&mid, e, a)
		if err != nil {
			return err
		}
		seen := ""
		for _, l := range run.Layer.Expert(e) {
			rows := a
			if l.Site.Name == model.SiteExpertMid {
				rows = b
			}
			if Path(l) == seen { // gate and up of one fused tensor
				continue
			}
			seen = Path(l)
			if err := o.emit(fmt.Sprintf("p%d.in.%s", p, seen), rows); err != nil {
				return err
			}
			if err := o.Emit(TraceTensor{Name: fmt.Sprintf("p%d.rows.%s", p, seen), Shape: []int{len(ids)}, I32: append([]int32{}, ids...)}); err != nil {
				return err
			}
		}
		run.UnloadExperts(e, e+1)
	}
	if site := run.Layer.Block.SharedMid; site != nil {
		rows, err := s.SharedMid(&mid)
		if err != nil {
			return err
		}
		for _, l := range site.Linears {
			if err := o.emit(fmt.Sprintf("p%d.in.%s", p, Path(l)), rows); err != nil {
				return err
			}
		}
	}
	return nil
}
