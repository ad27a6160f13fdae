package checkpoint_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"quire/capture/checkpoint"
)

// raw writes a file of a header length, a header and zero data.
func raw(t *testing.T, dir, name, header string, data int) {
	t.Helper()
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(append(b, header...), make([]byte, data)...)
	file(t, dir, name, string(b))
}

func entry(name, dtype, shape string, begin, end int) string {
	return fmt.Sprintf(`%q:{"dtype":%q,"shape":%s,"data_offsets":[%d,%d]}`, name, dtype, shape, begin, end)
}

func index(t *testing.T, dir string, pairs ...string) {
	t.Helper()
	var m []string
	for i := 0; i < len(pairs); i += 2 {
		m = append(m, fmt.Sprintf("%q:%q", pairs[i], pairs[i+1]))
	}
	file(t, dir, "model.safetensors.index.json", `{"metadata":{"total_size":16},"weight_map":{`+strings.Join(m, ",")+`}}`)
}

const (
	one = "model-00001-of-00002.safetensors"
	two = "model-00002-of-00002.safetensors"
)

// TestFaults plants every fault of reading and asks for code, file, tensor, remedy and exit code, before anything is read.
func TestFaults(t *testing.T) {
	good := func(t *testing.T, dir string) { // two shards with an index
		raw(t, dir, one, "{"+entry("a", "F32", "[2]", 0, 8)+"}", 8)
		raw(t, dir, two, "{"+entry("b", "F32", "[2]", 0, 8)+"}", 8)
		index(t, dir, "a", one, "b", two)
		file(t, dir, "config.json", `{"model_type":"llama"}`)
	}
	single := func(header string, data int) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			raw(t, dir, "model.safetensors", header, data)
			file(t, dir, "config.json", `{}`)
		}
	}
	tests := []struct {
		name, code, file, tensor string
		sentinel                 error
		plant                    func(t *testing.T, dir string)
	}{
		{"no fault", "", "", "", nil, good},
		{"null metadata", "", "", "", nil, single(`{"__metadata__":null,`+entry("a", "F32", "[2]", 0, 8)+"}", 8)},
		{"empty metadata", "", "", "", nil, single(`{"__metadata__":{},`+entry("a", "F32", "[2]", 0, 8)+"}", 8)},
		{"missing shard", "E1109", two, "b", checkpoint.ErrNotFound, func(t *testing.T, dir string) { good(t, dir); os.Remove(filepath.Join(dir, two)) }},
		{"missing blob behind a link", "E1109", two, "", checkpoint.ErrNotFound, func(t *testing.T, dir string) {
			good(t, dir)
			os.Remove(filepath.Join(dir, two))
			if err := os.Symlink(filepath.Join("..", "blobs", "gone"), filepath.Join(dir, two)); err != nil {
				t.Skipf("symbolic links are missing here: %v", err)
			}
		}},
		{"missing shard without index", "E1109", "model-00002-of-00003.safetensors", "", checkpoint.ErrNotFound, func(t *testing.T, dir string) {
			raw(t, dir, "model-00001-of-00003.safetensors", "{}", 0)
			raw(t, dir, "model-00003-of-00003.safetensors", "{}", 0)
		}},
		{"several files, no index", "E1108", "x.safetensors", "", checkpoint.ErrDamaged, func(t *testing.T, dir string) {
			raw(t, dir, "x.safetensors", "{}", 0)
			raw(t, dir, "y.safetensors", "{}", 0)
		}},
		{"index of another split", "E1136", "model.safetensors.index.json", "", checkpoint.ErrDamaged, func(t *testing.T, dir string) {
			good(t, dir)
			index(t, dir, "a", "model-00001-of-00003.safetensors", "b", "model-00003-of-00003.safetensors")
		}},
		{"ghost entry", "E1110", two, "ghost", checkpoint.ErrDamaged, func(t *testing.T, dir string) {
			good(t, dir)
			index(t, dir, "a", one, "b", two, "ghost", two)
		}},
		{"stale index", "E1110", two, "a", checkpoint.ErrDamaged, func(t *testing.T, dir string) { good(t, dir); index(t, dir, "a", two, "b", two, "x", one) }},
		{"tensor not in the index", "E1111", one, "a", checkpoint.ErrDamaged, func(t *testing.T, dir string) {
			good(t, dir)
			raw(t, dir, one, "{"+entry("a", "F32", "[2]", 0, 8)+","+entry("c", "F32", "[2]", 8, 16)+"}", 16)
			index(t, dir, "c", one, "b", two)
		}},
		{"stray shard", "E1112", "model-00003-of-00003.safetensors", "", checkpoint.ErrDamaged, func(t *testing.T, dir string) {
			good(t, dir)
			raw(t, dir, "model-00003-of-00003.safetensors", "{}", 0)
		}},
		{"truncated data", "E1105", "model.safetensors", "b", checkpoint.ErrDamaged, single("{"+entry("a", "F32", "[2]", 0, 8)+","+entry("b", "F32", "[2]", 8, 16)+"}", 9)},
		{"truncated header", "E1105", "model.safetensors", "", checkpoint.ErrDamaged, func(t *testing.T, dir string) {
			file(t, dir, "model.safetensors", "\x40\x00\x00\x00\x00\x00\x00\x00{}")
		}},
		{"seven bytes", "E1105", "model.safetensors", "", checkpoint.ErrDamaged, func(t *testing.T, dir string) { file(t, dir, "model.safetensors", "1234567") }},
		{"trailing bytes", "E1106", "model.safetensors", "", checkpoint.ErrDamaged, single("{"+entry("a", "F32", "[2]", 0, 8)+"}", 9)},
		{"overlap", "E1115", "model.safetensors", "b", checkpoint.ErrDamaged, single("{"+entry("a", "F32", "[2]", 0, 8)+","+entry("b", "F32", "[2]", 4, 12)+"}", 12)},
		{"hole", "E1115", "model.safetensors", "b", checkpoint.ErrDamaged, single("{"+entry("a", "F32", "[2]", 0, 8)+","+entry("b", "F32", "[2]", 12, 20)+"}", 20)},
		{"range runs backwards", "E1115", "model.safetensors", "a", checkpoint.ErrDamaged, single("{"+entry("a", "F32", "[2]", 8, 0)+"}", 8)},
		{"three data offsets", "E1115", "model.safetensors", "a", checkpoint.ErrDamaged, single(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}}`, 8)},
		{"wrong size for dtype", "E1116", "model.safetensors", "a", checkpoint.ErrDamaged, single("{"+entry("a", "BF16", "[2]", 0, 8)+"}", 8)},
		{"impossible shape", "E1116", "model.safetensors", "a", checkpoint.ErrDamaged, single("{"+entry("a", "F32", "[4294967296,4294967296]", 0, 8)+"}", 8)},
		{"unknown dtype", "E1107", "model.safetensors", "a", checkpoint.ErrUnsupported, single("{"+entry("a", "F7", "[8]", 0, 8)+"}", 8)},
		{"name twice in a header", "E1113", "model.safetensors", "", checkpoint.ErrDamaged, single("{"+entry("a", "F32", "[2]", 0, 8)+","+entry("a", "F32", "[2]", 8, 16)+"}", 16)},
		{"name in two shards", "E1113", two, "a", checkpoint.ErrDamaged, func(t *testing.T, dir string) {
			good(t, dir)
			raw(t, dir, two, "{"+entry("a", "F32", "[2]", 0, 8)+"}", 8)
		}},
		{"name twice in the index", "E1113", "model.safetensors.index.json", "", checkpoint.ErrDamaged, func(t *testing.T, dir string) { good(t, dir); index(t, dir, "a", one, "a", two) }},
		{"huge header", "E1104", "model.safetensors", "", checkpoint.ErrDamaged, func(t *testing.T, dir string) {
			file(t, dir, "model.safetensors", "\x01\xe1\xf5\x05\x00\x00\x00\x00{}")
		}},
		{"header is no JSON", "E1114", "model.safetensors", "", checkpoint.ErrDamaged, single("not json at all", 8)},
		{"index is no JSON", "E1117", "model.safetensors.index.json", "", checkpoint.ErrDamaged, func(t *testing.T, dir string) {
			good(t, dir)
			file(t, dir, "model.safetensors.index.json", `{"weight_map":[]}`)
		}},
		{"index leaves the directory", "E1117", "model.safetensors.index.json", "b", checkpoint.ErrDamaged, func(t *testing.T, dir string) {
			good(t, dir)
			index(t, dir, "a", one, "b", "../secret.safetensors")
		}},
		{"pickle only", "E1103", "pytorch_model.bin", "", checkpoint.ErrUnsupported, func(t *testing.T, dir string) { file(t, dir, "pytorch_model.bin", "x") }},
		{"no weights", "E1102", "", "", checkpoint.ErrNotFound, func(t *testing.T, dir string) { file(t, dir, "config.json", "{}") }},
		{"no config", "E1121", "", "", checkpoint.ErrConfig, func(t *testing.T, dir string) { good(t, dir); os.Remove(filepath.Join(dir, "config.json")) }},
		{"config repeats a key", "E1120", "config.json", "", checkpoint.ErrConfig, func(t *testing.T, dir string) { good(t, dir); file(t, dir, "config.json", `{"a":1,"a":2}`) }},
		{"config cut", "E1120", "config.json", "", checkpoint.ErrConfig, func(t *testing.T, dir string) { good(t, dir); file(t, dir, "config.json", `{"a":1,`) }},
		{"two cache revisions", "E1128", "", "", checkpoint.ErrNotFound, func(t *testing.T, dir string) {
			os.MkdirAll(filepath.Join(dir, "snapshots", "r1"), 0o755)
			os.MkdirAll(filepath.Join(dir, "snapshots", "r2"), 0o755)
		}},
		{"fp8 without scale", "E1123", "model.safetensors", "m.weight", checkpoint.ErrUnscaled, single("{"+entry("m.weight", "F8_E4M3", "[2,4]", 0, 8)+"}", 8)},
		{"fp8 with a scale of another shape", "E1124", "model.safetensors", "m.weight_scale_inv", checkpoint.ErrUnscaled,
			single("{"+entry("m.weight", "F8_E4M3", "[2,4]", 0, 8)+","+entry("m.weight_scale_inv", "F32", "[3,1]", 8, 20)+"}", 20)},
		{"scale without codes", "E1125", "model.safetensors", "m.weight_scale_inv", checkpoint.ErrUnscaled, single("{"+entry("m.weight_scale_inv", "F32", "[1]", 0, 4)+"}", 4)},
		{"gptq without scales", "E1123", "model.safetensors", "m.qweight", checkpoint.ErrUnscaled, single("{"+entry("m.qweight", "I32", "[1,8]", 0, 32)+","+entry("m.qzeros", "I32", "[1,1]", 32, 36)+"}", 36)},
		{"nvfp4 without its second level", "E1123", "model.safetensors", "m.weight_packed", checkpoint.ErrUnscaled,
			single("{"+entry("m.weight_packed", "U8", "[1,8]", 0, 8)+","+entry("m.weight_scale", "F8_E4M3", "[1,1]", 8, 9)+"}", 9)},
		{"mxfp4 blocks without scales", "E1123", "model.safetensors", "e.gate_up_proj_blocks", checkpoint.ErrUnscaled, single("{"+entry("e.gate_up_proj_blocks", "U8", "[1,1,1,16]", 0, 16)+"}", 16)},
		{"bitsandbytes", "E1122", "model.safetensors", "m.SCB", checkpoint.ErrUnsupported,
			single("{"+entry("m.weight", "I8", "[2,4]", 0, 8)+","+entry("m.SCB", "F32", "[2]", 8, 16)+"}", 16)},
		{"plain and quantized", "E1135", "model.safetensors", "m.weight", checkpoint.ErrDamaged,
			single("{"+entry("m.weight", "F32", "[1,32]", 0, 128)+","+entry("m.weight_packed", "U8", "[1,16]", 128, 144)+","+entry("m.weight_scale", "U8", "[1,1]", 144, 145)+"}", 145)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			tt.plant(t, dir)
			src, err := checkpoint.Open(t.Context(), dir)
			if tt.code == "" {
				if err != nil {
					t.Fatal(err)
				}
				src.Close()
				return
			}
			var found *checkpoint.Error
			var all checkpoint.Errors
			if errors.As(err, &all) {
				for _, e := range all {
					if e.Code == tt.code && e.Where.Tensor == tt.tensor {
						found = e
					}
				}
			} else {
				errors.As(err, &found)
			}
			if found == nil {
				t.Fatalf("want %s, got %v", tt.code, err)
			}
			if found.Code != tt.code || found.Where.Tensor != tt.tensor || tt.file != "" && found.Where.File != tt.file {
				t.Errorf("got %s at %+v, want %s at %s, %s", found.Code, found.Where, tt.code, tt.file, tt.tensor)
			}
			if found.Remedy() == "" || found.ExitCode() != 64 || !errors.Is(err, tt.sentinel) || checkpoint.Catalogue()[found.Code] == "" {
				t.Errorf("%s: remedy %q, exit %d, sentinel %v, catalogue %q", found.Code, found.Remedy(), found.ExitCode(), errors.Is(err, tt.sentinel), checkpoint.Catalogue()[found.Code])
			}
		})
	}
	if _, err := checkpoint.Open(t.Context(), filepath.Join(t.TempDir(), "nothing")); !errors.Is(err, checkpoint.ErrNotFound) {
		t.Errorf("no path: %v", err)
	}
}

// TestScalesInAnotherShard finds companions through the index, not through the file.
func TestScalesInAnotherShard(t *testing.T) {
	dir := t.TempDir()
	shard(t, dir, one, tensor("m.weight", checkpoint.F8E4M3, []byte{0x38, 0x40, 0x44, 0xc8}, 2, 2)) // 1, 2, 3, −4
	shard(t, dir, two, tensor("m.weight_scale_inv", checkpoint.F32, []byte{0, 0, 0, 0x3f}, 1, 1))   // 0.5
	index(t, dir, "m.weight", one, "m.weight_scale_inv", two)
	file(t, dir, "config.json", `{"quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}}`)
	bits(t, "m.weight", decodeAll(t, open(t, dir), "m.weight"), []float32{0.5, 1, 1.5, -2})
}

// TestTransposedBlocks reads gpt-oss's layout: outputs in rows of blocks, the logical tensor has the inputs first.
func TestTransposedBlocks(t *testing.T) {
	codes, scales := make([]byte, 2*3*16), []byte{127, 128, 126, 127, 127, 127}
	for i := range codes {
		codes[i] = byte(i%8) | byte((i+3)%8)<<4
	}
	value := []float32{0, .5, 1, 1.5, 2, 3, 4, 6}
	want := make([]float32, 2*32*3)
	for e := range 2 {
		for o := range 3 {
			for i := range 32 {
				at := (e*3+o)*16 + i/2
				q := value[at%8]
				if i%2 == 1 {
					q = value[(at+3)%8]
				}
				want[(e*32+i)*3+o] = q * []float32{1, 2, .5, 1, 1, 1}[e*3+o]
			}
		}
	}
	dir := write(t, t.TempDir(), `{"quantization_config":{"quant_method":"mxfp4"}}`, tensor("x.gate_up_proj_blocks", checkpoint.U8, codes, 2, 3, 1, 16), tensor("x.gate_up_proj_scales", checkpoint.U8, scales, 2, 3, 1))
	src := open(t, dir)
	if l := src.Logical(); len(l) != 1 || fmt.Sprint(l[0].Shape) != "[2 32 3]" || l[0].Name != "x.gate_up_proj" {
		t.Fatalf("%+v", l)
	}
	bits(t, "x", decodeAll(t, src, "x.gate_up_proj"), want)
}
