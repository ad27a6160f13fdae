package tokenizer

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"sort"
	"strings"
)

var errNotSPM = errors.New("neither tokenizer.json, nor a tiktoken file, nor a SentencePiece model")

// spmPiece is an entry of a SentencePiece vocabulary.
type spmPiece struct {
	text  string
	score float32
	kind  uint64
}

// Kinds of SentencePiece pieces.
const (
	spmNormal  = 1
	spmUnknown = 2
	spmControl = 3
	spmUser    = 4
	spmByte    = 6
)

// spmModel is what is used of a SentencePiece ModelProto.
type spmModel struct {
	pieces      []spmPiece
	kind        uint64 // 1 unigram, 2 BPE
	fallback    bool
	unk, bos    int64
	charsmap    []byte
	dummyPrefix bool
	squeeze     bool
	escape      bool
	suffixWS    bool
}

// fields calls f for every field of a protobuf message: number, wire type, varint or fixed value, bytes.
func fields(b []byte, f func(num int, val uint64, data []byte) error) error {
	for len(b) > 0 {
		key, n := binary.Uvarint(b)
		if n <= 0 || key>>3 == 0 {
			return errNotSPM
		}
		b = b[n:]
		var val uint64
		var data []byte
		switch key & 7 {
		case 0:
			if val, n = binary.Uvarint(b); n <= 0 {
				return errNotSPM
			}
			b = b[n:]
		case 1:
			if len(b) < 8 {
				return errNotSPM
			}
			val, b = binary.LittleEndian.Uint64(b), b[8:]
		case 2:
			size, n := binary.Uvarint(b)
			if n <= 0 || size > uint64(len(b)-n) {
				return errNotSPM
			}
			data, b = b[n:n+int(size)], b[n+int(size):]
		case 5:
			if len(b) < 4 {
				return errNotSPM
			}
			val, b = uint64(binary.LittleEndian.Uint32(b)), b[4:]
		default:
			return errNotSPM
		}
		if err := f(int(key>>3), val, data); err != nil {
			return err
		}
	}
	return nil
}

func readSPM(b []byte) (*spmModel, error) {
	m := &spmModel{kind: 1, unk: 0, bos: 1, dummyPrefix: true, squeeze: true, escape: true}
	err := fields(b, func(num int, _ uint64, data []byte) error {
		switch num {
		case 1: // pieces
			p := spmPiece{kind: spmNormal}
			err := fields(data, func(num int, val uint64, data []byte) error {
				switch num {
				case 1:
					p.text = string(data)
				case 2:
					p.score = math.Float32frombits(uint32(val))
				case 3:
					p.kind = val
				}
				return nil
			})
			if err != nil {
				return err
			}
			m.pieces = append(m.pieces, p)
		case 2: // trainer_spec
			return fields(data, func(num int, val uint64, _ []byte) error {
				switch num {
				case 3:
					m.kind = val
				case 24:
					m.suffixWS = val != 0
				case 35:
					m.fallback = val != 0
				case 40:
					m.unk = int64(int32(val))
				case 41:
					m.bos = int64(int32(val))
				}
				return nil
			})
		case 3: // normalizer_spec
			return fields(data, func(num int, val uint64, data []byte) error {
				switch num {
				case 2:
					m.charsmap = data
				case 3:
					m.dummyPrefix = val != 0
				case 4:
					m.squeeze = val != 0
				case 5:
					m.escape = val != 0
				}
				return nil
			})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(m.pieces) == 0 {
		return nil, errNotSPM
	}
	return m, nil
}

// parseSentencePiece reads a tokenizer.model. BOS is added as Llama's and Mistral's tokenizers do when the model has one.
func parseSentencePiece(data []byte) (*Tokenizer, error) {
	m, err := readSPM(data)
	if err != nil {
		return nil, err
	}
	switch {
	case m.suffixWS:
		return nil, &UnsupportedError{Section: "sentencepiece", Part: "treat_whitespace_as_suffix"}
	case !m.escape:
		return nil, &UnsupportedError{Section: "sentencepiece", Part: "escape_whitespaces false"}
	case m.kind != 1 && m.kind != 2:
		return nil, &UnsupportedError{Section: "sentencepiece", Part: fmt.Sprintf("model type %d", m.kind)}
	}
	sum := sha256.Sum256(data)
	t := &Tokenizer{digest: hex.EncodeToString(sum[:])}
	chars, err := newCharsmap(m.charsmap)
	if err != nil {
		return nil, err
	}
	dummy, squeeze := m.dummyPrefix, m.squeeze
	t.normalizer = func(n nstr) (nstr, error) {
		if len(chars.trie) > 0 {
			n = chars.normalize(n)
		}
		if squeeze {
			n = squeezeSpaces(n)
		}
		if n.s == "" {
			return n, nil
		}
		if dummy {
			n = prepend(n, "▁")
		}
		return replaceAll(n, literal(" "), "▁")
	}
	if t.model, err = m.model(); err != nil {
		return nil, err
	}
	var added []addedToken
	for i, p := range m.pieces {
		if p.kind == spmUser || p.kind == spmControl || p.kind == spmUnknown {
			added = append(added, addedToken{ID: int32(i), Content: p.text, Special: p.kind != spmUser})
		}
	}
	tp := plainTemplate()
	if m.bos >= 0 && m.bos < int64(len(m.pieces)) && m.pieces[m.bos].kind == spmControl {
		el := element{seq: -1, ids: []int32{int32(m.bos)}, tokens: []string{m.pieces[m.bos].text}}
		tp.single = append([]element{el}, tp.single...)
		tp.pair = append([]element{el}, tp.pair...)
	}
	t.post = tp
	t.decoder = func(tokens []string) []string {
		for i, s := range tokens {
			tokens[i] = strings.ReplaceAll(s, "▁", " ")
		}
		s := strings.Join(decodeByteFallback(tokens), "")
		if dummy {
			s = strings.TrimPrefix(s, " ")
		}
		return []string{s}
	}
	return t, t.setAdded(added)
}

// squeezeSpaces takes spaces off both ends and makes runs one (remove_extra_whitespaces).
func squeezeSpaces(n nstr) nstr {
	e := edit(n)
	end := len(strings.TrimRight(n.s, " "))
	prev := true
	for e.pos < len(n.s) {
		blank := n.s[e.pos] == ' '
		if e.pos >= end || blank && prev {
			e.drop()
		} else {
			e.keep()
		}
		prev = blank
	}
	return e.done()
}

// model builds the BPE or Unigram model of the pieces. SentencePiece's BPE merges the pair whose piece scores highest, which is a merge
// list: every way to make a piece of two others, by score, then id.
func (m *spmModel) model() (model, error) {
	if m.unk < 0 || m.unk >= int64(len(m.pieces)) {
		return nil, fmt.Errorf("the unknown id %d lies outside the vocabulary", m.unk)
	}
	if m.kind == 1 {
		names, scores := make([]string, len(m.pieces)), make([]float64, len(m.pieces))
		for i, p := range m.pieces {
			names[i], scores[i] = p.text, float64(p.score)
		}
		return newUnigram(names, scores, int32(m.unk), m.fallback), nil
	}
	ids := make(map[string]int32, len(m.pieces))
	for i, p := range m.pieces {
		ids[p.text] = int32(i)
	}
	type made struct {
		score float32
		id    int32
		a, b  int32
		pair  mergePair
	}
	var all []made
	for i, p := range m.pieces {
		if p.kind != spmNormal {
			continue
		}
		for cut := range p.text {
			if cut == 0 {
				continue
			}
			a, okA := ids[p.text[:cut]]
			b, okB := ids[p.text[cut:]]
			if okA && okB && m.pieces[a].kind == spmNormal && m.pieces[b].kind == spmNormal {
				all = append(all, made{p.score, int32(i), a, b, mergePair{p.text[:cut], p.text[cut:]}})
			}
		}
	}
	sort.SliceStable(all, func(i, j int) bool {
		if all[i].score != all[j].score {
			return all[i].score > all[j].score
		}
		return all[i].id < all[j].id
	})
	merges := make([]mergePair, len(all))
	for i := range all {
		merges[i] = all[i].pair
	}
	unk := m.pieces[m.unk].text
	return newBPE(ids, merges, bpeOptions{unk: &unk, fuseUnk: true, fallback: m.fallback})
}
