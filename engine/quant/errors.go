package quant

import "errors"

// Catalogue explains the error codes of this package: cause and remedy.
func Catalogue() map[string]string {
	return map[string]string{
		codeOptions:     "Two solver settings contradict each other, or one has a value that no solver can follow. The setting is named.",
		codeShape:       "A matrix has another number of values than its shape says, or two matrices do not belong together.",
		codeNonFinite:   "A weight or a statistic holds a NaN or an infinity. The place is named; nothing was solved with it.",
		codeNegative:    "A sum of squares on the diagonal of a statistic is negative: the data is damaged.",
		codeNoFactor:    "No damping up to the ladder's end made the statistic positive definite, in float32 and in float64, and the fallback is fail.",
		codeScaleRange:  "The range of a group does not fit the type that stores its scale.",
		codeMissingData: "The input file of solve lacks a tensor, or a tensor has another shape or type than solve takes.",
	}
}

const (
	codeOptions     = "E1601"
	codeShape       = "E1602"
	codeNonFinite   = "E1603"
	codeNegative    = "E1604"
	codeNoFactor    = "E1605"
	codeScaleRange  = "E1606"
	codeMissingData = "E1607" // raised by cmd/quire
)

// Exit codes of this package's errors: wrong settings, non-finite values, anything else.
const (
	exitUsage     = 64
	exitNonFinite = 6
	exitFailure   = 1
)

// sentinel is an error value to match with errors.Is, with what the command line says about it.
type sentinel struct {
	text, code, try string
	exit            int
}

func (s *sentinel) Error() string     { return s.text }
func (s *sentinel) ErrorCode() string { return s.code }
func (s *sentinel) ExitCode() int     { return s.exit }
func (s *sentinel) Remedy() string    { return s.try }

// Sentinels of bad input; match with errors.Is.
var (
	// ErrOptions: settings that cannot be meant.
	ErrOptions error = &sentinel{"contradictory or impossible quantization options", codeOptions, "see `quire solve --help`", exitUsage}
	// ErrNonFinite: a NaN or an infinity in a statistic or a weight.
	ErrNonFinite error = &sentinel{"non-finite value", codeNonFinite, "look where the value comes from", exitNonFinite}
	// ErrNegativeDiagonal: a sum of squares below zero, so the statistic is damaged.
	ErrNegativeDiagonal error = &sentinel{"negative diagonal of a second-moment matrix", codeNegative, "compute the statistic again", exitFailure}
	// ErrNotPositiveDefinite: no damping of the ladder made the statistic factorizable and the fallback is "fail".
	ErrNotPositiveDefinite error = &sentinel{"statistic cannot be factorized", codeNoFactor, "raise damp_percent, use more calibration rows, or fallback rtn", exitFailure}
	// ErrScaleRange: a group's scale does not fit the stored type.
	ErrScaleRange error = &sentinel{"scale outside the range of its type", codeScaleRange, "use scale_dtype bf16 or f32", exitFailure}
	// ErrShape: lengths that do not fit the stated shape.
	ErrShape error = &sentinel{"shape does not fit the data", codeShape, "give matrices whose shapes belong together", exitFailure}
)

// Remedy gives the thing to try.
func (e *OptionError) Remedy() string { return e.Try }

// Remedy gives the thing to try.
func (e *ValueError) Remedy() string { return e.Try }

// ErrorCode is the catalogue code.
func (e *OptionError) ErrorCode() string { return codeOptions }

// ExitCode is that of wrong usage.
func (e *OptionError) ExitCode() int { return exitUsage }

// ErrorCode is the catalogue code.
func (e *ValueError) ErrorCode() string {
	switch {
	case errors.Is(e.Err, ErrNegativeDiagonal):
		return codeNegative
	case errors.Is(e.Err, ErrScaleRange):
		return codeScaleRange
	}
	return codeNonFinite
}

// ExitCode is 6 for a value that is not finite, else 1.
func (e *ValueError) ExitCode() int {
	if errors.Is(e.Err, ErrNonFinite) {
		return exitNonFinite
	}
	return exitFailure
}
