package model

// Role says what a tensor is for. Fates and fused sets follow from roles, never from words in names.
type Role string

// The roles.
const (
	RoleQ          Role = "q"
	RoleK          Role = "k"
	RoleV          Role = "v"
	RoleQKV        Role = "qkv" // one published matrix: q rows, then k, then v
	RoleO          Role = "o"
	RoleAttnGate   Role = "attn_gate" // elementwise gate of the attention output
	RoleQA         Role = "q_a"
	RoleQB         Role = "q_b"
	RoleKVA        Role = "kv_a"
	RoleKVB        Role = "kv_b"
	RoleGate       Role = "gate"
	RoleUp         Role = "up"
	RoleGateUp     Role = "gate_up" // one published matrix: gate rows, then up
	RoleDown       Role = "down"
	RoleRouter     Role = "router"
	RoleSharedGate Role = "shared_gate"
	RoleHead       Role = "lm_head"
	RoleEmbed      Role = "embedding"
	RoleNorm       Role = "norm"
	RoleBias       Role = "bias"
	RoleCorrection Role = "correction_bias"
	RoleSinks      Role = "sinks"
	RoleMTP        Role = "mtp"
	RoleVision     Role = "vision"
	RoleBuffer     Role = "buffer"  // values that the loader computes itself
	RoleExperts    Role = "experts" // a fused tensor that holds linears of several experts
)

// Fate is what becomes of a source tensor unless the recipe says otherwise.
type Fate string

// The default fates. A run turns Quantize into Copy for modules that rules or fallbacks exclude.
const (
	FateQuantize Fate = "quantize"
	FateCopy     Fate = "copy"
	// FateDecode: written bf16, because the source's own quantized format cannot stand beside ours.
	FateDecode Fate = "decode"
)

// Linear is one matrix that rows are multiplied with, as the output checkpoint names it: 2-D, [Out,In].
type Linear struct {
	Module   string // output name without ".weight"
	Role     Role
	Layer    int  // -1: lm_head
	Expert   int  // routed expert, -1 for none
	Shared   bool // of the shared experts
	Out, In  int
	Site     *Site  // whose rows it multiplies
	FusedSet string // loaders join all linears of this name into one matrix; "" stands alone
	Fate     Fate
	Reason   string
	DType    string // stored dtype of the source, after decoding rules a float name or a code name

	tensor  string // logical source tensor
	layout  slice
	bias    string // logical source tensor of the bias, "" for none
	biasLay slice
}

// Tensor names the logical source tensor that holds the weight; several linears may share it (fused experts).
func (l *Linear) Tensor() string { return l.tensor }

// BiasTensor names the source tensor of the bias, or "".
func (l *Linear) BiasTensor() string { return l.bias }

// HasBias reports whether the linear adds a bias.
func (l *Linear) HasBias() bool { return l.bias != "" }

// Fused reports whether the source tensor holds more than this linear.
func (l *Linear) Fused() bool { return l.layout.fused() }

// Elements is Out*In.
func (l *Linear) Elements() int64 { return int64(l.Out) * int64(l.In) }

// Names of sites.
const (
	SiteAttnIn    = "attn_in"    // norm of the residual: q,k,v (or q_a/q, kv_a), in parallel layers the feed-forward too
	SiteQB        = "q_b"        // MLA: normed q_a output
	SiteKVB       = "kv_b"       // MLA: normed kv_a output without the rope part
	SiteAttnOut   = "attn_out"   // attention output: o
	SiteMLPIn     = "mlp_in"     // dense feed-forward: gate, up
	SiteMLPMid    = "mlp_mid"    // dense feed-forward: down
	SiteBlockIn   = "block_in"   // block input, all rows: router, shared gate/up, shared gate
	SiteSharedMid = "shared_mid" // shared experts: down
	SiteExpertIn  = "expert_in"  // rows of one expert: gate, up
	SiteExpertMid = "expert_mid" // rows of one expert: down
	SiteHead      = "head"       // final norm: lm_head
)

// Site is the place where the rows that a set of linears multiplies can be looked at.
type Site struct {
	Layer   int // -1: head
	Name    string
	Expert  int       // -1 unless expert_in or expert_mid
	Stage   int       // index into Layer.Stages
	In      int       // columns
	Linears []*Linear // all consumers, also those that are not quantized
	Norm    *Norm     // the norm whose output these rows are; nil for others
}

// Key is "L0003/expert_in/E0017" or "L0003/attn_in": a natural key that sorts in execution order of layers.
func (s *Site) Key() string {
	if s.Layer < 0 {
		return s.Name
	}
	k := "L" + pad4(s.Layer) + "/" + s.Name
	if s.Expert >= 0 {
		k += "/E" + pad4(s.Expert)
	}
	return k
}

func pad4(n int) string {
	b := []byte("0000")
	for i := 3; i >= 0 && n > 0; i-- {
		b[i] = byte('0' + n%10)
		n /= 10
	}
	return string(b)
}

// Norm is a normalisation with a weight, and every linear that multiplies its output: what AWQ must compensate when it
// scales the norm. The router and the shared-expert gate are among the consumers.
type Norm struct {
	Tensor    string  // source and output name of the weight
	Bias      string  // of LayerNorm, or ""
	N         int     // features
	Offset    float32 // the effective weight is stored + Offset (1 for zero-centred norms)
	Layer     int
	Consumers []*Linear
}

// Stage is the part of a layer whose sites have their rows at the same time.
type Stage struct {
	Index int
	Name  string  // of its first site
	Sites []*Site // rows by Span.Rows; expert sites are in Block
	Block *Block  // the mixture-of-experts block, in its stage only
}

// Block is the mixture-of-experts part of a layer.
type Block struct {
	Experts, TopK int
	Inter         int     // expert width
	ExpertIn      []*Site // per expert
	ExpertMid     []*Site // per expert
	SharedMid     *Site   // nil without shared experts
	Router        *Linear
	InputScaled   bool   // the expert's input, not its output, is multiplied by the router's weight (llama4): expert rows differ from block rows and cannot share statistics
	Gated         bool   // experts have gate and up; else up only
	Layout        string // how the source stores the experts, as the family states it: "per expert", "fused [E,2I,H], gate half first", …
}

// Layer is one decoder layer as data.
type Layer struct {
	Index  int
	Prefix string // "model.layers.3."
	Stages []*Stage
	Block  *Block // nil for dense layers
	Norms  []*Norm

	linears []*Linear
	sites   []*Site
	arch    *layerArch
	model   *Model
	small   []string // norms, biases and other tensors that OpenLayer holds as float32
}

// Linears lists the layer's linears in order of execution: attention, then experts ascending, then shared experts.
func (l *Layer) Linears() []*Linear { return l.linears }

// Sites lists the layer's sites in order of execution.
func (l *Layer) Sites() []*Site { return l.sites }

// Expert lists the linears of one routed expert: gate, up, down (or up, down).
func (l *Layer) Expert(e int) []*Linear {
	if l.Block == nil {
		return nil
	}
	return append(append([]*Linear{}, l.Block.ExpertIn[e].Linears...), l.Block.ExpertMid[e].Linears...)
}

// Claim is what the family says about one logical tensor of the checkpoint.
type Claim struct {
	Tensor  Tensor
	Role    Role
	Layer   int       // -1: none
	Expert  int       // -1: none or several
	Linears []*Linear // those whose weight lies in the tensor
	Fate    Fate
	Reason  string
	Outputs []string // names in the output when the tensor is not quantized
}
