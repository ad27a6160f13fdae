package lint

import (
	"quire/capture/checkpoint"
)

// tensor is a stored tensor and where its data lie.
type tensor struct {
	Name   string
	DType  string
	Shape  []int
	shard  *shard
	stored checkpoint.Tensor
	size   int64  // bytes
	data   []byte // of a planned tensor
}

// shard is one open file. Shards are opened one by one: checkpoint.Open refuses a checkpoint whose parts do not agree,
// and lint wants to see what every part says.
type shard struct {
	name     string
	file     *checkpoint.Shard
	metadata map[string]string
	tensors  []*tensor
}

// openShard reads the header of a file and checks it against the file's length.
func openShard(path, name string) (*shard, error) {
	f, err := checkpoint.OpenShard(path)
	if err != nil {
		return nil, err
	}
	s := &shard{name: name, file: f, metadata: f.Metadata()}
	for _, t := range f.Tensors() {
		s.tensors = append(s.tensors, &tensor{Name: t.Name, DType: t.DType.String(), Shape: t.Shape, shard: s, stored: t, size: t.Bytes()})
	}
	return s, nil
}

// elementBytes is the size of an element, 0 for dtypes of less than a byte.
func (t *tensor) elementBytes() int64 { return int64(t.stored.DType.Bits() / 8) }

// readAt reads bytes from byte off of the tensor's data.
func (t *tensor) readAt(dst []byte, off int64) error { return t.shard.file.ReadAt(t.stored, dst, off) }

// read gives the whole data of a tensor; of a planned one, what is known.
func (t *tensor) read() ([]byte, error) {
	if t.shard == nil {
		return t.data, nil
	}
	data := make([]byte, t.size)
	return data, t.readAt(data, 0)
}

// plainFloat says whether the dtype is one of an unquantized weight.
func plainFloat(dtype string) bool { return checkpoint.DType(dtype).PlainFloat() }
