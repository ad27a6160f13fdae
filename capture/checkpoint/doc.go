// Package checkpoint reads published model checkpoints and writes new ones: safetensors shards, their index, config.json
// and the files beside them.
//
// # Promises
//
//   - Everything that can be known from headers is checked by Open, before any tensor is read: shard set against index,
//     index against headers, offsets without hole or overlap, shape × dtype = bytes, file length, duplicate names,
//     companions of quantized tensors. All findings are collected; each names file, tensor and remedy.
//   - A tensor is read by byte range through pread into the caller's buffer. No shard is mapped, no tensor is held; the
//     package's own buffers are a few BufferBytes per call, and the scales of the rows at hand.
//   - A quantized source is decoded by the rule of its format or refused by name; its codes are never handed out as
//     weights. Source.Logical lists what the decoded checkpoint looks like.
//   - config.json is kept byte for byte; an edit touches only the member it names.
//   - A shard is written under a temporary name, synced, then renamed, and its directory synced: under its final name it is
//     whole. Reading it back is the caller's, through OpenShard.
//   - Bad input and damaged files give an *Error (or Errors); nothing panics.
//
// # Not promised
//
// Pickle (.bin, .pt) and GGUF are never read. Files are not locked: one that becomes shorter while a Source is open is
// noticed when it is read, other changes by its digest. Directory entries cannot be synced on Windows; there a crash after the rename may lose the name, not the data.
//
// # Words
//
// A stored tensor is an entry of a shard header. A logical tensor is what a model reads: a plain stored tensor, or the
// value that a set of stored tensors stands for (weight + weight_scale_inv). A companion is a stored tensor that belongs to
// another one (a scale, a zero point, an activation scale). A side file is any file of the checkpoint directory that is no
// shard, no index and not config.json.
//
// # A safetensors file
//
//	┌──────────┬───────────────────────────────┬───────────────────────────────────────────────┐
//	│ u64 LE H │ JSON object, H bytes          │ tensor bytes, little-endian, row-major        │
//	│          │ {"__metadata__":{…},          │ offsets count from here; [0,end) is covered   │
//	│          │  "name":{"dtype":"BF16",      │ once, without hole or overlap, and the file   │
//	│          │   "shape":[2,3],              │ ends where the last tensor ends               │
//	│          │   "data_offsets":[0,12]}}␠␠   │                                               │
//	└──────────┴───────────────────────────────┴───────────────────────────────────────────────┘
//	0          8                              8+H   (our files: 8+H is a multiple of 8)
//
// H is at most 100,000,000. Tensors are written in the order of the plan; one that orders them by element size, largest
// first, lets every tensor start at a multiple of its element size, which readers that map files want.
//
// # A parameter map
//
// A header-only source: {"name":{"shape":[…],"dtype":"F8_E4M3","file":"…"},…} as .json or .json.gz, with its config beside
// it as NAME.config.json, else with what shapes tell (Source.ConfigInferred).
//
// # Decoding rules
//
// All in float32, one rounding per written operation, in this order; s, z, q are the stored scale, zero point and code.
//
//	plain F16, BF16, F8 (scaled), F32   exact; F64 rounded to nearest even
//	fp8 (tensor, channel, block)        float32(q) * s
//	mxfp4, mxfp8                        float32(q) * 2^(e-127)
//	nvfp4 (compressed-tensors)          float32(q) * (float32(s) / g)       g = weight_global_scale
//	nvfp4 (ModelOpt)                    float32(q) * (float32(s) * g)       g = weight_scale_2
//	int-quantized, pack-quantized       s * float32(q-z)
//	gptq, gptq_v2, awq                  s * float32(q-z)
//
// DecodeBF16 rounds that float32 value once more, to nearest even.
package checkpoint
