package model

// gptOSSFamily: gpt-oss: attention sinks, windows on every second layer, fused transposed experts whose gate and up
// columns alternate, biases everywhere.
var gptOSSFamily = family{name: "gpt_oss", types: []string{"gpt_oss"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	full := attention(c, ropeOf(c, headDim(c), false, ""))
	full.qkvBias = c.boolOr("attention_bias", true)
	full.oBias, full.sinks = full.qkvBias, "sinks"
	local := *full
	local.window = c.dimOr("sliding_window", 128)
	out := experts("mlp.experts.", "gate_proj", "up_proj", "down_proj")
	moe := &moeArch{experts: expertCount(c), topK: c.dim("num_experts_per_tok", "experts_per_token"), inter: c.dim("intermediate_size"), out: out,
		act: activation{kind: "swiglu_oss", alpha: 1.702, limit: float32(c.floatOr("swiglu_limit", 7))},
		layouts: []expertLayout{
			{gateUp: "mlp.experts.gate_up_proj", down: "mlp.experts.down_proj", gateUpBias: "mlp.experts.gate_up_proj_bias", downBias: "mlp.experts.down_proj_bias", transposed: true, interleaved: true},
			{per: &out, bias: true},
		},
		router: routerArch{module: "mlp.router", bias: true, score: scoreTopKSoftmax}}
	sparse(a, full, moe, nil, 0)
	inner := a.layer
	a.layer = func(i int) *layerArch {
		l := inner(i)
		if layerType(c, i, func(i int) string {
			if i%2 == 0 {
				return "sliding_attention"
			}
			return "full_attention"
		}) == "sliding_attention" {
			l.mixer = &local
		}
		return l
	}
	return a
}}
