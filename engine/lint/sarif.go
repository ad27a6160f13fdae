package lint

import (
	"encoding/json"
	"io"
	"slices"
)

// WriteSARIF writes the report as SARIF 2.1.0, for code-scanning pages.
func WriteSARIF(w io.Writer, r *Report, version string) error {
	type text struct {
		Text string `json:"text"`
	}
	type ruleDesc struct {
		ID      string `json:"id"`
		Short   text   `json:"shortDescription"`
		Help    text   `json:"help"`
		Default struct {
			Level Severity `json:"level"`
		} `json:"defaultConfiguration"`
	}
	type location struct {
		Physical struct {
			Artifact struct {
				URI string `json:"uri"`
			} `json:"artifactLocation"`
		} `json:"physicalLocation"`
		Logical []struct {
			Name string `json:"fullyQualifiedName"`
		} `json:"logicalLocations"`
	}
	type result struct {
		RuleID     string            `json:"ruleId"`
		RuleIndex  int               `json:"ruleIndex"`
		Level      Severity          `json:"level"`
		Message    text              `json:"message"`
		Locations  []location        `json:"locations"`
		Properties map[string]string `json:"properties,omitempty"`
	}
	rules := []ruleDesc{}
	index := map[string]int{}
	for _, c := range table {
		if !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Code == c.ID }) {
			continue
		}
		d := ruleDesc{ID: c.ID, Short: text{c.Text}, Help: text{c.Remedy}}
		d.Default.Level = c.Severity
		index[c.ID] = len(rules)
		rules = append(rules, d)
	}
	results := []result{}
	for _, f := range r.Findings {
		msg := f.Subject + ": " + f.Message
		if f.Profile != "" {
			msg = f.Profile + ": " + msg
		}
		res := result{RuleID: f.Code, RuleIndex: index[f.Code], Level: f.Severity, Message: text{msg}}
		var l location
		l.Physical.Artifact.URI = "config.json"
		l.Logical = append(l.Logical, struct {
			Name string `json:"fullyQualifiedName"`
		}{f.Subject})
		res.Locations = []location{l}
		if f.Profile != "" {
			res.Properties = map[string]string{"profile": f.Profile}
		}
		results = append(results, res)
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(map[string]any{
		"$schema": "https://json.schemastore.org/sarif-2.1.0.json",
		"version": "2.1.0",
		"runs": []any{map[string]any{
			"tool":    map[string]any{"driver": map[string]any{"name": "quire", "version": version, "rules": rules}},
			"results": results,
		}},
	})
}
