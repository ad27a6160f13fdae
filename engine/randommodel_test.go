package engine_test

import (
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"quire/capture/checkpoint"
)

// stack is a Qwen3-MoE checkpoint of random layers, all with the same weights: what it predicts is noise, what it costs is real.
type stack struct{ layers, hidden, inter, experts, topK int }

// write puts the checkpoint into dir, one file a layer, and gives its size.
func (s stack) write(t testing.TB, dir string) (bytes int64) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	const vocab, heads, headDim = 512, 4, 64
	rng := rand.New(rand.NewSource(1))
	// A bfloat16 of random sign and mantissa with an exponent near that of 0.02.
	noise := make([]byte, 2*max(s.hidden*s.inter, s.hidden*max(vocab, heads*headDim)))
	rng.Read(noise)
	for i := 1; i < len(noise); i += 2 {
		noise[i] = noise[i]&0x80 | 0x3c
	}
	ones := make([]byte, 2*s.hidden)
	for i := range s.hidden {
		ones[2*i], ones[2*i+1] = 0x80, 0x3f
	}
	index := map[string]string{}
	file := func(name string, specs ...checkpoint.TensorSpec) {
		w, err := checkpoint.CreateShard(dir, name, specs)
		require.NoError(t, err)
		for _, sp := range specs {
			data := ones
			if len(sp.Shape) == 2 {
				data = noise
			}
			n, ok := sp.Bytes()
			require.True(t, ok)
			require.NoError(t, w.Write(sp.Name, data[:n]))
			index[sp.Name] = name
			bytes += n
		}
		_, err = w.Close()
		require.NoError(t, err)
	}
	tensor := func(name string, shape ...int) checkpoint.TensorSpec {
		dt, err := checkpoint.ParseDType("BF16")
		require.NoError(t, err)
		return checkpoint.TensorSpec{Name: name + ".weight", DType: dt, Shape: shape}
	}
	for l := range s.layers {
		p := fmt.Sprintf("model.layers.%d.", l)
		specs := []checkpoint.TensorSpec{tensor(p+"input_layernorm", s.hidden), tensor(p+"post_attention_layernorm", s.hidden), tensor(p+"self_attn.q_norm", headDim),
			tensor(p+"self_attn.k_norm", headDim), tensor(p+"mlp.gate", s.experts, s.hidden), tensor(p+"self_attn.o_proj", s.hidden, heads*headDim)}
		for _, n := range []string{"q", "k", "v"} {
			specs = append(specs, tensor(p+"self_attn."+n+"_proj", heads*headDim, s.hidden))
		}
		for e := range s.experts {
			q := fmt.Sprintf("%smlp.experts.%d.", p, e)
			specs = append(specs, tensor(q+"gate_proj", s.inter, s.hidden), tensor(q+"up_proj", s.inter, s.hidden), tensor(q+"down_proj", s.hidden, s.inter))
		}
		file(fmt.Sprintf("layer-%03d.safetensors", l), specs...)
	}
	file("outside.safetensors", tensor("model.embed_tokens", vocab, s.hidden), tensor("lm_head", vocab, s.hidden), tensor("model.norm", s.hidden))
	b, err := checkpoint.IndexJSON(index, bytes)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), b, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), fmt.Appendf(nil, `{"architectures":["Qwen3MoeForCausalLM"],"model_type":"qwen3_moe","vocab_size":%d,"hidden_size":%d,
"intermediate_size":%d,"moe_intermediate_size":%d,"num_hidden_layers":%d,"num_attention_heads":%d,"num_key_value_heads":%d,"head_dim":%d,"hidden_act":"silu",
"max_position_embeddings":4096,"rms_norm_eps":1e-06,"rope_theta":10000.0,"num_experts":%d,"num_experts_per_tok":%d,"norm_topk_prob":true,"decoder_sparse_step":1,
"mlp_only_layers":[],"attention_bias":false,"sliding_window":null,"use_sliding_window":false,"tie_word_embeddings":false,"torch_dtype":"bfloat16"}`,
		vocab, s.hidden, s.inter, s.inter, s.layers, heads, heads, headDim, s.experts, s.topK), 0o644))
	return bytes
}
