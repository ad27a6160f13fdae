package model

// glm4MoEFamily: GLM-4.5/4.6: half of every head rotates, biases on q, k, v, DeepSeek-V3's router.
var glm4MoEFamily = family{name: "glm4_moe", types: []string{"glm4_moe"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	attn := attention(c, ropeOf(c, headDim(c), false, ""))
	attn.oBias = false
	if c.boolOr("use_qk_norm", false) {
		attn.qNorm, attn.kNorm = "q_norm", "k_norm"
	}
	return deepseek(c, a, attn, deepseekMoE(c))
}}

// dots1Family: dots.llm1: Qwen3's attention with DeepSeek-V3's block.
var dots1Family = family{name: "dots1", types: []string{"dots1"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	attn := attention(c, ropeOf(c, headDim(c), false, ""))
	attn.qNorm, attn.kNorm = "q_norm", "k_norm"
	deepseek(c, a, attn, deepseekMoE(c))
	inner := a.layer
	a.layer = func(i int) *layerArch {
		l := inner(i)
		if layerType(c, i, func(i int) string {
			if c.has("sliding_window") && i >= c.intOr("max_window_layers", a.layers) {
				return "sliding_attention"
			}
			return "full_attention"
		}) == "sliding_attention" {
			w := *attn
			w.window = c.dim("sliding_window")
			l.mixer = &w
		}
		return l
	}
	return a
}}
