package kernels

import "testing"

// Every element-wise kernel of every level this CPU announces, against its twin
// on values of all magnitudes, special ones included.
func TestElementKernelsEqualTheirTwins(t *testing.T) {
	for l := LevelAVX2; l <= detectLevel(); l++ {
		if err := elemSelfTest(l); err != nil {
			t.Error(err)
		}
	}
}
