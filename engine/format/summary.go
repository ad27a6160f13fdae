package format

import "encoding/json"

// Written is a quantized module as it stands in the output.
type Written struct {
	Name   string
	Scheme Scheme
	// GIdx says that a g_idx other than the natural one was written. Only this makes desc_act true, whatever order the
	// solver visited columns in.
	GIdx bool
}

// Summary is what was really written. Config derives everything it states from it.
type Summary struct {
	Modules []Written // in any order
	// Left are the modules with a weight matrix of at least two dimensions that were not quantized: routers, heads,
	// skipped linears, MTP, vision. Norms and embeddings do not matter to loaders and may be left out.
	Left []string
	// Producer and Version go where a format has a place for them.
	Producer, Version string
	// Meta are settings that GPTQModel puts under "meta" (damp_percent, mse …); no loader reads them.
	Meta map[string]any
}

// Config is the description of a checkpoint for loaders.
type Config struct {
	// QuantizationConfig is the value of "quantization_config" in config.json.
	QuantizationConfig json.RawMessage
	// Files are further files some loaders look for, by name.
	Files map[string][]byte
}
