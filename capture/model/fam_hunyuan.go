package model

// hunyuanMoEFamily: Hunyuan-A13B: q and k norms after rope, router in gate.wg, a shared feed-forward that is always on.
var hunyuanMoEFamily = family{name: "hunyuan_v1_moe", types: []string{"hunyuan_v1_moe"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	attn := attention(c, ropeOf(c, headDim(c), false, ""))
	attn.qNorm, attn.kNorm, attn.normAfterRope = "query_layernorm", "key_layernorm", true
	if !c.boolOr("use_qk_norm", true) || c.boolOr("use_cla", false) {
		c.fault("use_qk_norm = false or use_cla = true is a variant that is not implemented")
	}
	names := experts("mlp.experts.", "gate_proj", "up_proj", "down_proj")
	wide := c.dim("intermediate_size")
	a.layer = func(i int) *layerArch {
		l := layerAt("model.", i)
		l.mixer = attn
		m := &moeArch{experts: expertCount(c), topK: c.perLayer("moe_topk", i, 1), inter: c.perLayer("moe_intermediate_size", i, wide), act: act(c),
			layouts: listOf(names), out: names, router: routerArch{module: "mlp.gate.wg", score: scoreSoftmax, renorm: true}}
		if c.boolOr("use_mixed_mlp_moe", true) {
			m.shared = gated("mlp.shared_mlp.", wide*c.perLayer("num_shared_expert", i, 1), m.act)
		}
		l.moe = m
		if i < c.intOr("moe_layer_num_skipped", 0) {
			l.moe, l.dense = nil, gated("mlp.", wide, m.act)
		}
		return l
	}
	a.extra = buffers(a)
	return a
}}
