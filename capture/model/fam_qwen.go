package model

// qwen2Family: biases on q, k and v only.
var qwen2Family = family{name: "qwen2", types: []string{"qwen2"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	attn := attention(c, ropeOf(c, headDim(c), false, ""))
	attn.qkvBias, attn.oBias = true, false
	return qwenDense(c, a, attn)
}}

// qwen3Family: a norm per head on q and k.
var qwen3Family = family{name: "qwen3", types: []string{"qwen3"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	attn := attention(c, ropeOf(c, headDim(c), false, ""))
	attn.qNorm, attn.kNorm = "q_norm", "k_norm"
	return qwenDense(c, a, attn)
}}

// qwenWindow gives the attention of layer i: layers from max_window_layers on have a window when the config uses one.
func qwenWindow(c *conf, attn *attnArch, i int) *attnArch {
	sliding := layerType(c, i, func(i int) string {
		if c.boolOr("use_sliding_window", false) && c.has("sliding_window") && i >= c.intOr("max_window_layers", 0) {
			return "sliding_attention"
		}
		return "full_attention"
	}) == "sliding_attention"
	if !sliding {
		return attn
	}
	w := *attn
	w.window = c.dim("sliding_window")
	return &w
}

func qwenDense(c *conf, a *arch, attn *attnArch) *arch {
	dense(c, a, attn)
	inner := a.layer
	a.layer = func(i int) *layerArch {
		l := inner(i)
		l.mixer = qwenWindow(c, attn, i)
		return l
	}
	return a
}

// qwen2MoEFamily: Qwen1.5/2 MoE, a sigmoid-gated shared expert beside the routed ones.
var qwen2MoEFamily = family{name: "qwen2_moe", types: []string{"qwen2_moe"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	attn := attention(c, ropeOf(c, headDim(c), false, ""))
	attn.qkvBias, attn.oBias = c.boolOr("qkv_bias", true), false
	moe := qwenMoE(c)
	moe.shared = gated("mlp.shared_expert.", c.dim("shared_expert_intermediate_size"), moe.act)
	moe.sharedGate = "mlp.shared_expert_gate"
	return qwenSparse(c, a, attn, moe)
}}

// qwen3MoEFamily: Qwen3 MoE.
var qwen3MoEFamily = family{name: "qwen3_moe", types: []string{"qwen3_moe"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	attn := attention(c, ropeOf(c, headDim(c), false, ""))
	attn.qNorm, attn.kNorm = "q_norm", "k_norm"
	return qwenSparse(c, a, attn, qwenMoE(c))
}}

func qwenMoE(c *conf) *moeArch {
	names := experts("mlp.experts.", "gate_proj", "up_proj", "down_proj")
	return &moeArch{experts: expertCount(c), topK: c.dim("num_experts_per_tok"), inter: c.dim("moe_intermediate_size"), act: act(c),
		layouts: append(listOf(names), expertLayout{gateUp: "mlp.experts.gate_up_proj", down: "mlp.experts.down_proj"}), out: names,
		router: routerArch{module: "mlp.gate", score: scoreSoftmax, renorm: c.boolOr("norm_topk_prob", false)}}
}

func qwenSparse(c *conf, a *arch, attn *attnArch, moe *moeArch) *arch {
	step := c.dimOr("decoder_sparse_step", 1)
	mlp := gated("mlp.", 1, moe.act)
	if c.has("intermediate_size") {
		mlp.inter = c.dim("intermediate_size")
	}
	a.layer = func(i int) *layerArch {
		l := layerAt("model.", i)
		l.mixer = qwenWindow(c, attn, i)
		if inList(c, "mlp_only_layers", i) || (i+1)%step != 0 {
			l.dense = mlp
		} else {
			l.moe = moe
		}
		return l
	}
	a.extra = buffers(a)
	return a
}
