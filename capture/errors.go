package capture

import "errors"

// Sentinels for errors.Is.
var (
	// ErrBatch: a batch index, length or row shape that does not fit the store.
	ErrBatch = errors.New("batch does not fit")
	// ErrAbsent: a batch that was never put.
	ErrAbsent = errors.New("batch has no rows")
	// ErrTokens: a token file that cannot be used.
	ErrTokens = errors.New("unusable token file")
	// ErrPair: two checkpoints that cannot be compared.
	ErrPair = errors.New("checkpoints cannot be compared")
)

// Error is an error of this package with its remedy.
type Error struct {
	Kind error
	What string
	Try  string
}

// Error gives kind and fault.
func (e *Error) Error() string { return e.Kind.Error() + ": " + e.What }

// Unwrap gives the sentinel.
func (e *Error) Unwrap() error { return e.Kind }

// ErrorCode is the catalogue code.
func (e *Error) ErrorCode() string {
	switch e.Kind {
	case ErrTokens:
		return "E1351"
	case ErrPair:
		return "E1352"
	case ErrAbsent:
		return "E1354"
	}
	return "E1353"
}

// ExitCode is 64 for what the user can mend, else 1.
func (e *Error) ExitCode() int {
	if e.Kind == ErrTokens || e.Kind == ErrPair {
		return 64
	}
	return 1
}

// Remedy is what to try.
func (e *Error) Remedy() string { return e.Try }

// Catalogue explains the error codes of this package for `quire explain`.
func Catalogue() map[string]string {
	return map[string]string{
		"E1351": "A token file cannot be read as what its name says: .jsonl needs one JSON object a line with an input_ids list, .u16 and .u32 are raw little-endian ids, and at least two tokens are needed to predict one.",
		"E1352": "Two checkpoints were to be compared that do not describe the same model: layers, hidden size or vocabulary differ. Give the quantized checkpoint together with the one it was made from.",
		"E1353": "A batch index, length or row shape does not fit the store of hidden states. This is a bug of the caller.",
		"E1354": "Hidden states of a batch were asked for before they were put. This is a bug of the caller.",
	}
}
