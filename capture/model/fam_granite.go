package model

// graniteMoEFamily: Granite 3 MoE: multipliers everywhere, fused experts whose tensors end in ".weight".
var graniteMoEFamily = family{name: "granitemoe", types: []string{"granitemoe"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	a.embedScale = float32(c.floatOr("embedding_multiplier", 1))
	a.logitScale = float32(1 / c.floatOr("logits_scaling", 1))
	attn := attention(c, ropeOf(c, headDim(c), false, ""))
	attn.scale = float32(c.floatOr("attention_multiplier", 1))
	out := experts("block_sparse_moe.experts.", "w1", "w3", "w2")
	moe := &moeArch{experts: expertCount(c), topK: c.dim("num_experts_per_tok"), inter: c.dim("intermediate_size"), act: act(c), out: out,
		layouts: append([]expertLayout{{gateUp: "block_sparse_moe.input_linear.weight", down: "block_sparse_moe.output_linear.weight"}}, listOf(out)...),
		router:  routerArch{module: "block_sparse_moe.router.layer", score: scoreTopKSoftmax}}
	sparse(a, attn, moe, nil, 0)
	inner, mul := a.layer, float32(c.floatOr("residual_multiplier", 1))
	a.layer = func(i int) *layerArch {
		l := inner(i)
		l.residual = mul
		return l
	}
	return a
}}
