package lint

// Severity of a finding.
type Severity string

// Severities; a note never makes the exit code 3.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
	Note    Severity = "note"
)

// Code is one line of the table of findings.
type Code struct {
	ID       string
	Severity Severity
	Text     string // what it means
	Remedy   string
}

// table is every finding there is, by the order of work.
var table = []Code{
	{"E_DIR", Error, "the directory cannot be read or holds no safetensors file", "name a directory with config.json and *.safetensors"},
	{"E_FILE", Error, "a shard is damaged: header, offsets or length do not agree", "fetch the file again"},
	{"E_INDEX", Error, "the index cannot be read, or a file is missing that it names", "fetch the file, or write the index anew from the headers"},
	{"E_INDEX_GHOST", Error, "the index names a tensor that its shard does not hold", "write the index anew from the headers"},
	{"E_INDEX_MISSING", Error, "a shard holds a tensor that the index does not name: loaders that follow the index never see it", "write the index anew from the headers"},
	{"E_INDEX_NONE", Error, "several shards but no model.safetensors.index.json", "write the index from the headers"},
	{"E_INDEX_SIZE", Warning, "total_size of the index is not the bytes of all tensors", "write the index anew from the headers"},
	{"E_INDEX_TWICE", Error, "two shards hold a tensor of the same name", "delete the stale shard"},
	{"E_SHARD_COUNT", Warning, "shard names count to another number than there are shards", "fetch the missing shard or delete the stale one"},
	{"E_METADATA", Warning, "a shard has no metadata format=pt, which transformers wants", "write the shard with {\"format\":\"pt\"}"},
	{"E_SIDE_FILE", Note, "there is no tokenizer beside the weights", "copy the tokenizer files of the original model"},
	{"E_CODE_FILES", Warning, "weights in pickle form lie beside the safetensors and may be loaded instead", "delete them"},

	{"E_CONFIG", Error, "config.json is missing or not a JSON object", "copy the original's config.json and add quantization_config"},
	{"E_CONFIG_NONE", Error, "packed tensors, but config.json has no quantization_config", "add the block that the writer of the tensors gives"},
	{"E_METHOD", Error, "quant_method is not one that loads these tensors", "set quant_method to gptq, awq or compressed-tensors as the tensors are"},
	{"E_FORMAT", Note, "a format outside gptq, awq and integer compressed-tensors: only files, names and scales are checked", "nothing to do"},
	{"E_CONFIG_KEY", Error, "a key that loaders require is missing or has the wrong type", "add it; docs/lint.md lists the keys of each method"},
	{"E_CONFIG_ARGS", Error, "quantization arguments hold a key that loaders refuse", "remove the key"},
	{"E_CONFIG_VALUE", Error, "a value of the config is not one that any loader knows", "correct the value"},
	{"E_CONFIG_COPY", Warning, "quantize_config.json and the block in config.json do not say the same", "write both from one source"},
	{"E_CONFIG_PATH", Warning, "the config holds a path of the machine that wrote it", "remove the value"},
	{"E_PATTERN", Error, "a pattern in the config is not a valid regular expression", "correct the pattern"},
	{"E_LABEL", Error, "checkpoint_format does not say what the zero points are: every weight is off by one step", "set checkpoint_format to gptq where zeros are stored minus one, to gptq_v2 where they are stored as they are"},

	{"E_TENSOR_MISSING", Error, "a quantized module lacks a tensor", "quantize the module again or fetch the shard"},
	{"E_TENSOR_EXTRA", Error, "a module has packed tensors and a plain weight", "delete one of them"},
	{"E_DTYPE", Error, "a tensor has a dtype that no loader takes there", "convert the tensor"},
	{"E_SHAPE", Error, "a shape does not follow from the scheme in the config", "correct bits or group size in the config, or write the module again"},
	{"E_WIDTH", Error, "a width does not agree with config.json", "check that config and weights are of one model"},
	{"E_GROUP", Error, "the group size does not divide the input width", "quantize with a group size that divides it, or leave the module out"},
	{"E_SOURCE_SCALE", Error, "scale companions of the source's own format are left over", "decode the source tensor to bf16 when copying it"},
	{"E_SOURCE_DTYPE", Error, "a module left alone is stored in a float8 or packed dtype that no scheme describes", "decode the source tensor to bf16 when copying it"},

	{"E_SCALE_NAN", Error, "a scale is NaN or infinite", "quantize the module again; look for non-finite calibration rows"},
	{"E_SCALE_ZERO", Error, "a scale is zero: its whole group decodes to zero", "quantize again with a scale dtype that holds small scales"},
	{"E_SCALE_NEGATIVE", Error, "a scale is negative", "quantize the module again"},
	{"E_SCALE_TINY", Warning, "a scale is subnormal in its dtype and has lost precision, or is flushed to zero by kernels", "store scales in bf16 or f32"},
	{"E_SCALE_HUGE", Warning, "a scale is so large that weights overflow float16, or dwarfs the module's other scales", "look for an outlier in the source weight"},
	{"E_ZERO_RANGE", Error, "a stored v1 zero point means 2^bits: a true zero of 0 wrapped when 1 was subtracted", "write the module as gptq_v2"},
	{"E_ZERO_SYM", Error, "declared symmetric, but zero points are not the symmetric one, and kernels for symmetric grids do not read them", "declare sym: false"},
	{"E_ZERO_CONST", Note, "declared asymmetric, but every zero point is the symmetric one", "declare it symmetric: more kernels take it"},
	{"E_GIDX_RANGE", Error, "a g_idx entry is no group", "quantize the module again"},
	{"E_GIDX_ORDER", Error, "g_idx is not in natural order, but the config says there is no act order", "set desc_act (gptq) or actorder (compressed-tensors)"},
	{"E_GIDX_NATURAL", Warning, "the config says act order, but every g_idx is natural: slower kernels and fewer tensor-parallel sizes for nothing", "set desc_act: false"},
	{"E_GIDX_COUNT", Warning, "groups of g_idx have other sizes than the group size", "quantize the module again"},
	{"E_CODE_CONST", Warning, "all codes of a module are equal: a module that was skipped or zeroed", "compare with the original"},
	{"E_CODE_PADDING", Error, "bits after the last code of a row are set: codes are shifted or of another width", "check num_bits"},
	{"E_CODE_RANGE", Error, "a stored integer lies outside the grid of num_bits", "check num_bits"},
	{"E_WEIGHT_NAN", Error, "a plain tensor holds NaN or infinity", "compare with the original"},

	{"E_FUSED_PARTIAL", Error, "of modules that loaders build as one only some are quantized", "quantize all of them or none"},
	{"E_FUSED_SCHEME", Error, "modules that loaders build as one have different bits, group size or dtype", "give all of them one scheme"},
	{"E_FUSED_GIDX", Error, "modules that loaders build as one have different g_idx", "give all of them one column order"},
	{"E_SIBLING_SCALE", Error, "tensor-wide scales of modules that loaders build as one differ, and loaders keep one of them", "write one scale for all of them"},
	{"E_EXPERT_COUNT", Error, "a layer has another number of experts than config.json says, or a hole in their numbers", "write every expert of the layer"},
	{"E_EXPERT_SHAPE", Error, "experts of a layer differ in shape or in their tensors", "write every expert alike"},
	{"E_EXPERT_FUSED", Error, "experts are stored as one 3-D tensor, which loaders of this format do not read", "write experts one by one, 2-D, …experts.N.up_proj"},
	{"E_LAYER_COUNT", Error, "config.json names another number of layers than there are", "fetch the missing shards or correct num_hidden_layers"},
	{"E_ROUTER", Error, "a router or shared-expert gate is quantized, which loaders build as a plain linear", "leave it out"},
	{"E_TIED", Error, "the output head is quantized though config.json ties it to the embedding", "set tie_word_embeddings: false or leave the head alone"},
	{"E_LM_HEAD", Error, "lm_head in the quantization config does not say whether the head is quantized", "set lm_head as the tensors are"},

	{"E_IGNORE_MISSING", Error, "a module was left alone, but the loader would look for its packed tensors", "add it to the exclusion list in the spelling this loader compares"},
	{"E_IGNORE_EXTRA", Error, "a module is quantized, but the loader would take it for a plain one", "remove the entry that matches it"},
	{"E_IGNORE_SPLIT", Error, "an exclusion hits only some parts of a fused linear, which the loader refuses", "list all parts, or none"},
	{"E_IGNORE_UNUSED", Note, "an exclusion matches no module", "remove it or correct its spelling"},
	{"E_TARGET", Error, "a quantized module matches no target of any config group", "use targets: [\"Linear\"]"},
	{"E_TARGET_LINEAR", Error, "SGLang looks experts up under the target \"Linear\" only", "let the experts' group have targets: [\"Linear\"]"},
	{"E_EXPERT_LOOKUP", Error, "the loader looks experts up as experts.0.gate_proj/up_proj/down_proj and gets another answer than for the experts' own names", "use patterns that match both spellings"},

	{"E_BITS", Error, "the loader has no kernel for this number of bits", "use 4 or 8 bits"},
	{"E_SYM", Error, "the loader takes only symmetric weights here", "quantize with --sym"},
	{"E_GROUP_SIZE", Error, "the loader takes only group sizes -1, 32, 64 and 128 here", "use one of these"},
	{"E_GROUP_TP", Error, "a group would be cut by the tensor-parallel size", "use another tensor-parallel size or a smaller group"},
	{"E_TP_LIMIT", Note, "some tensor-parallel sizes cut a group", "see the table"},
	{"E_ZERO_POINT", Error, "the loader takes awq only with zero_point: true", "set zero_point: true; qzeros are stored anyway"},
	{"E_MODEL_DTYPE", Error, "the loader has kernels for this format in other model dtypes only", "set torch_dtype to float16, or use compressed-tensors"},
	{"E_ACTORDER", Error, "the loader has no act order for experts here", "quantize with act_group_aware instead of desc_act"},
	{"E_ACTIVATION", Error, "the loader's kernel for quantized experts has SiLU only", "leave the experts unquantized for this loader"},
	{"E_EXPERT_SCHEME", Error, "the loader gives all experts of a model one scheme", "use one scheme for all experts"},
	{"E_MLA", Warning, "the loader reads this attention projection its own way and expects it unquantized", "leave kv_b_proj, and for SGLang q_a, q_b and kv_a, out"},
	{"E_VERSION", Error, "the loader reads only version gemm of awq", "convert to gemm"},
	{"E_SCHEME", Error, "the loader has no scheme for this combination of weights and activations", "see docs/lint.md"},

	{"E_AGAINST", Error, "the original cannot be read", "check the path given to --against"},
	{"E_AGAINST_MISSING", Error, "a tensor of the original has no counterpart", "write it, quantized or copied"},
	{"E_AGAINST_COPY", Error, "a tensor that was left alone differs from the original", "copy it byte for byte"},
	{"E_AGAINST_FOLDED", Note, "a tensor is the original's times column factors: smoothing (AWQ) was folded into it", "nothing to do if a smoothing method was used"},
	{"E_AGAINST_ERROR", Warning, "a module is far from its original: relative error above the bound", "check orientation, zero points and scales of this module"},
}

// byID indexes the table.
var byID = func() map[string]Code {
	m := map[string]Code{}
	for _, c := range table {
		m[c.ID] = c
	}
	return m
}()

// Codes gives the table.
func Codes() []Code { return append([]Code(nil), table...) }

// Catalogue explains every finding, for `quire explain`.
func Catalogue() map[string]string {
	m := map[string]string{}
	for _, c := range table {
		m[c.ID] = string(c.Severity) + ": " + c.Text + ". Remedy: " + c.Remedy + "."
	}
	return m
}
