package model

import "math"

// afmoeFamily: Arcee AFMoE (Trinity): sandwich norms, gated attention output, rope on sliding layers only.
var afmoeFamily = family{name: "afmoe", types: []string{"afmoe"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	if c.boolOr("mup_enabled", false) {
		a.embedScale = float32(math.Sqrt(float64(a.hidden)))
	}
	full := attention(c, nil)
	full.qNorm, full.kNorm, full.gate = "q_norm", "k_norm", "gate_proj"
	local := *full
	local.rope = ropeOf(c, headDim(c), false, "")
	local.window = c.dim("sliding_window")
	names := experts("mlp.experts.", "gate_proj", "up_proj", "down_proj")
	inter := c.dim("moe_intermediate_size")
	moe := &moeArch{experts: expertCount(c), topK: c.dim("num_experts_per_tok"), inter: inter, act: act(c), layouts: listOf(names), out: names,
		router: routerArch{module: "mlp.router.gate", correction: "mlp.expert_bias", score: scoreSigmoid, renorm: true, renormEps: 1e-20, scale: float32(c.floatOr("route_scale", 1))}}
	c.want("score_func", "sigmoid", "sigmoid")
	if n := c.intOr("num_shared_experts", 0); n > 0 {
		moe.shared = gated("mlp.shared_experts.", inter*n, moe.act)
	}
	mlp := gated("mlp.", c.dim("intermediate_size"), moe.act)
	first, every := c.intOr("num_dense_layers", 0), c.dimOr("global_attn_every_n_layers", 4)
	a.layer = func(i int) *layerArch {
		l := layerAt("model.", i)
		l.postMixNorm, l.mlpNorm, l.postMLPNorm = "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm"
		l.mixer, l.moe = full, moe
		if i < first {
			l.moe, l.dense = nil, mlp
		}
		if layerType(c, i, func(i int) string {
			if (i+1)%every != 0 {
				return "sliding_attention"
			}
			return "full_attention"
		}) == "sliding_attention" {
			l.mixer = &local
		}
		return l
	}
	a.extra = buffers(a)
	return a
}}
