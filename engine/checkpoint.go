package engine

import (
	"context"
	"os"
	"path/filepath"
	"sync"

	"quire/capture/checkpoint"
	"quire/capture/model"
	"quire/ledger"
)

// Checkpoint is what a run reads of its source.
type Checkpoint interface {
	model.Source
	// WeightDType is the dtype of most stored bytes: BF16, F16 or F32; BF16 for quantized sources.
	WeightDType() string
	// HeadersDigest covers name, dtype, shape and place of every stored tensor.
	HeadersDigest() string
	// Shards lists the files that hold tensors, sorted by name.
	Shards() []checkpoint.File
	// SideFiles lists every other file that belongs to the checkpoint: tokenizer, templates, generation config, remote
	// code. config.json and the index are not among them.
	SideFiles() []checkpoint.File
	// Unused lists the weight files of the directory that are no part of the checkpoint.
	Unused() []checkpoint.File
	// SideFileDigests hashes the side files.
	SideFileDigests() ([]FileDigest, error)
	// ReadRaw reads stored bytes of a stored tensor.
	ReadRaw(ctx context.Context, name string, dst []byte, off int64) error
	// SourceRefs names the source events of the shards that hold a logical tensor; known once inputs are hashed.
	SourceRefs(tensor string) []ledger.Ref
	// SetSourceRefs tells which event stands for which shard file.
	SetSourceRefs(byFile map[string]ledger.Ref)
	// OutputConfig is config.json with quantization_config replaced and everything else byte for byte.
	OutputConfig(quantization []byte) ([]byte, error)
	// HashShard gives the SHA-256 of a shard, from the cache when size, time and inode are unchanged and fresh is false.
	HashShard(ctx context.Context, f checkpoint.File, fresh bool, progress func(done int64)) (string, error)
}

// OpenCheckpoint opens the checkpoint at a path.
func OpenCheckpoint(ctx context.Context, path string) (Checkpoint, error) {
	src, err := checkpoint.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	cache := &checkpoint.DigestCache{}
	if dir, err := os.UserCacheDir(); err == nil {
		dir = filepath.Join(dir, "quire")
		if os.MkdirAll(dir, 0o755) == nil {
			cache = checkpoint.LoadDigestCache(filepath.Join(dir, "digests.json"))
		}
	}
	return &diskCheckpoint{Source: model.FromCheckpoint(src), src: src, cache: cache}, nil
}

type diskCheckpoint struct {
	model.Source
	src   *checkpoint.Source
	cache *checkpoint.DigestCache

	mu   sync.Mutex
	refs map[string]ledger.Ref
}

func (d *diskCheckpoint) WeightDType() string {
	bytes := map[checkpoint.DType]int64{}
	for _, l := range d.src.Logical() {
		if l.Decoded {
			bytes[checkpoint.BF16] += 1 << 40
		}
	}
	for _, t := range d.src.Tensors() {
		if len(t.Shape) > 1 {
			bytes[t.DType] += t.Bytes()
		}
	}
	best := checkpoint.F32
	for _, dt := range []checkpoint.DType{checkpoint.BF16, checkpoint.F16} {
		if bytes[dt] > bytes[best] {
			best = dt
		}
	}
	return string(best)
}

func (d *diskCheckpoint) HeadersDigest() string        { return d.src.HeadersDigest() }
func (d *diskCheckpoint) Shards() []checkpoint.File    { return d.src.Shards() }
func (d *diskCheckpoint) SideFiles() []checkpoint.File { return d.src.SideFiles() }
func (d *diskCheckpoint) Unused() []checkpoint.File    { return d.src.Unused() }

func (d *diskCheckpoint) SideFileDigests() ([]FileDigest, error) {
	out := []FileDigest{}
	for _, f := range d.src.SideFiles() {
		b, err := os.ReadFile(f.Path)
		if err != nil {
			return nil, err
		}
		out = append(out, FileDigest{Name: f.Name, Size: int64(len(b)), SHA256: digest(b)})
	}
	return out, nil
}

func (d *diskCheckpoint) ReadRaw(ctx context.Context, name string, dst []byte, off int64) error {
	return d.src.ReadAt(ctx, name, dst, off)
}

func (d *diskCheckpoint) SetSourceRefs(byFile map[string]ledger.Ref) {
	d.mu.Lock()
	d.refs = byFile
	d.mu.Unlock()
}

func (d *diskCheckpoint) SourceRefs(tensor string) []ledger.Ref {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []ledger.Ref
	seen := map[string]bool{}
	for _, name := range d.src.StoredOf(tensor) {
		t, ok := d.src.Lookup(name)
		if r, known := d.refs[t.Shard]; ok && known && !seen[t.Shard] {
			seen[t.Shard] = true
			out = append(out, r)
		}
	}
	return out
}

func (d *diskCheckpoint) OutputConfig(quantization []byte) ([]byte, error) {
	return checkpoint.ReplaceQuantization(d.src.ConfigJSON(), quantization)
}

func (d *diskCheckpoint) HashShard(ctx context.Context, f checkpoint.File, fresh bool, progress func(done int64)) (string, error) {
	return d.cache.Digest(ctx, f.Path, fresh, progress)
}
