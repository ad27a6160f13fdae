package model

// mixtralFamily: Mixtral: w1, w3, w2 experts, softmax top-2 renormalised.
var mixtralFamily = family{name: "mixtral", types: []string{"mixtral"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	attn := attention(c, ropeOf(c, headDim(c), false, ""))
	attn.qkvBias, attn.oBias = false, false
	attn.window = c.dimOr("sliding_window", 0)
	names := experts("block_sparse_moe.experts.", "w1", "w3", "w2")
	moe := &moeArch{experts: expertCount(c), topK: c.dim("num_experts_per_tok"), inter: c.dim("intermediate_size"), act: act(c),
		layouts: listOf(names), out: names, router: routerArch{module: "block_sparse_moe.gate", score: scoreSoftmax, renorm: true}}
	return sparse(a, attn, moe, nil, 0)
}}

// olmoeFamily: OLMoE: q and k norms over the whole projection, weights not renormalised unless the config says so.
var olmoeFamily = family{name: "olmoe", types: []string{"olmoe"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	attn := attention(c, ropeOf(c, headDim(c), false, ""))
	attn.qNorm, attn.kNorm, attn.normWhole = "q_norm", "k_norm", true
	if c.has("clip_qkv") {
		c.fault("clip_qkv is a variant that is not implemented")
	}
	names := experts("mlp.experts.", "gate_proj", "up_proj", "down_proj")
	moe := &moeArch{experts: expertCount(c), topK: c.dim("num_experts_per_tok"), inter: c.dim("intermediate_size"), act: act(c),
		layouts: listOf(names), out: names, router: routerArch{module: "mlp.gate", score: scoreSoftmax, renorm: c.boolOr("norm_topk_prob", false)}}
	return sparse(a, attn, moe, nil, 0)
}}

// minimaxM2Family: MiniMax-M2: Mixtral names, sigmoid scores with a correction bias at block level.
var minimaxM2Family = family{name: "minimax_m2", types: []string{"minimax_m2"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	attn := attention(c, nil)
	attn.qkvBias, attn.oBias = false, false
	attn.rope = ropeOf(c, c.dimOr("rotary_dim", attn.dim), false, "")
	attn.qNorm, attn.kNorm, attn.normWhole = "q_norm", "k_norm", true
	names := experts("block_sparse_moe.experts.", "w1", "w3", "w2")
	moe := &moeArch{experts: expertCount(c), topK: c.dim("num_experts_per_tok"), inter: c.dim("intermediate_size"), act: act(c),
		layouts: listOf(names), out: names,
		router: routerArch{module: "block_sparse_moe.gate", correction: "block_sparse_moe.e_score_correction_bias", score: scoreSigmoid, renorm: true}}
	sparse(a, attn, moe, nil, 0)
	a.extra = append(a.extra, mtpLayers(c, a, "num_mtp_modules")...)
	return a
}}

// sparse completes a family whose first denseFirst layers are dense and the others a block.
func sparse(a *arch, mix mixerArch, moe *moeArch, mlp *mlpArch, denseFirst int) *arch {
	a.layer = func(i int) *layerArch {
		l := layerAt("model.", i)
		l.mixer = mix
		if i < denseFirst {
			l.dense = mlp
		} else {
			l.moe = moe
		}
		return l
	}
	a.extra = buffers(a)
	return a
}
