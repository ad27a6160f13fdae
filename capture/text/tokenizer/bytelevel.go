package tokenizer

// byteRunes is GPT-2's map from bytes to printable characters: printable Latin-1 stays, the rest moves above U+0100.
var byteRunes, runeBytes = func() (fwd [256]rune, back map[rune]byte) {
	back = make(map[rune]byte, 256)
	next := rune(256)
	for b := range 256 {
		r := rune(b)
		if !(b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE) {
			r = next
			next++
		}
		fwd[b] = r
		back[r] = byte(b)
	}
	return fwd, back
}()

// bytesOf maps a token written in byte characters back to its bytes.
func bytesOf(token string) (string, bool) {
	out := make([]byte, 0, len(token))
	for _, r := range token {
		b, ok := runeBytes[r]
		if !ok {
			return "", false
		}
		out = append(out, b)
	}
	return string(out), true
}
