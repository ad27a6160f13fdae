package model

import (
	"errors"
	"fmt"
	"strings"
)

// Sentinels for errors.Is.
var (
	// ErrUnknownFamily: no family of the table reads this config.
	ErrUnknownFamily = errors.New("unknown model family")
	// ErrConfig: config.json lacks a key, has a value of the wrong type, or contradicts itself.
	ErrConfig = errors.New("config does not describe the family")
	// ErrUnsupported: the family is known, this variant of it is not.
	ErrUnsupported = errors.New("unsupported variant")
	// ErrUnclaimed: the checkpoint holds a tensor that no part of the family explains.
	ErrUnclaimed = errors.New("unclaimed tensor")
	// ErrMissing: the family needs a tensor that the checkpoint lacks.
	ErrMissing = errors.New("missing tensor")
	// ErrLayout: a tensor's shape fits no layout that the family states.
	ErrLayout = errors.New("shape fits no stated layout")
	// ErrNonFinite: a NaN or infinity in a weight or an activation.
	ErrNonFinite = errors.New("non-finite value")
	// ErrOrder: a caller left the order of stages or experts.
	ErrOrder = errors.New("out of order")
	// ErrInput: token ids or rows that do not fit the model.
	ErrInput = errors.New("bad input")
)

var codes = map[error]string{
	ErrUnknownFamily: "E1301", ErrConfig: "E1302", ErrUnsupported: "E1303", ErrUnclaimed: "E1304", ErrMissing: "E1305",
	ErrLayout: "E1306", ErrNonFinite: "E1307", ErrOrder: "E1308", ErrInput: "E1309",
}

// Catalogue explains the error codes of this package for `quire explain`.
func Catalogue() map[string]string {
	return map[string]string{
		"E1301": "No family of the table reads this model_type. quire runs the model's own forward pass to collect statistics, so it must know the family. `quire inspect` lists the known ones; a new one is one file in capture/model.",
		"E1302": "config.json lacks a key that the family needs, or a key has an impossible value. Compare with the published config of the model; a half-edited or truncated config.json is the usual cause.",
		"E1303": "The family is known, but this checkpoint uses a variant whose arithmetic quire does not have (for example another rope type or activation). Running it as something similar would give wrong statistics, so it is refused.",
		"E1304": "The checkpoint holds a tensor that nothing in the family explains. It may belong to an adapter, another model or a newer revision of the family. Remove it from the checkpoint if it does not belong there.",
		"E1305": "A tensor that the family needs is not in the checkpoint. A missing shard or a partial download is the usual cause: fetch the file that the index names for it.",
		"E1306": "A tensor's shape fits no layout that the family states, or fits only with swapped axes. Layouts are never guessed from shapes. Check that config.json belongs to these weights.",
		"E1307": "A weight or an activation is NaN or infinite. The message names the tensor or the layer, and the row. A damaged download is the usual cause for weights (verify the file's SHA-256); for activations look at the named batch and position.",
		"E1308": "The stages or experts of a layer were driven out of order. This is a bug of the caller.",
		"E1309": "Token ids outside the vocabulary, or an input without tokens. Check that tokenizer and model belong together.",
	}
}

// Where locates an error of this package; empty fields do not apply.
type Where struct {
	Tensor string
	Layer  int // -1: none
	Site   string
	Row    int // -1: none
}

// Error is an error of this package with its place and remedy.
type Error struct {
	Kind  error // one of the sentinels
	What  string
	Where Where
	Try   string
}

// Error gives place, fault and kind.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Where.Layer >= 0 {
		fmt.Fprintf(&b, "layer %d: ", e.Where.Layer)
	}
	if e.Where.Site != "" {
		fmt.Fprintf(&b, "%s: ", e.Where.Site)
	}
	if e.Where.Tensor != "" {
		fmt.Fprintf(&b, "%s: ", e.Where.Tensor)
	}
	if e.Where.Row >= 0 {
		fmt.Fprintf(&b, "row %d: ", e.Where.Row)
	}
	fmt.Fprintf(&b, "%s: %s", e.Kind, e.What)
	return b.String()
}

// Unwrap gives the sentinel.
func (e *Error) Unwrap() error { return e.Kind }

// ErrorCode is the catalogue code.
func (e *Error) ErrorCode() string { return codes[e.Kind] }

// ExitCode is the process exit code: 6 for non-finite values, 1 for a bug, 64 for what the user can mend.
func (e *Error) ExitCode() int {
	switch e.Kind {
	case ErrNonFinite:
		return 6
	case ErrOrder:
		return 1
	}
	return 64
}

// Remedy is what to try.
func (e *Error) Remedy() string { return e.Try }

func errAt(kind error, tensor, format string, args ...any) *Error {
	return &Error{Kind: kind, What: fmt.Sprintf(format, args...), Where: Where{Tensor: tensor, Layer: -1, Row: -1}, Try: tries[kind]}
}

var tries = map[error]string{
	ErrUnknownFamily: "quantize a model of one of the families named; a new family is one file in capture/model",
	ErrConfig:        "compare config.json with the published one",
	ErrUnsupported:   "compare config.json with the published one; a variant that is really meant cannot be quantized yet",
	ErrUnclaimed:     "remove the tensor from the checkpoint if it does not belong there",
	ErrMissing:       "fetch the shard that the index names for it",
	ErrLayout:        "check that config.json belongs to these weights",
	ErrNonFinite:     "verify the SHA-256 of the source files",
	ErrInput:         "check that tokenizer and model belong together",
}

// Faults is every fault that Open found, in a fixed order; it speaks with the voice of its first.
type Faults []*Error

// Error gives the first fault and counts the others.
func (f Faults) Error() string {
	if len(f) == 1 {
		return f[0].Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s (and %d more:", f[0].Error(), len(f)-1)
	for i, e := range f[1:] {
		if i == 4 {
			b.WriteString(" …")
			break
		}
		fmt.Fprintf(&b, " %s;", e.Error())
	}
	b.WriteString(")")
	return b.String()
}

// Unwrap gives the single faults.
func (f Faults) Unwrap() []error {
	out := make([]error, len(f))
	for i, e := range f {
		out[i] = e
	}
	return out
}

// ErrorCode is the first fault's.
func (f Faults) ErrorCode() string { return f[0].ErrorCode() }

// ExitCode is the first fault's.
func (f Faults) ExitCode() int { return f[0].ExitCode() }

// Remedy is the first fault's.
func (f Faults) Remedy() string { return f[0].Remedy() }
