package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"

	"quire/capture/checkpoint"
	"quire/engine"
)

// lineOf is a value as one line of NDJSON. U+0085 is escaped like the line separators that encoding/json escapes itself: many
// readers split lines there.
func lineOf(v any) []byte {
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // only our own types come here
	}
	return bytes.ReplaceAll(line.Bytes(), []byte("\u0085"), []byte(`\u0085`))
}

// writeJSON writes one line of NDJSON. A reader that has gone away is no error.
func writeJSON(w io.Writer, v any) { _, _ = w.Write(lineOf(v)) }

// eachLine calls f for every line of the files ("-" or none: standard input) and writes what it gives as NDJSON. Output is
// flushed whenever the input has nothing more to offer at once, so that the verb can be talked to line by line.
func eachLine(ctx context.Context, files []string, o *output, f func(file string, n int, line []byte) (any, error)) error {
	if len(files) == 0 {
		files = []string{"-"}
	}
	w := bufio.NewWriterSize(o.out, 1<<16)
	err := func() error {
		for _, file := range files {
			if err := linesOf(ctx, file, o.in, w, f); err != nil {
				return err
			}
		}
		return nil
	}()
	return errors.Join(err, w.Flush())
}

func linesOf(ctx context.Context, file string, stdin io.Reader, w *bufio.Writer, f func(file string, n int, line []byte) (any, error)) error {
	in := stdin
	unreadable := func(err error) error {
		return &engine.Error{Code: "E0104", Exit: engine.ExitUsage, What: "a file cannot be read", Where: file, Err: err, Try: "check the path"}
	}
	if file != "-" {
		fh, err := os.Open(file)
		if err != nil {
			return unreadable(err)
		}
		defer fh.Close()
		in = fh
	}
	r := bufio.NewReaderSize(in, 1<<16)
	for n := 1; ; n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		line, err := r.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return unreadable(err)
		}
		if err == io.EOF && len(line) == 0 {
			return nil
		}
		v, ferr := f(file, n, bytes.TrimSuffix(line, []byte("\n")))
		if ferr != nil {
			return ferr
		}
		if v != nil {
			if _, err := w.Write(lineOf(v)); err != nil {
				return err
			}
		}
		if r.Buffered() == 0 {
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
}

// modelPath gives the file or directory that a user means: a file as it is, a directory, or the snapshot of a cache entry.
func modelPath(path string) (string, error) {
	if st, err := os.Stat(path); err == nil && !st.IsDir() {
		return path, nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return path, nil // whoever reads it says what is wrong
	}
	return checkpoint.Directory(path)
}
