package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"quire/capture/checkpoint"
)

// checkpointFiles is what lies in the directory.
type checkpointFiles struct {
	read    func(name string) ([]byte, error)
	names   []string // of all files
	shards  []*shard
	tensors map[string]*tensor
}

func (c *checkpointFiles) has(name string) bool { return slices.Contains(c.names, name) }

func (c *checkpointFiles) close() error {
	var errs []error
	for _, s := range c.shards {
		errs = append(errs, s.file.Close())
	}
	return errors.Join(errs...)
}

const indexName = "model.safetensors.index.json"

var shardName = regexp.MustCompile(`-(\d{5})-of-(\d{5})\.safetensors$`)

// openFiles opens every shard and holds them against the index. Files that no model loader reads (logits of fixtures,
// adapters) are left out when an index or model.safetensors says what belongs to the model.
func openFiles(dir string, c *collector) *checkpointFiles {
	f := &checkpointFiles{tensors: map[string]*tensor{}, read: func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(dir, name)) }}
	entries, err := os.ReadDir(dir)
	if err != nil {
		c.add("E_DIR", dir, "%v", err)
		return f
	}
	for _, e := range entries {
		if !e.IsDir() {
			f.names = append(f.names, e.Name())
		}
	}
	index := f.readIndex(c)
	var files []string
	for _, n := range f.names {
		if strings.HasSuffix(n, ".safetensors") {
			files = append(files, n)
		}
		if strings.HasPrefix(n, "pytorch_model") && strings.HasSuffix(n, ".bin") {
			c.add("E_CODE_FILES", n, "older loaders take pickle files first")
		}
	}
	switch {
	case len(index) > 0:
		listed := map[string]bool{}
		for _, shard := range index {
			listed[shard] = true
		}
		for s := range listed {
			if !slices.Contains(files, s) {
				c.add("E_INDEX", s, "the index names this file, which is not here")
			}
		}
		// What the index does not name still counts when it is named like a shard: loaders glob.
		files = slices.DeleteFunc(files, func(n string) bool { return !listed[n] && !strings.HasPrefix(n, "model") })
	case slices.Contains(files, "model.safetensors"):
		files = slices.DeleteFunc(files, func(n string) bool { return n != "model.safetensors" && !shardName.MatchString(n) })
	}
	if len(files) == 0 && len(index) == 0 {
		c.add("E_DIR", dir, "no *.safetensors file here")
		return f
	}
	counts := map[string]int{}
	for _, n := range files {
		if m := shardName.FindStringSubmatch(n); m != nil {
			counts[strings.TrimSuffix(n, m[0])+" "+m[2]]++
		}
		s, err := openShard(filepath.Join(dir, n), n)
		if err != nil {
			addDamage(c, n, err)
			continue
		}
		f.shards = append(f.shards, s)
		if len(s.tensors) > 0 && s.metadata["format"] != "pt" {
			c.add("E_METADATA", n, "format is %q", s.metadata["format"])
		}
		for _, t := range s.tensors {
			if first, ok := f.tensors[t.Name]; ok {
				c.add("E_INDEX_TWICE", t.Name, "in %s and in %s", first.shard.name, n)
				continue
			}
			f.tensors[t.Name] = t
		}
	}
	for k, have := range counts {
		base, of, _ := strings.Cut(k, " ")
		if want, err := strconv.Atoi(of); err == nil && want != have {
			c.add("E_SHARD_COUNT", base, "names say %d shards, %d are here", want, have)
		}
	}
	f.checkIndex(index, len(files), c)
	if !slices.ContainsFunc(f.names, func(n string) bool {
		return strings.HasPrefix(n, "tokenizer") || n == "vocab.json" || strings.HasSuffix(n, ".tiktoken") || strings.HasSuffix(n, ".model")
	}) {
		c.add("E_SIDE_FILE", dir, "no tokenizer.json, tokenizer.model or vocab.json")
	}
	return f
}

// addDamage turns what the reader says of a file into findings.
func addDamage(c *collector, name string, err error) {
	var many checkpoint.Errors
	var one *checkpoint.Error
	switch {
	case errors.As(err, &many):
	case errors.As(err, &one):
		many = checkpoint.Errors{one}
	default:
		c.add("E_FILE", name, "%v", err)
	}
	for _, e := range many {
		what := e.What
		if e.Err != nil {
			what += ": " + e.Err.Error()
		}
		if e.Where.Tensor != "" {
			what = e.Where.Tensor + ": " + what
		}
		c.add("E_FILE", name, "%s (%s)", what, e.Code)
	}
}

// readIndex gives tensor → shard, nil when there is no usable index.
func (f *checkpointFiles) readIndex(c *collector) map[string]string {
	if !f.has(indexName) {
		return nil
	}
	raw, err := f.read(indexName)
	if err != nil {
		c.add("E_INDEX", indexName, "%v", err)
		return nil
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(raw, &index); err != nil {
		c.add("E_INDEX", indexName, "%v", err)
		return nil
	}
	if len(index.WeightMap) == 0 {
		c.add("E_INDEX", indexName, "weight_map is empty or missing")
	}
	return index.WeightMap
}

// checkIndex compares index and headers in both directions.
func (f *checkpointFiles) checkIndex(index map[string]string, files int, c *collector) {
	if len(index) == 0 {
		if files > 1 && !f.has(indexName) {
			c.add("E_INDEX_NONE", indexName, "%d shards without an index", files)
		}
		return
	}
	opened := map[string]bool{}
	var total int64
	for _, s := range f.shards {
		opened[s.name] = true
	}
	for name, shard := range index {
		t, ok := f.tensors[name]
		switch {
		case !ok && opened[shard]:
			c.add("E_INDEX_GHOST", name, "the index says %s, where it is not", shard)
		case ok && t.shard.name != shard:
			c.add("E_INDEX_GHOST", name, "the index says %s, it is in %s", shard, t.shard.name)
		}
	}
	for name, t := range f.tensors {
		total += t.size
		if _, ok := index[name]; !ok {
			c.add("E_INDEX_MISSING", name, "in %s", t.shard.name)
		}
	}
	if len(f.shards) < files {
		return // a shard is damaged; its size is unknown
	}
	raw, err := f.read(indexName)
	if err != nil {
		return
	}
	var head struct {
		Metadata struct {
			TotalSize json.Number `json:"total_size"`
		} `json:"metadata"`
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if dec.Decode(&head) == nil && head.Metadata.TotalSize != "" {
		if n, err := head.Metadata.TotalSize.Int64(); err != nil || n != total {
			c.add("E_INDEX_SIZE", indexName, "total_size is %s, the tensors have %d bytes", head.Metadata.TotalSize, total)
		}
	}
}
