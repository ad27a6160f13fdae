// Command decisions writes what a finished run decided, as its ledger has it, into one safetensors file, so that a
// reader of another tool can be held against it (.ci/interop).
//
// Usage: go run ./internal/decisions RUN DIR
//
// DIR/decisions.safetensors holds, for each quantized module M: M.codes U8 [out,in], M.scales F32 [out,G], M.zeros U8
// [out,G] and M.gidx I32 [in]. Scales are as stored; every payload is checked against its event's SHA-256. Codes are
// unsigned, a weight is scale·(code − zero).
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"math"
	"os"
	"sort"

	"quire/capture/checkpoint"
	"quire/engine"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: decisions RUN DIR")
	}
	if err := write(context.Background(), os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

type tensor struct {
	spec checkpoint.TensorSpec
	data []byte
}

func write(ctx context.Context, run, dir string) error {
	v, err := engine.OpenRun(run)
	if err != nil {
		return err
	}
	defer v.Close()
	var all []tensor
	for i := range v.Modules {
		m := &v.Modules[i]
		d, ok, err := engine.ReadDecision(ctx, v, m.Layer, m.Module, m.Out, m.In, true)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Module, err)
		}
		if ok {
			all = append(all, tensors(m, d)...)
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].spec.Name < all[j].spec.Name })
	specs := make([]checkpoint.TensorSpec, len(all))
	for i, t := range all {
		specs[i] = t.spec
	}
	w, err := checkpoint.CreateShard(dir, "decisions.safetensors", specs)
	if err != nil {
		return err
	}
	for _, t := range all {
		if err := w.Write(t.spec.Name, t.data); err != nil {
			w.Abort()
			return err
		}
	}
	_, err = w.Close()
	return err
}

func tensors(m *engine.ModulePlan, d *engine.Decided) []tensor {
	groups := len(d.Groups.Scales) / m.Out
	var scales, gidx []byte
	for _, s := range d.Groups.Scales {
		scales = binary.LittleEndian.AppendUint32(scales, math.Float32bits(s))
	}
	zeros := d.Groups.Zeros
	if d.Record.Scheme.Sym {
		zeros = make([]uint8, len(d.Groups.Scales))
		for i := range zeros {
			zeros[i] = 1 << (d.Record.Scheme.Bits - 1)
		}
	}
	for i := range m.In {
		g := 0
		switch {
		case d.GIdx != nil:
			g = int(d.GIdx[i])
		case d.Record.Scheme.GroupSize > 0:
			g = i / d.Record.Scheme.GroupSize
		}
		gidx = binary.LittleEndian.AppendUint32(gidx, uint32(g))
	}
	named := func(leaf string, t checkpoint.DType, data []byte, shape ...int) tensor {
		return tensor{checkpoint.TensorSpec{Name: m.Module + "." + leaf, DType: t, Shape: shape}, data}
	}
	return []tensor{
		named("codes", "U8", d.Codes, m.Out, m.In), named("scales", "F32", scales, m.Out, groups),
		named("zeros", "U8", zeros, m.Out, groups), named("gidx", "I32", gidx, m.In),
	}
}
