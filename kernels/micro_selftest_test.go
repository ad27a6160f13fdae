package kernels

import (
	"math"
	"strings"
	"testing"
	"unsafe"
)

// A level with one wrong kernel must not pass the start-up test.
func TestSelfTestFindsAWrongKernel(t *testing.T) {
	good := scalarTable
	if err := packSelfTest(good); err != nil {
		t.Fatal(err)
	}
	bad := *good
	bad.transpose[lanePair] = good.transpose[laneF32]
	if packSelfTest(&bad) == nil {
		t.Error("a transposer that does not flush passed")
	}
	bad = *good
	bad.quantize = func(codes *uint8, deq, err, w, scale, zero *float32, maxq, diag float32) {
		scalarQuantize(codes, deq, err, w, scale, zero, maxq, diag)
		unsafe.Slice(err, panelWidth)[31] *= 1.0000001
	}
	if packSelfTest(&bad) == nil {
		t.Error("an error one rounding off passed")
	}
	for _, l := range Levels() {
		if err := testLevel(l); err != nil {
			t.Errorf("%v: %v", l, err)
		}
	}
	for _, why := range Status().Reasons {
		if strings.Contains(why, "self-test") {
			t.Error(why)
		}
	}
	if s := Status(); s.Detected < s.Level {
		t.Errorf("level %v above the detected %v", s.Level, s.Detected)
	}
}

func TestLevelNames(t *testing.T) {
	for l := LevelScalar; l <= LevelAVX512BF16; l++ {
		if got, err := ParseLevel(l.String()); err != nil || got != l {
			t.Errorf("%v: %v, %v", l, got, err)
		}
	}
	if _, err := ParseLevel("mmx"); err == nil {
		t.Error("mmx is a level")
	}
	restore := ForceLevel(LevelAVX512BF16) // cannot raise
	if CPULevel() > Status().Detected {
		t.Error("forced above the CPU")
	}
	restore()
}

// A NaN or Inf in the low half of an operand would compare what the contract leaves open, and could
// switch off a level that is right.
func TestWideOperandsAreFinitePairs(t *testing.T) {
	for low := range uint32(1 << 16) {
		u := math.Float32bits(wideOperand(math.Float32frombits(0x3f800000 | low)))
		if v := f32bits(u << 16); !(v < 2 && v >= 0) || u>>16 != 0x3f80 {
			t.Fatalf("low half %#x becomes %g, high half %#x", low, v, u>>16)
		}
	}
}
