package text

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
)

// parquetReader streams the rows of a parquet file as JSON objects, keys in the order of the schema at every depth (a chat
// template prints tool definitions in the order it finds them). It reads row groups one after the other and holds one
// page per column.
type parquetReader struct {
	file *parquet.File
	//lint:ignore SA1019 its successor wants a Go type, and a wrong one gives zero rows without an error
	reader *parquet.Reader
	num    int
}

// openParquet opens a file without telling parquet-go any Go type: a wrong struct would give zero rows in silence.
func openParquet(f *os.File, size int64) (r *parquetReader, err error) {
	defer recoverParquet(&err)
	if err := checkFooter(f, size); err != nil {
		return nil, err
	}
	file, err := parquet.OpenFile(f, size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
		return nil, err
	}
	return &parquetReader{file: file, reader: parquet.NewReader(file)}, nil
}

// maxFooter bounds the schema and row group list at a file's end; those of the largest published sets have some 10 MB.
const maxFooter = 128 << 20

// checkFooter looks at the length of the footer before the library allocates it unseen.
func checkFooter(f *os.File, size int64) error {
	var end [8]byte
	if size < 12 {
		return fmt.Errorf("the file has %d bytes", size)
	}
	if _, err := f.ReadAt(end[:], size-8); err != nil {
		return err
	}
	if n := int64(binary.LittleEndian.Uint32(end[:])); n > size-12 || n > maxFooter {
		return fmt.Errorf("the footer claims %d bytes of a file of %d", n, size)
	}
	return nil
}

// recoverParquet turns a panic of the library over a damaged file into an error.
func recoverParquet(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("damaged parquet data: %v", p)
	}
}

func (p *parquetReader) Close() (err error) {
	defer recoverParquet(&err)
	return p.reader.Close()
}

func (p *parquetReader) rest() (int, error) {
	n := int(p.file.NumRows()) - p.num
	p.num += n
	return n, nil
}

func (p *parquetReader) next() (rec record, err error) {
	defer recoverParquet(&err)
	if int64(p.num) >= p.file.NumRows() {
		return record{}, io.EOF
	}
	row := map[string]any{}
	if err := p.reader.Read(&row); err != nil {
		if err == io.EOF {
			return record{}, fmt.Errorf("the file ends after row %d of %d", p.num, p.file.NumRows())
		}
		return record{}, fmt.Errorf("row %d: %w", p.num+1, err)
	}
	p.num++
	var b bytes.Buffer
	if err := writeNode(&b, p.file.Schema(), row); err != nil {
		return record{num: p.num, reason: ReasonBadRecord, detail: err.Error()}, nil
	}
	return record{num: p.num, json: b.Bytes()}, nil
}

// writeNode writes the value v of a schema node as JSON.
func writeNode(b *bytes.Buffer, node parquet.Node, v any) error {
	if v == nil {
		b.WriteString("null")
		return nil
	}
	if elem, inner := listElement(node); elem != nil {
		if items, ok := listItems(v, inner); ok {
			b.WriteByte('[')
			for i, item := range items {
				if i > 0 {
					b.WriteByte(',')
				}
				if err := writeNode(b, elem, item); err != nil {
					return err
				}
			}
			b.WriteByte(']')
			return nil
		}
	}
	switch v := v.(type) {
	case map[string]any:
		b.WriteByte('{')
		first := true
		write := func(name string, child parquet.Node, val any) error {
			if !first {
				b.WriteByte(',')
			}
			first = false
			key, err := json.Marshal(name)
			if err != nil {
				return err
			}
			b.Write(key)
			b.WriteByte(':')
			return writeNode(b, child, val)
		}
		if node != nil && !node.Leaf() {
			for _, f := range node.Fields() {
				if val, ok := v[f.Name()]; ok {
					if err := write(f.Name(), f, val); err != nil {
						return err
					}
				}
			}
			b.WriteByte('}')
			return nil
		}
		return fmt.Errorf("unexpected object under a leaf column")
	case []any:
		b.WriteByte('[')
		for i, item := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := writeNode(b, node, item); err != nil {
				return err
			}
		}
		b.WriteByte(']')
		return nil
	case []byte:
		out, err := marshalPlain(string(v))
		b.Write(out)
		return err
	default:
		out, err := marshalPlain(v)
		if err != nil {
			return fmt.Errorf("a value of type %T cannot be read as text or number", v)
		}
		b.Write(out)
		return nil
	}
}

// marshalPlain is json.Marshal without HTML escapes.
func marshalPlain(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// listElement recognises the list encodings of parquet writers (three levels: list.element, list.item, bag.array_element; two
// levels: a repeated child) and gives the element node and the names on the way down.
func listElement(node parquet.Node) (parquet.Node, []string) {
	if node == nil || node.Leaf() || node.Repeated() {
		return nil, nil
	}
	lt := node.Type().LogicalType()
	if lt == nil {
		return nil, nil
	}
	if _, isList := lt.Value.(*format.ListType); !isList {
		return nil, nil
	}
	fields := node.Fields()
	if len(fields) != 1 || !fields[0].Repeated() {
		return nil, nil
	}
	mid := fields[0]
	if !mid.Leaf() {
		if inner := mid.Fields(); len(inner) == 1 {
			return inner[0], []string{mid.Name(), inner[0].Name()}
		}
	}
	return mid, []string{mid.Name()}
}

// listItems unwraps the Go form of a list column, whichever of its shapes the library gives.
func listItems(v any, path []string) ([]any, bool) {
	switch v := v.(type) {
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = unwrapElement(item, path)
		}
		return out, true
	case map[string]any:
		mid, ok := v[path[0]]
		if !ok {
			return nil, false
		}
		if mid == nil {
			return nil, true
		}
		items, ok := mid.([]any)
		if !ok {
			return nil, false
		}
		out := make([]any, len(items))
		for i, item := range items {
			out[i] = unwrapElement(item, path)
		}
		return out, true
	}
	return nil, false
}

func unwrapElement(item any, path []string) any {
	if len(path) < 2 {
		return item
	}
	if m, ok := item.(map[string]any); ok && len(m) == 1 {
		if inner, ok := m[path[1]]; ok {
			return inner
		}
	}
	return item
}
