package model

import (
	"sort"
	"strconv"
	"strings"
)

// family is an entry of the table: one file each.
type family struct {
	name  string
	types []string // model_type values
	// build resolves the config; faults are collected in it.
	build func(c *conf) *arch
}

// families is the table. A new family is a file with one entry here and a fixture.
var families = []family{
	llamaFamily, mistralFamily, qwen2Family, qwen3Family, phi3Family, gemma3Family,
	mixtralFamily, qwen2MoEFamily, qwen3MoEFamily, olmoeFamily, phimoeFamily, graniteMoEFamily,
	dots1Family, deepseekV2Family, deepseekV3Family, glm4MoEFamily, glm4MoELiteFamily, minimaxM2Family,
	ernieMoEFamily, hunyuanMoEFamily, exaoneMoEFamily, afmoeFamily, cohere2MoEFamily, gptOSSFamily, llama4Family,
}

// Families lists the names of the table with the model_type values each reads.
func Families() map[string][]string {
	out := make(map[string][]string, len(families))
	for _, f := range families {
		out[f.name] = append([]string{}, f.types...)
	}
	return out
}

func resolve(raw []byte) (string, *arch, error) {
	c, err := parseConfig(raw)
	if err != nil {
		return "", nil, err
	}
	typ := c.strOr("model_type", "")
	for _, f := range families {
		for _, t := range f.types {
			if t != typ {
				continue
			}
			a := f.build(c)
			if len(*c.faults) > 0 {
				kind := ErrConfig
				if strings.Contains((*c.faults)[0], "not implemented") {
					kind = ErrUnsupported
				}
				return "", nil, errAt(kind, "", "%s: config.json: %s", f.name, strings.Join(*c.faults, "; "))
			}
			return f.name, a, nil
		}
	}
	var known []string
	for _, f := range families {
		known = append(known, f.types...)
	}
	sort.Strings(known)
	return "", nil, errAt(ErrUnknownFamily, "", "model_type %q (known: %s)", typ, strings.Join(known, ", "))
}

// decoder is the frame that nearly all families share: names under root, RMS norms, a head.
func decoder(c *conf, root string) *arch {
	a := &arch{
		hidden: c.dim("hidden_size"), vocab: c.dim("vocab_size"), layers: c.dim("num_hidden_layers"),
		embed: root + "embed_tokens.weight", finalNorm: root + "norm.weight", head: strings.TrimSuffix(root, "model.") + "lm_head",
		tied: c.boolOr("tie_word_embeddings", false),
		norm: normRule{eps: float32(c.floatOr("rms_norm_eps", 1e-6))},
	}
	return a
}

// layerAt is a layer with the usual norm names.
func layerAt(root string, i int) *layerArch {
	return &layerArch{prefix: root + "layers." + strconv.Itoa(i) + ".", inNorm: "input_layernorm", mlpNorm: "post_attention_layernorm"}
}

// attention is the usual attention of a config; family files change what differs.
func attention(c *conf, r *rope) *attnArch {
	heads := c.dim("num_attention_heads")
	dim := c.dim("hidden_size") / heads
	dim = c.dimOr("head_dim", max(dim, 1))
	bias := c.boolOr("attention_bias", false)
	return &attnArch{prefix: "self_attn.", heads: heads, kvHeads: c.dimOr("num_key_value_heads", heads), dim: dim,
		q: "q_proj", k: "k_proj", v: "v_proj", o: "o_proj", qkvBias: bias, oBias: bias, rope: r, scale: rsqrt(dim)}
}

// headDim is the head size that attention will use.
func headDim(c *conf) int {
	return c.dimOr("head_dim", max(c.dim("hidden_size")/c.dim("num_attention_heads"), 1))
}

// expertCount reads the number of routed experts in every published spelling: other tools rewrite configs with the key of
// their own library version, so a family must not insist on its usual one. Two spellings that disagree are a fault.
func expertCount(c *conf) int {
	keys := []string{"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"}
	n := c.dim(keys...)
	for _, k := range keys {
		if c.has(k) && c.dimOr(k, n) != n {
			c.fault("%s and %s disagree", c.first(keys...), k)
		}
	}
	return n
}

// gated is a feed-forward with the usual names under a prefix.
func gated(prefix string, inter int, act activation) *mlpArch {
	return &mlpArch{gate: prefix + "gate_proj", up: prefix + "up_proj", down: prefix + "down_proj", inter: inter, act: act}
}

// experts names per-expert linears under a prefix: "mlp.experts.{e}.gate_proj" and so on.
func experts(prefix, gate, up, down string) expertNames {
	p := prefix + "{e}."
	return expertNames{gate: p + gate, up: p + up, down: p + down}
}

func listOf(n expertNames) []expertLayout { return []expertLayout{{per: &n}} }

// activationKeys are the spellings of the activation in published configs.
var activationKeys = []string{"hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act", "hidden_activation_function"}

// act reads the activation, from the key that the family prefers where a config has several. None at all is a fault: a default
// that is wrong for the model would change every number in silence.
func act(c *conf, prefer ...string) activation {
	keys := append(prefer, activationKeys...)
	key := c.first(keys...)
	if !c.has(key) {
		c.fault("no activation: none of %s is there", strings.Join(keys, ", "))
		return activation{kind: "silu"}
	}
	switch s := c.strOr(key, ""); s {
	case "silu", "swish", "swiglu":
		return activation{kind: "silu"}
	case "gelu_pytorch_tanh", "gelu_new":
		return activation{kind: "gelu_tanh"}
	case "gelu":
		return activation{kind: "gelu"}
	case "relu":
		return activation{kind: "relu"}
	case "relu2":
		return activation{kind: "relu2"}
	default:
		c.fault("%s%s = %q is a variant that is not implemented (known: silu, swish, swiglu, gelu, gelu_pytorch_tanh, gelu_new, relu, relu2)", c.at, key, s)
		return activation{kind: "silu"}
	}
}

// layerType reads layer_types[i]; without the list def(i) decides.
func layerType(c *conf, i int, def func(i int) string) string {
	if l := c.strs("layer_types"); l != nil {
		if i < len(l) {
			return l[i]
		}
		c.fault("layer_types has %d entries, layer %d needs one", len(l), i)
	}
	return def(i)
}

// inList reports whether a number stands in a list of the config.
func inList(c *conf, key string, i int) bool {
	for _, f := range c.floats(key) {
		if int(f) == i {
			return true
		}
	}
	return false
}

func expand(pattern string, e int) string { return strings.ReplaceAll(pattern, "{e}", strconv.Itoa(e)) }
