package format_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"quire/engine/format"
)

// published names the whole checkpoints of other tools in formats that are read here.
var published = []struct {
	dir, format string
	scheme      format.Scheme
}{
	{"gptqmodel-gptq-w4g32", "gptq", format.Scheme{Bits: 4, GroupSize: 32, Sym: true}},
	{"gptqmodel-gptaq-w4g32-bypass", "gptq", format.Scheme{Bits: 4, GroupSize: 32, Sym: true}},
	{"gptqmodel-awq-gemm-w4g32", "awq", format.Scheme{Bits: 4, GroupSize: 32, Sym: true}},
	{"llmcompressor-gptq-w4a16-g32", "compressed-tensors", format.Scheme{Bits: 4, GroupSize: 32, Sym: true}},
	{"llmcompressor-awq-w4a16-g32", "compressed-tensors", format.Scheme{Bits: 4, GroupSize: 32}},
	{"llmcompressor-w8a8", "compressed-tensors-w8a8", format.Scheme{Bits: 8, GroupSize: -1, Sym: true}},
}

// readPublished decodes every quantized module of a checkpoint and gives it with the plain tensors.
func readPublished(t *testing.T, dir, name string, s format.Scheme) (map[string]*format.Module, map[string]format.TensorData) {
	t.Helper()
	f, err := format.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	tensors := readTensors(t, filepath.Join(dir, "model.safetensors"))
	modules := map[string]*format.Module{}
	codes := "." + f.Suffixes()[0]
	for n, d := range tensors {
		module, ok := strings.CutSuffix(n, codes)
		if !ok || codes == ".weight" && d.DType != format.I8 {
			continue
		}
		var parts []format.TensorData
		for _, s := range f.Suffixes() {
			if p, ok := tensors[module+"."+s]; ok {
				parts = append(parts, p)
				delete(tensors, module+"."+s)
			}
		}
		m, err := f.Decode(module, s, parts)
		if err != nil {
			t.Fatal(err)
		}
		modules[module] = m
	}
	return modules, tensors
}

// TestPublishedCheckpoints reads what other tools wrote: the weights recorded beside it bit for bit, the logits recorded
// beside it through a plain forward in float64, and every module back to the same bytes.
func TestPublishedCheckpoints(t *testing.T) {
	for _, c := range published {
		t.Run(c.dir, func(t *testing.T) {
			t.Parallel()
			dir := shared(t, "fixtures", "quant", "checkpoints", c.dir)
			modules, plain := readPublished(t, dir, c.format, c.scheme)
			if len(modules) != 112 {
				t.Fatalf("%d modules, want 112", len(modules))
			}
			record := readTensors(t, filepath.Join(dir, "logits.safetensors"))
			checked := 0
			for name, want := range record {
				module, ok := strings.CutPrefix(name, "dequantized.")
				if !ok {
					continue
				}
				module, _, _ = strings.Cut(module, ".weight[")
				m := modules[module]
				w := make([]float32, m.Out*m.In)
				m.Dequantize(w)
				for i, v := range floats(t, want) {
					if w[i] != v {
						t.Fatalf("%s: weight %d is %v, recorded %v", module, i, w[i], v)
					}
				}
				checked++
			}
			if checked == 0 {
				t.Error("no recorded weights")
			}
			rewrite(t, c.format, dir, modules)
			model := newTiny(t, dir, modules, plain)
			for _, p := range []string{"prompt0", "prompt1", "prompt2"} {
				got := model.logits(int32s(record[p+".tokens"]))
				worst := 0.0
				for i, v := range floats(t, record[p+".logits"]) {
					worst = max(worst, math.Abs(got[i]-float64(v)))
				}
				if worst > 2e-3 {
					t.Errorf("%s: logits differ by %g", p, worst)
				}
			}
		})
	}
}

// rewrite encodes every module again and compares with the file.
func rewrite(t *testing.T, name, dir string, modules map[string]*format.Module) {
	t.Helper()
	f, err := format.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	file := readTensors(t, filepath.Join(dir, "model.safetensors"))
	for _, m := range modules {
		tensors, err := f.Encode(m)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range tensors {
			if w := file[d.Name]; string(w.Data) != string(d.Data) || w.DType != d.DType {
				t.Fatalf("%s is written as other bytes", d.Name)
			}
		}
	}
}

// tiny is a Qwen3-MoE forward written out in float64, for one prompt at a time.
type tiny struct {
	cfg struct {
		Hidden   int     `json:"hidden_size"`
		Layers   int     `json:"num_hidden_layers"`
		Heads    int     `json:"num_attention_heads"`
		KVHeads  int     `json:"num_key_value_heads"`
		HeadDim  int     `json:"head_dim"`
		TopK     int     `json:"num_experts_per_tok"`
		NormTopK bool    `json:"norm_topk_prob"`
		Eps      float64 `json:"rms_norm_eps"`
		Theta    float64 `json:"rope_theta"`
		Rope     struct {
			Theta float64 `json:"rope_theta"`
		} `json:"rope_parameters"`
	}
	w map[string][]float64 // weights by name, row-major
}

func newTiny(t *testing.T, dir string, modules map[string]*format.Module, plain map[string]format.TensorData) *tiny {
	t.Helper()
	m := &tiny{w: map[string][]float64{}}
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &m.cfg); err != nil {
		t.Fatal(err)
	}
	if m.cfg.Theta == 0 {
		m.cfg.Theta = m.cfg.Rope.Theta
	}
	widen := func(src []float32) []float64 {
		out := make([]float64, len(src))
		for i, v := range src {
			out[i] = float64(v)
		}
		return out
	}
	for n, q := range modules {
		w := make([]float32, q.Out*q.In)
		q.Dequantize(w)
		m.w[n+".weight"] = widen(w)
	}
	for n, d := range plain {
		m.w[n] = widen(floats(t, d))
	}
	return m
}

// mul is y = W·x for W [out, len(x)].
func mul(w, x []float64) []float64 {
	y := make([]float64, len(w)/len(x))
	for o := range y {
		for i, v := range x {
			y[o] += w[o*len(x)+i] * v
		}
	}
	return y
}

func (m *tiny) norm(x, w []float64) []float64 {
	var s float64
	for _, v := range x {
		s += v * v
	}
	r := 1 / math.Sqrt(s/float64(len(x))+m.cfg.Eps)
	y := make([]float64, len(x))
	for i := range y {
		y[i] = x[i] * r * w[i]
	}
	return y
}

func (m *tiny) rope(x []float64, pos int) {
	half := len(x) / 2
	for i := range half {
		a := float64(pos) * math.Pow(m.cfg.Theta, -float64(i)/float64(half))
		x[i], x[half+i] = x[i]*math.Cos(a)-x[half+i]*math.Sin(a), x[half+i]*math.Cos(a)+x[i]*math.Sin(a)
	}
}

func softmax(x []float64) {
	top, sum := math.Inf(-1), 0.0
	for _, v := range x {
		top = max(top, v)
	}
	for i, v := range x {
		x[i] = math.Exp(v - top)
		sum += x[i]
	}
	for i := range x {
		x[i] /= sum
	}
}

func (m *tiny) logits(tokens []int32) []float64 {
	c := m.cfg
	x := make([][]float64, len(tokens))
	for t, id := range tokens {
		x[t] = append([]float64(nil), m.w["model.embed_tokens.weight"][int(id)*c.Hidden:][:c.Hidden]...)
	}
	for l := range c.Layers {
		p := "model.layers." + string(rune('0'+l)) + "."
		q, k, v := make([][]float64, len(x)), make([][]float64, len(x)), make([][]float64, len(x))
		for t := range x {
			h := m.norm(x[t], m.w[p+"input_layernorm.weight"])
			q[t], k[t], v[t] = mul(m.w[p+"self_attn.q_proj.weight"], h), mul(m.w[p+"self_attn.k_proj.weight"], h), mul(m.w[p+"self_attn.v_proj.weight"], h)
			for a := 0; a < len(q[t]); a += c.HeadDim {
				copy(q[t][a:], m.norm(q[t][a:][:c.HeadDim], m.w[p+"self_attn.q_norm.weight"]))
				m.rope(q[t][a:][:c.HeadDim], t)
			}
			for a := 0; a < len(k[t]); a += c.HeadDim {
				copy(k[t][a:], m.norm(k[t][a:][:c.HeadDim], m.w[p+"self_attn.k_norm.weight"]))
				m.rope(k[t][a:][:c.HeadDim], t)
			}
		}
		for t := range x {
			out := make([]float64, len(q[t]))
			for h := range c.Heads {
				kv := h / (c.Heads / c.KVHeads) * c.HeadDim
				score := make([]float64, t+1)
				for s := range score {
					for i := range c.HeadDim {
						score[s] += q[t][h*c.HeadDim+i] * k[s][kv+i] / math.Sqrt(float64(c.HeadDim))
					}
				}
				softmax(score)
				for s, a := range score {
					for i := range c.HeadDim {
						out[h*c.HeadDim+i] += a * v[s][kv+i]
					}
				}
			}
			for i, d := range mul(m.w[p+"self_attn.o_proj.weight"], out) {
				x[t][i] += d
			}
			m.block(p+"mlp.", x[t], m.norm(x[t], m.w[p+"post_attention_layernorm.weight"]))
		}
	}
	var all []float64
	for t := range x {
		all = append(all, mul(m.w["lm_head.weight"], m.norm(x[t], m.w["model.norm.weight"]))...)
	}
	return all
}

// block adds the mixture of experts of h into x.
func (m *tiny) block(p string, x, h []float64) {
	prob := mul(m.w[p+"gate.weight"], h)
	softmax(prob)
	total := 0.0
	var chosen []int
	for range m.cfg.TopK {
		best := -1
		for e, v := range prob {
			if v >= 0 && (best < 0 || v > prob[best]) {
				best = e
			}
		}
		chosen = append(chosen, best)
		total += prob[best]
		prob[best] = -prob[best] // taken
	}
	if !m.cfg.NormTopK {
		total = 1
	}
	for _, e := range chosen {
		q := p + "experts." + string(rune('0'+e)) + "."
		gate, up := mul(m.w[q+"gate_proj.weight"], h), mul(m.w[q+"up_proj.weight"], h)
		for i := range gate {
			gate[i] *= up[i] / (1 + math.Exp(-gate[i]))
		}
		for i, d := range mul(m.w[q+"down_proj.weight"], gate) {
			x[i] -= prob[e] / total * d // its sign marks it as taken
		}
	}
}
