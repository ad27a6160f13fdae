package ledger_test

import "os"

// die ends the process without any clean-up.
func die() { os.Exit(9) }

func askStacks(p *os.Process) error { return p.Kill() }
