package ledger

// Finding is one thing that is not as it should be: what, where, what follows, and the cheapest repair.
type Finding struct {
	Type        string `json:"type,omitempty"` // "finding" in NDJSON
	Level       string `json:"level"`          // the check that found it
	Code        string `json:"code"`           // stable name of the kind of finding
	Severity    string `json:"severity,omitempty"`
	File        string `json:"file,omitempty"`
	Segment     uint32 `json:"segment,omitempty"`
	Seq         uint64 `json:"seq,omitempty"`
	Key         string `json:"key,omitempty"`
	Role        string `json:"role,omitempty"`
	Chunk       *int64 `json:"chunk,omitempty"`
	What        string `json:"what"`
	Consequence string `json:"consequence"`
	Repair      string `json:"repair"`
}
