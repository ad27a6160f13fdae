package format

import (
	"errors"
	"fmt"
)

// ErrModule is in the chain of every error about a module that a format cannot write or tensors it cannot read.
var ErrModule = errors.New("module does not fit the format")

// Error says which module, what is wrong and what to do. Code indexes Catalogue.
type Error struct {
	Code   string // E15xx
	Module string // or tensor
	What   string
	Try    string
}

func (e *Error) Error() string {
	if e.Module == "" {
		return e.What
	}
	return e.Module + ": " + e.What
}

func (e *Error) Unwrap() error { return ErrModule }

// ErrorCode gives the catalogue code.
func (e *Error) ErrorCode() string { return e.Code }

// ExitCode gives the process exit code: what a format cannot say is a request that cannot be met.
func (e *Error) ExitCode() int { return 64 }

// Remedy gives the thing to try.
func (e *Error) Remedy() string { return e.Try }

func (m *Module) errorf(code, try, format string, args ...any) error {
	return moduleError(m.Name, code, try, format, args...)
}

func moduleError(module, code, try, format string, args ...any) error {
	return &Error{Code: code, Module: module, What: fmt.Sprintf(format, args...), Try: try}
}

// Catalogue explains the codes of this package.
func Catalogue() map[string]string {
	return map[string]string{
		"E1501": "A module has no inputs or no outputs. The source tensor is empty or its shape was read wrongly; inspect the source checkpoint.",
		"E1502": "The number of bits is not one the format can write. gptq and gptq_v2 hold 2, 3, 4 or 8 bits, awq 4, compressed-tensors 2 to 8 (pack-quantized) or 8 (int-quantized). Choose other bits or another format.",
		"E1503": "The group size does not fit: zero, below -1, or it does not divide the input width in a format that has no partial last group. Choose a group size that divides the width, -1, or leave the module out with ignore.",
		"E1504": "Scales cannot be stored in the dtype asked for. Set scale_dtype to one the format stores.",
		"E1505": "Codes, scales, zeros or g_idx do not have the length that the module's shape needs. This is a defect of the program, not of your input; please report it.",
		"E1506": "A code lies outside 0..2^bits-1. This is a defect of the solver; nothing was written.",
		"E1507": "A zero point cannot be stored. v1 gptq stores zero-1, so a true zero of 0 has no spelling: use gptq_v2, or let the solver search zeros in 1..maxq. A symmetric module has the zero 2^(bits-1) everywhere.",
		"E1508": "A scale is not a finite number above zero after the cast to the stored dtype, or the cast changes a scale that the solver had already rounded. Weights of this group are too small or too large for the dtype: use another scale_dtype or leave the module out.",
		"E1509": "The dimensions do not fill whole words: gptq needs in·bits and out·bits divisible by 32, awq needs outputs divisible by 8. Leave the module out with ignore or use compressed-tensors.",
		"E1510": "The format has no g_idx: columns must be in natural groups. Use gptq or gptq_v2 for desc_act, or act_group_aware instead of desc_act.",
		"E1511": "Modules that loaders build as one tensor (q/k/v, gate/up, all routed experts of a layer, …) have different schemes, or only some of them are quantized. Give all of them one scheme.",
		"E1512": "Tensors of a module are missing, of another dtype or of a shape that does not follow from the config. The checkpoint is damaged or its config belongs to other files.",
		"E1513": "An exclusion cannot be spelled without also excluding a quantized module: this loader compares names by substring. Rename is not possible; use a format whose loader compares whole names (compressed-tensors, gptq).",
		"E1514": "There is no format of this name. See the error text for the names.",
		"E1515": "The checkpoint holds no quantized module, so there is no scheme to describe.",
		"E1516": "awq describes one scheme for a whole checkpoint, but modules have several. Use one scheme for all modules, or compressed-tensors or gptq, which have rules for single modules.",
	}
}
