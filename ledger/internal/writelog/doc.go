// Package writelog records what a process asks of its files, and makes from the record the states in which a crash of
// the whole machine could have left them.
//
// Record runs a program under ptrace (Linux) and writes down every call that changes a file, a name or a size below a
// directory, every sync, and every line that the program says on its standard output, in the order in which they began
// and ended. Nothing in the program has to be prepared for it, and nothing that it does to a file can be missed: a call
// that the recorder does not know ends the recording with an error.
//
// Log.Image builds the files as they may be after a crash at one instant:
//
//   - what a sync that had returned covers is there;
//   - of every other write that had begun, any sectors of 512 bytes may be there, in any order of writes;
//   - a change of size, a new, renamed or removed name that no sync of its directory covers may be there or not, in
//     any combination, or (as a journal does) in order up to some point.
//
// This is less than any journaling file system gives, so a protocol that survives it does not rest on one.
package writelog
