package engine

import (
	"fmt"
	"sort"

	"quire/capture/model"
)

// OutTensor is one tensor of the result as its header will state it.
type OutTensor struct {
	Name  string `json:"name"`
	DType string `json:"dtype"`
	Shape []int  `json:"shape"`
	Bytes int64  `json:"bytes"`
	// Module is the quantized linear that the tensor codes; "" for a tensor taken from the source.
	Module string `json:"module,omitempty"`
	// Source is the logical source tensor that is copied or decoded; "" for a quantized one.
	Source string `json:"source,omitempty"`
	Layer  int    `json:"layer"` // -1: outside the layers

	bias *model.Linear // of a bias cut out of a fused tensor
}

// ShardPlan is one output file.
type ShardPlan struct {
	File    string      `json:"file"`
	Layer   int         `json:"layer"` // -1: outside the layers
	Bytes   int64       `json:"bytes"` // tensor data
	Tensors []OutTensor `json:"tensors"`
}

// maxHeaderBytes bounds the JSON header of a written shard; a tensor's entry is taken to need its name and 160 bytes.
const maxHeaderBytes = 50 << 20

// planShards deals tensors into files: a file holds tensors of one layer only, in order of name, and at most limit bytes
// unless a single tensor is larger. Layers come in ascending order, what lies outside them last.
func planShards(tensors []OutTensor, limit int64) []ShardPlan {
	sorted := append([]OutTensor(nil), tensors...)
	sort.Slice(sorted, func(i, j int) bool {
		a, b := sorted[i], sorted[j]
		if a.Layer != b.Layer {
			return b.Layer == -1 || a.Layer != -1 && a.Layer < b.Layer
		}
		return a.Name < b.Name
	})
	var shards []ShardPlan
	header := 0
	for i, t := range sorted {
		entry := len(t.Name) + 160
		last := len(shards) - 1
		if i == 0 || shards[last].Layer != t.Layer || shards[last].Bytes+t.Bytes > limit || header+entry > maxHeaderBytes {
			shards = append(shards, ShardPlan{Layer: t.Layer})
			last++
			header = 0
		}
		shards[last].Tensors = append(shards[last].Tensors, t)
		shards[last].Bytes += t.Bytes
		header += entry
	}
	for i := range shards {
		shards[i].File = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))
	}
	return shards
}
