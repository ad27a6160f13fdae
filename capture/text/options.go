package text

import (
	"fmt"
	"io"
)

// Count says which tokens become rows.
type Count string

// Values of --count.
const (
	CountAll       Count = "all"       // every token
	CountAssistant Count = "assistant" // tokens that the template marks with {% generation %}, or a completion
	CountMask      Count = "mask"      // tokens that an explicit mask column marks
)

// Options choose and cut the samples. The zero value of a number means "no limit"; Defaults are those of a run.
type Options struct {
	Samples int    // wanted batches; 0: all
	SeqLen  int    // tokens of a batch at most; 0: no limit
	MinLen  int    // tokens of a batch at least
	Seed    int64  // of Shuffle
	Concat  bool   // join samples into blocks of SeqLen tokens
	Shuffle bool   // draw Samples at random instead of taking the first
	Sort    string // "", "asc" or "desc": order of the chosen batches by length
	Count   Count  // "": all

	// MaxBad is the share of unusable records (bad JSON, template failure, wrong shape) above which loading fails; 0
	// means 0.5, 1 means never.
	MaxBad float64
	// TextColumn, when set, is the only column looked at and holds text.
	TextColumn string
	// TemplateKwargs are extra variables of the chat template (enable_thinking, …).
	TemplateKwargs map[string]any
	// TextSplit cuts .txt files into samples: "" or "line" (empty lines separate), "paragraph", "document".
	TextSplit string
	// Stdin is what the file name "-" reads.
	Stdin io.Reader
	// ApplyTemplate: "" or "auto" renders messages with the template; "never" drops conversations.
	ApplyTemplate string
	// TemplateDate is the day that strftime_now sees, "2006-01-02" or RFC 3339; "" is DefaultTemplateDate. Never the clock.
	TemplateDate string
	// VocabSize, when set, bounds the ids of input_ids and raw token files (the model's embedding rows).
	VocabSize int
	// NoTokenizer and NoTemplate say why there is none; they are reported when the data turns out to need one.
	NoTokenizer, NoTemplate error
	// Threads bounds parallel tokenization; 0: GOMAXPROCS. It has no influence on the result.
	Threads int
}

// Defaults are the options of a run that says nothing: 512 samples of at most 2,048 tokens, at least 11, seed 42.
func Defaults() Options {
	return Options{Samples: 512, SeqLen: 2048, MinLen: 11, Seed: 42, Count: CountAll}
}

// DefaultTemplateDate is the fixed day that date-printing templates see unless the recipe names another.
const DefaultTemplateDate = "2024-07-26"

// Validate refuses options that cannot be meant.
func (o Options) Validate() error {
	bad := func(format string, args ...any) error {
		return &Error{Code: "E1204", Exit: exitUsage, What: fmt.Sprintf(format, args...), Err: ErrOptions, Try: "see `quire samples --help`"}
	}
	switch {
	case o.Samples < 0:
		return bad("samples is %d, want 0 (all) or more", o.Samples)
	case o.SeqLen < 0:
		return bad("seq_len is %d, want 0 (no limit) or more", o.SeqLen)
	case o.MinLen < 0:
		return bad("min_len is %d, want 0 or more", o.MinLen)
	case o.SeqLen > 0 && o.MinLen > o.SeqLen:
		return bad("min_len %d is above seq_len %d: every sample would be dropped", o.MinLen, o.SeqLen)
	case o.Concat && o.SeqLen == 0:
		return bad("concat needs seq_len, the length of a block")
	case o.MaxBad < 0 || o.MaxBad > 1:
		return bad("max_bad is %g, want a share between 0 and 1", o.MaxBad)
	}
	switch o.Sort {
	case "", "asc", "desc":
	default:
		return bad("sort is %q, want asc or desc", o.Sort)
	}
	switch o.Count {
	case "", CountAll, CountAssistant, CountMask:
	default:
		return bad("count is %q, want all, assistant or mask", o.Count)
	}
	switch o.TextSplit {
	case "", "line", "paragraph", "document":
	default:
		return bad("text_split is %q, want line, paragraph or document", o.TextSplit)
	}
	switch o.ApplyTemplate {
	case "", "auto", "never":
	default:
		return bad("apply_chat_template is %q, want auto or never", o.ApplyTemplate)
	}
	return nil
}
