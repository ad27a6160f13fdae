package overview

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sort"
	"strings"

	"quire/capture/checkpoint"
	"quire/capture/model"
)

// Overview is what headers and config tell.
type Overview struct {
	Path           string   `json:"path"`
	HeaderOnly     bool     `json:"header_only"`
	ConfigInferred bool     `json:"config_inferred"` // made of shapes; top-k, rope and the like are not known
	Architecture   string   `json:"architecture"`    // as config.json names it
	ModelType      string   `json:"model_type"`
	Family         string   `json:"family"`            // of the family table, "" when it has none
	Unknown        string   `json:"unknown,omitempty"` // why the table cannot run the model
	Code           string   `json:"unknown_code,omitempty"`
	Hint           string   `json:"unknown_hint,omitempty"`
	Layers         int      `json:"layers"`
	BlockLayers    int      `json:"moe_layers"`
	Hidden         int      `json:"hidden_size"`
	Vocab          int      `json:"vocab_size"`
	Experts        int      `json:"experts"`
	TopK           int      `json:"experts_per_token,omitempty"`
	SharedExperts  bool     `json:"shared_experts"`
	ExpertLayout   string   `json:"expert_layout,omitempty"` // as the family states it: "per expert", "fused [E,2I,H], gate half first", …
	ExpertWidth    int      `json:"expert_width,omitempty"`
	Attention      string   `json:"attention"`
	ActiveParams   int64    `json:"active_parameters,omitempty"` // multiplied for one token: all but embedding, idle experts and what is no part of the text model
	Parameters     int64    `json:"parameters"`
	Bytes          int64    `json:"bytes"`
	Tensors        int      `json:"tensors"` // stored
	Logical        int      `json:"logical_tensors"`
	Classes        []Class  `json:"classes"`
	DTypes         []DType  `json:"dtypes"`
	Quantization   string   `json:"source_quantization,omitempty"` // quant_method of the source
	Formats        []Format `json:"source_formats,omitempty"`
	Tied           bool     `json:"tied_embeddings"`
	Unclaimed      []string `json:"unclaimed"`
	Missing        []string `json:"missing,omitempty"`
	Shards         int      `json:"shards"`
	SideFiles      []string `json:"side_files"`
	Unused         []string `json:"unused_weight_files,omitempty"` // safetensors files beside the checkpoint that are no part of it
}

// Class sums logical tensors of one role.
type Class struct {
	Class      string `json:"class"`
	Fate       string `json:"fate"`
	Tensors    int    `json:"tensors"`
	Parameters int64  `json:"parameters"`
	Bytes      int64  `json:"bytes"` // with companions
}

// DType sums stored tensors of one element type.
type DType struct {
	DType   string `json:"dtype"`
	Tensors int    `json:"tensors"`
	Bytes   int64  `json:"bytes"`
}

// Format sums decoded weights of one packing.
type Format struct {
	Format  string `json:"format"`
	Tensors int    `json:"tensors"`
}

// Of looks at an open source. The error is one of reading; a model that the family table does not know is none.
func Of(ctx context.Context, src *checkpoint.Source) (*Overview, error) {
	o := &Overview{Path: src.Path(), HeaderOnly: src.HeaderOnly(), ConfigInferred: src.ConfigInferred(), Quantization: src.QuantMethod(),
		Tensors: len(src.Tensors()), Logical: len(src.Logical()), Shards: shards(src), Unclaimed: []string{}, SideFiles: []string{}}
	o.readConfig(src.ConfigJSON())
	for _, f := range src.SideFiles() {
		o.SideFiles = append(o.SideFiles, f.Name)
	}
	for _, f := range src.Unused() {
		o.Unused = append(o.Unused, f.Name)
	}
	classOf := byName
	m, err := model.Open(ctx, model.FromCheckpoint(src), model.Options{})
	var coded interface {
		ErrorCode() string
		Remedy() string
	}
	switch {
	case err == nil:
		o.readModel(m)
		claims := map[string]Class{}
		for _, c := range m.Claims() {
			claims[c.Tensor.Name] = Class{Class: roleClass(c), Fate: string(c.Fate)}
		}
		classOf = func(name string) Class { return claims[name] }
	case errors.As(err, &coded):
		o.Unknown, o.Code, o.Hint = err.Error(), coded.ErrorCode(), coded.Remedy()
		var faults model.Faults
		if errors.As(err, &faults) {
			for _, f := range faults {
				switch {
				case errors.Is(f, model.ErrUnclaimed):
					o.Unclaimed = append(o.Unclaimed, f.Where.Tensor)
				case errors.Is(f, model.ErrMissing):
					o.Missing = append(o.Missing, f.Where.Tensor)
				}
			}
		}
	default:
		return nil, err
	}
	o.sum(src, classOf)
	return o, nil
}

func shards(src *checkpoint.Source) int {
	if !src.HeaderOnly() {
		return len(src.Shards())
	}
	seen := map[string]bool{}
	for _, t := range src.Tensors() {
		seen[t.Shard] = true
	}
	return len(seen)
}

// readConfig takes what config.json says by itself, in the text part where there is one.
func (o *Overview) readConfig(raw []byte) {
	var top map[string]any
	if json.Unmarshal(raw, &top) != nil {
		return // kept byte for byte, but not for reading: NaN and the like
	}
	if a, ok := top["architectures"].([]any); ok && len(a) > 0 {
		o.Architecture, _ = a[0].(string)
	}
	o.ModelType, _ = top["model_type"].(string)
	text, ok := top["text_config"].(map[string]any)
	if !ok {
		text = top
	}
	num := func(keys ...string) int {
		for _, k := range keys {
			for _, c := range []map[string]any{text, top} {
				if v, ok := c[k].(float64); ok {
					return int(v)
				}
			}
		}
		return 0
	}
	o.Layers, o.Hidden, o.Vocab = num("num_hidden_layers"), num("hidden_size"), num("vocab_size")
	o.Experts, o.TopK = num("num_experts", "num_local_experts", "n_routed_experts"), num("num_experts_per_tok", "moe_topk", "moe_k", "num_experts_per_token")
	if o.ConfigInferred {
		o.TopK = 0
	}
	o.ExpertWidth = num("moe_intermediate_size")
	tied, ok := top["tie_word_embeddings"].(bool)
	if !ok {
		tied, _ = text["tie_word_embeddings"].(bool)
	}
	o.Tied = tied
	o.Attention = attentionKind(num("kv_lora_rank"), num("num_attention_heads"), num("num_key_value_heads"), num("sliding_window"))
}

func attentionKind(latent, heads, kv, window int) string {
	kind := "multi-head"
	switch {
	case latent > 0:
		kind = "latent (MLA)"
	case heads == 0:
		return "unknown"
	case kv == 1 && heads > 1:
		kind = "multi-query"
	case kv > 0 && kv != heads:
		kind = "grouped-query"
	}
	if window > 0 {
		kind += ", some sliding window"
	}
	return kind
}

// readModel takes what the family table knows better than the config.
func (o *Overview) readModel(m *model.Model) {
	o.Family, o.Layers, o.Hidden, o.Vocab, o.Tied = m.Family, len(m.Layers), m.Hidden, m.Vocab, m.Tied
	o.BlockLayers, o.Experts = 0, 0
	var active int64
	for _, l := range m.Layers {
		if b := l.Block; b != nil {
			o.BlockLayers++
			o.Experts, o.ExpertWidth = b.Experts, b.Inter
			if !o.ConfigInferred {
				o.TopK = b.TopK
			}
			o.SharedExperts = o.SharedExperts || b.SharedMid != nil
			o.ExpertLayout = b.Layout
		}
		for _, w := range l.Linears() {
			if w.Expert < 0 || w.Expert < o.TopK {
				active += w.Elements()
			}
		}
	}
	if m.Head != nil {
		active += m.Head.Elements()
	}
	if !o.ConfigInferred || o.BlockLayers == 0 {
		o.ActiveParams = active
	}
}

// roleClass groups the roles of the family table into what a reader of a table wants to tell apart.
func roleClass(c model.Claim) string {
	for _, l := range c.Linears {
		switch {
		case l.Expert >= 0:
			return "routed experts"
		case l.Shared:
			return "shared experts"
		}
	}
	switch c.Role {
	case model.RoleExperts:
		return "routed experts"
	case model.RoleQ, model.RoleK, model.RoleV, model.RoleQKV, model.RoleO, model.RoleAttnGate, model.RoleQA, model.RoleQB, model.RoleKVA, model.RoleKVB:
		return "attention"
	case model.RoleGate, model.RoleUp, model.RoleGateUp, model.RoleDown:
		return "feed-forward"
	case model.RoleSharedGate, model.RoleRouter, model.RoleCorrection:
		return "router"
	}
	return strings.ReplaceAll(string(c.Role), "_", " ")
}

func (o *Overview) sum(src *checkpoint.Source, classOf func(string) Class) {
	classes := map[[2]string]*Class{}
	dtypes := map[checkpoint.DType]*DType{}
	formats := map[string]int{}
	for _, t := range src.Tensors() {
		d := dtypes[t.DType]
		if d == nil {
			d = &DType{DType: string(t.DType)}
			dtypes[t.DType] = d
		}
		d.Tensors++
		d.Bytes += t.Bytes()
		o.Bytes += t.Bytes()
	}
	add := func(c Class, params, bytes int64) {
		if c.Class == "" {
			c.Class = "unclaimed"
		}
		k := [2]string{c.Class, c.Fate}
		if classes[k] == nil {
			classes[k] = &Class{Class: c.Class, Fate: c.Fate}
		}
		classes[k].Tensors++
		classes[k].Parameters += params
		classes[k].Bytes += bytes
	}
	for _, l := range src.Logical() {
		n := int64(1)
		for _, d := range l.Shape {
			n *= int64(d)
		}
		var bytes int64
		for _, s := range l.Stored {
			if t, ok := src.Lookup(s); ok {
				bytes += t.Bytes()
			}
		}
		o.Parameters += n
		if l.Format != "" {
			formats[l.Format]++
		}
		add(classOf(l.Name), n, bytes)
	}
	for _, name := range src.ActivationCompanions() {
		if t, ok := src.Lookup(name); ok {
			add(Class{Class: "activation scales", Fate: "dropped"}, 0, t.Bytes())
		}
	}
	for _, c := range classes {
		o.Classes = append(o.Classes, *c)
	}
	sort.Slice(o.Classes, func(i, j int) bool {
		a, b := o.Classes[i], o.Classes[j]
		if a.Bytes != b.Bytes {
			return a.Bytes > b.Bytes
		}
		return a.Class+a.Fate < b.Class+b.Fate
	})
	for _, d := range dtypes {
		o.DTypes = append(o.DTypes, *d)
	}
	slices.SortFunc(o.DTypes, func(a, b DType) int { return strings.Compare(a.DType, b.DType) })
	for f, n := range formats {
		o.Formats = append(o.Formats, Format{f, n})
	}
	slices.SortFunc(o.Formats, func(a, b Format) int { return strings.Compare(a.Format, b.Format) })
}
