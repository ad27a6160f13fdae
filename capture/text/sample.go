package text

import (
	"encoding/json"
	"errors"
	"fmt"

	"quire/capture/text/chat"
	"quire/capture/text/tokenizer"
)

// prepared is a record turned into token ids, or the reason why not.
type prepared struct {
	ids        []int32
	mask       []bool
	reason     string
	detail     string
	tokens     int // before clipping
	starting   bool
	bosRemoved bool
	bosDoubled bool
	err        error // ends the load
}

func unusable(reason, detail string) prepared { return prepared{reason: reason, detail: detail} }

// preparer turns records into samples. It is safe for concurrent use.
type preparer struct {
	tok    *Tokenizer
	tmpl   *Template
	o      Options
	count  Count
	kwargs map[string]json.RawMessage
	bos    int32 // -1: none
	addBOS bool  // the post-processor does not add it, tokenizer_config.json says so
}

func (p *preparer) prepare(r record, where string) prepared {
	s := p.tokensOf(r, where)
	if s.reason != "" || s.err != nil {
		return s
	}
	s.tokens = len(s.ids)
	if s.tokens == 0 {
		return unusable(ReasonEmpty, "")
	}
	if limit := p.o.VocabSize; limit > 0 {
		for i, id := range s.ids {
			if int(id) >= limit {
				return prepared{reason: ReasonBadID, detail: fmt.Sprintf("token %d has id %d, the model knows %d", i, id, limit), tokens: s.tokens}
			}
		}
	}
	if p.count == CountAll {
		s.mask = nil
	} else if s.mask == nil {
		return prepared{reason: ReasonNoMask, detail: "nothing marks the tokens that count", tokens: s.tokens}
	}
	if p.o.Concat {
		return s
	}
	if s.tokens < p.o.MinLen {
		return prepared{reason: ReasonShort, detail: fmt.Sprintf("%d tokens, want %d", s.tokens, p.o.MinLen), tokens: s.tokens}
	}
	if p.o.SeqLen > 0 && len(s.ids) > p.o.SeqLen {
		s.ids = s.ids[:p.o.SeqLen:p.o.SeqLen]
		if s.mask != nil {
			s.mask = s.mask[:p.o.SeqLen:p.o.SeqLen]
		}
	}
	if s.mask != nil && (Batch{IDs: s.ids, Mask: s.mask}).Rows() == 0 {
		return prepared{reason: ReasonNoRows, detail: "no marked token before the cut", tokens: s.tokens}
	}
	return s
}

// tokensOf finds the column of a record and turns it into ids with their mask.
func (p *preparer) tokensOf(r record, where string) prepared {
	switch {
	case r.reason != "":
		return unusable(r.reason, r.detail)
	case r.ids != nil:
		for i, id := range r.ids {
			if p.o.VocabSize > 0 && int(id) >= p.o.VocabSize {
				return unusable(ReasonBadID, fmt.Sprintf("id %d at %d, the model knows %d", id, i, p.o.VocabSize))
			}
		}
		return p.given(prepared{ids: r.ids})
	case r.isText:
		return p.encode(r.text, nil, false, where)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(r.json, &fields); err != nil {
		return unusable(ReasonBadRecord, err.Error())
	}
	if c := p.o.TextColumn; c != "" {
		return p.textColumn(fields, c, where)
	}
	present := func(name string) bool {
		raw, ok := fields[name]
		return ok && string(raw) != "null"
	}
	if present("input_ids") {
		ids, mask, reason, detail := idsOf(fields, p.o.VocabSize)
		if reason != "" {
			return unusable(reason, detail)
		}
		return p.given(prepared{ids: ids, mask: mask})
	}
	for _, name := range []string{"messages", "conversations", "conversation"} {
		if !present(name) {
			continue
		}
		if (p.tmpl == nil || p.o.ApplyTemplate == "never") && present("text") {
			break
		}
		return p.conversation(fields, fields[name], nil, where)
	}
	if present("prompt") && present("completion") {
		return p.promptCompletion(fields, where)
	}
	if present("text") {
		return p.textColumn(fields, "text", where)
	}
	return unusable(ReasonNoColumn, "none of text, messages, conversations, prompt with completion, input_ids")
}

func (p *preparer) textColumn(fields map[string]json.RawMessage, name, where string) prepared {
	raw, ok := fields[name]
	if !ok {
		return unusable(ReasonNoColumn, "no column "+name)
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return unusable(ReasonBadShape, name+" is not a string")
	}
	out := p.encode(s, nil, false, where)
	if out.reason != "" || out.err != nil {
		return out
	}
	if p.count == CountMask {
		mask, reason, detail := maskOf(fields, len(out.ids))
		if reason != "" {
			return unusable(reason, detail)
		}
		out.mask = mask
	}
	return out
}

func (p *preparer) promptCompletion(fields map[string]json.RawMessage, where string) prepared {
	var prompt, completion string
	if json.Unmarshal(fields["prompt"], &prompt) == nil && json.Unmarshal(fields["completion"], &completion) == nil {
		return p.encode(prompt+completion, [][2]int{{len(prompt), len(prompt) + len(completion)}}, false, where)
	}
	var a, b []json.RawMessage
	if json.Unmarshal(fields["prompt"], &a) != nil || json.Unmarshal(fields["completion"], &b) != nil {
		return unusable(ReasonBadShape, "prompt and completion are neither both strings nor both lists of messages")
	}
	all, err := json.Marshal(append(a, b...))
	if err != nil {
		return unusable(ReasonBadShape, err.Error())
	}
	head, err := json.Marshal(a)
	if err != nil {
		return unusable(ReasonBadShape, err.Error())
	}
	return p.conversation(fields, all, head, where)
}

// conversation renders and encodes messages. head, when not nil, are the messages of the prompt: what follows their rendering is the
// completion, for templates that mark nothing themselves.
func (p *preparer) conversation(fields map[string]json.RawMessage, messages, head json.RawMessage, where string) prepared {
	if p.o.ApplyTemplate == "never" {
		return unusable(ReasonNoTemplate, "a conversation, and apply_chat_template is never")
	}
	if p.tmpl == nil {
		if p.o.NoTemplate != nil {
			return prepared{err: needed(p.o.NoTemplate, "the data holds a conversation", where)}
		}
		return prepared{err: &Error{Code: "E1207", Exit: exitUsage, What: "the data holds a conversation but the model has no chat template", Where: where,
			Err: ErrNoTemplate, Try: "put chat_template.jinja beside the weights, give --template FILE, or a text column"}}
	}
	req, reason, detail := p.request(fields, messages)
	if reason != "" {
		return unusable(reason, detail)
	}
	out, err := p.tmpl.Render(req)
	if err != nil {
		return unusable(ReasonTemplate, err.Error())
	}
	spans := out.Spans
	if len(spans) == 0 && head != nil {
		if prefix, _, _ := p.request(fields, head); prefix.Messages != nil {
			prefix.AddGenerationPrompt = true
			if h, err := p.tmpl.Render(prefix); err == nil && len(h.Text) <= len(out.Text) && out.Text[:len(h.Text)] == h.Text {
				spans = [][2]int{{len(h.Text), len(out.Text)}}
			}
		}
	}
	s := p.encode(out.Text, spans, true, where)
	if s.reason == "" && s.err == nil && p.count == CountMask {
		mask, reason, detail := maskOf(fields, len(s.ids))
		if reason != "" {
			return unusable(reason, detail)
		}
		s.mask = mask
	}
	return s
}

// request builds what the template renders from a record: its messages in the names that templates know, its tools, its variables.
func (p *preparer) request(fields map[string]json.RawMessage, messages json.RawMessage) (chat.Request, string, string) {
	messages, err := chat.NormalizeMessages(messages)
	if err != nil {
		return chat.Request{}, ReasonBadShape, err.Error()
	}
	req := chat.Request{Messages: messages, Kwargs: p.kwargs}
	if raw, ok := fields["tools"]; ok && string(raw) != "null" {
		var s string
		if json.Unmarshal(raw, &s) == nil { // data sets often hold the list as a string
			if raw = json.RawMessage(s); s == "" {
				raw = nil
			} else if !json.Valid(raw) {
				return chat.Request{}, ReasonBadShape, "tools is a string that is not JSON"
			}
		}
		req.Tools = raw
	}
	if raw, ok := fields["documents"]; ok && string(raw) != "null" {
		req.Documents = raw
	}
	if raw, ok := fields["chat_template_kwargs"]; ok && string(raw) != "null" {
		var own map[string]json.RawMessage
		if json.Unmarshal(raw, &own) != nil {
			return chat.Request{}, ReasonBadShape, "chat_template_kwargs is not an object"
		}
		for k, v := range p.kwargs {
			if _, ok := own[k]; !ok {
				own[k] = v
			}
		}
		req.Kwargs = own
	}
	return req, "", ""
}

// encode tokenizes a text. spans are byte ranges of it that count under --count assistant. A text that begins with the
// beginning-of-sequence token already gets no second one, and a rendered conversation gets nothing at its end.
func (p *preparer) encode(s string, spans [][2]int, rendered bool, where string) prepared {
	if s == "" {
		return unusable(ReasonEmpty, "")
	}
	if p.tok == nil {
		if p.o.NoTokenizer != nil {
			return prepared{err: needed(p.o.NoTokenizer, "the data holds text", where)}
		}
		return prepared{err: &Error{Code: "E1201", Exit: exitUsage, What: "the data holds text but there is no tokenizer", Where: where, Err: ErrNoTokenizer,
			Try: "put tokenizer.json beside the weights, or give token ids (input_ids, .u16, .u32)"}}
	}
	o := tokenizer.Options{NoTruncation: true, NoPadding: true, NoSpecialTokens: rendered, Offsets: p.count == CountAssistant && spans != nil}
	enc, err := p.tok.Encode(s, o)
	if err != nil {
		if errors.Is(err, tokenizer.ErrText) {
			return unusable(ReasonBadRecord, err.Error())
		}
		return prepared{err: tokenizerError(where, err)}
	}
	out := prepared{ids: enc.IDs}
	if o.Offsets {
		out.mask = make([]bool, len(enc.IDs))
		for i, off := range enc.Offsets {
			for _, sp := range spans {
				if off[0] < sp[1] && off[1] > sp[0] {
					out.mask[i] = true
				}
			}
		}
	}
	return p.noteBOS(out, rendered || p.addBOS)
}

// given takes token ids as they are and only looks at how they begin.
func (p *preparer) given(s prepared) prepared {
	if p.bos >= 0 && len(s.ids) > 0 {
		s.starting = s.ids[0] == p.bos
		s.bosDoubled = s.starting && len(s.ids) > 1 && s.ids[1] == p.bos
	}
	return s
}

// noteBOS adds the beginning-of-sequence token where it is due and missing, and takes a doubled one away.
func (p *preparer) noteBOS(s prepared, due bool) prepared {
	if p.bos < 0 || len(s.ids) == 0 {
		return s
	}
	if due && s.ids[0] != p.bos {
		s.ids = append([]int32{p.bos}, s.ids...)
		if s.mask != nil {
			s.mask = append([]bool{false}, s.mask...)
		}
	}
	for len(s.ids) > 1 && s.ids[0] == p.bos && s.ids[1] == p.bos {
		s.ids = s.ids[1:]
		if s.mask != nil {
			s.mask = s.mask[1:]
		}
		s.bosRemoved = true
	}
	s.starting = s.ids[0] == p.bos
	return s
}
