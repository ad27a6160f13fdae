package model

// arch is a family resolved for one config: every dimension, tensor name and rule. Family files build it; nothing else
// decides anything about a family.
type arch struct {
	hidden, vocab, layers int

	embed     string // embedding tensor
	finalNorm string
	head      string // lm_head module, used when not tied
	headBias  bool
	tied      bool // the head multiplies with the embedding matrix

	norm              normRule
	embedScale        float32 // 0 means 1
	embedScaleRounded bool    // in BF16 the multiplier itself is rounded to bf16, as the reference holds it
	logitScale        float32 // 0 means 1
	logitCap          float32 // 0: none; cap·tanh(logit/cap)

	layer func(i int) *layerArch
	extra []extraPart
}

// normRule is the kind of all norms of a family.
type normRule struct {
	layerNorm bool // mean is subtracted
	bias      bool
	eps       float32
	offset    float32 // weight is stored minus this
}

// extraPart is a part of the checkpoint that is copied as it is.
type extraPart struct {
	prefix string // of tensor names
	suffix string
	role   Role
	reason string
}

// layerArch is one decoder layer. Names are relative to prefix.
type layerArch struct {
	prefix string

	inNorm      string  // before the mixer
	postMixNorm string  // of the mixer's output before it is added, or ""
	mlpNorm     string  // before the feed-forward; "" in a parallel layer, whose feed-forward reads inNorm too
	postMLPNorm string  // of the feed-forward's output before it is added, or ""
	residual    float32 // multiplier of both branches; 0 means 1
	mixer       mixerArch
	dense       *mlpArch
	moe         *moeArch
}

func (l *layerArch) parallel() bool { return l.mlpNorm == "" }

// mixerArch is what mixes positions. declare names its linears, sites and small tensors; newMixer makes what computes.
type mixerArch interface {
	declare(b *layerBuilder)
	newMixer(run *LayerRun) (mixer, error)
	// bytesPerRow is the working memory beside residual and site rows, per row of a span.
	bytesPerRow() int64
	// keptPerRow is what it keeps between its stages beside site rows, bytes per row of a span.
	keptPerRow() int64
}

// mixer computes the stages of a mixer on the rows of a span. State between stages lies in Span.mix planes.
type mixer interface {
	// stage computes, from the rows of the mixer's stage i, what stage i+1 needs; after its last stage it returns the
	// mixer's output [rows, hidden] to be added to the residual, else nil.
	stage(s *Span, i int) (out []float32, err error)
}

// attnArch is grouped-query attention.
type attnArch struct {
	prefix                string // "self_attn."
	heads, kvHeads, dim   int
	q, k, v, qkv, o, gate string // module names; qkv excludes q,k,v; gate: elementwise sigmoid gate of the output
	qkvBias, oBias        bool
	qNorm, kNorm          string // "" for none
	normWhole             bool   // over all heads together, before splitting; else per head
	normAfterRope         bool
	l2Norm                bool // norm without weight after rope, on rope layers (llama4)
	l2Eps                 float32
	rope                  *rope // nil: no positions
	scale                 float32
	window, chunk         int
	softCap               float32
	sinks                 string
	tempScale, tempFloor  float32 // llama4 temperature tuning on layers without rope; 0: none
}

// mlaArch is multi-head latent attention.
type mlaArch struct {
	prefix               string
	heads                int
	qRank, kvRank        int // qRank 0: plain q_proj
	nope, ropeDim, vDim  int
	q, qa, qaNorm, qb    string
	kva, kvaNorm, kvb, o string
	bias                 bool // of q_a, kv_a and o
	innerEps             float32
	rope                 *rope
	scale                float32
}

// mlpArch is a feed-forward of two or three matrices.
type mlpArch struct {
	gate, up, gateUp, down string // module names, relative to the layer; gate "" means ungated, gateUp one matrix for both
	inter                  int
	bias                   bool
	act                    activation
}

// activation of a feed-forward.
type activation struct {
	kind  string  // silu, gelu_tanh, gelu, relu, relu2, swiglu_oss
	alpha float32 // swiglu_oss
	limit float32
}

// moeArch is a mixture-of-experts block.
type moeArch struct {
	experts, topK, inter int
	layouts              []expertLayout // stated ones; exactly one must be there
	out                  expertNames    // of the output, with {e}
	act                  activation
	router               routerArch
	shared               *mlpArch
	sharedGate           string  // sigmoid gate of the shared experts, or ""
	sharedMul            float32 // of routed and shared sum together (cohere2_moe "average"); 0 means 1
}

// expertNames are module names with {e} for the expert; gate "" means ungated.
type expertNames struct{ gate, up, down string }

// expertLayout is one stated way of storing the experts of a layer.
type expertLayout struct {
	per *expertNames // one 2-D [out,in] tensor a linear, ".weight" and ".bias" appended

	gateUp, down         string // fused 3-D tensors, full names relative to the layer; ungated: up in gateUp
	gateUpBias, downBias string
	transposed           bool // [E,in,out] instead of [E,out,in]
	interleaved          bool // gate and up alternate instead of gate half first
	bias                 bool // per-expert linears have biases
}

// scoring rules of routers.
type scoring string

const (
	scoreSoftmax     scoring = "softmax"      // softmax over all, then top-k
	scoreSigmoid     scoring = "sigmoid"      // sigmoid, then top-k
	scoreTopKSoftmax scoring = "topk-softmax" // top-k of logits, softmax over the chosen
	scoreTopKSigmoid scoring = "topk-sigmoid" // top-k of logits, sigmoid of the chosen
	scoreSparseMixer scoring = "sparsemixer"  // phimoe
)

// routerArch is the rule by which experts are chosen and weighed. Sources: fixtures/arch/README.md and the
// reference implementation of each family.
type routerArch struct {
	module     string // relative to the layer
	bias       bool   // a bias of the matrix, part of the logits
	correction string // tensor added to the scores for the choice only, or ""
	score      scoring
	groups     int // 0 or 1: none
	topGroups  int
	groupTop2  bool    // a group ranks by the sum of its two best, else by its best
	renorm     bool    // chosen weights divided by their sum
	renormEps  float32 // added to the sum
	renormMin  float32 // least sum
	scale      float32 // of the weights; 0 means 1
	jitter     float32 // phimoe threshold
	onInput    bool    // weight multiplies the expert's input
}
