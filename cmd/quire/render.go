package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"

	"quire/capture/text"
	"quire/capture/text/chat"
	"quire/engine"
)

// RenderCmd shows what a chat template makes of conversations.
type RenderCmd struct {
	Model    string   `arg:"" optional:"" help:"Model directory (or give --template)."`
	Files    []string `arg:"" optional:"" help:"JSONL with messages, tools, add_generation_prompt; - or none is stdin."`
	Template string   `help:"A bare template file instead of the model's."`
	Variant  string   `help:"Named variant of the model's template."`
	Date     string   `help:"Date that the template sees (default 2024-07-26)."`
	JSON     bool     `name:"json" help:"Accepted for symmetry: the output is always NDJSON."`
}

// Run renders.
func (c *RenderCmd) Run(o *output) error {
	path, files := c.Model, c.Files
	if c.Template != "" {
		path = c.Template
		if c.Model != "" {
			files = append([]string{c.Model}, files...)
		}
	}
	if path == "" {
		return &engine.Error{Code: "E0154", Exit: engine.ExitUsage, What: "no template", Try: "give a model directory or --template FILE"}
	}
	t, err := text.LoadTemplate(path, c.Variant)
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
	w := bufio.NewWriter(o.out)
	err = eachLine(files, o, func(_ string, _ int, line string) error {
		if strings.TrimSpace(line) == "" {
			return nil
		}
		var req struct {
			Messages  json.RawMessage            `json:"messages"`
			Tools     json.RawMessage            `json:"tools"`
			Documents json.RawMessage            `json:"documents"`
			Prompt    bool                       `json:"add_generation_prompt"`
			Kwargs    map[string]json.RawMessage `json:"kwargs"`
		}
		if err := json.Unmarshal([]byte(line), &req); err != nil {
			writeJSON(w, map[string]any{"error": err.Error()})
			return nil
		}
		r, err := t.Render(chat.Request{Messages: req.Messages, Tools: req.Tools, Documents: req.Documents, AddGenerationPrompt: req.Prompt, Kwargs: req.Kwargs})
		var re *chat.RenderError
		switch {
		case errors.As(err, &re):
			writeJSON(w, map[string]any{"error": re.Msg})
		case err != nil:
			return err
		case len(r.Spans) > 0:
			writeJSON(w, map[string]any{"text": r.Text, "generation_spans": codePoints(r.Text, r.Spans)})
		default:
			writeJSON(w, map[string]any{"text": r.Text})
		}
		return nil
	})
	if ferr := w.Flush(); err == nil {
		err = ferr
	}
	return err
}

// codePoints turns byte ranges of a text into ranges of code points, as Python counts.
func codePoints(text string, spans [][2]int) [][2]int {
	out := make([][2]int, len(spans))
	for i, s := range spans {
		from := utf8.RuneCountInString(text[:s[0]])
		out[i] = [2]int{from, from + utf8.RuneCountInString(text[s[0]:s[1]])}
	}
	return out
}
