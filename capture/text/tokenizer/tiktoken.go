package tokenizer

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// kimiPattern is Kimi-K2's. Its && is an intersection of classes: regexp2 and PCRE read it as literals in silence, so compileRegex
// rewrites it.
const kimiPattern = `[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
	`|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?` +
	`|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

// looksTiktoken says whether a file is lines of base64 and rank.
func looksTiktoken(data []byte) bool {
	line, _, _ := bytes.Cut(data[:min(len(data), 512)], []byte("\n"))
	a, b, ok := strings.Cut(strings.TrimSpace(string(line)), " ")
	if !ok {
		return false
	}
	if _, err := base64.StdEncoding.DecodeString(a); err != nil {
		return false
	}
	_, err := strconv.ParseInt(b, 10, 32)
	return err == nil
}

// parseTiktoken reads a tiktoken file. The pattern is not in the file: Kimi's class and Qwen's are known by the class name in
// tokenizer_config.json, others are refused.
func parseTiktoken(data []byte, cfg *config) (*Tokenizer, error) {
	if cfg == nil {
		return nil, &UnsupportedError{Section: "tiktoken", Part: "file without tokenizer_config.json", Why: "a tiktoken file does not hold its pattern"}
	}
	var source string
	switch {
	case strings.HasPrefix(cfg.Class, "TikTokenTokenizer"):
		source = kimiPattern
	case strings.HasPrefix(cfg.Class, "QWenTokenizer"):
		source = qwenPattern
	default:
		return nil, &UnsupportedError{Section: "tiktoken", Part: "tokenizer_class " + cfg.Class, Why: "its pattern is not known"}
	}
	sum := sha256.Sum256(data)
	t := &Tokenizer{digest: hex.EncodeToString(sum[:]), byteInput: true}
	ids := map[string]int32{}
	ranked := map[string]int32{}
	for i, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		a, b, ok := strings.Cut(line, " ")
		raw, err := base64.StdEncoding.DecodeString(a)
		rank, err2 := strconv.ParseInt(b, 10, 31)
		if !ok || err != nil || err2 != nil || rank < 0 || len(raw) == 0 {
			return nil, fmt.Errorf("line %d of the tiktoken file is not base64 and rank", i+1)
		}
		var name strings.Builder
		for _, c := range raw {
			name.WriteRune(byteRunes[c])
		}
		ids[name.String()] = int32(rank)
		ranked[string(raw)] = int32(rank)
	}
	m, err := newBPE(ids, nil, bpeOptions{bytes: true, ignoreMerges: true})
	if err != nil {
		return nil, err
	}
	// tiktoken merges the pair whose joined bytes rank lowest: every split of a token into two is such a merge.
	size := 0
	for w := range ranked {
		size += len(w)
	}
	m.merges = newMergeTable(size)
	for w, rank := range ranked {
		for cut := 1; cut < len(w); cut++ {
			a, okA := ranked[w[:cut]]
			b, okB := ranked[w[cut:]]
			if okA && okB {
				m.merges.put(a, b, rank, rank)
			}
		}
	}
	t.model = m
	sp, err := newSplit(source)
	if err != nil {
		return nil, err
	}
	t.pre = sp
	t.fast = chain(sp, true)
	t.post = plainTemplate()
	t.decoder = decodeByteLevel
	if strings.HasPrefix(cfg.Class, "QWenTokenizer") {
		t.normalizer = func(n nstr) (nstr, error) { return normalForm(n, false, true), nil }
	}
	var added []addedToken
	for key, a := range cfg.Added {
		id, err := strconv.ParseInt(key, 10, 31)
		if err != nil {
			return nil, fmt.Errorf("added_tokens_decoder: %q is not an id", key)
		}
		added = append(added, addedToken{ID: int32(id), Content: a.Content, Special: a.Special})
	}
	slices.SortFunc(added, func(a, b addedToken) int { return int(a.ID - b.ID) })
	return t, t.setAdded(added)
}
