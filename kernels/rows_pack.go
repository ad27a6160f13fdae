package kernels

// interleaveRows joins two bf16 rows as pairs, lo in the low half, flushing tiny
// values; a nil hi is a row of zeros.
func interleaveRows(t *microTable, dst []uint32, lo, hi []uint16) {
	if t.interleave != nil && len(lo) == panelWidth/2 && len(hi) == panelWidth/2 {
		t.interleave(&dst[0], &lo[0], &hi[0])
		return
	}
	for j, h := range lo {
		dst[j] = uint32(flushBF16(h))
	}
	for j, h := range hi {
		dst[j] |= uint32(flushBF16(h)) << 16
	}
}

// widenRow widens a bf16 row to float32 lanes, flushing tiny values.
func widenRow(t *microTable, dst []uint32, src []uint16) {
	if t.widen != nil && len(src) == panelWidth/2 {
		t.widen(&dst[0], &src[0])
		return
	}
	for j, h := range src {
		dst[j] = uint32(flushBF16(h)) << 16
	}
}
