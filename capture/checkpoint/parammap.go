package checkpoint

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

// maxMap bounds an unpacked parameter map, in bytes.
const maxMap = 1 << 30

// openMap makes a header-only source of a parameter map: one JSON object {tensor: {"shape":…, "dtype":…, "file":…}},
// plain or gzip. config.json is FILE.config.json beside it, or inferred from shapes.
func openMap(ctx context.Context, path string) (*Source, error) {
	b, err := readMap(path)
	if err != nil {
		return nil, err
	}
	name := filepath.Base(path)
	s := &Source{path: path, headerOnly: true, byName: map[string]int{}, byShard: map[string]*shardFile{}, decode: map[string]*logicalTensor{}, companion: map[string]string{}}
	if es := s.parseMap(name, b); len(es) > 0 {
		return nil, es.asError()
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	sort.Slice(s.stored, func(i, j int) bool { return s.stored[i].Name < s.stored[j].Name })
	for i, t := range s.stored {
		s.byName[t.Name] = i
	}
	base := strings.TrimSuffix(strings.TrimSuffix(path, ".gz"), ".json")
	if s.config, err = os.ReadFile(base + ".config.json"); err != nil {
		if s.config, err = s.inferConfig(); err != nil {
			return nil, err
		}
		s.inferred = true
	}
	if es := checkConfig(s.config); len(es) > 0 {
		return nil, es.asError()
	}
	if es := s.resolve(); len(es) > 0 {
		return nil, es.asError()
	}
	return s, nil
}

func readMap(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, ioError(codeIORead, path, err)
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		z, err := gzip.NewReader(f)
		if err != nil {
			return nil, &Error{Code: codeMapJSON, What: "the file is not gzip", Where: Where{File: path, Offset: -1}, Try: fetchAgain, Err: err}
		}
		r = z
	}
	b, err := io.ReadAll(io.LimitReader(r, maxMap+1))
	switch {
	case err != nil:
		return nil, &Error{Code: codeMapJSON, What: "the file cannot be unpacked", Where: Where{File: path, Offset: -1}, Try: fetchAgain, Err: err}
	case len(b) > maxMap:
		return nil, fail(codeMapJSON, path, "", -1, "split the map", "more than %d bytes", maxMap)
	}
	return b, nil
}

func (s *Source) parseMap(name string, b []byte) Errors {
	var es Errors
	sc := &scanner{b: b}
	err := sc.object(func(tensor string, pos int) error {
		t := Tensor{Name: tensor}
		err := sc.object(func(k string, _ int) (err error) {
			var v string
			switch k {
			case "dtype":
				v, err = sc.str()
				t.DType = DType(v)
			case "file":
				t.Shard, err = sc.str()
			case "shape":
				err = sc.array(func() error {
					v, err := sc.natural()
					t.Shape = append(t.Shape, int(v))
					return err
				})
			default:
				_, err = sc.value()
			}
			return err
		})
		if err != nil {
			return err
		}
		n, ok := elements(t.Shape)
		if ok {
			t.End, ok = t.DType.Bytes(n)
		}
		switch {
		case t.DType.Bits() == 0:
			es = append(es, fail(codeDType, name, tensor, int64(pos), "correct the map", "dtype %q is not defined", t.DType))
		case !ok:
			es = append(es, fail(codeSize, name, tensor, int64(pos), "correct the map", "shape %v of %s is impossible", t.Shape, t.DType))
		}
		s.stored = append(s.stored, t)
		return nil
	})
	if err == nil {
		err = sc.end()
	}
	if err != nil {
		code, at := codeMapJSON, int64(-1)
		var se *scanError
		if errors.As(err, &se) {
			at = int64(se.Pos)
			if se.Twice {
				code = codeTwice
			}
		}
		es = append(es, fail(code, name, "", at, "give the directory of the model; if a parameter map is meant, it is {tensor: {\"shape\":…, \"dtype\":…, \"file\":…}}", "the parameter map is not valid: %v", err))
	}
	return es
}

// HeaderOnly says that the source has names, dtypes and shapes but no bytes.
func (s *Source) HeaderOnly() bool { return s.headerOnly }

// ConfigInferred says that the source came without a config and ConfigJSON holds only what shapes tell; experts per token,
// rope and the like are then placeholders.
func (s *Source) ConfigInferred() bool { return s.inferred }

var layerNumber = regexp.MustCompile(`^model\.layers\.(\d+)\.`)

// inferConfig reads from shapes what they tell about a model of DeepSeek-V3's layout (multi-head latent attention and routed
// experts): its parameter maps are published without config. Other maps get an empty config.
func (s *Source) inferConfig() ([]byte, error) {
	shape := func(name string, i int) int {
		if t, ok := s.Lookup(name); ok && i < len(t.Shape) {
			return t.Shape[i]
		}
		return 0
	}
	layers, mtp, first, experts := 0, 0, -1, 0
	for _, t := range s.stored {
		m := layerNumber.FindStringSubmatch(t.Name)
		if m == nil {
			continue
		}
		n, err := strconv.Atoi(m[1])
		if err != nil {
			continue
		}
		layers = max(layers, n+1)
		switch rest := t.Name[len(m[0]):]; {
		case rest == "eh_proj.weight":
			mtp++
		case rest == "mlp.gate.weight" && (first < 0 || n < first):
			first, experts = n, t.Shape[0]
		}
	}
	if layers == 0 || first < 0 || shape("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", 0) == 0 {
		return []byte("{}"), nil
	}
	a := "model.layers.0.self_attn."
	hidden, kvRank := shape("model.embed_tokens.weight", 1), shape(a+"kv_a_layernorm.weight", 0)
	rope := shape(a+"kv_a_proj_with_mqa.weight", 0) - kvRank
	qRank := shape(a+"q_a_layernorm.weight", 0)
	q := shape(a+"q_b_proj.weight", 0) // heads · (nope + rope)
	if qRank == 0 {
		q = shape(a+"q_proj.weight", 0)
	}
	heads := 0
	o, kv := shape(a+"o_proj.weight", 1), shape(a+"kv_b_proj.weight", 0) // heads · v, heads · (nope + v)
	if rope > 0 && q > kv-o && (q-(kv-o))%rope == 0 {
		heads = (q - (kv - o)) / rope
	}
	if heads == 0 || hidden == 0 || kvRank == 0 {
		return []byte("{}"), nil
	}
	e := fmt.Sprintf("model.layers.%d.mlp.", first)
	inter := shape(e+"experts.0.gate_proj.weight", 0)
	c := map[string]any{"model_type": "deepseek_v3", "hidden_size": hidden, "vocab_size": shape("model.embed_tokens.weight", 0), "num_hidden_layers": layers - mtp,
		"num_nextn_predict_layers": mtp, "first_k_dense_replace": first, "n_routed_experts": experts, "moe_intermediate_size": inter,
		"intermediate_size": shape("model.layers.0.mlp.gate_proj.weight", 0), "num_attention_heads": heads, "num_key_value_heads": heads,
		"kv_lora_rank": kvRank, "qk_rope_head_dim": rope, "qk_nope_head_dim": (kv - o) / heads, "v_head_dim": o / heads,
		"tie_word_embeddings": shape("lm_head.weight", 0) == 0, "num_experts_per_tok": 1, "rope_theta": 10000.0, "hidden_act": "silu"}
	if qRank > 0 {
		c["q_lora_rank"] = qRank
	}
	if inter > 0 {
		c["n_shared_experts"] = shape(e+"shared_experts.gate_proj.weight", 0) / inter
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	if err := enc.Encode(c); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
