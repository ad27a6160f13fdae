package text_test

import (
	"context"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"quire/capture/text"
)

// allocated runs a load and gives the bytes that it allocated in all.
func allocated(o text.Options, path string) (uint64, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := text.LoadSamples(context.Background(), nil, nil, []string{path}, o)
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc, err
}

// endless gives one byte for ever, after a beginning.
type endless struct {
	head string
	fill byte
	left int
}

func (e *endless) Read(p []byte) (int, error) {
	if e.head != "" {
		n := copy(p, e.head)
		e.head = e.head[n:]
		return n, nil
	}
	if e.left <= 0 {
		return 0, io.EOF
	}
	n := min(len(p), e.left)
	for i := range p[:n] {
		p[i] = e.fill
	}
	e.left -= n
	return n, nil
}

// TestHostileRecords: a record without end, in a line, an array or behind compression, costs what one record may cost.
func TestHostileRecords(t *testing.T) {
	if os.Getenv("QUIRE_LONG") == "" {
		return // some hundred MiB: with the long suites
	}
	const length = 160 << 20
	for name, head := range map[string]string{"line": `{"text":"`, "array": `[{"text":"`, "nested array": "[", "array of numbers": `[{"input_ids":[`} {
		t.Run(name, func(t *testing.T) {
			fill := byte('x')
			if strings.HasPrefix(name, "nested") {
				fill = '['
			}
			used, err := allocated(text.Options{Stdin: &endless{head, fill, length}}, "-")
			require.Error(t, err)
			require.Less(t, used, uint64(6*64<<20), "bytes allocated in all, of a record of 64 MiB at most")
		})
	}
	t.Run("zstd that claims a window of 2 GiB", func(t *testing.T) {
		p := file(t, "a.jsonl.zst", "\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00")
		used, err := allocated(text.Options{}, p)
		require.Error(t, err)
		require.Less(t, used, uint64(16<<20))
	})
	t.Run("zstd bomb", func(t *testing.T) {
		p := filepath.Join(t.TempDir(), "a.txt.zst")
		f, err := os.Create(p)
		require.NoError(t, err)
		w, err := zstd.NewWriter(f)
		require.NoError(t, err)
		_, err = io.Copy(w, &endless{"", 'x', length})
		require.NoError(t, err)
		require.NoError(t, w.Close())
		require.NoError(t, f.Close())
		used, err := allocated(text.Options{MaxBad: 1}, p)
		require.ErrorIs(t, err, text.ErrNoSamples)
		require.Less(t, used, uint64(6*64<<20))
	})
}

// TestHostileParquet bends every byte of small files, and the lengths in their ends: whatever a damaged file claims, its rows
// or an error come out of bounded memory.
func TestHostileParquet(t *testing.T) {
	dir := t.TempDir()
	p := filepath.Join(dir, "a.parquet")
	for _, name := range []string{"ids.parquet", "messages.parquet"} {
		data, err := os.ReadFile(filepath.Join(testdata, name))
		require.NoError(t, err)
		step := 1
		if os.Getenv("QUIRE_LONG") == "" {
			step = 17
		}
		try := func(at int, b []byte) {
			require.NoError(t, os.WriteFile(p, b, 0o600))
			if used, err := allocated(text.Options{MaxBad: 1}, p); used > 128<<20 {
				t.Errorf("%s, byte %d: %d bytes allocated (%.80v)", name, at, used, err)
			}
		}
		for at := 0; at < len(data); at += step {
			for _, v := range []byte{0xff, 0x7f, data[at] ^ 1} {
				b := append([]byte(nil), data...)
				b[at] = v
				try(at, b)
			}
			if at+6 <= len(data) { // a varint of 2^34 or so
				b := append([]byte(nil), data...)
				copy(b[at:], "\xfe\xff\xff\xff\x7f")
				try(at, b)
			}
		}
		for _, n := range []uint32{0, 7, 1 << 20, 1<<31 - 1, 1<<32 - 1} {
			b := append([]byte(nil), data...)
			binary.LittleEndian.PutUint32(b[len(b)-8:], n)
			try(len(b)-8, b)
		}
	}
}
