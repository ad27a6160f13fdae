package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"quire/capture/text"
	"quire/engine"
)

// TokenizeCmd turns lines into token ids.
type TokenizeCmd struct {
	Tokenizer string   `arg:"" help:"Tokenizer file or model directory."`
	Files     []string `arg:"" optional:"" help:"Text files, or .jsonl with text and add_special_tokens; - or none is stdin."`
	NoSpecial bool     `help:"Leave out the tokens that the post-processor adds."`
	JSON      bool     `name:"json" help:"Accepted for symmetry: the output is always NDJSON."`
}

// Run tokenizes.
func (c *TokenizeCmd) Run(o *output) error {
	tok, err := text.LoadTokenizer(c.Tokenizer)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(o.out)
	err = eachLine(c.Files, o, func(file string, n int, line string) error {
		in := struct {
			Text    *string `json:"text"`
			Special *bool   `json:"add_special_tokens"`
		}{Text: &line}
		if strings.HasSuffix(file, ".jsonl") || strings.HasPrefix(line, `{"text"`) {
			in.Text = nil
			if err := json.Unmarshal([]byte(line), &in); err != nil || in.Text == nil {
				return &engine.Error{Code: "E0153", Exit: engine.ExitUsage, What: "a line has no text", Where: fmt.Sprintf("%s:%d", file, n), Err: err, Try: `write {"text":"…"}`}
			}
		}
		special := !c.NoSpecial
		if in.Special != nil {
			special = *in.Special
		}
		enc, err := tok.Encode(*in.Text, text.EncodeOptions{NoSpecialTokens: !special, Tokens: true})
		if err != nil {
			return err
		}
		ids := enc.IDs
		if ids == nil {
			ids = []int32{}
		}
		tokens := enc.Tokens
		if tokens == nil {
			tokens = []string{}
		}
		writeJSON(w, map[string]any{"ids": ids, "tokens": tokens})
		return nil
	})
	if ferr := w.Flush(); err == nil {
		err = ferr
	}
	return err
}

// eachLine calls f for every line of the files, or of stdin.
func eachLine(files []string, o *output, f func(file string, n int, line string) error) error {
	if len(files) == 0 {
		files = []string{"-"}
	}
	for _, name := range files {
		var r io.Reader = o.in
		if name != "-" {
			file, err := os.Open(name)
			if err != nil {
				return &engine.Error{Code: "E0104", Exit: engine.ExitUsage, What: "a file cannot be read", Where: name, Err: err, Try: "check the path"}
			}
			defer file.Close()
			r = file
		}
		br := bufio.NewReaderSize(r, 1<<20)
		for n := 1; ; n++ {
			line, err := br.ReadString('\n')
			if line != "" {
				if err := f(name, n, strings.TrimSuffix(line, "\n")); err != nil {
					return err
				}
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
