package model

import (
	"context"
	"slices"
	"sort"
	"strings"
)

// slice says where a linear lies in its source tensor: element (o,i) at base + o·so + i·si.
type slice struct {
	base, so, si int64
	part         bool  // the tensor holds more than this linear
	span         int64 // elements from base that hold all of it (for strided reads)
}

func (s slice) fused() bool { return s.part }

// fates by role; what is not named is copied without being a matter of choice.
var roleFate = map[Role]struct {
	fate   Fate
	reason string
}{
	RoleQ: {FateQuantize, "attention"}, RoleK: {FateQuantize, "attention"}, RoleV: {FateQuantize, "attention"},
	RoleQKV: {FateQuantize, "attention"}, RoleO: {FateQuantize, "attention"}, RoleAttnGate: {FateQuantize, "attention output gate"},
	RoleQA: {FateQuantize, "latent attention"}, RoleQB: {FateQuantize, "latent attention"}, RoleKVA: {FateQuantize, "latent attention"},
	RoleKVB:  {FateCopy, "loaders absorb kv_b_proj into the attention in their own ways"},
	RoleGate: {FateQuantize, "feed-forward"}, RoleUp: {FateQuantize, "feed-forward"}, RoleGateUp: {FateQuantize, "feed-forward"}, RoleDown: {FateQuantize, "feed-forward"},
	RoleRouter:     {FateCopy, "router: loaders read it unquantized"},
	RoleSharedGate: {FateCopy, "shared-expert gate: loaders read it unquantized"},
	RoleHead:       {FateCopy, "output head: off by default"},
	RoleEmbed:      {FateCopy, "embedding: looked up, never multiplied"},
	RoleNorm:       {FateCopy, "norm"},
	RoleBias:       {FateCopy, "bias: added as it is"},
	RoleCorrection: {FateCopy, "router correction bias: choice depends on its last bits"},
	RoleSinks:      {FateCopy, "attention sinks"},
	RoleMTP:        {FateCopy, "multi-token prediction: not part of the forward pass that calibrates"},
	RoleVision:     {FateCopy, "not part of the text forward pass"},
	RoleBuffer:     {FateCopy, "computed by loaders, kept as found"},
}

// claimer collects claims and faults of one Open.
type claimer struct {
	m      *Model
	byName map[string]int // index into claims
	done   []bool
	faults Faults
}

func (m *Model) claim(ctx context.Context) error {
	ts := m.src.Logical()
	if err := ctx.Err(); err != nil {
		return err
	}
	m.claims = make([]Claim, len(ts))
	m.tensor = make(map[string]Tensor, len(ts))
	m.byName = map[string]*Linear{}
	c := &claimer{m: m, byName: make(map[string]int, len(ts)), done: make([]bool, len(ts))}
	for i, t := range ts {
		c.byName[t.Name] = i
		m.tensor[t.Name] = t
		m.claims[i] = Claim{Tensor: t, Layer: -1, Expert: -1, Outputs: []string{t.Name}}
	}
	a := m.arch
	c.small(a.embed, RoleEmbed, -1, a.vocab, a.hidden)
	for i := range a.layers {
		b := &layerBuilder{c: c, l: &Layer{Index: i, arch: a.layer(i), model: m}}
		b.declare()
		m.Layers = append(m.Layers, b.l)
	}
	c.head()
	for _, x := range a.extra {
		for i, t := range ts {
			if !c.done[i] && strings.HasPrefix(t.Name, x.prefix) && strings.HasSuffix(t.Name, x.suffix) {
				c.set(i, x.role, -1)
				if x.reason != "" {
					m.claims[i].Reason = x.reason
				}
			}
		}
	}
	for i, t := range ts {
		if !c.done[i] {
			c.faults = append(c.faults, errAt(ErrUnclaimed, t.Name, "%s %v belongs to no part of family %s", t.DType, t.Shape, m.Family))
		}
	}
	if len(c.faults) > 0 {
		sort.SliceStable(c.faults, func(i, j int) bool { return rank(c.faults[i]) < rank(c.faults[j]) })
		return c.faults
	}
	return nil
}

// rank puts what explains the other faults first.
func rank(e *Error) int { return slices.Index([]error{ErrLayout, ErrMissing, ErrUnclaimed}, e.Kind) }

// head claims final norm and output head.
func (c *claimer) head() {
	m, a := c.m, c.m.arch
	c.small(a.finalNorm, RoleNorm, -1, a.hidden)
	if a.norm.bias {
		c.small(strings.TrimSuffix(a.finalNorm, "weight")+"bias", RoleNorm, -1, a.hidden)
	}
	n := &Norm{Tensor: a.finalNorm, N: a.hidden, Offset: a.norm.offset, Layer: -1}
	site := &Site{Layer: -1, Name: SiteHead, Expert: -1, In: a.hidden, Norm: n}
	h := &Linear{Module: a.head, Role: RoleHead, Layer: -1, Expert: -1, Out: a.vocab, In: a.hidden, Site: site,
		Fate: FateCopy, Reason: roleFate[RoleHead].reason, tensor: a.head + ".weight", layout: plain(a.vocab, a.hidden)}
	if a.tied {
		h.tensor, h.Reason = a.embed, "output head tied to the embedding"
		if i, ok := c.byName[a.head+".weight"]; ok { // some files carry the duplicate
			c.set(i, RoleHead, -1)
		}
	} else {
		c.linear(h)
	}
	if a.headBias {
		h.bias = a.head + ".bias"
		c.small(h.bias, RoleBias, -1, a.vocab)
		h.biasLay = slice{so: 1}
	}
	h.DType = m.tensor[h.tensor].DType
	site.Linears, n.Consumers = []*Linear{h}, []*Linear{h}
	m.Head = h
	m.byName[h.Module] = h
}

func plain(out, in int) slice { return slice{so: int64(in), si: 1, span: int64(out) * int64(in)} }

// set claims tensor i; a second claim is a bug of a family file.
func (c *claimer) set(i int, role Role, layer int) {
	if c.done[i] {
		panic("model: " + c.m.claims[i].Tensor.Name + " claimed twice")
	}
	c.done[i] = true
	cl := &c.m.claims[i]
	f := roleFate[role]
	cl.Role, cl.Layer, cl.Fate, cl.Reason = role, layer, f.fate, f.reason
	if cl.Tensor.Decoded && cl.Fate == FateCopy {
		cl.Fate = FateDecode
		cl.Reason += "; the source's quantized form cannot stand beside ours"
	}
}

// small claims a tensor of a fixed shape.
func (c *claimer) small(name string, role Role, layer int, shape ...int) bool {
	i, ok := c.byName[name]
	if !ok {
		c.missing(name, layer, shape)
		return false
	}
	c.set(i, role, layer)
	return c.shape(i, layer, shape)
}

func (c *claimer) missing(name string, layer int, shape []int) {
	e := errAt(ErrMissing, name, "the family needs it with shape %v", shape)
	e.Where.Layer = layer
	c.faults = append(c.faults, e)
}

func (c *claimer) shape(i, layer int, want []int) bool {
	t := c.m.claims[i].Tensor
	if slices.Equal(t.Shape, want) {
		return true
	}
	e := errAt(ErrLayout, t.Name, "shape %v, the stated layout is %v", t.Shape, want)
	if len(t.Shape) == len(want) {
		x, y := slices.Clone(t.Shape), slices.Clone(want)
		slices.Sort(x)
		slices.Sort(y)
		if slices.Equal(x, y) {
			e.What += " (the axes are swapped)"
		}
	}
	e.Where.Layer = layer
	c.faults = append(c.faults, e)
	return false
}

// linear claims the tensor of a plain linear.
func (c *claimer) linear(l *Linear) {
	i, ok := c.byName[l.tensor]
	if !ok {
		c.missing(l.tensor, l.Layer, []int{l.Out, l.In})
		return
	}
	c.set(i, l.Role, l.Layer)
	c.shape(i, l.Layer, []int{l.Out, l.In})
	cl := &c.m.claims[i]
	cl.Expert, cl.Linears = l.Expert, []*Linear{l}
	l.DType = cl.Tensor.DType
}

// layerBuilder declares one layer.
type layerBuilder struct {
	c *claimer
	l *Layer
}

func (b *layerBuilder) declare() {
	l, a := b.l, b.l.arch
	l.Prefix = a.prefix
	a.mixer.declare(b)
	if a.postMixNorm != "" {
		b.norm(a.postMixNorm, b.c.m.arch.hidden)
	}
	in := l.Stages[0].Sites[0]
	if !a.parallel() {
		n := b.norm(a.mlpNorm, b.c.m.arch.hidden)
		name := SiteMLPIn
		if a.moe != nil {
			name = SiteBlockIn
		}
		in = b.site(b.stage(name), name, b.c.m.arch.hidden, n)
	}
	if a.moe != nil {
		if a.parallel() {
			b.stage(SiteBlockIn)
		}
		b.block(in)
	} else {
		mid := b.site(b.stage(SiteMLPMid), SiteMLPMid, a.dense.inter, nil)
		b.mlp(a.dense, in, mid, false)
	}
	if a.postMLPNorm != "" {
		b.norm(a.postMLPNorm, b.c.m.arch.hidden)
	}
	for _, s := range l.Stages {
		l.sites = append(l.sites, s.Sites...)
		if s.Block != nil {
			for e := range s.Block.Experts {
				l.sites = append(l.sites, s.Block.ExpertIn[e], s.Block.ExpertMid[e])
			}
			if s.Block.SharedMid != nil {
				l.sites = append(l.sites, s.Block.SharedMid)
			}
		}
	}
	for _, s := range l.sites {
		if s.Norm != nil {
			s.Norm.Consumers = append(s.Norm.Consumers, s.Linears...)
		}
		// The experts' rows are the block's rows: scaling the norm scales them too.
		if s.Name == SiteExpertIn {
			in.Norm.Consumers = append(in.Norm.Consumers, s.Linears...)
		}
	}
}

func (b *layerBuilder) stage(name string) *Stage {
	s := &Stage{Index: len(b.l.Stages), Name: name}
	b.l.Stages = append(b.l.Stages, s)
	return s
}

func (b *layerBuilder) site(st *Stage, name string, in int, n *Norm) *Site {
	s := &Site{Layer: b.l.Index, Name: name, Expert: -1, Stage: st.Index, In: in, Norm: n}
	st.Sites = append(st.Sites, s)
	return s
}

// norm claims a norm of the family's kind.
func (b *layerBuilder) norm(rel string, n int) *Norm {
	r := b.c.m.arch.norm
	x := &Norm{Tensor: b.l.Prefix + rel + ".weight", N: n, Offset: r.offset, Layer: b.l.Index}
	b.small(rel+".weight", RoleNorm, n)
	if r.bias {
		x.Bias = b.l.Prefix + rel + ".bias"
		b.small(rel+".bias", RoleNorm, n)
	}
	b.l.Norms = append(b.l.Norms, x)
	return x
}

// small claims a tensor that OpenLayer holds as float32.
func (b *layerBuilder) small(rel string, role Role, shape ...int) {
	name := b.l.Prefix + rel
	if b.c.small(name, role, b.l.Index, shape...) {
		b.l.small = append(b.l.small, name)
	}
}

// linear declares a plain linear and claims its tensors.
func (b *layerBuilder) linear(site *Site, rel string, role Role, out int, bias bool) *Linear {
	l := b.newLinear(site, rel, role, out)
	l.tensor, l.layout = l.Module+".weight", plain(out, site.In)
	b.c.linear(l)
	if bias {
		l.bias, l.biasLay = l.Module+".bias", slice{so: 1}
		b.c.small(l.bias, RoleBias, b.l.Index, out)
	}
	return l
}

func (b *layerBuilder) newLinear(site *Site, rel string, role Role, out int) *Linear {
	f := roleFate[role]
	l := &Linear{Module: b.l.Prefix + rel, Role: role, Layer: b.l.Index, Expert: site.Expert, Out: out, In: site.In, Site: site, Fate: f.fate, Reason: f.reason}
	parent := l.Module[:strings.LastIndexByte(l.Module, '.')+1]
	switch role {
	case RoleQ, RoleK, RoleV:
		l.FusedSet = parent + "qkv"
	case RoleGate, RoleUp:
		l.FusedSet = parent + "gate_up"
	case RoleQA, RoleKVA:
		l.FusedSet = parent + "qkv_a"
	}
	site.Linears = append(site.Linears, l)
	b.l.linears = append(b.l.linears, l)
	b.c.m.byName[l.Module] = l
	return l
}

func (b *layerBuilder) mlp(a *mlpArch, in, mid *Site, shared bool) {
	var ls []*Linear
	switch {
	case a.gateUp != "":
		ls = append(ls, b.linear(in, a.gateUp, RoleGateUp, 2*a.inter, a.bias))
	case a.gate != "":
		ls = append(ls, b.linear(in, a.gate, RoleGate, a.inter, a.bias), b.linear(in, a.up, RoleUp, a.inter, a.bias))
	default:
		ls = append(ls, b.linear(in, a.up, RoleUp, a.inter, a.bias))
	}
	for _, l := range append(ls, b.linear(mid, a.down, RoleDown, b.c.m.arch.hidden, a.bias)) {
		l.Shared = shared
	}
}

// block declares router, experts and shared experts.
func (b *layerBuilder) block(in *Site) {
	a, st, h := b.l.arch.moe, b.l.Stages[len(b.l.Stages)-1], b.c.m.arch.hidden
	k := &Block{Experts: a.experts, TopK: a.topK, Inter: a.inter, InputScaled: a.router.onInput, Gated: a.out.gate != ""}
	st.Block, b.l.Block = k, k
	k.Router = b.linear(in, a.router.module, RoleRouter, a.experts, a.router.bias)
	k.Router.FusedSet = ""
	if a.router.correction != "" {
		b.correction(a)
	}
	for e := range a.experts {
		k.ExpertIn = append(k.ExpertIn, &Site{Layer: b.l.Index, Name: SiteExpertIn, Expert: e, Stage: st.Index, In: h})
		k.ExpertMid = append(k.ExpertMid, &Site{Layer: b.l.Index, Name: SiteExpertMid, Expert: e, Stage: st.Index, In: a.inter})
	}
	b.experts(a, k)
	if a.shared != nil {
		k.SharedMid = &Site{Layer: b.l.Index, Name: SiteSharedMid, Expert: -1, Stage: st.Index, In: a.shared.inter}
		b.mlp(a.shared, in, k.SharedMid, true)
		if a.sharedGate != "" {
			b.linear(in, a.sharedGate, RoleSharedGate, 1, false)
		}
	}
	if a.topK > a.experts {
		b.fault(errAt(ErrConfig, "", "%d experts chosen out of %d", a.topK, a.experts))
	}
	if g := a.router.groups; g > 1 && (a.experts%g != 0 || a.router.topGroups < 1 || a.router.topGroups > g || a.router.topGroups*(a.experts/g) < a.topK) {
		b.fault(errAt(ErrConfig, "", "%d experts in %d groups, %d of them chosen", a.experts, g, a.router.topGroups))
	}
}

// correction claims the correction bias, whose vector some files store as a row.
func (b *layerBuilder) correction(a *moeArch) {
	name := b.l.Prefix + a.router.correction
	if i, ok := b.c.byName[name]; ok && slices.Equal(b.c.m.claims[i].Tensor.Shape, []int{1, a.experts}) {
		b.small(a.router.correction, RoleCorrection, 1, a.experts)
		return
	}
	b.small(a.router.correction, RoleCorrection, a.experts)
}

func (b *layerBuilder) fault(e *Error) {
	e.Where.Layer = b.l.Index
	b.c.faults = append(b.c.faults, e)
}

// experts finds the one stated layout that is there and claims it.
func (b *layerBuilder) experts(a *moeArch, k *Block) {
	var found []expertLayout
	for _, lay := range a.layouts {
		probe := lay.gateUp
		if lay.per != nil {
			probe = expand(lay.per.up, 0) + ".weight"
		}
		if _, ok := b.c.byName[b.l.Prefix+probe]; ok {
			found = append(found, lay)
		}
	}
	if len(found) > 1 {
		b.fault(errAt(ErrLayout, b.l.Prefix+found[0].gateUp, "experts are there in %d layouts at once", len(found)))
	}
	lay := a.layouts[0]
	if len(found) > 0 {
		lay = found[0]
	}
	k.Layout = lay.describe(k.Gated)
	if lay.per != nil {
		b.expertList(a, k, lay)
		return
	}
	b.expertFused(a, k, lay)
}

func (b *layerBuilder) expertList(a *moeArch, k *Block, lay expertLayout) {
	for e := range a.experts {
		add := func(site *Site, stored, out string, role Role, n int) {
			l := b.newLinear(site, expand(out, e), role, n)
			l.tensor, l.layout = b.l.Prefix+expand(stored, e)+".weight", plain(n, site.In)
			b.c.linear(l)
			if lay.bias {
				l.bias, l.biasLay = b.l.Prefix+expand(stored, e)+".bias", slice{so: 1}
				b.c.small(l.bias, RoleBias, b.l.Index, n)
			}
		}
		if k.Gated {
			add(k.ExpertIn[e], lay.per.gate, a.out.gate, RoleGate, a.inter)
		}
		add(k.ExpertIn[e], lay.per.up, a.out.up, RoleUp, a.inter)
		add(k.ExpertMid[e], lay.per.down, a.out.down, RoleDown, b.c.m.arch.hidden)
	}
}

// describe spells a layout: E experts, I their width, H the hidden size.
func (lay *expertLayout) describe(gated bool) string {
	if lay.per != nil {
		return "per expert"
	}
	width := "I"
	if gated {
		width = "2I"
	}
	d := "fused [E," + width + ",H]"
	if lay.transposed {
		d = "fused [E,H," + width + "]"
	}
	switch {
	case gated && lay.interleaved:
		d += ", gate and up interleaved"
	case gated:
		d += ", gate half first"
	}
	return d
}

func (b *layerBuilder) expertFused(a *moeArch, k *Block, lay expertLayout) {
	h, n, m := b.c.m.arch.hidden, a.inter, b.c.m
	width := n
	if k.Gated {
		width = 2 * n
	}
	first, down := []int{a.experts, width, h}, []int{a.experts, h, n}
	if lay.transposed {
		first, down = []int{a.experts, h, width}, []int{a.experts, n, h}
	}
	claim := func(rel string, shape []int, role Role) *Claim {
		i, ok := b.c.byName[b.l.Prefix+rel]
		if !ok {
			b.c.missing(b.l.Prefix+rel, b.l.Index, shape)
			return nil
		}
		b.c.set(i, role, b.l.Index)
		cl := &m.claims[i]
		if role == RoleExperts {
			cl.Fate, cl.Reason = FateQuantize, "routed experts"
		}
		if !b.c.shape(i, b.l.Index, shape) {
			return nil
		}
		cl.Outputs = nil
		return cl
	}
	ct, cd := claim(lay.gateUp, first, RoleExperts), claim(lay.down, down, RoleExperts)
	var bt, bd *Claim
	if lay.gateUpBias != "" {
		bt, bd = claim(lay.gateUpBias, []int{a.experts, width}, RoleBias), claim(lay.downBias, []int{a.experts, h}, RoleBias)
	}
	if ct == nil || cd == nil || (lay.gateUpBias != "" && (bt == nil || bd == nil)) {
		return
	}
	add := func(cl, bias *Claim, site *Site, e int, out string, role Role, n, half, of int) {
		l := b.newLinear(site, expand(out, e), role, n)
		l.tensor, l.DType = cl.Tensor.Name, cl.Tensor.DType
		l.layout = fusedSlice(e, n, site.In, half, of, lay.transposed, lay.interleaved)
		cl.Linears = append(cl.Linears, l)
		cl.Outputs = append(cl.Outputs, l.Module+".weight")
		if bias != nil {
			l.bias = bias.Tensor.Name
			l.biasLay = slice{base: int64(e) * int64(n*of), so: 1, part: true}
			if lay.interleaved && of > 1 {
				l.biasLay.base += int64(half)
				l.biasLay.so = int64(of)
			} else {
				l.biasLay.base += int64(half * n)
			}
			bias.Outputs = append(bias.Outputs, l.Module+".bias")
		}
	}
	for e := range a.experts {
		if k.Gated {
			add(ct, bt, k.ExpertIn[e], e, a.out.gate, RoleGate, n, 0, 2)
			add(ct, bt, k.ExpertIn[e], e, a.out.up, RoleUp, n, 1, 2)
		} else {
			add(ct, bt, k.ExpertIn[e], e, a.out.up, RoleUp, n, 0, 1)
		}
		add(cd, bd, k.ExpertMid[e], e, a.out.down, RoleDown, h, 0, 1)
	}
}

// fusedSlice locates part half of `of` parts, each [out,in], of expert e.
func fusedSlice(e, out, in, half, of int, transposed, interleaved bool) slice {
	o, i, w := int64(out), int64(in), int64(of)
	s := slice{base: int64(e) * w * o * i, part: true}
	step, skip := int64(1), int64(half)*o // outputs follow each other, the half begins after half*out outputs
	if interleaved && of > 1 {
		step, skip = w, int64(half)
	}
	if transposed { // [in, of*out]
		s.base += skip
		s.so, s.si = step, w*o
	} else { // [of*out, in]
		s.base += skip * i
		s.so, s.si = step*i, 1
	}
	s.span = (o-1)*s.so + (i-1)*s.si + 1
	return s
}
