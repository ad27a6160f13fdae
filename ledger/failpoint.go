package ledger

import "sync/atomic"

// failHook, when set by a test, is called at the named instants between two effects on disk; it kills the process there.
var failHook atomic.Pointer[func(name string)]

// failpoint marks an instant at which a crash must lose nothing acknowledged. The names are listed in failpoints, which
// the crash tests iterate over.
func failpoint(name string) {
	if f := failHook.Load(); f != nil {
		(*f)(name)
	}
}

// failpoints lists every name that occurs.
var failpoints = []string{
	"create.database", "create.head", "create.renamed",
	"journal.created", "journal.write", "journal.written", "journal.synced", "journal.applied",
	"append.before-commit", "append.committed", "head.write", "head.written", "head.synced",
	"put.written", "put.before-commit", "put.committed",
	"segment.created", "segment.renamed", "segment.registered", "segment.rolled", "segment.trimmed", "segment.sealed",
	"relocate.before-commit", "relocate.committed",
	"retire.recorded", "retire.unlinked", "retire.done",
	"replay.read", "replay.applied",
	"close.recorded", "close.journal-removed",
}
