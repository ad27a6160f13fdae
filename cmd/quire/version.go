package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"quire/kernels"
)

// VersionCmd prints what was built, from what, and what this CPU lets it use.
type VersionCmd struct {
	JSON bool `name:"json" help:"Print NDJSON."`
}

type buildIdentity struct {
	Type     string            `json:"type"`
	Version  string            `json:"version"`
	Revision string            `json:"revision,omitempty"`
	Modified bool              `json:"modified,omitempty"`
	Go       string            `json:"go"`
	Platform string            `json:"platform"`
	CPULevel string            `json:"cpu_level"`
	Contract string            `json:"contract"`
	Modules  map[string]string `json:"modules,omitempty"`
}

func buildInfo() buildIdentity {
	b := buildIdentity{Type: "result", Version: "devel", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		CPULevel: kernels.CPULevel().String(), Contract: kernels.ContractID, Modules: map[string]string{}}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		b.Version = v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	for _, d := range info.Deps {
		b.Modules[d.Path] = d.Version
	}
	return b
}

// Run prints the identity.
func (c *VersionCmd) Run(o *output) error {
	b := buildInfo()
	if c.JSON {
		writeHello(o.out)
		writeJSON(o.out, b)
		return nil
	}
	fmt.Fprintf(o.out, "quire %s", b.Version)
	if b.Revision != "" {
		fmt.Fprintf(o.out, " (%s)", b.Revision)
	}
	fmt.Fprintf(o.out, "\n%s %s, cpu level %s, numeric contract %s\n", b.Go, b.Platform, b.CPULevel, b.Contract)
	for _, d := range []string{"go.etcd.io/bbolt", "github.com/klauspost/compress", "github.com/x448/float16"} {
		if v := b.Modules[d]; v != "" {
			fmt.Fprintf(o.out, "  %s %s\n", d, v)
		}
	}
	return nil
}

// writeHello starts an NDJSON stream.
func writeHello(w io.Writer) {
	writeJSON(w, map[string]any{"type": "hello", "schema": "1.0", "version": buildVersion()})
}

func buildVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "devel"
}
