package model

import "math"

// gemma3Family: Gemma 3 text: norms stored around zero, four of them a layer, local layers with their own rope base.
var gemma3Family = family{name: "gemma3_text", types: []string{"gemma3_text"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	a.norm.offset = 1
	a.tied = c.boolOr("tie_word_embeddings", true)
	a.embedScale, a.embedScaleRounded = float32(math.Sqrt(float64(a.hidden))), true
	a.logitCap = float32(c.floatOr("final_logit_softcapping", 0))
	full := attention(c, ropeOf(c, headDim(c), false, "full_attention"))
	full.qNorm, full.kNorm = "q_norm", "k_norm"
	full.scale = float32(1 / math.Sqrt(c.floatOr("query_pre_attn_scalar", 256)))
	full.softCap = float32(c.floatOr("attn_logit_softcapping", 0))
	local := *full
	local.window = c.dimOr("sliding_window", 4096)
	if s := c.sub("rope_parameters"); s != nil && s.has("sliding_attention") {
		local.rope = ropeOf(c, headDim(c), false, "sliding_attention")
	} else {
		local.rope = &rope{kind: "default", dim: headDim(c), base: c.floatOr("rope_local_base_freq", 10000)}
	}
	pattern := c.dimOr("sliding_window_pattern", 6)
	mlp := gated("mlp.", c.dim("intermediate_size"), act(c, "hidden_activation"))
	if !c.has("hidden_activation") {
		mlp.act = activation{kind: "gelu_tanh"}
	}
	a.layer = func(i int) *layerArch {
		l := layerAt("model.", i)
		l.postMixNorm, l.mlpNorm, l.postMLPNorm = "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
		l.dense, l.mixer = mlp, full
		if layerType(c, i, func(i int) string {
			if (i+1)%pattern != 0 {
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
