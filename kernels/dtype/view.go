package dtype

import "unsafe"

// littleEndian is true where a []byte of little-endian codes has the memory
// layout of a []uint16.
var littleEndian = func() bool {
	x := uint16(1)
	return *(*byte)(unsafe.Pointer(&x)) == 1
}()

// uint16s views src as n codes, or returns nil when alignment or byte order
// forbid it.
func uint16s(src []byte, n int) []uint16 {
	if n == 0 || !littleEndian || uintptr(unsafe.Pointer(unsafe.SliceData(src)))&1 != 0 {
		return nil
	}
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(src))), n)
}
