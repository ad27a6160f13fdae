package model

import "strconv"

// deepseekV2Family: DeepSeek-V2(-Lite): MLA, softmax scores, weights never renormalised.
var deepseekV2Family = family{name: "deepseek_v2", types: []string{"deepseek_v2"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	moe := deepseekMoE(c)
	moe.router.score, moe.router.renorm, moe.router.correction, moe.router.groupTop2 = scoreSoftmax, false, "", false
	if c.want("topk_method", "greedy", "greedy", "group_limited_greedy") == "greedy" {
		moe.router.groups = 0
	}
	mla := latentAttention(c, true)
	return deepseek(c, a, mla, moe)
}}

// deepseekV3Family: DeepSeek-V3/R1, Kimi-K2, Moonlight: sigmoid scores with a correction bias that only steers the
// choice, groups ranked by their two best.
var deepseekV3Family = family{name: "deepseek_v3", types: []string{"deepseek_v3", "kimi_k2"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	return deepseek(c, a, latentAttention(c, c.boolOr("rope_interleave", true)), deepseekMoE(c))
}}

// glm4MoELiteFamily: GLM-4.7-Flash: DeepSeek's shape with GLM's router defaults.
var glm4MoELiteFamily = family{name: "glm4_moe_lite", types: []string{"glm4_moe_lite"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	return deepseek(c, a, latentAttention(c, c.boolOr("rope_interleave", true)), deepseekMoE(c))
}}

// latentAttention reads MLA. The score scale carries YaRN's temperature squared where mscale_all_dim is set.
func latentAttention(c *conf, interleaved bool) *mlaArch {
	m := &mlaArch{prefix: "self_attn.", heads: c.dim("num_attention_heads"), qRank: c.dimOr("q_lora_rank", 0), kvRank: c.dim("kv_lora_rank"),
		nope: c.dim("qk_nope_head_dim"), ropeDim: c.dim("qk_rope_head_dim"), vDim: c.dim("v_head_dim"),
		q: "q_proj", qa: "q_a_proj", qaNorm: "q_a_layernorm", qb: "q_b_proj", kva: "kv_a_proj_with_mqa", kvaNorm: "kv_a_layernorm", kvb: "kv_b_proj", o: "o_proj",
		bias: c.boolOr("attention_bias", false), innerEps: 1e-6}
	m.rope = ropeOf(c, m.ropeDim, interleaved, "")
	m.scale = rsqrt(m.nope + m.ropeDim)
	s := c.sub("rope_scaling")
	if s == nil {
		s = c.sub("rope_parameters")
	}
	if s != nil && m.rope.kind != "default" {
		if all := s.floatOr("mscale_all_dim", 0); all != 0 {
			t := yarnMscale(s.floatOr("factor", 1), all)
			m.scale = float32(float64(m.scale) * float64(t*t))
		}
	}
	return m
}

func deepseekMoE(c *conf) *moeArch {
	names := experts("mlp.experts.", "gate_proj", "up_proj", "down_proj")
	inter := c.dimOr("moe_intermediate_size", 1)
	m := &moeArch{experts: expertCount(c), topK: c.dim("num_experts_per_tok"), inter: inter, act: act(c), layouts: listOf(names), out: names,
		router: routerArch{module: "mlp.gate", correction: "mlp.gate.e_score_correction_bias", score: scoreSigmoid,
			groups: c.dimOr("n_group", 1), topGroups: c.dimOr("topk_group", 1), groupTop2: true,
			renorm: c.boolOr("norm_topk_prob", true), renormEps: 1e-20, scale: float32(c.floatOr("routed_scaling_factor", 1))}}
	if n := c.intOr("n_shared_experts", 0); n > 0 {
		m.shared = gated("mlp.shared_experts.", inter*n, m.act)
	}
	return m
}

func deepseek(c *conf, a *arch, mix mixerArch, moe *moeArch) *arch {
	mlp := gated("mlp.", c.dim("intermediate_size"), moe.act)
	sparse(a, mix, moe, mlp, 0)
	inner, first := a.layer, c.intOr("first_k_dense_replace", 0)
	a.layer = func(i int) *layerArch {
		l := inner(i)
		if isDense(c, i, first) {
			l.moe, l.dense = nil, mlp
		}
		return l
	}
	a.extra = append(a.extra, mtpLayers(c, a, "num_nextn_predict_layers")...)
	return a
}

// isDense reads the per-layer lists that newer configs have, else the count of dense first layers.
func isDense(c *conf, i, first int) bool {
	if t := c.strs("mlp_layer_types"); t != nil && i < len(t) {
		return t[i] == "dense"
	}
	return i < first
}

// mtpLayers are the layers behind the last: multi-token prediction modules, copied.
func mtpLayers(c *conf, a *arch, key string) []extraPart {
	var out []extraPart
	for j := range max(c.intOr(key, 0), 0) {
		out = append(out, extraPart{prefix: "model.layers." + strconv.Itoa(a.layers+j) + ".", role: RoleMTP})
	}
	return append(out, extraPart{prefix: "mtp.", role: RoleMTP})
}
