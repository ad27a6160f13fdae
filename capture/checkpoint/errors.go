package checkpoint

import (
	"errors"
	"fmt"
	"strings"
)

// Sentinels for errors.Is. Every *Error matches exactly one of them.
var (
	// ErrNotFound: the path names no checkpoint, or a file that must exist does not.
	ErrNotFound = errors.New("not found")
	// ErrDamaged: a file contradicts itself or the files beside it.
	ErrDamaged = errors.New("damaged checkpoint")
	// ErrUnsupported: the checkpoint is in a form that is refused by name.
	ErrUnsupported = errors.New("unsupported checkpoint")
	// ErrUnscaled: codes without the scales that give them a meaning.
	ErrUnscaled = errors.New("quantized tensor without its scales")
	// ErrConfig: config.json cannot be used.
	ErrConfig = errors.New("bad config")
	// ErrNoData: a header-only source was asked for bytes.
	ErrNoData = errors.New("source has headers only")
	// ErrRange: a caller asked for elements or bytes outside a tensor, or for an unknown tensor.
	ErrRange = errors.New("outside the tensor")
	// ErrReadBack: what was written is not what the disk gives back.
	ErrReadBack = errors.New("read-back differs")
	// ErrIO: the operating system failed to read or write.
	ErrIO = errors.New("input/output error")
)

// Where locates a problem. Offset is a byte position in File, -1 when it has none.
type Where struct {
	File   string
	Tensor string
	Offset int64
}

func (w Where) String() string {
	var parts []string
	if w.File != "" {
		f := w.File
		if w.Offset >= 0 {
			f = fmt.Sprintf("%s, byte %d", f, w.Offset)
		}
		parts = append(parts, f)
	}
	if w.Tensor != "" {
		parts = append(parts, "tensor "+w.Tensor)
	}
	return strings.Join(parts, ": ")
}

// Error is one finding about a checkpoint: a catalogue code, what is wrong, where, and what to do.
type Error struct {
	Code  string // E11xx, see Catalogue
	What  string
	Where Where
	Try   string
	Err   error // cause; may be nil
}

func (e *Error) Error() string {
	s := e.What
	if w := e.Where.String(); w != "" {
		s += " (" + w + ")"
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap gives the code's sentinel and the cause.
func (e *Error) Unwrap() []error {
	out := []error{}
	if c, ok := codes[e.Code]; ok {
		out = append(out, c.sentinel)
	}
	if e.Err != nil {
		out = append(out, e.Err)
	}
	return out
}

// ErrorCode gives the catalogue code.
func (e *Error) ErrorCode() string { return e.Code }

// ExitCode gives the process exit code: 64 when the input named by the user cannot be used (nothing was started and
// trying again cannot help), 4 when written bytes differ from what was meant, 1 when the machine failed.
func (e *Error) ExitCode() int {
	switch codes[e.Code].sentinel {
	case ErrReadBack:
		return 4
	case ErrIO, ErrRange:
		return 1
	}
	return 64
}

// Remedy gives the thing to try.
func (e *Error) Remedy() string { return e.Try }

// Errors is every finding of one Open, in a fixed order. It speaks with the voice of its first.
type Errors []*Error

const errorsShown = 12

func (es Errors) Error() string {
	var b strings.Builder
	for i, e := range es {
		if i == errorsShown {
			fmt.Fprintf(&b, "\n… and %d more", len(es)-i)
			break
		}
		if i > 0 {
			fmt.Fprintf(&b, "\n[%s] ", e.Code)
		}
		b.WriteString(e.Error())
	}
	return b.String()
}

// Unwrap gives the single findings.
func (es Errors) Unwrap() []error {
	out := make([]error, len(es))
	for i, e := range es {
		out[i] = e
	}
	return out
}

// ErrorCode gives the first finding's code.
func (es Errors) ErrorCode() string { return es[0].Code }

// ExitCode gives the first finding's exit code.
func (es Errors) ExitCode() int { return es[0].ExitCode() }

// Remedy gives the first finding's remedy.
func (es Errors) Remedy() string { return es[0].Try }

// asError makes nil, *Error or Errors of a list.
func (es Errors) asError() error {
	switch len(es) {
	case 0:
		return nil
	case 1:
		return es[0]
	}
	return es
}

func fail(code, file, tensor string, offset int64, try, format string, args ...any) *Error {
	return &Error{Code: code, What: fmt.Sprintf(format, args...), Where: Where{File: file, Tensor: tensor, Offset: offset}, Try: try}
}

func ioError(code, file string, err error) *Error {
	return &Error{Code: code, What: "cannot " + ioVerb[code] + " file", Where: Where{File: file, Offset: -1}, Try: "check the path, its permissions and the disk", Err: err}
}

var ioVerb = map[string]string{codeIORead: "read", codeIOWrite: "write"}

type codeFacts struct {
	sentinel error
	text     string
}

// Codes of this package.
const (
	codeNoPath          = "E1101"
	codeNoWeights       = "E1102"
	codePickle          = "E1103"
	codeHeaderSize      = "E1104"
	codeTruncated       = "E1105"
	codeTrailing        = "E1106"
	codeDType           = "E1107"
	codeNoIndex         = "E1108"
	codeMissingShard    = "E1109"
	codeGhost           = "E1110"
	codeUnindexed       = "E1111"
	codeStrayShard      = "E1112"
	codeTwice           = "E1113"
	codeHeaderJSON      = "E1114"
	codeOffsets         = "E1115"
	codeSize            = "E1116"
	codeIndexJSON       = "E1117"
	codeMapJSON         = "E1118"
	codeChanged         = "E1119"
	codeConfigJSON      = "E1120"
	codeNoConfig        = "E1121"
	codeSourceFormat    = "E1122"
	codeNoScale         = "E1123"
	codeScaleShape      = "E1124"
	codeOrphan          = "E1125"
	codeHeaderOnly      = "E1126"
	codeRange           = "E1127"
	codeCacheAmbiguous  = "E1128"
	codeReadBack        = "E1129"
	codePlan            = "E1130"
	codeIORead          = "E1131"
	codeIOWrite         = "E1132"
	codeNotFloat        = "E1133"
	codeCompanionValue  = "E1134"
	codeTwoWeightLayout = "E1135"
	codeOtherSplit      = "E1136"
)

var codes = map[string]codeFacts{
	codeNoPath:          {ErrNotFound, "The path given as model names no file, directory or cached repository. A model is a directory with config.json and safetensors files, one .safetensors file, a Hugging Face cache entry (models--owner--name, or owner/name when the cache holds it), or a .json(.gz) parameter map. Check the spelling; download the model first, quire does not."},
	codeNoWeights:       {ErrNotFound, "The directory holds no safetensors file. Point at the directory that holds model.safetensors or model.safetensors.index.json, or download the weights."},
	codePickle:          {ErrUnsupported, "Weights are only there as pickle (.bin, .pt, .pth, .ckpt) or GGUF. Pickle files can run code when read and are never opened. Convert to safetensors with the tool that made them, or download the safetensors revision."},
	codeHeaderSize:      {ErrDamaged, "The header length in the first 8 bytes is larger than the 100,000,000 bytes readers accept, or too small for an object. The file is not safetensors, was cut, or holds too many tensors for one file. Download it again or split it."},
	codeTruncated:       {ErrDamaged, "The file is shorter than its header says: an interrupted download or copy. Fetch the named file again and compare its SHA-256 with the model page."},
	codeTrailing:        {ErrDamaged, "The file goes on after its last tensor. Reference readers refuse that, and so do we: bytes nobody claims hide mistakes. Fetch the file again or rewrite it."},
	codeDType:           {ErrUnsupported, "The header names a dtype that the format does not define. Nothing can be said about the tensor's size, so the file is refused."},
	codeNoIndex:         {ErrDamaged, "Several shards but no model.safetensors.index.json, and the names do not form one complete set N-of-M. Which files belong together is not guessed. Fetch the index, or remove files that do not belong."},
	codeMissingShard:    {ErrNotFound, "The index (or the N-of-M names) call for a shard that is not on disk. Loaders that go on leave those weights uninitialised. Fetch the named files."},
	codeGhost:           {ErrDamaged, "The index maps a tensor to a shard whose header does not contain it: the index is older than the files, or an exporter wrote an entry for a tensor it never wrote. Fetch index and shards of one revision, or rebuild the index from the headers."},
	codeUnindexed:       {ErrDamaged, "A shard holds a tensor that the index does not mention. Loaders that trust the index would drop it silently. Fetch index and shards of one revision, or rebuild the index from the headers."},
	codeStrayShard:      {ErrDamaged, "A file that looks like a shard of this model lies beside the index but is not named by it: leftovers of another revision or of an older split. Remove it, or rebuild the index if it belongs."},
	codeTwice:           {ErrDamaged, "The same tensor name appears twice: in one header, in one index, or in two shards. Readers disagree about which one counts. Remove the wrong one."},
	codeHeaderJSON:      {ErrDamaged, "The header is not the JSON object that the format asks for. The byte position says where. The file is damaged or was written by a faulty tool; fetch it again."},
	codeOffsets:         {ErrDamaged, "Tensor ranges in one file overlap, leave a hole, run backwards, or do not start at zero. The format asks for one gapless cover. The file was damaged or built by hand; fetch it again."},
	codeSize:            {ErrDamaged, "A tensor's byte range is not shape × element size. Either the dtype or the shape in the header is wrong. Fetch the file again."},
	codeIndexJSON:       {ErrDamaged, "model.safetensors.index.json is not a JSON object with a weight_map from names to plain file names. Fetch it again."},
	codeMapJSON:         {ErrDamaged, "A parameter map must be one JSON object {tensor: {\"shape\":[…],\"dtype\":\"…\",\"file\":\"…\"}}, plain or gzip."},
	codeChanged:         {ErrDamaged, "A shard changed on disk (size, time or identity) after it was opened. Results would mix two models. Stop whatever writes there and start again."},
	codeConfigJSON:      {ErrConfig, "config.json is not valid JSON, repeats a key, or a value has the wrong kind. The position is given. Fetch it again, or correct that value."},
	codeNoConfig:        {ErrConfig, "The directory has no config.json. Without it neither architecture nor sizes are known. Fetch config.json of the same revision."},
	codeSourceFormat:    {ErrUnsupported, "The source is already quantized in a way that is not decoded here; the message names the evidence. Start from the unquantized model, or from one of: fp8 (tensor, channel, block), mxfp4, mxfp8, nvfp4, compressed-tensors int, GPTQ, AWQ."},
	codeNoScale:         {ErrUnscaled, "A tensor holds codes (8-bit or 4-bit floats, packed integers) but the scales that give them a value are in no shard. Read raw it would be nonsense. Fetch the missing shard, or a revision that has both."},
	codeScaleShape:      {ErrUnscaled, "A scale or zero point fits its weight neither per tensor, per channel, per group nor per block. Which part of it belongs to which weight is not guessed. Check weight_block_size or group_size in config.json against the files."},
	codeOrphan:          {ErrUnscaled, "A scale or zero point belongs to a tensor that is in no shard. A shard is missing, or an exporter lost a weight. Fetch the complete revision."},
	codeHeaderOnly:      {ErrNoData, "This source lists tensors without their bytes (a parameter map). It serves inspect and plan; anything that reads weights needs the files."},
	codeRange:           {ErrRange, "A read outside a tensor, or of a tensor that does not exist: a fault in quire itself, or a checkpoint that changed under it. Please report it with the message."},
	codeCacheAmbiguous:  {ErrNotFound, "The cache entry holds several revisions and no ref says which is meant, or the wanted revision is not there. Name one: models--o--n/snapshots/REVISION or owner/name@REVISION."},
	codeReadBack:        {ErrReadBack, "A tensor read back from disk differs from what was written. Disk, memory or a second writer is at fault. The file was not published. Check the machine before going on."},
	codePlan:            {ErrRange, "A shard was written against its plan: unknown tensor, wrong size, written twice, or missing at the end. This is a fault in quire itself; please report it."},
	codeIORead:          {ErrIO, "The operating system could not read the file. Permissions, a vanished network mount, or a failing disk."},
	codeIOWrite:         {ErrIO, "The operating system could not write or sync the file. No space, no permission, or a failing disk. Nothing was published under the final name."},
	codeNotFloat:        {ErrUnsupported, "A tensor was asked for as numbers but is stored as integers or booleans without scales."},
	codeCompanionValue:  {ErrUnscaled, "A companion tensor holds a value that cannot be right: a shape that contradicts the packed codes, a group index out of range. The file is damaged; fetch it again."},
	codeTwoWeightLayout: {ErrDamaged, "The same module is stored twice, plain and quantized. Which one counts is not guessed. Remove one."},
	codeOtherSplit:      {ErrDamaged, "The index names another set of shards than the one that is here, and the files that are here are complete by their names (N of N). The index is left over from an earlier split. Remove it: without an index the complete set is read by its headers. Or fetch the index that belongs to the files."},
}

// Catalogue explains every code of this package: cause and remedy in one paragraph.
func Catalogue() map[string]string {
	out := make(map[string]string, len(codes))
	for c, f := range codes {
		out[c] = f.text
	}
	return out
}
