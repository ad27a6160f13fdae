package lint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// object is a JSON object with what its members said, order kept.
type object struct {
	keys []string
	raw  map[string]json.RawMessage
}

func parseObject(raw []byte) (object, error) {
	o := object{raw: map[string]json.RawMessage{}}
	dec := json.NewDecoder(bytes.NewReader(raw))
	tok, err := dec.Token()
	if err != nil {
		return o, err
	}
	if tok != json.Delim('{') {
		return o, fmt.Errorf("not an object but %v", tok)
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return o, err
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return o, err
		}
		k, ok := key.(string)
		if !ok {
			return o, fmt.Errorf("key %v is not a string", key)
		}
		o.keys = append(o.keys, k)
		o.raw[k] = v
	}
	_, err = dec.Token()
	return o, err
}

// get decodes a member; present says whether it was there and not null.
func get[T any](o object, key string) (v T, present bool, err error) {
	raw, ok := o.raw[key]
	if !ok || string(raw) == "null" {
		return v, false, nil
	}
	err = json.Unmarshal(raw, &v)
	return v, true, err
}

// first decodes the first of several spellings that is there.
func first[T any](o object, keys ...string) (v T, key string, err error) {
	for _, k := range keys {
		if v, ok, err := get[T](o, k); ok {
			return v, k, err
		}
	}
	return v, "", nil
}

// modelConfig is what lint needs of config.json.
type modelConfig struct {
	present     bool
	object      object
	hidden      int
	layers      int
	experts     int
	moeWidth    int // width of one routed expert
	heads       int
	kvHeads     int
	dtype       string
	activation  string
	tied        bool
	quant       quantConfig
	quantBlock  bool
	denseLayers int
}

// readConfig parses config.json and its quantization block.
func readConfig(f *checkpointFiles, c *collector) *modelConfig {
	m := &modelConfig{}
	raw, err := f.read("config.json")
	if err != nil {
		c.add("E_CONFIG", "config.json", "it cannot be read")
		return m
	}
	o, err := parseObject(raw)
	if err != nil {
		c.add("E_CONFIG", "config.json", "%v", err)
		return m
	}
	m.present, m.object = true, o
	text := o
	for _, k := range []string{"text_config", "llm_config", "language_config"} {
		if inner, ok := o.raw[k]; ok {
			if t, err := parseObject(inner); err == nil {
				text = t
				break
			}
		}
	}
	number := func(keys ...string) int {
		n, key, err := first[json.Number](text, keys...)
		if key == "" {
			return 0
		}
		var each []json.Number // Hunyuan: a value a layer
		if err != nil && json.Unmarshal(text.raw[key], &each) == nil && len(each) > 0 && slices.Equal(each, slices.Repeat(each[:1], len(each))) {
			n, err = each[0], nil
		}
		v, convErr := strconv.Atoi(n.String())
		if err != nil || convErr != nil || v < 0 || v > 1<<24 {
			c.add("E_CONFIG_VALUE", "config.json: "+key, "%s is not a count", text.raw[key])
			return 0
		}
		return v
	}
	m.hidden = number("hidden_size", "n_embd", "d_model")
	m.layers = number("num_hidden_layers", "n_layer", "num_layers")
	m.experts = number("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
	m.moeWidth = number("moe_intermediate_size", "expert_intermediate_size", "expert_ffn_hidden_size")
	if m.moeWidth == 0 && m.experts > 0 {
		m.moeWidth = number("intermediate_size")
	}
	m.heads = number("num_attention_heads", "n_head")
	if m.kvHeads = number("num_key_value_heads"); m.kvHeads == 0 {
		m.kvHeads = m.heads
	}
	m.denseLayers = number("first_k_dense_replace")
	m.dtype, _, _ = first[string](o, "dtype", "torch_dtype")
	if m.dtype == "" {
		m.dtype, _, _ = first[string](text, "dtype", "torch_dtype")
	}
	m.dtype = strings.TrimPrefix(m.dtype, "torch.")
	m.activation, _, _ = first[string](text, "hidden_act", "hidden_activation", "activation_function")
	m.tied, _, _ = get[bool](o, "tie_word_embeddings")
	block, ok := o.raw["quantization_config"]
	if !ok || string(block) == "null" {
		if block, ok = o.raw["compression_config"]; !ok || string(block) == "null" {
			return m
		}
	}
	m.quantBlock = true
	q, err := parseObject(block)
	if err != nil {
		c.add("E_CONFIG", "quantization_config", "%v", err)
		return m
	}
	m.quant = parseQuant(q, c)
	checkCopy(f, q, c)
	checkPaths("quantization_config", block, c)
	return m
}

// checkCopy compares quantize_config.json with the block, on the keys that change how tensors are read.
func checkCopy(f *checkpointFiles, q object, c *collector) {
	for _, name := range []string{"quantize_config.json", "quant_config.json"} {
		if !f.has(name) {
			continue
		}
		raw, err := f.read(name)
		if err != nil {
			continue
		}
		o, err := parseObject(raw)
		if err != nil {
			c.add("E_CONFIG_COPY", name, "%v", err)
			continue
		}
		checkPaths(name, raw, c)
		for _, k := range []string{"bits", "group_size", "sym", "desc_act", "checkpoint_format", "zero_point", "version", "dynamic", "lm_head", "modules_to_not_convert"} {
			a, okA := q.raw[k]
			b, okB := o.raw[k]
			if okA && okB && !sameJSON(a, b) {
				c.add("E_CONFIG_COPY", name, "%s is %s, in config.json %s", k, b, a)
			}
		}
	}
}

func sameJSON(a, b json.RawMessage) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

var localPath = regexp.MustCompile(`^(?:/(?:home|root|Users|tmp|var|mnt|data|workspace|opt)/|[A-Za-z]:\\)`)

// checkPaths reports string values that look like a place on the writer's machine.
func checkPaths(where string, raw json.RawMessage, c *collector) {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return
	}
	var walk func(at string, v any)
	walk = func(at string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, e := range v {
				walk(at+"."+k, e)
			}
		case []any:
			for _, e := range v {
				walk(at, e)
			}
		case string:
			if localPath.MatchString(v) {
				c.add("E_CONFIG_PATH", at, "%q", v)
			}
		}
	}
	walk(where, v)
}
