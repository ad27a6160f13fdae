package format

import "strings"

// Format writes and reads the tensors of one published layout.
type Format interface {
	// Name is the name in recipes and plans.
	Name() string
	// Suffixes are the tensor names that belong to one quantized module, without the module's name and dot; required
	// ones first. A bias is not among them.
	Suffixes() []string
	// StoredScale is the dtype in which scales are stored when the solver rounded them to d ("": not rounded).
	StoredScale(d DType) DType
	// Check says whether the module can be written, from dimensions and scheme alone. natural is false where g_idx will
	// be written.
	Check(m *Module, natural bool) error
	// Plan gives the tensors in order of name, from dimensions and scheme alone.
	Plan(m *Module) ([]TensorSpec, error)
	// Encode gives the planned tensors with their data.
	Encode(m *Module) ([]TensorData, error)
	// Decode reads the tensors of one module. The scheme is what the config says; bits and group size are checked
	// against shapes.
	Decode(name string, s Scheme, tensors []TensorData) (*Module, error)
	// Config describes a checkpoint for its loaders.
	Config(s *Summary) (*Config, error)
}

// table holds every format; a new one is one file and one line.
var table = []Format{
	packQuantized{},
	intQuantized{},
	gptq{},
	gptq{v2: true},
	awqGEMM{},
}

// All gives every format in a fixed order.
func All() []Format { return append([]Format(nil), table...) }

// Names of the formats, in the same order.
func Names() []string {
	names := make([]string, len(table))
	for i, f := range table {
		names[i] = f.Name()
	}
	return names
}

// Lookup finds a format by name.
func Lookup(name string) (Format, error) {
	for _, f := range table {
		if f.Name() == name {
			return f, nil
		}
	}
	return nil, &Error{Code: "E1514", What: "unknown format " + name, Try: "use one of " + strings.Join(Names(), ", ")}
}
