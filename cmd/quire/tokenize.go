package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"quire/capture/text"
	"quire/engine"
)

// TokenizeCmd turns lines into token ids.
type TokenizeCmd struct {
	Tokenizer string   `arg:"" help:"Tokenizer file or model."`
	Files     []string `arg:"" optional:"" help:"Text, or JSON lines {\"text\":…,\"add_special_tokens\":…}; {\"ids\":[…]} decodes. - or none is stdin."`
	Format    string   `enum:"auto,text,jsonl" default:"auto" help:"auto takes a line that is a JSON object with text or ids as JSON."`
	NoSpecial bool     `help:"Leave out the tokens that the post-processor adds, unless a line says otherwise."`
	Offsets   bool     `help:"Add the byte range of each token."`
	JSON      bool     `name:"json" help:"Put the lines, which are NDJSON anyway, between hello and result."`
}

// tokenizeLine is one line of input.
type tokenizeLine struct {
	Text        *string `json:"text"`
	Special     *bool   `json:"add_special_tokens"`
	IDs         []int32 `json:"ids"`
	SkipSpecial bool    `json:"skip_special_tokens"`
}

// tokenizeResult is one line of output.
type tokenizeResult struct {
	IDs     []int32  `json:"ids"`
	Tokens  []string `json:"tokens"`
	Offsets [][2]int `json:"offsets,omitempty"`
}

// Run tokenizes.
func (c *TokenizeCmd) Run(ctx context.Context, o *output) error {
	path, err := modelPath(c.Tokenizer)
	if err != nil {
		return err
	}
	tok, err := text.LoadTokenizer(path)
	if err != nil {
		return err
	}
	if c.JSON {
		writeHello(o.out)
	}
	lines, tokens := 0, 0
	err = eachLine(ctx, c.Files, o, func(file string, n int, line []byte) (any, error) {
		lines++
		in, err := c.read(file, n, line)
		if err != nil {
			return nil, err
		}
		if in.Text == nil {
			return map[string]any{"text": tok.Decode(in.IDs, in.SkipSpecial)}, nil
		}
		special := !c.NoSpecial
		if in.Special != nil {
			special = *in.Special
		}
		enc, err := tok.Encode(*in.Text, text.EncodeOptions{NoSpecialTokens: !special, Tokens: true, Offsets: c.Offsets})
		if err != nil {
			return nil, &engine.Error{Code: "E0153", Exit: engine.ExitUsage, What: "a line cannot be tokenized", Where: fmt.Sprintf("%s:%d", file, n), Err: err, Try: "correct the line"}
		}
		tokens += len(enc.IDs)
		out := tokenizeResult{IDs: enc.IDs, Tokens: enc.Tokens}
		if out.IDs == nil {
			out.IDs, out.Tokens = []int32{}, []string{}
		}
		if c.Offsets {
			out.Offsets = enc.Offsets
		}
		return out, nil
	})
	if err != nil {
		return err
	}
	if c.JSON {
		writeJSON(o.out, map[string]any{"type": "result", "lines": lines, "tokens": tokens, "tokenizer_sha256": tok.Digest()})
	}
	return nil
}

// read understands one line: as JSON where the format, the file's name or the line itself says so.
func (c *TokenizeCmd) read(file string, n int, line []byte) (tokenizeLine, error) {
	must := c.Format == "jsonl" || c.Format == "auto" && (strings.HasSuffix(file, ".jsonl") || strings.HasSuffix(file, ".ndjson"))
	if must || c.Format == "auto" && !strings.HasSuffix(file, ".txt") && bytes.HasPrefix(line, []byte("{")) {
		var in tokenizeLine
		err := json.Unmarshal(line, &in)
		if err == nil && (in.Text != nil || in.IDs != nil) {
			return in, nil
		}
		if must {
			return in, &engine.Error{Code: "E0153", Exit: engine.ExitUsage, What: "a line has neither text nor ids", Where: fmt.Sprintf("%s:%d", file, n), Err: err,
				Try: `write {"text":"…"}, or give --format text`}
		}
	}
	s := string(line)
	return tokenizeLine{Text: &s}, nil
}
