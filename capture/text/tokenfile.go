package text

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// tokenReader cuts a raw little-endian token file into windows of ids.
type tokenReader struct {
	r      *bufio.Reader
	width  int // bytes of an id: 2 or 4
	window int // ids of a record; 0: the whole file is one
	num    int
}

func (t *tokenReader) Close() error { return nil }

func (t *tokenReader) next() (record, error) {
	var ids []int32
	buf := make([]byte, t.width)
	for t.window == 0 || len(ids) < t.window {
		if _, err := io.ReadFull(t.r, buf); err != nil {
			if err == io.EOF {
				break
			}
			if errors.Is(err, io.ErrUnexpectedEOF) {
				return record{}, fmt.Errorf("the file ends inside an id of %d bytes", t.width)
			}
			return record{}, err
		}
		var id uint32
		if t.width == 2 {
			id = uint32(binary.LittleEndian.Uint16(buf))
		} else {
			id = binary.LittleEndian.Uint32(buf)
		}
		if id > 1<<31-1 {
			return record{}, fmt.Errorf("id %d does not fit 31 bits: is the file really little-endian .u%d?", id, 8*t.width)
		}
		ids = append(ids, int32(id))
	}
	if len(ids) == 0 {
		return record{}, io.EOF
	}
	t.num++
	return record{num: t.num, ids: ids}, nil
}

func (t *tokenReader) rest() (int, error) { return countRest(t) }

// ReadTokens reads the sequences of a token file without any tokenizer: a raw little-endian .u16 or .u32 file is one
// sequence, a .jsonl file (also .gz, .zst) of {"input_ids":[…]} one a record. Memory is that of the ids.
func ReadTokens(ctx context.Context, path string) ([][]int32, error) {
	f, err := openData(ctx, path, nil, "", 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out [][]int32
	for {
		rec, err := f.next()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, datasetError(path, err, "the token file cannot be read", "check that it is complete")
		}
		where := fmt.Sprintf("%s:%d", path, rec.num)
		switch {
		case rec.reason != "":
			return nil, datasetError(where, nil, "unusable record: "+rec.detail, "every record must be an object with input_ids")
		case rec.ids != nil:
			out = append(out, rec.ids)
		case rec.json != nil:
			var fields map[string]json.RawMessage
			if err := json.Unmarshal(rec.json, &fields); err != nil {
				return nil, datasetError(where, err, "the record is not a JSON object", "every record must be an object with input_ids")
			}
			ids, _, reason, detail := idsOf(fields, 0)
			if reason != "" {
				return nil, datasetError(where, nil, detail, "every record must be an object with input_ids, a flat list of numbers")
			}
			out = append(out, ids)
		default:
			return nil, datasetError(where, nil, "the file holds text, not token ids", "give a .jsonl file of input_ids, or a .u16/.u32 file")
		}
	}
}

// idsOf reads input_ids of a record, its padding (attention_mask 0 at either end) taken away, and the explicit mask if there is
// one. vocab bounds the ids when above 0.
func idsOf(fields map[string]json.RawMessage, vocab int) (ids []int32, mask []bool, reason, detail string) {
	raw, ok := fields["input_ids"]
	if !ok {
		return nil, nil, ReasonNoColumn, "no input_ids"
	}
	var wide []int64
	if err := json.Unmarshal(raw, &wide); err != nil {
		return nil, nil, ReasonBadShape, "input_ids is not a flat list of whole numbers"
	}
	ids = make([]int32, len(wide))
	for i, v := range wide {
		if v < 0 || v > 1<<31-1 || (vocab > 0 && v >= int64(vocab)) {
			return nil, nil, ReasonBadID, fmt.Sprintf("input_ids[%d] is %d", i, v)
		}
		ids[i] = int32(v)
	}
	mask, reason, detail = maskOf(fields, len(ids))
	if reason != "" {
		return nil, nil, reason, detail
	}
	if raw, ok := fields["attention_mask"]; ok && string(raw) != "null" {
		var att []int64
		if err := json.Unmarshal(raw, &att); err != nil {
			return nil, nil, ReasonBadShape, "attention_mask is not a flat list of numbers"
		}
		if len(att) != len(ids) {
			return nil, nil, ReasonMaskLength, fmt.Sprintf("attention_mask has %d entries, input_ids %d", len(att), len(ids))
		}
		lo, hi := 0, len(att)
		for lo < hi && att[lo] == 0 {
			lo++
		}
		for hi > lo && att[hi-1] == 0 {
			hi--
		}
		for i := lo; i < hi; i++ {
			if att[i] == 0 {
				return nil, nil, ReasonBadShape, fmt.Sprintf("attention_mask has a hole at %d: only padding at the ends can be taken away", i)
			}
		}
		ids = ids[lo:hi]
		if mask != nil {
			mask = mask[lo:hi]
		}
	}
	return ids, mask, "", ""
}

// maskColumns are the names of an explicit token mask, in order of preference. labels marks with any value but -100.
var maskColumns = []string{"mask", "loss_mask", "assistant_masks", "assistant_mask", "labels"}

// maskOf reads the explicit token mask of a record of n ids; nil if it has none.
func maskOf(fields map[string]json.RawMessage, n int) (mask []bool, reason, detail string) {
	for _, name := range maskColumns {
		raw, ok := fields[name]
		if !ok || string(raw) == "null" {
			continue
		}
		var bools []bool
		if json.Unmarshal(raw, &bools) != nil {
			var nums []float64
			if err := json.Unmarshal(raw, &nums); err != nil {
				return nil, ReasonBadShape, name + " is not a flat list of numbers or booleans"
			}
			bools = make([]bool, len(nums))
			for i, v := range nums {
				bools[i] = v != 0
				if name == "labels" {
					bools[i] = v != -100
				}
			}
		}
		if n >= 0 && len(bools) != n {
			return nil, ReasonMaskLength, fmt.Sprintf("%s has %d entries, the sample %d ids", name, len(bools), n)
		}
		return bools, "", ""
	}
	return nil, "", ""
}
