package model

// phi3Family: q, k, v in one matrix, gate and up in one matrix, as published; they stay one module.
var phi3Family = family{name: "phi3", types: []string{"phi3"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	attn := attention(c, ropeOf(c, headDim(c), false, ""))
	attn.qkvBias, attn.oBias = false, false
	attn.q, attn.k, attn.v, attn.qkv = "", "", "", "qkv_proj"
	attn.window = c.dimOr("sliding_window", 0)
	mlp := &mlpArch{gateUp: "mlp.gate_up_proj", down: "mlp.down_proj", inter: c.dim("intermediate_size"), act: act(c)}
	a.layer = func(i int) *layerArch {
		l := layerAt("model.", i)
		l.mixer, l.dense = attn, mlp
		return l
	}
	a.extra = buffers(a)
	return a
}}

// phimoeFamily: Phi-3.5-MoE: LayerNorm with bias and the sparsemixer router.
var phimoeFamily = family{name: "phimoe", types: []string{"phimoe"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	a.norm = normRule{layerNorm: true, bias: true, eps: float32(c.floatOr("rms_norm_eps", 1e-5))}
	a.headBias = c.boolOr("lm_head_bias", false)
	attn := attention(c, ropeOf(c, headDim(c), false, ""))
	attn.window = c.dimOr("sliding_window", 0)
	names := experts("block_sparse_moe.experts.", "w1", "w3", "w2")
	moe := &moeArch{experts: expertCount(c), topK: 2, inter: c.dim("intermediate_size"), act: act(c), layouts: listOf(names), out: names,
		router: routerArch{module: "block_sparse_moe.gate", score: scoreSparseMixer, jitter: float32(c.floatOr("router_jitter_noise", 0.01))}}
	if k := c.dimOr("num_experts_per_tok", 2); k != 2 {
		c.fault("num_experts_per_tok = %d: sparsemixer takes two, another count is not implemented", k)
	}
	a.layer = func(i int) *layerArch {
		l := layerAt("model.", i)
		l.mixer, l.moe = attn, moe
		return l
	}
	a.extra = buffers(a)
	return a
}}
