package model

// llamaFamily: Llama 1-3 and what took over its names.
var llamaFamily = family{name: "llama", types: []string{"llama"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	attn := attention(c, ropeOf(c, headDim(c), false, ""))
	return dense(c, a, attn)
}}

// mistralFamily: Llama with a window on every layer when the config has one.
var mistralFamily = family{name: "mistral", types: []string{"mistral"}, build: func(c *conf) *arch {
	a := decoder(c, "model.")
	attn := attention(c, ropeOf(c, headDim(c), false, ""))
	attn.qkvBias, attn.oBias = false, false
	attn.window = c.dimOr("sliding_window", 0)
	return dense(c, a, attn)
}}

// dense completes a family of equal dense layers with the usual names.
func dense(c *conf, a *arch, attn *attnArch) *arch {
	mlp := gated("mlp.", c.dim("intermediate_size"), act(c))
	mlp.bias = c.boolOr("mlp_bias", false)
	a.layer = func(i int) *layerArch {
		l := layerAt("model.", i)
		l.mixer, l.dense = attn, mlp
		return l
	}
	a.extra = buffers(a)
	return a
}

// buffers are values that some files carry and every loader computes itself.
func buffers(*arch) []extraPart {
	return []extraPart{{prefix: "model.layers.", suffix: ".rotary_emb.inv_freq", role: RoleBuffer}}
}
