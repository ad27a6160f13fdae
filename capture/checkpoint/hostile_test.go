package checkpoint_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"quire/capture/checkpoint"
)

// TestHostileLengths: lengths that a file only claims buy no memory. Every file here is refused, after at most a few times its own size;
// most bounds what may be allocated for it in all.
func TestHostileLengths(t *testing.T) {
	sized := func(n uint64, rest string) []byte { return append(binary.LittleEndian.AppendUint64(nil, n), rest...) }
	long := func(header string) []byte { return sized(uint64(len(header)), header) }
	huge := func(dir, name string, bytes int64) {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Truncate(bytes); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name string
		file []byte
		most uint64
		more func(dir string)
	}{
		{"header of 2^63 bytes", sized(1<<63, "{}"), 1 << 20, nil},
		{"header of 2^64-1 bytes", sized(1<<64-1, "{}"), 1 << 20, nil},
		{"header of 100 MB in a small file", sized(checkpoint.MaxHeader, "{}"), 1 << 20, nil},
		{"shape of 2^62 elements", long(`{"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,4]}}`), 1 << 20, nil},
		{"shape that overflows", long(`{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`), 1 << 20, nil},
		{"number beyond 64 bits", long(`{"a":{"dtype":"F32","shape":[99999999999999999999999],"data_offsets":[0,4]}}`), 1 << 20, nil},
		{"data of 2^62 bytes", long(`{"a":{"dtype":"U8","shape":[4611686018427387904],"data_offsets":[0,4611686018427387904]}}`), 1 << 20, nil},
		{"two million dimensions", long(`{"a":{"dtype":"U8","shape":[` + strings.Repeat("1,", 1<<21) + `1],"data_offsets":[0,2]}}`), 256 << 20, nil},
		{"nested arrays", long(`{"__metadata__":{},"a":{"x":` + strings.Repeat("[", 1<<20) + `}}`), 16 << 20, nil},
		{"nested objects", long(strings.Repeat(`{"a":`, 1<<18)), 16 << 20, nil},
		{"index of a terabyte", long(`{}`), 1 << 20, func(dir string) { huge(dir, "model.safetensors.index.json", 1<<40) }},
		{"config of a terabyte", long(`{}`), 1 << 20, func(dir string) { huge(dir, "config.json", 1<<40) }},
		{"nested index", long(`{}`), 16 << 20, func(dir string) {
			file(t, dir, "model.safetensors.index.json", `{"weight_map":`+strings.Repeat("[", 1<<20))
		}},
		{"a weight packed into 2^40 columns", long(`{"m.weight_packed":{"dtype":"U8","shape":[1,16],"data_offsets":[0,16]},"m.weight_scale":{"dtype":"U8","shape":[1,1],"data_offsets":[16,17]},` +
			`"m.weight_shape":{"dtype":"I64","shape":[2],"data_offsets":[17,33]}}` + "\x00\x00\x00\x00"), 1 << 20, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			file(t, dir, "model.safetensors", string(c.file))
			file(t, dir, "config.json", "{}")
			if c.more != nil {
				c.more(dir)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			src, err := checkpoint.Open(t.Context(), dir)
			runtime.ReadMemStats(&after)
			if err == nil {
				src.Close()
				t.Fatal("accepted")
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > c.most {
				t.Errorf("%d bytes allocated, want at most %d (%s)", used, c.most, fmt.Sprintf("%.100v", err))
			}
		})
	}
}
