package model

// ernieMoEFamily: ERNIE 4.5 MoE text: softmax scores, a correction bias for the choice, weights divided by a clamped sum.
var ernieMoEFamily = family{name: "ernie4_5_moe", types: []string{"ernie4_5_moe"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	a.tied = c.boolOr("tie_word_embeddings", true)
	attn := attention(c, ropeOf(c, headDim(c), true, ""))
	bias := c.boolOr("use_bias", false)
	attn.qkvBias, attn.oBias = bias, bias
	names := experts("mlp.experts.", "gate_proj", "up_proj", "down_proj")
	inter := c.dim("moe_intermediate_size")
	moe := &moeArch{experts: expertCount(c), topK: c.dim("moe_k"), inter: inter, act: act(c), out: names,
		layouts: []expertLayout{{per: &names, bias: bias}},
		router: routerArch{module: "mlp.gate", correction: "mlp.moe_statics.e_score_correction_bias", score: scoreSoftmax,
			renorm: true, renormMin: float32(c.floatOr("moe_norm_min", 1e-12))}}
	if n := c.intOr("moe_num_shared_experts", 0); n > 0 {
		moe.shared = gated("mlp.shared_experts.", inter*n, moe.act)
		moe.shared.bias = bias
	}
	mlp := gated("mlp.", c.dim("intermediate_size"), moe.act)
	mlp.bias = bias
	start, end, every := c.intOr("moe_layer_start_index", 0), c.intOr("moe_layer_end_index", -1), c.dimOr("moe_layer_interval", 1)
	if end < 0 {
		end += a.layers
	}
	sparse(a, attn, moe, nil, 0)
	inner := a.layer
	a.layer = func(i int) *layerArch {
		l := inner(i)
		if i < start || i > end || (i+1)%every != 0 {
			l.moe, l.dense = nil, mlp
		}
		return l
	}
	a.extra = append(a.extra, mtpLayers(c, a, "num_nextn_predict_layers")...)
	a.extra = append(a.extra, extraPart{prefix: "model.mtp_", role: RoleMTP})
	return a
}}
