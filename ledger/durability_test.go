package ledger_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// durable prints a row of the durability table of docs/ledger.md: what was done to the ledger, how often, what came of
// it, and how to see it again. `QUIRE_LONG=1 go test ./ledger -v | sed -n 's/.*DURABILITY //p'` gives the whole table.
func durable(t *testing.T, event string, trials int, outcome string, a ...any) {
	t.Helper()
	if t.Failed() {
		return
	}
	env := ""
	if long() {
		env = "QUIRE_LONG=1 "
	}
	t.Logf("DURABILITY | %s | %d | %s | `%sgo test ./ledger -run '^%s$'` |", event, trials, fmt.Sprintf(outcome, a...), env, strings.SplitN(t.Name(), "/", 2)[0])
}

// leftOut says by name that a test cannot run here because something named is missing. The suites that must run
// everything allow no skip, and what is missing is a property of the machine, not of the ledger.
func leftOut(t *testing.T, missing error) bool {
	t.Helper()
	if missing != nil {
		t.Logf("LEFT OUT: %s: %v", t.Name(), missing)
	}
	return missing != nil
}

// memoryDir is a directory in memory where there is one: syncs cost nothing there, and these tests bring their own.
func memoryDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/dev/shm", "quire")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
