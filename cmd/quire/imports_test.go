package main_test

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// allowed says which packages of this module a package (and what lies below it) may import. cmd may import all.
var allowed = []struct {
	pkg     string
	imports []string
}{
	{"quire/kernels", []string{"quire/kernels"}},
	{"quire/ledger", []string{"quire/ledger"}},
	{"quire/capture", []string{"quire/capture", "quire/kernels", "quire/ledger"}},
	{"quire/engine/quant", []string{"quire/engine/quant", "quire/kernels"}},
	{"quire/engine/format", []string{"quire/engine/format", "quire/kernels", "quire/capture/checkpoint/packing"}},
	{"quire/resume/", []string{"quire/resume", "quire/engine", "quire/capture", "quire/kernels", "quire/ledger"}},
	{"quire/resume", []string{"quire/capture", "quire/kernels", "quire/ledger"}},
	{"quire/engine", []string{"quire/engine", "quire/resume", "quire/capture", "quire/kernels", "quire/ledger"}},
}

// TestImportDirection keeps the packages in the order that DESIGN section 3 draws.
func TestImportDirection(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", "quire/...").Output()
	require.NoError(t, err)
	dec := json.NewDecoder(strings.NewReader(string(out)))
	seen := 0
	for dec.More() {
		var p struct {
			ImportPath string
			Imports    []string
		}
		require.NoError(t, dec.Decode(&p))
		if strings.Contains(p.ImportPath, "/bench") { // measuring programs are mains: nothing imports them
			continue
		}
		for _, rule := range allowed {
			if !within(p.ImportPath, rule.pkg) {
				continue
			}
			seen++
			for _, imp := range p.Imports {
				ok := !strings.HasPrefix(imp, "quire/")
				for _, a := range rule.imports {
					ok = ok || within(imp, a)
				}
				if !ok {
					t.Errorf("%s imports %s", p.ImportPath, imp)
				}
			}
			break
		}
	}
	require.Greater(t, seen, 5)
}

func within(pkg, root string) bool {
	if strings.HasSuffix(root, "/") {
		return strings.HasPrefix(pkg, root)
	}
	return pkg == root || strings.HasPrefix(pkg, root+"/")
}
