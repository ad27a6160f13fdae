package text

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// maxRecordBytes bounds one line or document of a data set, so that a file without line ends cannot fill the memory.
const maxRecordBytes = 64 << 20

// record is one entry of a data set before it is understood: a JSON object, a text, or token ids.
type record struct {
	num    int    // 1-based number within the file
	json   []byte // a JSON object, or nil
	text   string // when isText
	isText bool
	ids    []int32 // a window of a raw token file
	reason string  // not empty: unusable, with detail
	detail string
}

// recordReader streams the records of one file.
type recordReader interface {
	next() (record, error) // io.EOF at the end
	rest() (int, error)    // counts the records left without understanding them
	io.Closer
}

// kindOf is the format of a data file by its name, with compression suffixes taken off; "" if unknown.
func kindOf(path string) string {
	name := strings.ToLower(filepath.Base(path))
	name = strings.TrimSuffix(strings.TrimSuffix(name, ".gz"), ".zst")
	switch filepath.Ext(name) {
	case ".jsonl", ".ndjson", ".json":
		return "jsonl"
	case ".txt", ".text", ".md":
		return "txt"
	case ".parquet":
		return "parquet"
	case ".u16":
		return "u16"
	case ".u32":
		return "u32"
	}
	return ""
}

// ExpandFiles turns files, directories and globs into the ordered list of data files: arguments in their order, a directory's
// and a glob's files sorted by path. "-" (stdin) stays.
func ExpandFiles(args []string) ([]string, error) {
	var out []string
	for _, a := range args {
		if a == "-" {
			out = append(out, a)
			continue
		}
		info, err := os.Stat(a)
		switch {
		case err == nil && info.IsDir():
			found, err := dirFiles(a)
			if err != nil {
				return nil, datasetError(a, err, "the directory cannot be listed", "check its permissions")
			}
			if len(found) == 0 {
				return nil, datasetError(a, nil, "the directory holds no data file", "known kinds: .jsonl .json .ndjson .txt .parquet .u16 .u32, also .gz and .zst")
			}
			out = append(out, found...)
		case err == nil:
			out = append(out, a)
		case errors.Is(err, fs.ErrNotExist) && strings.ContainsAny(a, "*?["):
			found, gerr := filepath.Glob(a)
			if gerr != nil {
				return nil, datasetError(a, gerr, "the pattern is malformed", "quote it and check its brackets")
			}
			if len(found) == 0 {
				return nil, datasetError(a, nil, "the pattern matches no file", "check the path; the shell may need quotes around it")
			}
			slices.Sort(found)
			nested, err := ExpandFiles(found)
			if err != nil {
				return nil, err
			}
			out = append(out, nested...)
		default:
			return nil, datasetError(a, err, "the calibration file cannot be opened", "check the path")
		}
	}
	for _, f := range out {
		if f != "-" && kindOf(f) == "" {
			return nil, datasetError(f, nil, "the kind of this calibration file is unknown", "known kinds: .jsonl .json .ndjson .txt .parquet .u16 .u32, also .gz and .zst")
		}
	}
	return out, nil
}

func dirFiles(dir string) ([]string, error) {
	var out []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != dir && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if !d.IsDir() && !strings.HasPrefix(d.Name(), ".") && kindOf(p) != "" {
			out = append(out, p)
		}
		return nil
	})
	slices.Sort(out)
	return out, err
}

// countingHash hashes what is read of a file and counts it.
type countingHash struct {
	r io.Reader
	h hash.Hash
	n int64
}

func (c *countingHash) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.h.Write(p[:n])
	c.n += int64(n)
	return n, err
}

// fileReader is an open data file with its decompression.
type fileReader struct {
	recordReader
	path    string
	size    int64
	raw     *countingHash // nil for formats that are read by range
	closers []io.Closer
}

func (f *fileReader) Close() error {
	var errs []error
	for i := len(f.closers) - 1; i >= 0; i-- {
		errs = append(errs, f.closers[i].Close())
	}
	return errors.Join(errs...)
}

// sha256 gives the digest of the whole file when it was read to its end, else "".
func (f *fileReader) sha256() string {
	if f.raw == nil || (f.size >= 0 && f.raw.n != f.size) {
		return ""
	}
	return hex.EncodeToString(f.raw.h.Sum(nil))
}

type closeFunc func() error

func (c closeFunc) Close() error { return c() }

// openData opens one file of a data set. window is the number of ids of one record of a raw token file (0: all).
func openData(ctx context.Context, path string, stdin io.Reader, split string, window int) (*fileReader, error) {
	f := &fileReader{path: path}
	var r io.Reader
	kind := kindOf(path)
	if path == "-" {
		if stdin == nil {
			return nil, datasetError("-", nil, "there is no standard input here", "name a file")
		}
		r, kind = stdin, "jsonl"
		f.raw = &countingHash{r: r, h: sha256.New()}
		f.size = -1
	} else {
		file, err := os.Open(path)
		if err != nil {
			return nil, datasetError(path, err, "the calibration file cannot be opened", "check the path and its permissions")
		}
		f.closers = append(f.closers, file)
		info, err := file.Stat()
		if err != nil {
			f.Close()
			return nil, datasetError(path, err, "the calibration file cannot be read", "check the disk")
		}
		f.size = info.Size()
		if kind == "parquet" {
			pr, err := openParquet(file, info.Size())
			if err != nil {
				f.Close()
				return nil, datasetError(path, err, "the parquet file cannot be read", "download it again, or check it with another reader")
			}
			f.recordReader = pr
			f.closers = append(f.closers, pr)
			return f, nil
		}
		f.raw = &countingHash{r: file, h: sha256.New()}
	}
	r = &contextReader{ctx: ctx, r: f.raw}
	lower := strings.ToLower(path)
	switch {
	case strings.HasSuffix(lower, ".gz"):
		z, err := gzip.NewReader(bufio.NewReaderSize(r, 1<<16))
		if err != nil {
			f.Close()
			return nil, datasetError(path, err, "the file is not gzip", "check its name, or download it again")
		}
		f.closers = append(f.closers, z)
		r = z
	case strings.HasSuffix(lower, ".zst"):
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(512<<20))
		if err != nil {
			f.Close()
			return nil, datasetError(path, err, "the file is not zstd", "check its name, or download it again")
		}
		f.closers = append(f.closers, closeFunc(func() error { z.Close(); return nil }))
		r = z
	}
	br := bufio.NewReaderSize(r, 1<<18)
	switch kind {
	case "jsonl":
		f.recordReader = newJSONReader(br)
	case "txt":
		f.recordReader = &textReader{r: br, split: split}
	case "u16", "u32":
		width := 2
		if kind == "u32" {
			width = 4
		}
		f.recordReader = &tokenReader{r: br, width: width, window: window}
	}
	return f, nil
}

// contextReader ends a read when the context does.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// readLine reads one line without its end. A line above maxRecordBytes is consumed and reported as too long.
func readLine(r *bufio.Reader) (line []byte, tooLong bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if !tooLong {
			if len(line)+len(part) > maxRecordBytes {
				tooLong, line = true, nil
			} else {
				line = append(line, part...)
			}
		}
		if err == bufio.ErrBufferFull {
			continue
		}
		if err == io.EOF && (len(line) > 0 || tooLong) {
			err = nil
		}
		line = bytes.TrimSuffix(line, []byte("\n"))
		line = bytes.TrimSuffix(line, []byte("\r"))
		return line, tooLong, err
	}
}

// textReader cuts a text file into samples: lines (default), paragraphs (at empty lines) or the whole document.
type textReader struct {
	r     *bufio.Reader
	split string
	num   int
	done  bool
}

func (t *textReader) Close() error { return nil }

func (t *textReader) next() (record, error) {
	if t.split == "document" {
		if t.done {
			return record{}, io.EOF
		}
		t.done = true
		data, err := io.ReadAll(io.LimitReader(t.r, maxRecordBytes+1))
		if err != nil {
			return record{}, err
		}
		if len(data) > maxRecordBytes {
			return record{num: 1, reason: ReasonBadRecord, detail: fmt.Sprintf("document above %d MiB", maxRecordBytes>>20)}, nil
		}
		return record{num: 1, text: string(data), isText: true}, nil
	}
	var para []byte
	start := 0
	for {
		line, long, err := readLine(t.r)
		if err == io.EOF && len(para) > 0 {
			return record{num: start, text: string(para), isText: true}, nil
		}
		if err != nil {
			return record{}, err
		}
		t.num++
		if long {
			return record{num: t.num, reason: ReasonBadRecord, detail: fmt.Sprintf("line above %d MiB", maxRecordBytes>>20)}, nil
		}
		blank := len(bytes.TrimSpace(line)) == 0
		if t.split != "paragraph" {
			if blank {
				continue // an empty line separates, it is no sample
			}
			return record{num: t.num, text: string(line), isText: true}, nil
		}
		switch {
		case blank && len(para) > 0:
			return record{num: start, text: string(para), isText: true}, nil
		case blank:
		default:
			if len(para) == 0 {
				start = t.num
			} else {
				para = append(para, '\n')
			}
			para = append(para, line...)
			if len(para) > maxRecordBytes {
				return record{num: start, reason: ReasonBadRecord, detail: fmt.Sprintf("paragraph above %d MiB", maxRecordBytes>>20)}, nil
			}
		}
	}
}

func (t *textReader) rest() (int, error) { return countRest(t) }

// countRest counts by reading: the fallback of formats without a record count.
func countRest(r recordReader) (int, error) {
	n := 0
	for {
		_, err := r.next()
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		n++
	}
}

// drain gives what is left of the raw file once its records are read, so that its digest covers every byte.
func (f *fileReader) drain() io.Reader {
	if f.raw == nil {
		return strings.NewReader("")
	}
	return f.raw
}

// consumed is the number of bytes of the file.
func (f *fileReader) consumed() int64 {
	if f.raw != nil {
		return f.raw.n
	}
	return f.size
}
