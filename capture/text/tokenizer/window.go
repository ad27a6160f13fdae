package tokenizer

import (
	"encoding/json"
	"fmt"
	"slices"
)

// truncation is the file's truncation section.
type truncation struct {
	MaxLength int    `json:"max_length"`
	Strategy  string `json:"strategy"`
	Stride    int    `json:"stride"`
	Direction string `json:"direction"`
}

func parseTruncation(raw json.RawMessage) (*truncation, error) {
	if isNull(raw) {
		return nil, nil
	}
	t := &truncation{}
	if err := unmarshalSection("truncation", raw, t); err != nil {
		return nil, err
	}
	switch t.Strategy {
	case "LongestFirst", "OnlyFirst", "OnlySecond":
	default:
		return nil, &UnsupportedError{Section: "truncation", Part: t.Strategy}
	}
	if t.Direction != "Left" && t.Direction != "Right" && t.Direction != "" {
		return nil, &UnsupportedError{Section: "truncation", Part: "direction " + t.Direction}
	}
	return t, nil
}

// apply cuts one or two texts so that they fit with n added tokens.
func (t *truncation) apply(a, b *Encoding, n int, o Options) error {
	most := max(t.MaxLength-n, 0)
	if most == 0 {
		t.cut(a, 0)
		if b != nil {
			t.cut(b, 0)
		}
		return nil
	}
	total := len(a.IDs)
	if b != nil {
		total += len(b.IDs)
	}
	over := total - most
	if over <= 0 {
		return nil
	}
	switch t.Strategy {
	case "LongestFirst":
		if b == nil {
			t.cut(a, len(a.IDs)-over)
			return nil
		}
		// The reference shortens the longer text first, then both to halves, the second getting the odd one.
		n1, n2 := len(a.IDs), len(b.IDs)
		swap := false
		if n1 > n2 {
			swap = true
			n1, n2 = n2, n1
		}
		if n1 > most {
			n2 = n1
		} else {
			n2 = max(n1, most-n1)
		}
		if n1+n2 > most {
			n1 = most / 2
			n2 = n1 + most%2
		}
		if swap {
			n1, n2 = n2, n1
		}
		t.cut(a, n1)
		t.cut(b, n2)
		return nil
	case "OnlyFirst", "OnlySecond":
		target := a
		if t.Strategy == "OnlySecond" {
			if b == nil {
				return fmt.Errorf("%w: truncation is OnlySecond and there is no second text", ErrText)
			}
			target = b
		}
		if len(target.IDs) <= over {
			return fmt.Errorf("%w: truncation error: sequence to truncate is too short", ErrText)
		}
		t.cut(target, len(target.IDs)-over)
	}
	return nil
}

// cut keeps most ids and makes windows of the rest, each sharing stride ids with the one before.
func (t *truncation) cut(e *Encoding, most int) {
	n := len(e.IDs)
	if most >= n {
		return
	}
	if most == 0 {
		all := *e
		*e = Encoding{Overflow: []*Encoding{&all}}
		return
	}
	step := max(most-t.Stride, 1)
	var windows []*Encoding
	if t.Direction == "Left" {
		for hi := n; hi > 0; hi -= step {
			lo := max(hi-most, 0)
			windows = append(windows, e.window(lo, hi))
			if lo == 0 {
				break
			}
		}
	} else {
		for lo := 0; lo < n; lo += step {
			hi := min(lo+most, n)
			windows = append(windows, e.window(lo, hi))
			if hi == n {
				break
			}
		}
	}
	*e = *windows[0]
	e.Overflow = windows[1:]
}

func (e *Encoding) window(lo, hi int) *Encoding {
	out := &Encoding{IDs: e.IDs[lo:hi:hi]}
	if e.Tokens != nil {
		out.Tokens = e.Tokens[lo:hi:hi]
	}
	if e.Offsets != nil {
		out.Offsets = e.Offsets[lo:hi:hi]
	}
	return out
}

// padding is the file's padding section.
type padding struct {
	fixed    int // 0: to the longest of the batch
	left     bool
	multiple int
	id       int32
	typeID   int32
	token    string
}

func parsePadding(raw json.RawMessage) (*padding, error) {
	if isNull(raw) {
		return nil, nil
	}
	var c struct {
		Strategy  json.RawMessage
		Direction string
		Multiple  *int   `json:"pad_to_multiple_of"`
		ID        int32  `json:"pad_id"`
		TypeID    int32  `json:"pad_type_id"`
		Token     string `json:"pad_token"`
	}
	if err := unmarshalSection("padding", raw, &c); err != nil {
		return nil, err
	}
	p := &padding{left: c.Direction == "Left", id: c.ID, typeID: c.TypeID, token: c.Token}
	if c.Multiple != nil {
		if p.multiple = *c.Multiple; p.multiple < 0 || p.multiple > 1<<24 {
			return nil, &UnsupportedError{Section: "padding", Part: fmt.Sprintf("pad_to_multiple_of %d", p.multiple)}
		}
	}
	var name string
	var fixed struct{ Fixed int }
	if json.Unmarshal(c.Strategy, &name) == nil {
		if name != "BatchLongest" {
			return nil, &UnsupportedError{Section: "padding", Part: name}
		}
	} else if err := json.Unmarshal(c.Strategy, &fixed); err != nil || fixed.Fixed < 0 || fixed.Fixed > 1<<24 {
		return nil, &UnsupportedError{Section: "padding", Part: string(c.Strategy)}
	} else {
		p.fixed = fixed.Fixed
	}
	return p, nil
}

func (p *padding) apply(batch []*Encoding, o Options) {
	n := p.fixed
	if n == 0 {
		for _, e := range batch {
			n = max(n, len(e.IDs))
		}
	}
	if m := p.multiple; m > 0 && n%m != 0 {
		n += m - n%m
	}
	for _, e := range batch {
		p.one(e, n, o)
	}
}

func (p *padding) one(e *Encoding, n int, o Options) {
	for _, w := range e.Overflow {
		p.one(w, n, o)
	}
	k := n - len(e.IDs)
	if k <= 0 {
		return
	}
	if e.TypeIDs == nil {
		e.TypeIDs = make([]int32, len(e.IDs))
		e.Special = make([]bool, len(e.IDs))
		e.Attention = slices.Repeat([]bool{true}, len(e.IDs))
	}
	pad := &Encoding{}
	for range k {
		pad.append(p.id, p.token, [2]int{}, p.typeID, true, o)
		pad.Attention[len(pad.Attention)-1] = false
	}
	first, second := e, pad
	if p.left {
		first, second = pad, e
	}
	e2 := Encoding{Overflow: e.Overflow}
	e2.IDs = append(append(e2.IDs, first.IDs...), second.IDs...)
	e2.TypeIDs = append(append(e2.TypeIDs, first.TypeIDs...), second.TypeIDs...)
	e2.Special = append(append(e2.Special, first.Special...), second.Special...)
	e2.Attention = append(append(e2.Attention, first.Attention...), second.Attention...)
	e2.Tokens = append(append(e2.Tokens, first.Tokens...), second.Tokens...)
	e2.Offsets = append(append(e2.Offsets, first.Offsets...), second.Offsets...)
	*e = e2
}
