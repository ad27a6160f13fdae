package engine

import (
	"fmt"

	"quire/engine/quant"
)

// Event types of a run. The ledger knows only the envelope; the forms of the records stand here, with their natural
// keys. Keys are '/'-separated and sort in the order of the work: numbers have fixed width.
const (
	TypeGenesis     = "genesis"
	TypeSource      = "source"
	TypeCalibration = "calibration"
	TypeBatch       = "batch.tokens"
	TypeCapture     = "capture"
	TypeRouting     = "routing"
	TypePartial     = "partial"
	TypeHessian     = "hessian"
	TypeDecision    = "decision"
	TypeShard       = "shard"
	TypeLayer       = "layer"
	TypeSealed      = "sealed"
	TypeFinished    = "finished"
)

// Natural keys.
func keyGenesis() string                { return "genesis" }
func keySource(file string) string      { return "source/" + file }
func keyCalibration() string            { return "calibration" }
func keyBatch(b int) string             { return fmt.Sprintf("batch/%07d", b) }
func keyLayerInput(l, b int) string     { return fmt.Sprintf("capture/q/%s/input/b%07d", layerName(l), b) }
func keyRouting(l, b int) string        { return fmt.Sprintf("routing/q/L%04d/b%07d", l, b) }
func keySite(l int, site string) string { return layerName(l) + "/" + site }
func keyPartial(l int, site, who string, lane int) string {
	return fmt.Sprintf("partial/%s/%s/%s/lane%04d/xtx", layerName(l), site, who, lane)
}
func keyHessian(l int, site, who string) string {
	return fmt.Sprintf("hessian/%s/%s/%s/xtx", layerName(l), site, who)
}
func keyDecision(l int, module string) string { return "decision/" + layerName(l) + "/" + module }
func keyShard(file string) string             { return "shard/" + file }
func keyLayer(l int) string                   { return fmt.Sprintf("layer/L%04d", l) }
func keySealed() string                       { return "sealed" }
func keyFinished() string                     { return "finished" }

// layerName names a layer in keys; what lies outside the layers is "head".
func layerName(l int) string {
	if l < 0 {
		return "head"
	}
	return fmt.Sprintf("L%04d", l)
}

// who names an expert, or all of a layer, in keys.
func who(expert int) string {
	if expert < 0 {
		return "all"
	}
	return fmt.Sprintf("e%05d", expert)
}

// GenesisRecord starts a ledger and holds the run's identity.
type GenesisRecord struct {
	PlanDigest   string            `json:"plan_digest"`
	InputsDigest string            `json:"inputs_digest"`
	Contract     string            `json:"contract"`
	Identity     PlanIdentity      `json:"identity"`
	Paths        map[string]string `json:"-"`
}

// StatisticRecord describes a partial or a hessian. The payload "xtx" is the upper triangle, row after row, little-endian
// float32; there is none where Rows is 0.
type StatisticRecord struct {
	Layer      int    `json:"layer"`
	Site       string `json:"site"`
	Expert     int    `json:"expert"` // -1: all rows of the site
	N          int    `json:"n"`
	Rows       int64  `json:"rows"`
	NativeRows int64  `json:"native_rows"`
	Routing    string `json:"routing,omitempty"`
	SHA256     string `json:"sha256,omitempty"` // of the payload
}

// CaptureRecord describes rows of a site for one batch. The payload "rows" is row-major little-endian in DType.
type CaptureRecord struct {
	Rows  int    `json:"rows"`
	Cols  int    `json:"cols"`
	DType string `json:"dtype"` // BF16 or F32
}

// DecisionRecord says how one module was quantized. Payloads: "scales" float32 [out,G], "zeros" uint8 [out,G] (absent:
// all 2^(bits-1)), "lo"/"hi" float32 [out,G] group ranges after error feedback, "candidate" uint8 [out,G] of the clip
// search, "perm" int32 [in], "gidx" int32 [in], "codes" uint8 [out,in].
type DecisionRecord struct {
	Layer      int              `json:"layer"`
	Module     string           `json:"module"`
	Expert     int              `json:"expert"`
	Site       string           `json:"site"`
	Scheme     Scheme           `json:"scheme"`
	Method     string           `json:"method"`   // what the codes are: gptq or rtn
	Fallback   string           `json:"fallback"` // "", or the few-row treatment applied
	Reason     string           `json:"reason,omitempty"`
	Rows       int64            `json:"rows"`
	NativeRows int64            `json:"native_rows"`
	Damp       float64          `json:"damp"`
	Error      float64          `json:"error"`     // ‖(W−Q)X‖² over the statistic's rows
	RelError   float64          `json:"rel_error"` // the same over ‖WX‖²
	Guard      bool             `json:"guard"`     // rounding to nearest was better and was kept
	Treatment  *quant.Treatment `json:"treatment,omitempty"`
	Solver     quant.Record     `json:"solver"`
	WeightSHA  string           `json:"weight_sha256"` // of the decoded float32 weight
	CodesSHA   string           `json:"codes_sha256"`  // of uint8 codes [out,in]
	HessianKey string           `json:"hessian_key,omitempty"`
	HessianAll string           `json:"hessian_all_key,omitempty"` // common statistic of a blend
	InputsSHA  string           `json:"inputs_sha256"`
}

// ShardRecord describes a written output file.
type ShardRecord struct {
	File    string            `json:"file"`
	Layer   int               `json:"layer"`
	Size    int64             `json:"size"`
	Bytes   int64             `json:"bytes"` // tensor data
	SHA256  string            `json:"sha256"`
	Tensors map[string]string `json:"tensors"` // name → SHA-256 of its data
}

// LayerRecord accounts for a finished layer.
type LayerRecord struct {
	Layer     int              `json:"layer"`
	Modules   int              `json:"modules"`
	Fallbacks int              `json:"fallbacks"`
	Copied    bool             `json:"copied,omitempty"` // the routed experts stay in their source form
	Coverage  *Coverage        `json:"coverage,omitempty"`
	WorstRel  float64          `json:"worst_rel_error"`
	Worst     string           `json:"worst_module"`
	Bytes     map[string]int64 `json:"bytes,omitempty"`
}

// SealedRecord lists what a loader reads, all of it durable under OUT.partial.
type SealedRecord struct {
	Files        []FileDigest `json:"files"`
	SumsSHA256   string       `json:"sums_sha256"`
	DecisionRoot string       `json:"decision_root"`
}

// KeyBatch, KeyCalibration and KeyDecision give natural keys to those who ask a ledger.
func KeyBatch(b int) string { return keyBatch(b) }

// KeyCalibration is the key of the calibration event.
func KeyCalibration() string { return keyCalibration() }

// KeyDecision is the key of a module's decision; layer is -1 for the output head.
func KeyDecision(layer int, module string) string { return keyDecision(layer, module) }

// KeySealed is the key of the event that lists the output's files.
func KeySealed() string { return keySealed() }
