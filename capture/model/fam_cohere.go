package model

// cohere2MoEFamily: Command A MoE: attention and feed-forward side by side on one norm, rope on sliding layers (and on dense
// prefix layers when their pattern is 1), routed and shared experts averaged.
var cohere2MoEFamily = family{name: "cohere2_moe", types: []string{"cohere2_moe"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	a.tied = c.boolOr("tie_word_embeddings", true)
	a.norm = normRule{layerNorm: !c.has("rms_norm_eps"), eps: float32(c.floatOr("layer_norm_eps", 1e-5))}
	if c.has("rms_norm_eps") {
		a.norm.eps = float32(c.float("rms_norm_eps"))
	}
	a.logitScale = float32(c.floatOr("logit_scale", 0.0625))
	full := attention(c, nil)
	positions := ropeOf(c, headDim(c), true, "")
	local, forced := *full, *full
	local.rope, local.window = positions, c.dimOr("sliding_window", 4096)
	forced.rope = positions
	names := experts("mlp.experts.", "gate_proj", "up_proj", "down_proj")
	inter := c.dim("intermediate_size")
	r := routerArch{module: "mlp.gate", score: scoreTopKSoftmax}
	if c.want("expert_selection_fn", "softmax", "softmax", "sigmoid") == "sigmoid" {
		r.score, r.renorm = scoreTopKSigmoid, c.boolOr("norm_topk_prob", true)
	}
	moe := &moeArch{experts: expertCount(c), topK: c.dim("num_experts_per_tok"), inter: inter, act: act(c), layouts: listOf(names), out: names, router: r}
	if n := c.intOr("num_shared_experts", 0); n > 0 {
		moe.shared = gated("mlp.shared_experts.", inter*n, moe.act)
		if c.want("shared_expert_combination_strategy", "average", "average", "sum") == "average" {
			moe.sharedMul = 0.5
		}
	}
	mlp := gated("mlp.", c.dimOr("prefix_dense_intermediate_size", inter), moe.act)
	prefix, prefixEvery, every := c.intOr("first_k_dense_replace", 0), c.dimOr("prefix_dense_sliding_window_pattern", 1), c.dimOr("sliding_window_pattern", 4)
	a.layer = func(i int) *layerArch {
		l := layerAt("model.", i)
		l.mlpNorm = ""
		l.mixer, l.moe = full, moe
		dense := isDense(c, i, prefix)
		if dense {
			l.moe, l.dense = nil, mlp
		}
		if layerType(c, i, func(i int) string {
			n, p := i, every
			if i < prefix {
				p = prefixEvery
			} else {
				n -= prefix
			}
			if (n+1)%p != 0 {
				return "sliding_attention"
			}
			return "full_attention"
		}) == "sliding_attention" {
			l.mixer = &local
		} else if dense && prefixEvery == 1 {
			l.mixer = &forced
		}
		return l
	}
	a.extra = buffers(a)
	return a
}}
