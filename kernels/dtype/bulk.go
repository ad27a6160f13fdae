package dtype

import (
	"encoding/binary"
	"math"
)

// All bulk functions convert min(len(dst), len(src)) values (for byte sources:
// codes) and return nothing. dst and src may be the same slice where the types
// allow it, but must not overlap otherwise.

// DecodeBF16 widens bfloat16 to float32.
func DecodeBF16(dst []float32, src []uint16) {
	n := min(len(dst), len(src))
	dst, src = dst[:n], src[:n]
	i := decodeBF16Fast(dst, src)
	for ; i < n; i++ {
		dst[i] = math.Float32frombits(uint32(src[i]) << 16)
	}
}

// EncodeBF16 rounds float32 to bfloat16.
func EncodeBF16(dst []uint16, src []float32) {
	n := min(len(dst), len(src))
	dst, src = dst[:n], src[:n]
	i := encodeBF16Fast(dst, src)
	for ; i < n; i++ {
		dst[i] = F32ToBF16(src[i])
	}
}

// RoundBF16 rounds float32 to the values that bfloat16 can hold.
func RoundBF16(dst, src []float32) {
	n := min(len(dst), len(src))
	dst, src = dst[:n], src[:n]
	i := roundBF16Fast(dst, src)
	for ; i < n; i++ {
		dst[i] = BF16ToF32(F32ToBF16(src[i]))
	}
}

// DecodeF16 widens IEEE binary16 to float32.
func DecodeF16(dst []float32, src []uint16) {
	n := min(len(dst), len(src))
	dst, src = dst[:n], src[:n]
	i := decodeF16Fast(dst, src)
	for ; i < n; i++ {
		dst[i] = F16ToF32(src[i])
	}
}

// EncodeF16 rounds float32 to IEEE binary16.
func EncodeF16(dst []uint16, src []float32) {
	n := min(len(dst), len(src))
	dst, src = dst[:n], src[:n]
	i := encodeF16Fast(dst, src)
	for ; i < n; i++ {
		dst[i] = F32ToF16(src[i])
	}
}

// RoundF16 rounds float32 to the values that binary16 can hold.
func RoundF16(dst, src []float32) {
	n := min(len(dst), len(src))
	var tmp [256]uint16
	for i := 0; i < n; i += len(tmp) {
		b := tmp[:min(len(tmp), n-i)]
		EncodeF16(b, src[i:n])
		DecodeF16(dst[i:n], b)
	}
}

// DecodeBF16Bytes widens little-endian bfloat16, two bytes a value.
func DecodeBF16Bytes(dst []float32, src []byte) {
	n := min(len(dst), len(src)/2)
	if u := uint16s(src, n); u != nil {
		DecodeBF16(dst, u)
		return
	}
	for i := range n {
		dst[i] = BF16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// DecodeF16Bytes widens little-endian binary16, two bytes a value.
func DecodeF16Bytes(dst []float32, src []byte) {
	n := min(len(dst), len(src)/2)
	if u := uint16s(src, n); u != nil {
		DecodeF16(dst, u)
		return
	}
	for i := range n {
		dst[i] = F16ToF32(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// DecodeF32Bytes reads little-endian float32, four bytes a value.
func DecodeF32Bytes(dst []float32, src []byte) {
	n := min(len(dst), len(src)/4)
	for i := range n {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

// DecodeU16Bytes reads little-endian 16-bit codes without converting them.
func DecodeU16Bytes(dst []uint16, src []byte) {
	n := min(len(dst), len(src)/2)
	if u := uint16s(src, n); u != nil {
		copy(dst, u)
		return
	}
	for i := range n {
		dst[i] = binary.LittleEndian.Uint16(src[2*i:])
	}
}

// EncodeBF16Bytes rounds to little-endian bfloat16.
func EncodeBF16Bytes(dst []byte, src []float32) {
	n := min(len(dst)/2, len(src))
	for i, f := range src[:n] {
		binary.LittleEndian.PutUint16(dst[2*i:], F32ToBF16(f))
	}
}

// EncodeF16Bytes rounds to little-endian binary16.
func EncodeF16Bytes(dst []byte, src []float32) {
	n := min(len(dst)/2, len(src))
	for i, f := range src[:n] {
		binary.LittleEndian.PutUint16(dst[2*i:], F32ToF16(f))
	}
}

// EncodeF32Bytes writes little-endian float32.
func EncodeF32Bytes(dst []byte, src []float32) {
	n := min(len(dst)/4, len(src))
	for i, f := range src[:n] {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(f))
	}
}

// DecodeE4M3 widens float8 e4m3fn.
func DecodeE4M3(dst []float32, src []byte) { decodeTable(dst, src, e4m3) }

// DecodeE5M2 widens float8 e5m2.
func DecodeE5M2(dst []float32, src []byte) { decodeTable(dst, src, e5m2) }

func decodeTable(dst []float32, src []byte, t *[256]float32) {
	n := min(len(dst), len(src))
	dst, src = dst[:n], src[:n]
	for i, b := range src {
		dst[i] = t[b]
	}
}

// DecodeE8M0 widens power-of-two scales.
func DecodeE8M0(dst []float32, src []byte) {
	for i, b := range src[:min(len(dst), len(src))] {
		dst[i] = E8M0ToF32(b)
	}
}

// DecodeE2M1 widens packed float4, two codes a byte, the even index in the low
// nibble. It converts min(len(dst), 2·len(src)) values.
func DecodeE2M1(dst []float32, src []byte) {
	n := min(len(dst), 2*len(src))
	for i := range n {
		dst[i] = e2m1[src[i/2]>>(i&1*4)&15]
	}
}

// EncodeE4M3 rounds to float8 e4m3fn.
func EncodeE4M3(dst []byte, src []float32) {
	for i, f := range src[:min(len(dst), len(src))] {
		dst[i] = F32ToE4M3(f)
	}
}

// EncodeE5M2 rounds to float8 e5m2.
func EncodeE5M2(dst []byte, src []float32) {
	for i, f := range src[:min(len(dst), len(src))] {
		dst[i] = F32ToE5M2(f)
	}
}

// EncodeE8M0 rounds to power-of-two scales.
func EncodeE8M0(dst []byte, src []float32) {
	for i, f := range src[:min(len(dst), len(src))] {
		dst[i] = F32ToE8M0(f)
	}
}

// EncodeE2M1 rounds to packed float4, the even index in the low nibble. An odd
// count leaves the last high nibble zero. len(dst) >= ceil(len(src)/2).
func EncodeE2M1(dst []byte, src []float32) {
	for i := 0; i < len(src); i += 2 {
		b := F32ToE2M1(src[i])
		if i+1 < len(src) {
			b |= F32ToE2M1(src[i+1]) << 4
		}
		dst[i/2] = b
	}
}
