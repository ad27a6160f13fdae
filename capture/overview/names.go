package overview

import "strings"

// nameClasses orders what a name says, for models that the family table does not know. The first that fits counts.
var nameClasses = []struct {
	class string
	parts []string
}{
	{"vision", []string{"visual.", "vision_", "multi_modal_projector.", "mm_projector.", "audio_tower."}},
	{"mtp", []string{"mtp.", ".eh_proj", ".enorm", ".hnorm", "shared_head."}},
	{"routed experts", []string{".experts.", "input_linear", "output_linear"}},
	{"shared experts", []string{"shared_expert.", "shared_experts.", "shared_mlp."}},
	{"router", []string{"shared_expert_gate", "router", ".gate.weight", ".gate.wg", "e_score_correction_bias", "expert_bias"}},
	{"mixer (recurrent)", []string{"mamba.", "linear_attn.", ".conv.", "A_log", ".D", "dt_bias", "dt_proj", "x_proj", "conv1d", "in_proj", "out_proj.", "latent_proj"}},
	{"attention", []string{"self_attn.", "attention.", ".q_proj", ".k_proj", ".v_proj", ".o_proj"}},
	{"embedding", []string{"embed_tokens", "embeddings.", "wte."}},
	{"lm head", []string{"lm_head"}},
	{"norm", []string{"norm"}},
	{"feed-forward", []string{"mlp.", "feed_forward.", "ffn.", ".up_proj", ".down_proj", ".gate_proj"}},
	{"buffer", []string{"inv_freq"}},
}

// byName gives the class that a tensor's name suggests.
func byName(name string) Class {
	if strings.HasSuffix(name, "norm.weight") || strings.HasSuffix(name, "norm.bias") {
		return Class{Class: "norm"}
	}
	for _, c := range nameClasses {
		for _, p := range c.parts {
			if strings.Contains(name, p) {
				return Class{Class: c.class}
			}
		}
	}
	return Class{Class: "other"}
}
