package text

import (
	"errors"
	"fmt"
	"strings"

	"quire/capture/text/tokenizer"
)

// Sentinels of this package; errors.Is finds them in every *Error.
var (
	ErrNoTokenizer = errors.New("no tokenizer")
	ErrNoTemplate  = errors.New("no chat template")
	ErrDataset     = errors.New("calibration data cannot be read")
	ErrOptions     = errors.New("calibration options contradict each other")
	ErrNoSamples   = errors.New("no usable calibration sample")
	ErrTooManyBad  = errors.New("too many unusable calibration samples")
)

const (
	exitFailure = 1
	exitUsage   = 64
)

// Error is a failure of reading text inputs that its user can act on. It carries what main prints: a code of the
// catalogue, the exit code and a remedy.
type Error struct {
	Code  string // E12xx
	Exit  int
	What  string
	Where string // file, file:line or sample
	Try   string
	Err   error // sentinel or cause
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.What)
	if e.Where != "" {
		fmt.Fprintf(&b, " (%s)", e.Where)
	}
	if e.Err != nil && !isSentinel(e.Err) {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

func isSentinel(err error) bool {
	switch err {
	case ErrNoTokenizer, ErrNoTemplate, ErrDataset, ErrOptions, ErrNoSamples, ErrTooManyBad:
		return true
	}
	return false
}

func (e *Error) Unwrap() error { return e.Err }

// ErrorCode gives the catalogue code.
func (e *Error) ErrorCode() string { return e.Code }

// ExitCode gives the process exit code.
func (e *Error) ExitCode() int { return e.Exit }

// Remedy gives the thing to try.
func (e *Error) Remedy() string { return e.Try }

func datasetError(where string, cause error, what, try string) *Error {
	if cause == nil {
		cause = ErrDataset
	} else {
		cause = fmt.Errorf("%w: %w", ErrDataset, cause)
	}
	return &Error{Code: "E1203", Exit: exitUsage, What: what, Where: where, Try: try, Err: cause}
}

// needed says where the data needs what could not be loaded.
func needed(err error, why, where string) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	out := *e
	out.What = why + " but " + e.What
	out.Where = where + ", " + e.Where
	return &out
}

func tokenizerError(path string, err error) error {
	var unknown *tokenizer.UnsupportedError
	if errors.As(err, &unknown) {
		return &Error{Code: "E1202", Exit: exitUsage, What: "the tokenizer cannot be reproduced exactly", Where: path, Err: err,
			Try: "give token ids instead (JSON lines with input_ids, or .u16/.u32), or report the part"}
	}
	return &Error{Code: "E1201", Exit: exitUsage, What: "the tokenizer cannot be read", Where: path, Err: fmt.Errorf("%w: %w", ErrNoTokenizer, err),
		Try: "put tokenizer.json beside the weights, or give token ids instead of text (input_ids, .u16, .u32)"}
}

func templateError(path string, err error) error {
	return &Error{Code: "E1207", Exit: exitUsage, What: "the chat template cannot be read", Where: path, Err: fmt.Errorf("%w: %w", ErrNoTemplate, err),
		Try: "put chat_template.jinja beside the weights, or give --template FILE"}
}

// Catalogue explains every code of this package, cause and remedy, for `quire explain`.
func Catalogue() map[string]string {
	return map[string]string{
		"E1201": "No tokenizer was found, or one could not be read. A model directory needs tokenizer.json, or tokenizer.model (SentencePiece), or a tiktoken file. " +
			"Copy the file from the model's page beside the weights, or give token ids instead of text: JSON lines with `input_ids`, or raw little-endian .u16/.u32 files.",
		"E1202": "The tokenizer uses a part that quire does not implement. It is refused by name, because approximating it would change token ids without a trace. " +
			"Tokenize elsewhere and give `input_ids`, or report the part's name.",
		"E1203": "A calibration file cannot be read: it is missing, empty, damaged, of an unknown kind, or holds records without a known column. Known kinds: .jsonl/.json/.ndjson (also .gz, .zst), .txt, .parquet, .u16, .u32, " +
			"directories and globs of these. Known columns: text; messages or conversations; prompt with completion; input_ids.",
		"E1204": "The calibration options contradict each other or are out of range. The message names the option.",
		"E1205": "No sample of the calibration data survived. The message counts why each was dropped; lower --min-len, or check that the column names and the chat template fit the data.",
		"E1206": "More calibration samples were unusable (bad JSON, template failure, wrong shape) than --max-bad allows. The message names the first ones with their line.",
		"E1207": "The data holds conversations but the model has no chat template, or it could not be read. Put chat_template.jinja or tokenizer_config.json beside the weights, or give --template FILE, or render the data to a `text` column.",
		"E1208": "The chat template failed: it raised an error itself, or uses something that the template engine does not know. The message is the template's own where it raised one.",
	}
}
