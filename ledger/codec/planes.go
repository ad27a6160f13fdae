package codec

import "encoding/binary"

// gather writes byte p of each element of raw to dst, which holds one byte for each.
func gather(dst, raw []byte, p, elem int) {
	switch elem {
	case 1:
		copy(dst, raw)
	case 2:
		n := len(dst) &^ 3
		for i := 0; i < n; i += 4 {
			binary.LittleEndian.PutUint32(dst[i:], evenBytes(binary.LittleEndian.Uint64(raw[2*i:])>>(8*p)))
		}
		for i := n; i < len(dst); i++ {
			dst[i] = raw[2*i+p]
		}
	case 4:
		n := len(dst) &^ 1
		for i := 0; i < n; i += 2 {
			x := binary.LittleEndian.Uint64(raw[4*i:]) >> (8 * p)
			binary.LittleEndian.PutUint16(dst[i:], uint16(x)&0xff|uint16(x>>24)&0xff00)
		}
		for i := n; i < len(dst); i++ {
			dst[i] = raw[4*i+p]
		}
	}
}

// evenBytes packs bytes 0, 2, 4 and 6.
func evenBytes(x uint64) uint32 {
	x &= 0x00ff00ff00ff00ff
	x = (x | x>>8) & 0x0000ffff0000ffff
	return uint32(x | x>>16)
}

// interleave is the inverse of gather for all planes at once: byte p of each element of out is that of plane p.
func interleave(out []byte, planes [][]byte) {
	switch len(planes) {
	case 1:
		if len(out) > 0 && &out[0] != &planes[0][0] {
			copy(out, planes[0])
		}
	case 2:
		lo, hi := planes[0], planes[1]
		hi = hi[:len(lo)]
		n := len(lo) &^ 3
		for i := 0; i < n; i += 4 {
			binary.LittleEndian.PutUint64(out[2*i:], spread(binary.LittleEndian.Uint32(lo[i:]))|spread(binary.LittleEndian.Uint32(hi[i:]))<<8)
		}
		for i := n; i < len(lo); i++ {
			out[2*i], out[2*i+1] = lo[i], hi[i]
		}
	case 4:
		a, b, c, d := planes[0], planes[1], planes[2], planes[3]
		b, c, d, out = b[:len(a)], c[:len(a)], d[:len(a)], out[:4*len(a)]
		for i := range a {
			binary.LittleEndian.PutUint32(out[4*i:], uint32(a[i])|uint32(b[i])<<8|uint32(c[i])<<16|uint32(d[i])<<24)
		}
	}
}

// spread is the inverse of evenBytes: its four bytes at 0, 2, 4 and 6, zeros between.
func spread(v uint32) uint64 {
	x := uint64(v)
	x = (x | x<<16) & 0x0000ffff0000ffff
	return (x | x<<8) & 0x00ff00ff00ff00ff
}
