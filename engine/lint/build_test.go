package lint_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"quire/engine/format"
)

// A tiny mixture-of-experts checkpoint: hidden 64, experts 128 wide, 2 heads of 32, groups of 32.
const (
	hidden, width, layers, experts = 64, 128, 2, 2
)

// build is a checkpoint in memory, to be spoiled and then written.
type build struct {
	tensors map[string]format.TensorData
	config  map[string]any
	quant   map[string]any
	shards  int
	files   map[string][]byte // written last, over what is there
	index   func(map[string]any)
	raw     func(dir string) // the last word
	meta    map[string]string
	summary *format.Summary
	modules map[string]*format.Module
}

type buildOptions struct {
	format string
	scheme format.Scheme
	left   []string // module names that are not quantized, beyond routers and head
	mixed  map[string]format.Scheme
	gidx   bool
	tail   bool     // attention outputs 192 wide: no multiple of 128
	leaves []string // of experts; nil: gate_proj, up_proj, down_proj
}

func moduleShapes(leaves []string) map[string][2]int {
	if leaves == nil {
		leaves = []string{"gate_proj", "up_proj", "down_proj"}
	}
	m := map[string][2]int{"lm_head": {96, hidden}}
	for l := range layers {
		p := fmt.Sprintf("model.layers.%d.", l)
		m[p+"self_attn.q_proj"] = [2]int{64, hidden}
		m[p+"self_attn.k_proj"] = [2]int{32, hidden}
		m[p+"self_attn.v_proj"] = [2]int{32, hidden}
		m[p+"self_attn.o_proj"] = [2]int{hidden, 64}
		m[p+"mlp.gate"] = [2]int{experts, hidden}
		for e := range experts {
			q := fmt.Sprintf("%smlp.experts.%d.", p, e)
			m[q+leaves[0]] = [2]int{width, hidden}
			m[q+leaves[1]] = [2]int{width, hidden}
			m[q+leaves[2]] = [2]int{hidden, width}
		}
	}
	return m
}

func newBuild(t testing.TB, o buildOptions) *build {
	t.Helper()
	f, err := format.Lookup(o.format)
	if err != nil {
		t.Fatal(err)
	}
	b := &build{tensors: map[string]format.TensorData{}, shards: 2, files: map[string][]byte{}, meta: map[string]string{"format": "pt"}, modules: map[string]*format.Module{}}
	src := rand.New(rand.NewPCG(7, 11))
	b.summary = &format.Summary{Producer: "quire", Version: "test"}
	plainTensor := func(name string, shape ...int) {
		d := format.TensorData{TensorSpec: format.TensorSpec{Name: name, DType: format.BF16, Shape: shape}}
		n := 1
		for _, s := range shape {
			n *= s
		}
		for range n {
			d.Data = binary.LittleEndian.AppendUint16(d.Data, 0x3C00|uint16(src.IntN(256))|uint16(src.IntN(2))<<15)
		}
		b.tensors[name] = d
	}
	shapes := moduleShapes(o.leaves)
	if o.tail {
		for n := range shapes {
			if strings.HasSuffix(n, ".o_proj") {
				shapes[n] = [2]int{hidden, 192}
			}
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(shapes), format.CompareNames) {
		shape := shapes[name]
		if name == "lm_head" || strings.HasSuffix(name, ".gate") || slices.Contains(o.left, name) {
			plainTensor(name+".weight", shape[0], shape[1])
			b.summary.Left = append(b.summary.Left, name)
			continue
		}
		s := o.scheme
		if m, ok := o.mixed[name]; ok {
			s = m
		}
		m := &format.Module{Name: name, Out: shape[0], In: shape[1], Bits: s.Bits, GroupSize: s.GroupSize, Sym: s.Sym}
		m.Codes = make([]uint8, m.Out*m.In)
		for i := range m.Codes {
			m.Codes[i] = uint8(src.IntN(m.MaxQ() + 1))
		}
		m.Scales = make([]float32, m.Out*m.Groups())
		for i := range m.Scales {
			m.Scales[i] = 0.01 + float32(src.IntN(16))/1024
		}
		if !s.Sym {
			m.Zeros = make([]uint8, len(m.Scales))
			for i := range m.Zeros {
				m.Zeros[i] = uint8(1 + src.IntN(m.MaxQ()))
			}
		}
		if o.gidx && s.GroupSize > 0 {
			m.GIdx = make([]int32, m.In)
			for i := range m.GIdx { // the same order for every module of a width
				m.GIdx[i] = int32((i * 5 % m.In) / s.GroupSize)
			}
		}
		tensors, err := f.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range tensors {
			b.tensors[d.Name] = d
		}
		b.modules[name] = m
		b.summary.Modules = append(b.summary.Modules, format.Written{Name: name, Scheme: s, GIdx: m.GIdx != nil})
	}
	plainTensor("model.embed_tokens.weight", 96, hidden)
	plainTensor("model.norm.weight", hidden)
	for l := range layers {
		p := fmt.Sprintf("model.layers.%d.", l)
		plainTensor(p+"input_layernorm.weight", hidden)
		plainTensor(p+"post_attention_layernorm.weight", hidden)
		plainTensor(p+"self_attn.q_norm.weight", 32)
		plainTensor(p+"self_attn.k_norm.weight", 32)
	}
	c, err := f.Config(b.summary)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(c.QuantizationConfig, &b.quant); err != nil {
		t.Fatal(err)
	}
	for name, data := range c.Files {
		b.files[name] = data
	}
	b.files["tokenizer.json"] = []byte("{}")
	dtype := "bfloat16"
	if strings.HasPrefix(o.format, "gptq") {
		dtype = "float16" // so that SGLang takes the experts
	}
	b.config = map[string]any{"architectures": []string{"Qwen3MoeForCausalLM"}, "model_type": "qwen3_moe", "hidden_size": hidden, "moe_intermediate_size": width,
		"num_hidden_layers": layers, "num_experts": experts, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 96, "num_experts_per_tok": 1, "norm_topk_prob": true,
		"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 64, "intermediate_size": 128, "decoder_sparse_step": 1, "mlp_only_layers": []int{},
		"attention_bias": false, "hidden_act": "silu",
		"torch_dtype": dtype, "tie_word_embeddings": false}
	return b
}

// shardOf deals tensors out by layer.
func (b *build) shardOf(name string) string {
	if b.shards == 1 {
		return "model.safetensors"
	}
	n := 1
	if strings.Contains(name, ".layers.1.") {
		n = 2
	}
	return fmt.Sprintf("model-%05d-of-%05d.safetensors", n, b.shards)
}

// safetensors lays tensors out in order of name.
func safetensors(t testing.TB, tensors []format.TensorData, meta map[string]string) []byte {
	t.Helper()
	head := map[string]any{}
	if meta != nil {
		head["__metadata__"] = meta
	}
	var data []byte
	for _, d := range tensors {
		shape := d.Shape
		if shape == nil {
			shape = []int{}
		}
		head[d.Name] = map[string]any{"dtype": d.DType, "shape": shape, "data_offsets": []int{len(data), len(data) + len(d.Data)}}
		data = append(data, d.Data...)
	}
	raw, err := json.Marshal(head)
	if err != nil {
		t.Fatal(err)
	}
	raw = append(raw, bytes.Repeat([]byte{' '}, -len(raw)&7)...)
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(raw))), raw...), data...)
}

// write puts the checkpoint into a fresh directory.
func (b *build) write(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	put := func(name string, data []byte) {
		if data == nil {
			return
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	byShard := map[string][]format.TensorData{}
	weightMap := map[string]any{}
	total := 0
	for _, name := range slices.Sorted(maps.Keys(b.tensors)) {
		d := b.tensors[name]
		d.Name = name
		s := b.shardOf(name)
		byShard[s] = append(byShard[s], d)
		weightMap[name] = s
		total += len(d.Data)
	}
	for s, list := range byShard {
		put(s, safetensors(t, list, b.meta))
	}
	if b.shards > 1 {
		index := map[string]any{"metadata": map[string]any{"total_size": total}, "weight_map": weightMap}
		if b.index != nil {
			b.index(index)
		}
		put("model.safetensors.index.json", mustJSON(t, index))
	}
	if b.quant != nil {
		b.config["quantization_config"] = b.quant
	}
	put("config.json", mustJSON(t, b.config))
	for name, data := range b.files {
		put(name, data)
		if data == nil {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if b.raw != nil {
		b.raw(dir)
	}
	return dir
}

func mustJSON(t testing.TB, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// edit changes the data of a tensor in place, on a copy.
func (b *build) edit(name string, f func(d *format.TensorData)) {
	d, ok := b.tensors[name]
	if !ok {
		panic("no tensor " + name)
	}
	d.Data = slices.Clone(d.Data)
	d.Shape = slices.Clone(d.Shape)
	f(&d)
	b.tensors[name] = d
}
