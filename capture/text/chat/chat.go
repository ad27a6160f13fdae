// Package chat renders conversations with a model's chat template, as transformers does.
//
// A Template is immutable; what it prints depends on the template, the request and a fixed date, never on the clock. Messages
// and tools keep the key order of their JSON text. Before rendering, messages are cleaned as transformers 5 cleans them: keys with
// null go, and reasoning is offered under the names reasoning_content and thinking (Request.Raw leaves that out).
package chat

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"quire/capture/text/jinja"
)

// Request is one conversation to render, its parts as JSON texts: keys keep their order.
type Request struct {
	Messages            json.RawMessage
	Tools               json.RawMessage // nil: none
	Documents           json.RawMessage // nil: none
	AddGenerationPrompt bool
	Kwargs              map[string]json.RawMessage // extra template variables; they override bos_token and eos_token
	Raw                 bool                       // render messages as they are
}

// Rendered is a rendered conversation.
type Rendered struct {
	Text string
	// Spans are the byte ranges [start, end) of Text that executed {% generation %} blocks wrote, in order.
	Spans [][2]int
}

// Template is a compiled chat template with the special tokens it may print.
type Template struct {
	compiled *jinja.Template
	source   string
	tokens   map[string]string // bos_token, eos_token, …
	now      time.Time
}

// ErrRaised is found in the error of a template that called raise_exception; the message is the template's.
var ErrRaised = errors.New("raised by the chat template")

// RenderError is a failed rendering.
type RenderError struct {
	Msg    string
	Raised bool // by raise_exception
	Err    error
}

func (e *RenderError) Error() string { return e.Msg }

// Unwrap gives ErrRaised or the cause.
func (e *RenderError) Unwrap() error { return e.Err }

// Compile reads a template's text. tokens are variables such as bos_token; nil is none.
func Compile(source string, tokens map[string]string) (*Template, error) {
	t, err := jinja.Compile(source)
	if err != nil {
		return nil, err
	}
	return &Template{compiled: t, source: source, tokens: tokens, now: time.Unix(0, 0).UTC()}, nil
}

// Source is the template's text.
func (t *Template) Source() string { return t.source }

// Digest is the SHA-256 (hex) of the template's text.
func (t *Template) Digest() string {
	sum := sha256.Sum256([]byte(t.source))
	return hex.EncodeToString(sum[:])
}

// At gives the template with strftime_now fixed to a date, "2006-01-02", or a moment, "2006-01-02T15:04:05".
func (t *Template) At(date string) (*Template, error) {
	for _, layout := range []string{"2006-01-02", "2006-01-02T15:04:05", time.RFC3339} {
		if now, err := time.Parse(layout, date); err == nil {
			out := *t
			out.now = now
			return &out, nil
		}
	}
	return nil, fmt.Errorf("%q is neither 2006-01-02 nor 2006-01-02T15:04:05", date)
}

// With gives the template with some variables such as bos_token set or replaced.
func (t *Template) With(tokens map[string]string) *Template {
	out := *t
	out.tokens = maps.Clone(t.tokens)
	if out.tokens == nil {
		out.tokens = map[string]string{}
	}
	maps.Copy(out.tokens, tokens)
	return &out
}

// Render renders a conversation. Errors are *RenderError.
func (t *Template) Render(r Request) (out *Rendered, err error) {
	vars := map[string]any{"add_generation_prompt": r.AddGenerationPrompt, "tools": nil, "documents": nil}
	for k, v := range t.tokens {
		vars[k] = v
	}
	read := func(name string, raw json.RawMessage) error {
		if len(raw) == 0 {
			return nil
		}
		v, err := jinja.FromJSON(raw)
		if err != nil {
			return &RenderError{Msg: name + " is not JSON: " + err.Error(), Err: err}
		}
		vars[name] = v
		return nil
	}
	if err := read("messages", r.Messages); err != nil {
		return nil, err
	}
	if !r.Raw {
		vars["messages"] = clean(vars["messages"])
	}
	if err := read("tools", r.Tools); err != nil {
		return nil, err
	}
	if err := read("documents", r.Documents); err != nil {
		return nil, err
	}
	for k, raw := range r.Kwargs {
		if err := read(k, raw); err != nil {
			return nil, err
		}
	}
	o, err := t.compiled.Render(vars, t.now)
	if err != nil {
		var raised *jinja.RaisedError
		if errors.As(err, &raised) {
			return nil, &RenderError{Msg: raised.Msg, Raised: true, Err: ErrRaised}
		}
		return nil, &RenderError{Msg: err.Error(), Err: err}
	}
	return &Rendered{Text: o.Text, Spans: o.Spans}, nil
}

// clean drops null keys of each message and offers reasoning under both names that templates use.
func clean(messages any) any {
	l, ok := messages.(*jinja.List)
	if !ok {
		return messages
	}
	out := &jinja.List{Items: make([]any, len(l.Items))}
	for i, m := range l.Items {
		out.Items[i] = m
		d, ok := m.(*jinja.Dict)
		if !ok {
			continue
		}
		kept := jinja.NewDict()
		d.Each(func(k, v any) {
			if v != nil {
				kept.Set(k, v)
			}
		})
		for _, name := range []string{"reasoning_content", "thinking", "reasoning"} {
			v, ok := kept.Get(name)
			if !ok {
				continue
			}
			first := jinja.NewDict()
			if _, has := kept.Get("thinking"); !has {
				first.Set("thinking", v)
			}
			kept.Each(func(k, w any) { first.Set(k, w) })
			first.Set("reasoning_content", v)
			kept = first
			break
		}
		out.Items[i] = kept
	}
	return out
}
