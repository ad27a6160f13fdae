package model

// llama4Family: Llama 4 text, alone or inside the multimodal checkpoint: chunked attention on rope layers, none of either
// on every fourth, fused transposed experts with the gate half first, the router scaling the experts' input.
var llama4Family = family{name: "llama4", types: []string{"llama4", "llama4_text"}, build: func(c *conf) *arch {
	root := "model."
	tied := c.boolOr("tie_word_embeddings", false)
	if s := c.sub("text_config"); s != nil {
		c, root = s, "language_model.model."
	}
	a := decoder(c, root)
	a.tied = tied
	local := attention(c, ropeOf(c, headDim(c), true, ""))
	local.chunk = c.dimOr("attention_chunk_size", 0)
	local.l2Norm, local.l2Eps = c.boolOr("use_qk_norm", true), a.norm.eps
	global := *local
	global.rope, global.chunk = nil, 0
	if c.boolOr("attn_temperature_tuning", true) {
		global.tempScale, global.tempFloor = float32(c.floatOr("attn_scale", 0.1)), float32(c.floatOr("floor_scale", 8192))
	}
	out := experts("feed_forward.experts.", "gate_proj", "up_proj", "down_proj")
	inter := c.dim("intermediate_size")
	moe := &moeArch{experts: expertCount(c), topK: c.dim("num_experts_per_tok"), inter: inter, act: act(c), out: out,
		layouts: []expertLayout{{gateUp: "feed_forward.experts.gate_up_proj", down: "feed_forward.experts.down_proj", transposed: true}, {per: &out}},
		router:  routerArch{module: "feed_forward.router", score: scoreTopKSigmoid, onInput: true},
		shared:  gated("feed_forward.shared_expert.", inter, act(c))}
	mlp := gated("feed_forward.", c.dimOr("intermediate_size_mlp", inter), moe.act)
	noRope, every, step := c.floats("no_rope_layers"), c.dimOr("no_rope_layer_interval", 4), c.dimOr("interleave_moe_layer_step", 1)
	a.layer = func(i int) *layerArch {
		l := layerAt(root, i)
		l.mixer, l.moe = local, moe
		nope := (i+1)%every == 0
		if i < len(noRope) {
			nope = noRope[i] == 0
		}
		if nope {
			l.mixer = &global
		}
		if c.floats("moe_layers") != nil && !inList(c, "moe_layers", i) || c.floats("moe_layers") == nil && (i+1)%step != 0 {
			l.moe, l.dense = nil, mlp
		}
		return l
	}
	a.extra = []extraPart{{prefix: "vision_model.", role: RoleVision}, {prefix: "multi_modal_projector.", role: RoleVision}}
	return a
}}
