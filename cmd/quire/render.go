package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"unicode/utf8"

	"quire/capture/text"
	"quire/capture/text/chat"
	"quire/engine"
)

// RenderCmd shows what a chat template makes of conversations.
type RenderCmd struct {
	Paths    []string `arg:"" optional:"" name:"model-and-files" help:"Model (not needed with --template), then JSON lines {\"messages\":…,\"tools\":…,\"documents\":…,\"add_generation_prompt\":…}; other keys, or those of kwargs, are variables of the template. - or no file is stdin."`
	Template string   `help:"A bare template file instead of the model's."`
	Variant  string   `help:"Named variant of the model's template."`
	Date     string   `help:"Date that the template sees (default 2024-07-26)."`
	BOS      string   `name:"bos-token" help:"Value of bos_token, instead of the model's."`
	EOS      string   `name:"eos-token" help:"Value of eos_token, instead of the model's."`
	JSON     bool     `name:"json" help:"Put the lines, which are NDJSON anyway, between hello and result."`
}

// Run renders line by line. A conversation that the template refuses is a line with error, not a failure of the command.
func (c *RenderCmd) Run(ctx context.Context, o *output) error {
	t, files, err := c.load()
	if err != nil {
		return err
	}
	date := c.Date
	if date == "" {
		date = text.DefaultTemplateDate
	}
	if t, err = t.At(date); err != nil {
		return &engine.Error{Code: "E0155", Exit: engine.ExitUsage, What: "the date is not understood", Where: date, Err: err, Try: "use for example 2024-07-26"}
	}
	special := map[string]string{}
	if c.BOS != "" {
		special["bos_token"] = c.BOS
	}
	if c.EOS != "" {
		special["eos_token"] = c.EOS
	}
	t = t.With(special)
	if c.JSON {
		writeHello(o.out)
	}
	lines, failed := 0, 0
	err = eachLine(ctx, files, o, func(_ string, _ int, line []byte) (any, error) {
		if len(bytes.TrimSpace(line)) == 0 {
			return nil, nil
		}
		lines++
		out, err := renderLine(t, line)
		if err != nil {
			failed++
			return map[string]any{"error": err.Error()}, nil
		}
		return out, nil
	})
	if err != nil {
		return err
	}
	if c.JSON {
		writeJSON(o.out, map[string]any{"type": "result", "lines": lines, "failed": failed, "template_sha256": t.Digest()})
	}
	return nil
}

// load finds template and data files among the arguments: with --template the model is only asked for its special tokens
// and may be left out.
func (c *RenderCmd) load() (*text.Template, []string, error) {
	files := c.Paths
	if c.Template != "" {
		t, err := text.LoadTemplate(c.Template, c.Variant)
		if err != nil || len(files) == 0 {
			return t, files, err
		}
		if st, err := os.Stat(files[0]); err == nil && st.IsDir() {
			dir, err := modelPath(files[0])
			if err != nil {
				return nil, nil, err
			}
			special, err := text.SpecialTokens(dir)
			if err != nil {
				return nil, nil, err
			}
			t, files = t.With(special), files[1:]
		}
		return t, files, nil
	}
	if len(files) == 0 {
		return nil, nil, &engine.Error{Code: "E0154", Exit: engine.ExitUsage, What: "no template", Try: "give a model, or --template FILE"}
	}
	path, err := modelPath(files[0])
	if err != nil {
		return nil, nil, err
	}
	t, err := text.LoadTemplate(path, c.Variant)
	return t, files[1:], err
}

// renderResult is one line of output. Spans are what {% generation %} blocks wrote: [start, end) in code points of the text.
type renderResult struct {
	Text  string   `json:"text"`
	Spans [][2]int `json:"generation_spans,omitempty"`
}

// renderLine renders one conversation.
func renderLine(t *text.Template, line []byte) (*renderResult, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(line, &fields); err != nil {
		return nil, fmt.Errorf("the line is not a JSON object: %w", err)
	}
	req := chat.Request{Messages: fields["messages"], Kwargs: map[string]json.RawMessage{}}
	if req.Messages == nil {
		return nil, fmt.Errorf("the line has no messages")
	}
	var own map[string]json.RawMessage
	for k, raw := range fields {
		switch k {
		case "messages":
		case "tools":
			req.Tools = raw
		case "documents":
			req.Documents = raw
		case "add_generation_prompt":
			if err := json.Unmarshal(raw, &req.AddGenerationPrompt); err != nil {
				return nil, fmt.Errorf("add_generation_prompt is not a boolean")
			}
		case "now":
			var now string
			if err := json.Unmarshal(raw, &now); err != nil {
				return nil, fmt.Errorf("now is not a text")
			}
			var err error
			if t, err = t.At(now); err != nil {
				return nil, err
			}
		case "kwargs", "chat_template_kwargs":
			if err := json.Unmarshal(raw, &own); err != nil {
				return nil, fmt.Errorf("%s is not an object", k)
			}
		default:
			req.Kwargs[k] = raw
		}
	}
	for k, raw := range own {
		req.Kwargs[k] = raw
	}
	out, err := t.Render(req)
	if err != nil {
		return nil, err
	}
	r := &renderResult{Text: out.Text}
	for _, s := range out.Spans {
		r.Spans = append(r.Spans, [2]int{utf8.RuneCountInString(out.Text[:s[0]]), utf8.RuneCountInString(out.Text[:s[1]])})
	}
	return r, nil
}
