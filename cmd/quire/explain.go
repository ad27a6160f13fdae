package main

import (
	"fmt"
	"sort"
	"strings"

	"quire/capture"
	"quire/capture/checkpoint"
	"quire/capture/model"
	"quire/capture/text"
	"quire/engine"
	"quire/engine/format"
	"quire/engine/lint"
	"quire/engine/quant"
	"quire/ledger"
)

// ExplainCmd prints the error catalogue.
type ExplainCmd struct {
	Code string `arg:"" optional:"" help:"Code such as E0132; without one all are listed."`
	JSON bool   `name:"json" help:"Print NDJSON."`
}

// catalogue gathers every package's codes.
func catalogue() map[string]string {
	all := map[string]string{}
	for _, part := range []map[string]string{engine.Catalogue(), checkpoint.Catalogue(), text.Catalogue(), model.Catalogue(), capture.Catalogue(), format.Catalogue(), lint.Catalogue(), quant.Catalogue(), ledger.Catalogue()} {
		for k, v := range part {
			all[k] = v
		}
	}
	return all
}

// Run explains.
func (c *ExplainCmd) Run(o *output) error {
	all := catalogue()
	if c.Code != "" {
		what, ok := all[strings.ToUpper(c.Code)]
		if !ok {
			return &engine.Error{Code: "E0156", Exit: engine.ExitUsage, What: "there is no code " + c.Code, Try: "list them with `quire explain`"}
		}
		all = map[string]string{strings.ToUpper(c.Code): what}
	}
	codes := make([]string, 0, len(all))
	for k := range all {
		codes = append(codes, k)
	}
	sort.Strings(codes)
	if c.JSON {
		writeHello(o.out)
		for _, k := range codes {
			writeJSON(o.out, map[string]string{"type": "code", "code": k, "text": all[k]})
		}
		writeJSON(o.out, map[string]any{"type": "result", "codes": len(codes)})
		return nil
	}
	for _, k := range codes {
		fmt.Fprintf(o.out, "%s  %s\n", k, all[k])
	}
	return nil
}
