package model

// exaoneMoEFamily: K-EXAONE: rope on sliding layers only, correction bias at block level.
var exaoneMoEFamily = family{name: "exaone_moe", types: []string{"exaone_moe"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	full := attention(c, nil)
	full.qkvBias, full.oBias = false, false
	full.qNorm, full.kNorm = "q_norm", "k_norm"
	local := *full
	local.rope = ropeOf(c, headDim(c), false, "")
	local.window = c.dimOr("sliding_window", 0)
	if local.window == 0 { // without windows every layer has positions
		full.rope = local.rope
	}
	moe := deepseekMoE(c)
	moe.router.correction = "mlp.e_score_correction_bias"
	if n := c.intOr("num_shared_experts", 0); n > 0 {
		moe.shared = gated("mlp.shared_experts.", moe.inter*n, moe.act)
	}
	deepseek(c, a, full, moe)
	inner := a.layer
	a.layer = func(i int) *layerArch {
		l := inner(i)
		if layerType(c, i, func(int) string { return "full_attention" }) == "sliding_attention" {
			l.mixer = &local
		}
		return l
	}
	return a
}}
