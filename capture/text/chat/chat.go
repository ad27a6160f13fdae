package chat

import (
	"encoding/json"
	"errors"
)

// Request is one conversation to render, its parts as JSON texts: keys keep their order.
type Request struct {
	Messages            json.RawMessage
	Tools               json.RawMessage // nil: none
	Documents           json.RawMessage // nil: none
	AddGenerationPrompt bool
	Kwargs              map[string]json.RawMessage // extra template variables; they override bos_token and eos_token
}

// Rendered is a rendered conversation.
type Rendered struct {
	Text string
	// Spans are the byte ranges [start, end) of Text that executed {% generation %} blocks wrote, in order.
	Spans [][2]int
}

// Template is a compiled chat template.
type Template struct{ digest string }

// Digest is the SHA-256 (hex) of the template's text.
func (t *Template) Digest() string { return t.digest }

// At gives the template with strftime_now fixed to a date.
func (t *Template) At(date string) (*Template, error) { return t, nil }

// Load reads a template.
func Load(path, name string) (*Template, error) { return nil, errors.ErrUnsupported }

// Render renders a conversation.
func (t *Template) Render(r Request) (*Rendered, error) { return nil, errors.ErrUnsupported }

// NormalizeMessages gives messages in the names that templates know.
func NormalizeMessages(raw json.RawMessage) (json.RawMessage, error) { return raw, nil }
