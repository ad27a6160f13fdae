package text

import (
	"quire/capture/text/chat"
	"quire/capture/text/tokenizer"
)

// Tokenizer turns text into token ids; see package tokenizer.
type Tokenizer = tokenizer.Tokenizer

// EncodeOptions say how a text is encoded.
type EncodeOptions = tokenizer.Options

// Template renders conversations; see package chat.
type Template = chat.Template

// LoadTokenizer reads the tokenizer of a model directory, or a tokenizer file.
func LoadTokenizer(path string) (*Tokenizer, error) {
	t, err := tokenizer.Load(path)
	if err != nil {
		return nil, tokenizerError(path, err)
	}
	return t, nil
}

// LoadTemplate reads the chat template of a model directory or a bare template file. name picks a named variant; "" is
// the default one.
func LoadTemplate(path, name string) (*Template, error) {
	t, err := chat.Load(path, name)
	if err != nil {
		return nil, templateError(path, err)
	}
	return t, nil
}

// SpecialTokens reads bos_token, eos_token and their like from the tokenizer_config.json of a model directory.
func SpecialTokens(dir string) (map[string]string, error) {
	tokens, err := chat.SpecialTokens(dir)
	if err != nil {
		return nil, templateError(dir, err)
	}
	return tokens, nil
}
