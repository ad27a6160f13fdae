// Package resume compares what a run began with and what it is asked to go on with. An identity is canonical JSON; two
// identities are the same run when their bytes are equal, and Diff names the fields in which they are not.
//
// Below it lie the packages that ask a ledger and run the engine's own stage code again: audit and replay.
package resume
