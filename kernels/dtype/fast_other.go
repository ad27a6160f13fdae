package dtype

// Without assembly the generic loops do everything.
func decodeBF16Fast([]float32, []uint16) int { return 0 }
func encodeBF16Fast([]uint16, []float32) int { return 0 }
func roundBF16Fast(_, _ []float32) int       { return 0 }
func decodeF16Fast([]float32, []uint16) int  { return 0 }
func encodeF16Fast([]uint16, []float32) int  { return 0 }
