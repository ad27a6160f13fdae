// Package overview says what a checkpoint is, from headers and config alone: architecture, layers, experts and their
// layout, attention, element types, parameters and bytes by class, source quantization, tied weights, tensors that no
// rule claims, side files.
//
// # Promises
//
// No tensor is read. Every logical tensor is counted in exactly one class; the bytes of all classes and of companions add
// up to the bytes of the shards' data. Where the family table knows the model, classes are its roles; where it does not,
// they follow names (Family is then "") and Unknown says why a run would refuse.
//
// # Not promised
//
// A class by name is for orientation: fates are a matter of the family table.
package overview
