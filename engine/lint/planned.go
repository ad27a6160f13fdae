package lint

import (
	"io/fs"
	"slices"
)

// Planned is a checkpoint that is not written yet: what its small files will say, and the headers of its tensors.
type Planned struct {
	Files   map[string][]byte // by name, config.json among them
	Tensors []PlannedTensor
}

// PlannedTensor is a tensor's header. Data is the content where a loader derives shapes from it (weight_shape), else nil.
type PlannedTensor struct {
	Name  string
	DType string // as safetensors spells it
	Shape []int
	Data  []byte
}

// Check holds a planned checkpoint against the rules that need no content: shapes and dtypes against the config, what
// each loader makes of the exclusions, which schemes it can run, group sizes against tensor parallelism. Index and side
// files are not judged. Against, Headers and MaxError of the options mean nothing here.
func Check(p Planned, o Options) (*Report, error) {
	profiles, err := o.profiles()
	if err != nil {
		return nil, err
	}
	c := &collector{}
	files := &checkpointFiles{tensors: map[string]*tensor{}, read: func(name string) ([]byte, error) {
		if b, ok := p.Files[name]; ok {
			return b, nil
		}
		return nil, fs.ErrNotExist
	}}
	for name := range p.Files {
		files.names = append(files.names, name)
	}
	slices.Sort(files.names)
	for _, t := range p.Tensors {
		files.tensors[t.Name] = &tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, data: t.Data, size: int64(len(t.Data))}
	}
	m := groupModules(files, readConfig(files, c), c)
	r := &Report{Profiles: profiles}
	m.checkModules()
	m.checkWidths()
	m.checkHeaders(profiles, o, r)
	m.describe(r)
	r.Findings, r.More = c.finish(o.limit())
	return r, nil
}

// checkHeaders asks what loaders make of config and headers.
func (m *subject) checkHeaders(profiles []string, o Options, r *Report) {
	m.checkLoaders(profiles)
	m.checkProfiles(profiles)
	r.TP = m.tpRows()
	m.checkTP(r.TP, profiles, o.TP)
}
