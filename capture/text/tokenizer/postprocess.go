package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// postProcessor joins one or two encoded texts and adds special tokens.
type postProcessor interface {
	added(pair bool) int
	process(a, b *Encoding, special bool, o Options) (*Encoding, error)
}

// element is a place of a template: a sequence (0 or 1) or a special token.
type element struct {
	seq    int // -1: special
	ids    []int32
	tokens []string
	typeID int32
}

// template lays texts and special tokens out; nil lists mean "the texts one after the other".
type template struct {
	single, pair []element
	// trim takes spaces off the offsets of byte-level tokens.
	trim, prefixSpace bool
}

func plainTemplate() *template {
	return &template{single: []element{{seq: 0}}, pair: []element{{seq: 0}, {seq: 1, typeID: 1}}}
}

func (t *template) added(pair bool) int {
	n := 0
	list := t.single
	if pair {
		list = t.pair
	}
	for _, e := range list {
		if e.seq < 0 {
			n += len(e.ids)
		}
	}
	return n
}

func (t *template) process(a, b *Encoding, special bool, o Options) (*Encoding, error) {
	list := t.single
	if b != nil {
		list = t.pair
	}
	if t.trim {
		trimOffsets(a, t.prefixSpace)
		if b != nil {
			trimOffsets(b, t.prefixSpace)
		}
	}
	if b == nil && len(list) == 1 && list[0].seq == 0 && list[0].typeID == 0 {
		return a, nil // nothing is added: the default of the other fields holds
	}
	lay := func(a, b *Encoding) *Encoding {
		out := &Encoding{}
		for _, el := range list {
			switch {
			case el.seq == 0:
				out.join(a, el.typeID, o)
			case el.seq == 1:
				out.join(b, el.typeID, o)
			case special:
				for i, id := range el.ids {
					out.append(id, el.tokens[i], [2]int{}, el.typeID, true, o)
				}
			}
		}
		return out
	}
	out := lay(a, b)
	// Each cut-off piece is laid out with the other text, and with each cut-off piece of it.
	for _, oa := range a.Overflow {
		out.Overflow = append(out.Overflow, lay(oa, b))
		if b != nil {
			for _, ob := range b.Overflow {
				out.Overflow = append(out.Overflow, lay(oa, ob))
			}
		}
	}
	if b != nil {
		for _, ob := range b.Overflow {
			out.Overflow = append(out.Overflow, lay(a, ob))
		}
	}
	return out, nil
}

func (e *Encoding) append(id int32, token string, off [2]int, typeID int32, special bool, o Options) {
	e.IDs = append(e.IDs, id)
	e.TypeIDs = append(e.TypeIDs, typeID)
	e.Special = append(e.Special, special)
	e.Attention = append(e.Attention, true)
	if o.Tokens {
		e.Tokens = append(e.Tokens, token)
	}
	if o.Offsets {
		e.Offsets = append(e.Offsets, off)
	}
}

// join adds the ids of a text.
func (e *Encoding) join(from *Encoding, typeID int32, o Options) {
	if e.IDs == nil {
		e.IDs = make([]int32, 0, len(from.IDs)+2)
	}
	e.IDs = append(e.IDs, from.IDs...)
	e.Tokens = append(e.Tokens, from.Tokens...)
	e.Offsets = append(e.Offsets, from.Offsets...)
	for i := range from.IDs {
		ty := typeID
		if from.TypeIDs != nil && typeID == 0 {
			ty = from.TypeIDs[i]
		}
		e.TypeIDs = append(e.TypeIDs, ty)
		e.Special = append(e.Special, from.Special != nil && from.Special[i])
		e.Attention = append(e.Attention, true)
	}
}

// trimOffsets takes the spaces at both ends of a byte-level token out of its offsets; one at the front of the first token stays
// where the tokenizer itself put it there.
func trimOffsets(e *Encoding, prefixSpace bool) {
	for i := range e.Offsets { // Tokens are there: Encode fills them with Offsets
		s := e.Tokens[i]
		blank := func(r rune) bool { return r == byteRunes[' '] || unicode.IsSpace(r) }
		lead := len([]rune(s)) - len([]rune(strings.TrimLeftFunc(s, blank)))
		trail := len([]rune(s)) - len([]rune(strings.TrimRightFunc(s, blank)))
		off := &e.Offsets[i]
		if lead > 0 {
			if prefixSpace && (i == 0 || off[0] == 0) {
				lead--
			}
			off[0] = min(off[0]+lead, off[1])
		}
		if trail > 0 && off[1] >= trail {
			off[1] = max(off[1]-trail, off[0])
		}
	}
}

// postSequence runs post-processors one after the other, each over the last one's result.
type postSequence []postProcessor

func (q postSequence) added(pair bool) int {
	n := 0
	for _, p := range q {
		n += p.added(pair)
	}
	return n
}

func (q postSequence) process(a, b *Encoding, special bool, o Options) (*Encoding, error) {
	// Offset trimming acts on the texts; of the others the reference's published files never have more than one.
	for i, p := range q {
		tp, ok := p.(*template)
		if !ok {
			return nil, &UnsupportedError{Section: "post_processor", Part: "nested Sequence"}
		}
		if i == len(q)-1 || tp.added(b != nil) > 0 {
			if i < len(q)-1 {
				for _, rest := range q[i+1:] {
					if r, ok := rest.(*template); ok && r.trim {
						trimOffsets(a, r.prefixSpace)
						if b != nil {
							trimOffsets(b, r.prefixSpace)
						}
					}
				}
			}
			return tp.process(a, b, special, o)
		}
		if tp.trim {
			trimOffsets(a, tp.prefixSpace)
			if b != nil {
				trimOffsets(b, tp.prefixSpace)
			}
		}
	}
	return plainTemplate().process(a, b, special, o)
}

func parsePost(raw json.RawMessage) (postProcessor, error) {
	if isNull(raw) {
		return plainTemplate(), nil
	}
	var c struct {
		Type       string
		Processors []json.RawMessage
		Single     []json.RawMessage
		Pair       []json.RawMessage
		Special    map[string]struct {
			IDs    []int32  `json:"ids"`
			Tokens []string `json:"tokens"`
		} `json:"special_tokens"`
		Sep       [2]any `json:"sep"`
		Cls       [2]any `json:"cls"`
		Trim      *bool  `json:"trim_offsets"`
		AddPrefix *bool  `json:"add_prefix_space"`
	}
	if err := unmarshalSection("post_processor", raw, &c); err != nil {
		return nil, err
	}
	switch c.Type {
	case "Sequence":
		var seq postSequence
		withTokens := 0
		for _, r := range c.Processors {
			p, err := parsePost(r)
			if err != nil {
				return nil, err
			}
			if p.added(false)+p.added(true) > 0 {
				withTokens++
			}
			seq = append(seq, p)
		}
		if withTokens > 1 {
			return nil, &UnsupportedError{Section: "post_processor", Part: "Sequence", Why: "more than one of its parts adds tokens"}
		}
		if len(seq) == 0 {
			return plainTemplate(), nil
		}
		return seq, nil
	case "ByteLevel":
		t := plainTemplate()
		t.trim, t.prefixSpace = orTrue(c.Trim), orTrue(c.AddPrefix)
		return t, nil
	case "TemplateProcessing":
		read := func(list []json.RawMessage) ([]element, error) {
			var out []element
			for _, r := range list {
				var p struct {
					SpecialToken *struct {
						ID     string `json:"id"`
						TypeID int32  `json:"type_id"`
					}
					Sequence *struct {
						ID     string `json:"id"`
						TypeID int32  `json:"type_id"`
					}
				}
				if err := json.Unmarshal(r, &p); err != nil {
					return nil, fmt.Errorf("post_processor: %w", err)
				}
				switch {
				case p.Sequence != nil:
					e := element{typeID: p.Sequence.TypeID}
					if p.Sequence.ID == "B" {
						e.seq = 1
					}
					out = append(out, e)
				case p.SpecialToken != nil:
					sp, ok := c.Special[p.SpecialToken.ID]
					if !ok || len(sp.IDs) != len(sp.Tokens) {
						return nil, fmt.Errorf("post_processor: special token %q is not defined", p.SpecialToken.ID)
					}
					out = append(out, element{seq: -1, ids: sp.IDs, tokens: sp.Tokens, typeID: p.SpecialToken.TypeID})
				default:
					return nil, &UnsupportedError{Section: "post_processor", Part: "TemplateProcessing piece " + string(r)}
				}
			}
			return out, nil
		}
		single, err := read(c.Single)
		if err != nil {
			return nil, err
		}
		pair, err := read(c.Pair)
		if err != nil {
			return nil, err
		}
		for _, e := range single {
			if e.seq == 1 {
				return nil, errors.New("post_processor: the single template names sequence B")
			}
		}
		return &template{single: single, pair: pair}, nil
	case "BertProcessing", "RobertaProcessing":
		sep, err := specialPair(c.Sep, 0)
		if err != nil {
			return nil, err
		}
		cls, err := specialPair(c.Cls, 0)
		if err != nil {
			return nil, err
		}
		text := func(seq int, typeID int32) element { return element{seq: seq, typeID: typeID} }
		if c.Type == "BertProcessing" {
			sepB := sep
			sepB.typeID = 1
			return &template{single: []element{cls, text(0, 0), sep}, pair: []element{cls, text(0, 0), sep, text(1, 1), sepB}}, nil
		}
		return &template{single: []element{cls, text(0, 0), sep}, pair: []element{cls, text(0, 0), sep, sep, text(1, 0), sep},
			trim: orTrue(c.Trim), prefixSpace: orTrue(c.AddPrefix)}, nil
	}
	return nil, &UnsupportedError{Section: "post_processor", Part: c.Type}
}

// specialPair reads ["[SEP]", 102].
func specialPair(p [2]any, typeID int32) (element, error) {
	s, ok1 := p[0].(string)
	id, ok2 := p[1].(float64)
	if !ok1 || !ok2 {
		return element{}, errors.New("post_processor: sep and cls must be [token, id]")
	}
	return element{seq: -1, ids: []int32{int32(id)}, tokens: []string{s}, typeID: typeID}, nil
}
