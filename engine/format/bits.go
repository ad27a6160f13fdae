package format

import "encoding/binary"

// Lanes of the three folding steps of pack8.
const (
	bytes16 = 0x00FF00FF00FF00FF
	words32 = 0x0000FFFF0000FFFF
)

// pack8 folds eight bytes of at most b bits into the low 8·b bits, first byte lowest: pairs, then fours, then eight.
func pack8(x uint64, b uint) uint64 {
	x = x&bytes16 | x>>8&bytes16<<(b&63)
	x = x&words32 | x>>16&words32<<(2*b&63)
	return x&0xFFFFFFFF | x>>32<<(4*b&63)
}

// unpack8 is the inverse of pack8.
func unpack8(x uint64, b uint) uint64 {
	m4 := uint64(1)<<(4*b&63) - 1
	x = x&m4 | x>>(4*b&63)&m4<<32
	m2 := (uint64(1)<<(2*b&63) - 1) * 0x0000000100000001
	x = x&m2 | x>>(2*b&63)&m2<<16
	m1 := (uint64(1)<<(b&63) - 1) * 0x0001000100010001
	return x&m1 | x>>(b&63)&m1<<8
}

// streamBytes is the length of n fields of b bits, padded to whole 32-bit words.
func streamBytes(n, b int) int { return (n*b + 31) / 32 * 4 }

// packStream writes src as a little-endian bit stream of b-bit fields and returns the OR of all fields, whose bits
// above b tell that some field did not fit. dst has streamBytes(len(src), b) bytes; the padding is zero.
func packStream(dst []byte, src []uint8, b uint) (seen uint8) {
	if b == 8 {
		clear(dst[copy(dst, src):])
		return 0xFF // every byte is a code
	}
	var or uint64
	n, off, step := len(src)&^7, 0, int(b)
	i := 0
	for ; i < n && off+8 <= len(dst); i += 8 {
		x := binary.LittleEndian.Uint64(src[i:])
		or |= x
		binary.LittleEndian.PutUint64(dst[off:], pack8(x, b))
		off += step
	}
	for ; i < len(src); i += 8 {
		var last [8]byte
		copy(last[:], src[i:])
		x := binary.LittleEndian.Uint64(last[:])
		or |= x
		binary.LittleEndian.PutUint64(last[:], pack8(x, b))
		copy(dst[off:], last[:min(step, len(dst)-off)])
		off = min(off+step, len(dst))
	}
	if off < len(dst) {
		clear(dst[off:])
	}
	or |= or >> 32
	or |= or >> 16
	return uint8(or | or>>8)
}

// unpackStream reads len(dst) fields of b bits.
func unpackStream(dst []uint8, src []byte, b uint) {
	n, off, step := len(dst)&^7, 0, int(b)
	i := 0
	for ; i < n && off+8 <= len(src); i += 8 {
		binary.LittleEndian.PutUint64(dst[i:], unpack8(binary.LittleEndian.Uint64(src[off:]), b))
		off += step
	}
	for ; i < len(dst); i += 8 {
		var last [8]byte
		copy(last[:], src[min(off, len(src)):])
		binary.LittleEndian.PutUint64(last[:], unpack8(binary.LittleEndian.Uint64(last[:]), b))
		copy(dst[i:], last[:])
		off += step
	}
}
