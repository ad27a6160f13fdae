package checkpoint_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"

	"quire/capture/checkpoint"
)

const reference = "../../testdata/checkpoint/reference.safetensors"

// TestReferenceLibrary reads a file that the reference safetensors library wrote (testdata/checkpoint/reference.py), checks the
// values by the formula they were made with, and writes the same tensors: the bytes of the two files are equal, so the library loads ours.
func TestReferenceLibrary(t *testing.T) {
	s, err := checkpoint.OpenShard(reference)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	value := func(i int) float64 { return float64(i)/8 - 1 } // of the 4 × 6 tensors
	u16, u32, u64 := binary.LittleEndian.Uint16, binary.LittleEndian.Uint32, binary.LittleEndian.Uint64
	number := map[string]func(b []byte, i int) float64{
		"f64":  func(b []byte, i int) float64 { return math.Float64frombits(u64(b[8*i:])) },
		"f32":  func(b []byte, i int) float64 { return float64(math.Float32frombits(u32(b[4*i:]))) },
		"bf16": func(b []byte, i int) float64 { return float64(math.Float32frombits(uint32(u16(b[2*i:])) << 16)) },
		"i64":  func(b []byte, i int) float64 { return float64(int64(u64(b[8*i:]))) },
		"i32":  func(b []byte, i int) float64 { return float64(int32(u32(b[4*i:]))) },
		"i16":  func(b []byte, i int) float64 { return float64(int16(u16(b[2*i:]))) },
		"i8":   func(b []byte, i int) float64 { return float64(int8(b[i])) },
		"u8":   func(b []byte, i int) float64 { return float64(b[i]) },
		"bool": func(b []byte, i int) float64 { return float64(b[i]) },
	}
	want := map[string]func(i int) float64{
		"f64": value, "f32": value, "bf16": value, "i64": func(i int) float64 { return math.Trunc(value(i)) }, "i32": func(i int) float64 { return value(i) * 1000 },
		"i16": func(i int) float64 { return math.Trunc(value(i) * 100) }, "i8": func(i int) float64 { return value(i) * 40 }, "u8": func(i int) float64 { return math.Abs(value(i)) * 40 },
		"bool": func(i int) float64 {
			if value(i) > 0 {
				return 1
			}
			return 0
		},
	}
	var all []stored
	checked := 0
	for _, x := range s.Tensors() {
		data := make([]byte, x.Bytes())
		if err := s.ReadAt(x, data, 0); err != nil {
			t.Fatal(err)
		}
		all = append(all, tensor(x.Name, x.DType, data, x.Shape...))
		if get := number[x.Name]; get != nil {
			checked++
			for i := range 24 {
				if got := get(data, i); got != want[x.Name](i) {
					t.Errorf("%s[%d] is %v, want %v", x.Name, i, got, want[x.Name](i))
				}
			}
		}
	}
	if len(all) != 16 || checked != len(number) {
		t.Fatalf("%d tensors, %d checked", len(all), checked)
	}
	dir := t.TempDir()
	shard(t, dir, "ours.safetensors", all...)
	ours, err := os.ReadFile(filepath.Join(dir, "ours.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(ours, theirs) {
		t.Errorf("the files differ:\n%q\n%q", ours[:min(len(ours), 1200)], theirs[:min(len(theirs), 1200)])
	}
}
