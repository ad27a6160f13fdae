package ledger

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"golang.org/x/mod/sumdb/tlog"
)

// The Merkle tree is RFC 6962's over the events' identity bytes, stored in the dense order of tlog.StoredHashIndex: after
// each leaf, the hashes of the subtrees that it completes. Bucket `mk` keeps them in blocks:
//
//	key: block number u64 BE      value: up to 128 hashes of 32 B, then crc32c u32
const hashesPerBlock = 128

// frontier is the right edge of the tree: the roots of the complete subtrees of n leaves, by level.
type frontier struct {
	n     uint64
	level [64]tlog.Hash // level[l] is meaningful where bit l of n is set
}

// push adds a leaf and calls out with every hash that tlog stores for it, in order.
func (f *frontier) push(leaf tlog.Hash, out func(tlog.Hash)) {
	h := leaf
	out(h)
	l := 0
	for ; f.n>>l&1 == 1; l++ {
		h = tlog.NodeHash(f.level[l], h)
		out(h)
	}
	f.level[l] = h
	f.n++
}

// root is the tree hash; the zero-leaf tree has SHA-256 of nothing, which never occurs here.
func (f *frontier) root() Digest {
	if f.n == 0 {
		return Digest{}
	}
	l := bits.TrailingZeros64(f.n)
	h := f.level[l]
	for l++; l < 64; l++ {
		if f.n>>l&1 == 1 {
			h = tlog.NodeHash(f.level[l], h)
		}
	}
	return Digest(h)
}

// loadFrontier rebuilds the right edge of a tree of n leaves from stored hashes.
func loadFrontier(n uint64, r tlog.HashReader) (frontier, error) {
	f := frontier{n: n}
	var idx []int64
	var lev []int
	for l := 63; l >= 0; l-- {
		if n>>l&1 == 1 {
			before := n >> (l + 1) << 1 // subtrees of this level to the left
			idx = append(idx, tlog.StoredHashIndex(l, int64(before)))
			lev = append(lev, l)
		}
	}
	hs, err := r.ReadHashes(idx)
	if err != nil {
		return f, err
	}
	for i, l := range lev {
		f.level[l] = hs[i]
	}
	return f, nil
}

// hashBlocks reads stored hashes through a function that gives a block's bytes.
type hashBlocks func(block uint64) ([]byte, error)

// ReadHashes implements tlog.HashReader.
func (get hashBlocks) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	var at uint64
	var block []byte
	for i, x := range indexes {
		n := uint64(x) / hashesPerBlock
		if block == nil || n != at {
			b, err := get(n)
			if err != nil {
				return nil, err
			}
			if block, err = checkHashBlock(b); err != nil {
				return nil, fmt.Errorf("hash block %d: %w", n, err)
			}
			at = n
		}
		o := int(uint64(x)%hashesPerBlock) * tlog.HashSize
		if o+tlog.HashSize > len(block) {
			return nil, fmt.Errorf("hash block %d has no hash %d", n, x)
		}
		copy(out[i][:], block[o:])
	}
	return out, nil
}

// checkHashBlock gives the hashes of a stored block.
func checkHashBlock(b []byte) ([]byte, error) {
	if len(b) < 4 || (len(b)-4)%tlog.HashSize != 0 || len(b) > hashesPerBlock*tlog.HashSize+4 {
		return nil, fmt.Errorf("%d bytes", len(b))
	}
	body := b[:len(b)-4]
	if crcOf(body) != binary.LittleEndian.Uint32(b[len(body):]) {
		return nil, fmt.Errorf("checksum differs")
	}
	return body, nil
}

// hashAppender collects the hashes of one transaction into blocks.
type hashAppender struct {
	count uint64 // hashes stored so far
	tail  []byte // the last, partly filled block without checksum
}

// add appends a hash; full is called with each block that it fills.
func (a *hashAppender) add(h tlog.Hash, full func(block uint64, b []byte) error) error {
	if a.tail == nil {
		a.tail = make([]byte, 0, hashesPerBlock*tlog.HashSize)
	}
	a.tail = append(a.tail, h[:]...)
	a.count++
	if a.count%hashesPerBlock == 0 {
		b := sealHashBlock(a.tail)
		a.tail = nil
		return full(a.count/hashesPerBlock-1, b)
	}
	return nil
}

// flush gives the partly filled block.
func (a *hashAppender) flush(full func(block uint64, b []byte) error) error {
	if len(a.tail) == 0 {
		return nil
	}
	return full(a.count/hashesPerBlock, sealHashBlock(a.tail))
}

func sealHashBlock(body []byte) []byte {
	b := make([]byte, 0, len(body)+4)
	b = append(b, body...)
	return binary.LittleEndian.AppendUint32(b, crcOf(body))
}
