package ledger

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

const headNoteName = "HEAD.note"

// Text is the head in the form of a transparency-log checkpoint: origin, size, root in base64, then the event hash.
func (h Head) Text() string {
	return fmt.Sprintf("quire ledger %s\n%d\n%s\nhash %s\n", h.Run, h.Seq, base64.StdEncoding.EncodeToString(h.Root[:]), h.Hash)
}

// ParseHeadText reads what Text wrote. Time is not part of it.
func ParseHeadText(text string) (Head, error) {
	var h Head
	bad := fmt.Errorf("ledger: not the text of a head")
	lines := strings.Split(text, "\n")
	if len(lines) < 5 || lines[4] != "" {
		return h, bad
	}
	run, ok1 := strings.CutPrefix(lines[0], "quire ledger ")
	hash, ok2 := strings.CutPrefix(lines[3], "hash ")
	if !ok1 || !ok2 || h.Run.UnmarshalText([]byte(run)) != nil || h.Hash.UnmarshalText([]byte(hash)) != nil {
		return h, bad
	}
	var err error
	if h.Seq, err = strconv.ParseUint(lines[1], 10, 63); err != nil {
		return h, bad
	}
	root, err := base64.StdEncoding.DecodeString(lines[2])
	if err != nil || len(root) != 32 {
		return h, bad
	}
	copy(h.Root[:], root)
	if h.Text() != text { // one head has one text: other spellings of the same numbers are refused
		return Head{}, bad
	}
	return h, nil
}

// Sign gives the head as a signed note (golang.org/x/mod/sumdb/note).
func (h Head) Sign(signers ...note.Signer) ([]byte, error) {
	return note.Sign(&note.Note{Text: h.Text()}, signers...)
}

// OpenHeadNote verifies a signed head against known keys.
func OpenHeadNote(msg []byte, known note.Verifiers) (Head, error) {
	n, err := note.Open(msg, known)
	if err != nil {
		return Head{}, proofFailed("signature of the head: %v", err)
	}
	return ParseHeadText(n.Text)
}

// signHead writes HEAD.note when there is a key.
func (l *Ledger) signHead() error {
	if l.opts.Signer == nil {
		return nil
	}
	msg, err := l.Head().Sign(l.opts.Signer)
	if err != nil {
		return fmt.Errorf("ledger: sign head: %w", err)
	}
	return writeFileDurably(l.path(headNoteName), msg)
}
