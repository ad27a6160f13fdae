package text

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
)

// Outcome says what became of a calibration sample.
type Outcome string

// The four outcomes. Every entry of the data set ends in exactly one.
const (
	Used    Outcome = "used"    // whole, as a batch of its own
	Clipped Outcome = "clipped" // its first tokens are a batch, the rest was cut at the sequence length
	Merged  Outcome = "merged"  // joined with others (--concat)
	Dropped Outcome = "dropped" // not in any batch; Reason says why
)

// Reasons of a dropped sample. They are stable names: reports and tests count by them.
const (
	ReasonBeyond     = "beyond-samples"  // the wanted number of samples was already there
	ReasonNotDrawn   = "not-drawn"       // --shuffle drew others
	ReasonShort      = "too-short"       // fewer tokens than --min-len
	ReasonEmpty      = "empty"           // no text, no message, no id
	ReasonBadRecord  = "bad-record"      // not JSON, or not an object
	ReasonNoColumn   = "no-known-column" // no text, messages, prompt+completion or input_ids
	ReasonBadShape   = "bad-shape"       // a column has another type than it should (input_ids of rank 2, …)
	ReasonBadID      = "id-out-of-range" // negative or beyond the vocabulary
	ReasonTemplate   = "template-failed" // the chat template refused the conversation
	ReasonNoTemplate = "no-template"     // a conversation, but no chat template
	ReasonNoMask     = "no-mask"         // --count mask without a mask, or assistant without spans
	ReasonMaskLength = "mask-length"     // mask and ids differ in length
	ReasonNoRows     = "no-counted-row"  // the mask leaves no token
	ReasonTail       = "tail-too-short"  // the last, short block of --concat
)

// Batch is one calibration sequence: the unit of capture, ragged, never padded.
type Batch struct {
	IDs []int32
	// Mask says which tokens become rows (--count); nil means all. It has the length of IDs.
	Mask []bool
	// Samples are the data set entries the ids come from, in order: indices as in Fate.Sample.
	Samples []int
}

// Rows is the number of tokens that become rows.
func (b Batch) Rows() int {
	if b.Mask == nil {
		return len(b.IDs)
	}
	n := 0
	for _, m := range b.Mask {
		if m {
			n++
		}
	}
	return n
}

// Fate is what became of one entry of the data set, or of Count neighbouring entries that share it.
type Fate struct {
	Sample  int     `json:"sample"`          // index in reading order, from 0
	Count   int     `json:"count,omitempty"` // 1 unless a run of entries was skipped unread
	File    string  `json:"file"`
	Record  int     `json:"record"` // 1-based: line of a text format, row of parquet, window of a raw token file
	Outcome Outcome `json:"fate"`
	Reason  string  `json:"reason,omitempty"`
	Detail  string  `json:"detail,omitempty"`
	Tokens  int     `json:"tokens"`          // before clipping
	Kept    int     `json:"kept"`            // tokens that reached a batch
	Batch   int     `json:"batch"`           // first batch holding it, -1 if none
	Spans   int     `json:"spans,omitempty"` // batches it reaches into, if more than one
}

// Counts adds the fates up.
type Counts struct {
	Samples   int            `json:"samples"`
	Used      int            `json:"used"`
	Clipped   int            `json:"clipped"`
	Merged    int            `json:"merged"`
	Dropped   int            `json:"dropped"`
	DroppedBy map[string]int `json:"dropped_by,omitempty"`
	Batches   int            `json:"batches"`
	Tokens    int            `json:"tokens"`
	Rows      int            `json:"rows"` // tokens that count
}

// BOSReport states what the beginning-of-sequence token did. No sequence made of text starts with two; token ids that the data
// gives are taken as they are.
type BOSReport struct {
	ID       int    `json:"id"`    // -1: the tokenizer adds none
	Token    string `json:"token"` //
	Policy   string `json:"policy"`
	Starting int    `json:"starting"`          // samples that start with it
	Removed  int    `json:"removed"`           // doubled ones taken away
	Doubled  int    `json:"doubled,omitempty"` // samples given as token ids that start with two
}

// Calibration is what a run is fed: an ordered list of batches, and the account of every entry of the data set. It does
// not depend on thread count or on how many samples are processed together.
type Calibration struct {
	Batches []Batch
	Fates   []Fate
	Counts  Counts
	BOS     BOSReport
	// Digest is the SHA-256 (hex) over the batches in order: ids and masks. See DigestOf.
	Digest string
	// Files are the data files read, in order, with the SHA-256 of what was read of them ("" where reading stopped early).
	Files []DataFile
	// Template and Tokenizer are SHA-256 (hex) of their bytes, "" where not used.
	Template, Tokenizer string
	// Warnings are sentences for the user: fewer samples than asked for, a mean length far below the sequence length, ….
	Warnings []string
}

// DataFile is one file of a data set.
type DataFile struct {
	Path   string `json:"path"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256,omitempty"`
}

// Tokens is the number of tokens of all batches.
func (c *Calibration) Tokens() int {
	n := 0
	for _, b := range c.Batches {
		n += len(b.IDs)
	}
	return n
}

// DigestOf is the identity of a list of batches: SHA-256 (hex) over, for each batch, its length as a 64-bit little-endian
// number, its ids as 32-bit little-endian numbers, and one byte per token that is 1 where the token counts. A nil
// mask and one that is all true are the same.
func DigestOf(batches []Batch) string {
	h := sha256.New()
	for _, b := range batches {
		digestBatch(h, b)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func digestBatch(h hash.Hash, b Batch) {
	buf := make([]byte, 8, 8+5*len(b.IDs))
	binary.LittleEndian.PutUint64(buf, uint64(len(b.IDs)))
	for _, id := range b.IDs {
		buf = binary.LittleEndian.AppendUint32(buf, uint32(id))
	}
	for i := range b.IDs {
		if b.Mask == nil || b.Mask[i] {
			buf = append(buf, 1)
		} else {
			buf = append(buf, 0)
		}
	}
	h.Write(buf)
}

func countFates(fates []Fate, batches []Batch) Counts {
	c := Counts{Batches: len(batches)}
	for _, f := range fates {
		c.Samples += f.Count
		switch f.Outcome {
		case Used:
			c.Used += f.Count
		case Clipped:
			c.Clipped += f.Count
		case Merged:
			c.Merged += f.Count
		case Dropped:
			c.Dropped += f.Count
			if c.DroppedBy == nil {
				c.DroppedBy = map[string]int{}
			}
			c.DroppedBy[f.Reason] += f.Count
		}
	}
	for _, b := range batches {
		c.Tokens += len(b.IDs)
		c.Rows += b.Rows()
	}
	return c
}
