package engine

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"sort"
	"strconv"
)

// FileDigest names a file of a checkpoint by content.
type FileDigest struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // hex
}

// SumsFile is the list of everything a loader reads, in `sha256sum -c` form, sorted by name.
const SumsFile = "SHA256SUMS"

// sums spells files as SHA256SUMS.
func sums(files []FileDigest) []byte {
	sorted := append([]FileDigest(nil), files...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Name < sorted[j].Name })
	var b bytes.Buffer
	for _, f := range sorted {
		fmt.Fprintf(&b, "%s  %s\n", f.SHA256, f.Name)
	}
	return b.Bytes()
}

// provenanceFacts is what the provenance statement is made of.
type provenanceFacts struct {
	SumsSHA256   string
	Recipe       Identity
	PlanDigest   string
	InputsDigest string
	Sources      []FileDigest
	Calibration  string
	Contract     string
	Tool         string
	LedgerHead   string
	DecisionRoot string
}

// provenance spells facts as an in-toto Statement v1 with an SLSA v1 provenance predicate. No SLSA level is claimed.
func provenance(f provenanceFacts) ([]byte, error) {
	type digestSet map[string]string
	deps := []map[string]any{}
	for _, s := range f.Sources {
		deps = append(deps, map[string]any{"name": s.Name, "digest": digestSet{"sha256": s.SHA256}})
	}
	if f.Calibration != "" {
		deps = append(deps, map[string]any{"name": "calibration token ids", "digest": digestSet{"sha256": f.Calibration}})
	}
	stmt := map[string]any{
		"_type":         "https://in-toto.io/Statement/v1",
		"subject":       []any{map[string]any{"name": SumsFile, "digest": digestSet{"sha256": f.SumsSHA256}}},
		"predicateType": "https://slsa.dev/provenance/v1",
		"predicate": map[string]any{
			"buildDefinition": map[string]any{
				"buildType":            "quire/quantize/v1",
				"externalParameters":   f.Recipe,
				"internalParameters":   map[string]any{"contract": f.Contract, "plan_digest": f.PlanDigest, "inputs_digest": f.InputsDigest},
				"resolvedDependencies": deps,
			},
			"runDetails": map[string]any{
				"builder": map[string]any{"id": "quire", "version": map[string]string{"quire": f.Tool}},
				"byproducts": []any{
					map[string]any{"name": "ledger_head", "digest": digestSet{"sha256": f.LedgerHead}},
					map[string]any{"name": "decision_root", "digest": digestSet{"sha256": f.DecisionRoot}},
				},
			},
		},
	}
	return json.MarshalIndent(stmt, "", "  ")
}

// quantLog spells one line a module; the first columns are those of GPTQModel's quant_log.csv.
func quantLog(rows []DecisionRecord) ([]byte, error) {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	head := []string{"layer", "module", "loss", "samples", "damp", "time", "method", "rel_error", "native_rows", "fallback", "guard", "bits", "group_size", "sym"}
	if err := w.Write(head); err != nil {
		return nil, err
	}
	num := func(v float64) string { return strconv.FormatFloat(v, 'g', 9, 64) }
	for _, r := range rows {
		err := w.Write([]string{strconv.Itoa(r.Layer), r.Module, num(r.Error), strconv.FormatInt(r.Rows, 10), num(r.Damp), "", r.Method, num(r.RelError),
			strconv.FormatInt(r.NativeRows, 10), r.Fallback, strconv.FormatBool(r.Guard), strconv.Itoa(r.Scheme.Bits), strconv.Itoa(r.Scheme.GroupSize), strconv.FormatBool(r.Scheme.Sym)})
		if err != nil {
			return nil, err
		}
	}
	w.Flush()
	return b.Bytes(), w.Error()
}
