package text

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// jsonReader streams JSON objects: one a line, or the elements of one array (a .json file as Hugging Face exports it).
type jsonReader struct {
	r       *bufio.Reader
	num     int
	started bool
	array   *json.Decoder
	left    *elementReader // what array reads through
}

// elementReader ends an array's element that is longer than a record may be.
type elementReader struct {
	r    io.Reader
	left int
}

func (e *elementReader) Read(p []byte) (int, error) {
	if e.left <= 0 {
		return 0, fmt.Errorf("a record above %d MiB", maxRecordBytes>>20)
	}
	n, err := e.r.Read(p[:min(len(p), e.left)])
	e.left -= n
	return n, err
}

func newJSONReader(r *bufio.Reader) *jsonReader { return &jsonReader{r: r} }

func (j *jsonReader) Close() error { return nil }

func (j *jsonReader) next() (record, error) {
	if !j.started {
		j.started = true
		if err := j.start(); err != nil {
			return record{}, err
		}
	}
	if j.array != nil {
		return j.nextElement()
	}
	for {
		line, long, err := readLine(j.r)
		if err != nil {
			return record{}, err
		}
		j.num++
		if long {
			return record{num: j.num, reason: ReasonBadRecord, detail: fmt.Sprintf("line above %d MiB", maxRecordBytes>>20)}, nil
		}
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		if line[0] != '{' || !json.Valid(line) {
			return record{num: j.num, reason: ReasonBadRecord, detail: "not a JSON object: " + excerpt(line)}, nil
		}
		return record{num: j.num, json: line}, nil
	}
}

// start skips a byte order mark and looks whether the file is one array of objects.
func (j *jsonReader) start() error {
	if head, _ := j.r.Peek(3); bytes.Equal(head, []byte("\xef\xbb\xbf")) {
		j.r.Discard(3)
	}
	for n := 1; n <= 4096; n++ {
		head, err := j.r.Peek(n)
		if err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		switch head[n-1] {
		case ' ', '\t', '\r', '\n':
			continue
		case '[':
			j.left = &elementReader{r: j.r, left: maxRecordBytes}
			j.array = json.NewDecoder(j.left)
			_, err := j.array.Token()
			return err
		}
		return nil
	}
	return nil
}

func (j *jsonReader) nextElement() (record, error) {
	j.left.left = maxRecordBytes
	if !j.array.More() {
		if _, err := j.array.Token(); err != nil {
			return record{}, fmt.Errorf("the array of records does not end: %w", err)
		}
		return record{}, io.EOF
	}
	j.num++
	var raw json.RawMessage
	if err := j.array.Decode(&raw); err != nil {
		return record{}, fmt.Errorf("record %d: %w", j.num, err)
	}
	if len(raw) == 0 || raw[0] != '{' {
		return record{num: j.num, reason: ReasonBadRecord, detail: "not a JSON object: " + excerpt(raw)}, nil
	}
	return record{num: j.num, json: raw}, nil
}

func (j *jsonReader) rest() (int, error) { return countRest(j) }

// excerpt shows the beginning of a record that is not what it should be.
func excerpt(b []byte) string {
	const most = 60
	if len(b) > most {
		return fmt.Sprintf("%q…", b[:most])
	}
	return fmt.Sprintf("%q", b)
}
