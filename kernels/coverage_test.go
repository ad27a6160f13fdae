package kernels_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strings"
	"testing"
)

// notOperations are exported functions and methods without a numeric result of their own.
var notOperations = map[string]string{
	"CPULevel": "choice of the level", "ForceLevel": "choice of the level", "Levels": "choice of the level", "ParseLevel": "choice of the level", "Status": "choice of the level",
	"Level.String": "text", "Pivot.String": "text",
	"Pool.Threads": "size", "Weight.N": "size", "Weight.K": "size", "Weight.IsBF16": "size", "Weight.Bytes": "size", "PackedBytes": "size",
	"Gram.N": "size", "GramBytes": "size", "CrossBytes": "size", "Form.N": "size", "Form.Bytes": "size",
	"Factor.N": "size", "Factor.Block": "size", "Factor.Bytes": "size",
	"Gram.Rows": "count", "Cross.Rows": "count", "Columns.Rows": "count",
	"NewPool": "threads", "Pool.Close": "threads", "Pool.Do": "hands out tasks; every operation runs on it",
}

// TestEveryOperationIsHeldByALiteral follows the functions that the golden tables reach, by name,
// and compares them with what the package exports: a new operation needs a golden value or a
// line above.
func TestEveryOperationIsHeldByALiteral(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	parse := func(tests bool) (files []*ast.File) { // of every platform
		for _, e := range entries {
			if name := e.Name(); strings.HasSuffix(name, ".go") && strings.HasSuffix(name, "_test.go") == tests {
				f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
				if err != nil {
					t.Fatal(err)
				}
				if !tests || f.Name.Name == "kernels_test" {
					files = append(files, f)
				}
			}
		}
		return files
	}
	held := map[string]bool{} // names called: F of kernels.F, or any method name
	functions := map[string][]*ast.FuncDecl{}
	var roots []ast.Node
	for _, file := range parse(true) {
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				functions[d.Name.Name] = append(functions[d.Name.Name], d)
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if v, ok := s.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, "golden") {
						roots = append(roots, v)
					}
				}
			}
		}
	}
	seen := map[*ast.FuncDecl]bool{}
	for len(roots) > 0 {
		root := roots[0]
		roots = roots[1:]
		ast.Inspect(root, func(n ast.Node) bool {
			var name string
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "kernels" {
					held[n.Sel.Name] = true
					return true
				}
				name = n.Sel.Name
				held["."+name] = true
			case *ast.Ident:
				name = n.Name
			}
			for _, f := range functions[name] {
				if !seen[f] {
					seen[f] = true
					roots = append(roots, f.Body)
				}
			}
			return true
		})
	}
	exported := map[string]bool{}
	for _, file := range parse(false) {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || !f.Name.IsExported() {
				continue
			}
			name, key := f.Name.Name, f.Name.Name
			if f.Recv != nil {
				typ := f.Recv.List[0].Type
				if p, ok := typ.(*ast.StarExpr); ok {
					typ = p.X
				}
				id, ok := typ.(*ast.Ident)
				if !ok || !id.IsExported() {
					continue
				}
				name, key = id.Name+"."+name, "."+name
			}
			exported[name] = true
			if _, free := notOperations[name]; !held[key] && !free {
				t.Errorf("%s has no golden value: add it to a golden table, or to notOperations with the reason", name)
			}
		}
	}
	if len(exported) < 60 {
		t.Errorf("only %d exported functions were found", len(exported))
	}
	var stale []string
	for name := range notOperations {
		if !exported[name] {
			stale = append(stale, name)
		}
	}
	if slices.Sort(stale); len(stale) > 0 {
		t.Errorf("notOperations names what is not exported: %v", stale)
	}
	for _, op := range goldenOps {
		if goldenDigests[op.name] == "" {
			t.Errorf("%q has no literal", op.name)
		}
	}
	for _, op := range goldenMatrixOps {
		if matrixDigests[op.name] == "" {
			t.Errorf("%q has no literal", op.name)
		}
	}
	if len(goldenDigests) != len(goldenOps) || len(matrixDigests) != len(goldenMatrixOps) {
		t.Error("literals without an operation")
	}
}
