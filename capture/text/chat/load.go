package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const maxFile = 16 << 20

// specialTokens are the variables that transformers hands to a template.
var specialTokens = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// Load reads the template of a model directory, of a tokenizer_config.json, or a bare template file. In a directory
// chat_template.jinja (or additional_chat_templates/NAME.jinja) goes before chat_template.json and tokenizer_config.json. name picks a
// variant of a template that has several; "" is "default". Special tokens come from tokenizer_config.json beside it.
func Load(path, name string) (*Template, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return loadDir(path, name)
	}
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	tokens, cfg, err := readTokens(filepath.Join(filepath.Dir(path), "tokenizer_config.json"))
	if err != nil {
		return nil, err
	}
	if filepath.Ext(path) == ".json" {
		if filepath.Base(path) != "tokenizer_config.json" {
			if err := json.Unmarshal(data, &cfg); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}
		source, err := pick(cfg["chat_template"], name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return Compile(source, tokens)
	}
	return Compile(string(data), tokens)
}

// SpecialTokens reads the special tokens of a model directory's tokenizer_config.json; without that file there are none.
func SpecialTokens(dir string) (map[string]string, error) {
	tokens, _, err := readTokens(filepath.Join(dir, "tokenizer_config.json"))
	return tokens, err
}

func loadDir(dir, name string) (*Template, error) {
	tokens, cfg, err := readTokens(filepath.Join(dir, "tokenizer_config.json"))
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "chat_template.jinja")
	if name != "" && name != "default" {
		file = filepath.Join(dir, "additional_chat_templates", filepath.Base(name)+".jinja")
	}
	data, err := read(file)
	if err == nil {
		return Compile(string(data), tokens)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	raw := cfg["chat_template"]
	if data, err := read(filepath.Join(dir, "chat_template.json")); err == nil {
		var c map[string]json.RawMessage
		if err := json.Unmarshal(data, &c); err != nil {
			return nil, fmt.Errorf("chat_template.json: %w", err)
		}
		raw = c["chat_template"]
	}
	source, err := pick(raw, name)
	if err != nil {
		return nil, err
	}
	return Compile(source, tokens)
}

func read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s has %d bytes, more than the %d that a template may have", path, info.Size(), maxFile)
	}
	return os.ReadFile(path)
}

func readTokens(path string) (map[string]string, map[string]json.RawMessage, error) {
	cfg := map[string]json.RawMessage{}
	tokens := map[string]string{}
	data, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return tokens, cfg, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if err := json.Unmarshal(data, &cfg); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, n := range specialTokens {
		var s string
		var o struct{ Content *string }
		switch raw := cfg[n]; {
		case len(raw) == 0 || string(raw) == "null":
		case json.Unmarshal(raw, &s) == nil:
			tokens[n] = s
		case json.Unmarshal(raw, &o) == nil && o.Content != nil:
			tokens[n] = *o.Content
		}
	}
	return tokens, cfg, nil
}

// pick reads chat_template: one text, or a list of named ones.
func pick(raw json.RawMessage, name string) (string, error) {
	if name == "" {
		name = "default"
	}
	if len(raw) == 0 || string(raw) == "null" {
		return "", errors.New("the model has no chat template")
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		if name != "default" {
			return "", fmt.Errorf("the model has one chat template, none named %q", name)
		}
		return s, nil
	}
	var list []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &list); err != nil {
		var m map[string]string
		if json.Unmarshal(raw, &m) != nil {
			return "", errors.New("chat_template is neither a text nor a list of named texts")
		}
		for k, v := range m {
			list = append(list, struct{ Name, Template string }{k, v})
		}
	}
	var names []string
	for _, t := range list {
		if t.Name == name {
			return t.Template, nil
		}
		names = append(names, t.Name)
	}
	slices.Sort(names)
	return "", fmt.Errorf("no chat template named %q; there are: %s", name, strings.Join(names, ", "))
}

// NormalizeMessages gives messages in the names that templates know: ShareGPT's from and value become role and content.
// Messages that have a role are left byte for byte.
func NormalizeMessages(raw json.RawMessage) (json.RawMessage, error) {
	var list []map[string]json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		var s string // some parquet sets hold the list as a text
		if json.Unmarshal(raw, &s) == nil && json.Unmarshal([]byte(s), &list) == nil {
			raw = json.RawMessage(s)
		} else {
			return nil, errors.New("messages is not a list of objects")
		}
	}
	if len(list) == 0 {
		return nil, errors.New("messages is empty")
	}
	foreign := false
	for i, m := range list {
		if _, ok := m["role"]; ok {
			continue
		}
		if _, ok := m["from"]; !ok {
			return nil, fmt.Errorf("message %d has neither role nor from", i)
		}
		foreign = true
	}
	if !foreign {
		return raw, nil
	}
	var b bytes.Buffer
	b.WriteByte('[')
	for i, m := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		role, content := m["role"], m["content"]
		if role == nil {
			role = m["from"]
			var from string
			if json.Unmarshal(role, &from) != nil {
				return nil, fmt.Errorf("message %d: from is not a text", i)
			}
			if known, ok := shareGPTRoles[from]; ok {
				role = json.RawMessage(`"` + known + `"`)
			}
		}
		if content == nil {
			content = m["value"]
		}
		if content == nil {
			content = json.RawMessage("null")
		}
		fmt.Fprintf(&b, `{"role":%s,"content":%s}`, role, content)
	}
	b.WriteByte(']')
	return b.Bytes(), nil
}

var shareGPTRoles = map[string]string{"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant", "assistant": "assistant",
	"model": "assistant", "system": "system", "tool": "tool", "observation": "tool", "function_response": "tool"}
