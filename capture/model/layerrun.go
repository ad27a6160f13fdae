package model

import (
	"context"
	"fmt"

	"quire/kernels"
	"quire/kernels/dtype"
)

// LayerRun is one layer with the weights that are in memory now. It and its spans belong to one goroutine.
type LayerRun struct {
	Layer *Layer
	// Override is asked for every linear that is loaded. It fills dst [out,in] with the weight to act and returns true,
	// or returns false for the source's. With it a caller that drops and reloads experts keeps their replacements.
	Override func(ctx context.Context, l *Linear, dst []float32) (bool, error)

	r      *Runner
	m      *Model
	mix    mixer
	small  map[string][]float32
	w      map[*Linear]*kernels.Weight
	bias   map[*Linear][]float32
	spare  []*kernels.Weight // packed memory of unloaded experts, reused
	tables map[int]*ropeTable
	raw    []uint16
	raw32  []float32
	closed bool
	bufs   [2]RowBuf // gathered rows and middle rows of expert groups
	hid    []float32 // gate and up outputs of expert groups
	out    []float32 // outputs of expert groups
}

// OpenLayer reads the layer's norms, router, attention and dense or shared feed-forward weights; routed experts are
// loaded by LoadExperts. Close frees them.
func (r *Runner) OpenLayer(ctx context.Context, layer int) (*LayerRun, error) {
	return r.OpenLayerWith(ctx, layer, nil)
}

// OpenLayerWith is OpenLayer with Override set from the first weight on.
func (r *Runner) OpenLayerWith(ctx context.Context, layer int, override func(ctx context.Context, l *Linear, dst []float32) (bool, error)) (*LayerRun, error) {
	l := r.m.Layers[layer]
	run := &LayerRun{Layer: l, Override: override, r: r, m: r.m, small: map[string][]float32{}, w: map[*Linear]*kernels.Weight{}, bias: map[*Linear][]float32{}, tables: map[int]*ropeTable{}}
	for _, name := range l.small {
		v := make([]float32, r.m.tensor[name].Elements())
		if err := r.m.src.ReadF32(ctx, name, v, 0); err != nil {
			return nil, err
		}
		if !kernels.AllFinite(v) {
			return nil, nonFinite(name, l.Index, v, len(v))
		}
		run.small[name] = v
	}
	for _, lin := range l.linears {
		if lin.Expert < 0 {
			if err := run.load(ctx, lin); err != nil {
				return nil, err
			}
		}
	}
	var err error
	run.mix, err = l.arch.mixer.newMixer(run)
	return run, err
}

// Close drops all weights. Spans must not be advanced afterwards.
func (run *LayerRun) Close() {
	run.w, run.bias, run.small, run.spare, run.tables, run.raw, run.raw32 = nil, nil, nil, nil, nil, nil, nil
	run.closed = true
}

// LoadExperts reads the weights of experts lo..hi-1 that are not there yet.
func (run *LayerRun) LoadExperts(ctx context.Context, lo, hi int) error {
	for e := lo; e < hi; e++ {
		for _, l := range run.Layer.Expert(e) {
			if run.w[l] != nil {
				continue
			}
			if err := run.load(ctx, l); err != nil {
				return err
			}
		}
	}
	return nil
}

// UnloadExperts drops the weights of experts lo..hi-1, replaced ones too.
func (run *LayerRun) UnloadExperts(lo, hi int) {
	for e := lo; e < hi; e++ {
		for _, l := range run.Layer.Expert(e) {
			if w := run.w[l]; w != nil && len(run.spare) < 8 {
				run.spare = append(run.spare, w)
			}
			delete(run.w, l)
			delete(run.bias, l)
		}
	}
}

// Loaded reports whether all linears of an expert are in memory.
func (run *LayerRun) Loaded(expert int) bool {
	for _, l := range run.Layer.Expert(expert) {
		if run.w[l] == nil {
			return false
		}
	}
	return true
}

// Original reads the source weight of a linear as float32 [out,in].
func (run *LayerRun) Original(ctx context.Context, l *Linear, dst []float32) error {
	return run.m.ReadLinear(ctx, l, dst)
}

// Replace makes w [out,in] the weight of l from now on; in BF16 it acts rounded to bf16.
func (run *LayerRun) Replace(l *Linear, w []float32) error {
	if len(w) < l.Out*l.In {
		return &Error{Kind: ErrInput, What: fmt.Sprintf("%d elements for [%d,%d]", len(w), l.Out, l.In), Where: Where{Tensor: l.Module, Layer: l.Layer, Row: -1}}
	}
	w = w[:l.Out*l.In]
	if !kernels.AllFinite(w) {
		return nonFinite(l.Module, l.Layer, w, l.In)
	}
	if run.m.Compute == BF16 {
		run.raw = grow(run.raw, len(w))
		dtype.EncodeBF16(run.raw, w)
		run.w[l] = kernels.PackBF16(run.reuse(l), run.raw, l.Out, l.In)
		return nil
	}
	run.w[l] = kernels.PackF32(run.reuse(l), w, l.Out, l.In)
	return nil
}

func (run *LayerRun) reuse(l *Linear) *kernels.Weight {
	if w := run.w[l]; w != nil {
		return w
	}
	if n := len(run.spare); n > 0 {
		w := run.spare[n-1]
		run.spare = run.spare[:n-1]
		return w
	}
	return nil
}

// Weight gives the packed weight that acts now, nil when it is not loaded.
func (run *LayerRun) Weight(l *Linear) *kernels.Weight { return run.w[l] }

// load packs the weight and reads the bias of l.
func (run *LayerRun) load(ctx context.Context, l *Linear) error {
	if l.HasBias() {
		b := make([]float32, l.Out)
		if err := run.m.ReadBias(ctx, l, b); err != nil {
			return err
		}
		run.bias[l] = b
	}
	if run.Override != nil {
		run.raw32 = grow(run.raw32, l.Out*l.In)
		ok, err := run.Override(ctx, l, run.raw32)
		if err != nil {
			return err
		}
		if ok {
			return run.Replace(l, run.raw32)
		}
	}
	w, err := run.m.pack(ctx, l, run.reuse(l), &run.raw, &run.raw32)
	if err != nil {
		return err
	}
	run.w[l] = w
	return nil
}

// bf16Weight reports whether l is packed as bf16: always when that is exact, in BF16 for every linear whose output is
// not the router's.
func (m *Model) bf16Weight(l *Linear) bool {
	if !m.tensor[l.tensor].Decoded && l.DType == "BF16" {
		return true
	}
	return m.Compute == BF16 && l.Role != RoleRouter && l.Role != RoleSharedGate
}

func (m *Model) pack(ctx context.Context, l *Linear, dst *kernels.Weight, raw *[]uint16, raw32 *[]float32) (*kernels.Weight, error) {
	n := l.Out * l.In
	if m.bf16Weight(l) {
		*raw = grow(*raw, n)
		if err := m.readLinearBF16(ctx, l, *raw); err != nil {
			return nil, err
		}
		return kernels.PackBF16(dst, *raw, l.Out, l.In), nil
	}
	*raw32 = grow(*raw32, n)
	if err := m.ReadLinear(ctx, l, *raw32); err != nil {
		return nil, err
	}
	return kernels.PackF32(dst, *raw32, l.Out, l.In), nil
}

// ReadLinear reads the source weight of a linear as float32 [out,in], out of whatever layout it is stored in. A
// non-finite value is an error.
func (m *Model) ReadLinear(ctx context.Context, l *Linear, dst []float32) error {
	dst = dst[:l.Out*l.In]
	if l.layout.si == 1 && l.layout.so == int64(l.In) {
		if err := m.src.ReadF32(ctx, l.tensor, dst, l.layout.base); err != nil {
			return err
		}
	} else {
		buf := make([]float32, l.layout.span)
		if err := m.src.ReadF32(ctx, l.tensor, buf, l.layout.base); err != nil {
			return err
		}
		gather(dst, buf, l)
	}
	if !kernels.AllFinite(dst) {
		return nonFinite(l.tensor, l.Layer, dst, l.In)
	}
	return nil
}

func (m *Model) readLinearBF16(ctx context.Context, l *Linear, dst []uint16) error {
	dst = dst[:l.Out*l.In]
	if l.layout.si == 1 && l.layout.so == int64(l.In) {
		if err := m.src.ReadBF16(ctx, l.tensor, dst, l.layout.base); err != nil {
			return err
		}
	} else {
		buf := make([]uint16, l.layout.span)
		if err := m.src.ReadBF16(ctx, l.tensor, buf, l.layout.base); err != nil {
			return err
		}
		gather(dst, buf, l)
	}
	for i, v := range dst {
		if v&0x7f80 == 0x7f80 {
			return &Error{Kind: ErrNonFinite, What: fmt.Sprintf("column %d", i%l.In), Where: Where{Tensor: l.tensor, Layer: l.Layer, Row: i / l.In}, Try: tries[ErrNonFinite]}
		}
	}
	return nil
}

// gather copies a strided matrix into [out,in], in tiles that keep both sides in cache.
func gather[T any](dst, src []T, l *Linear) {
	const tile = 32
	so, si := int(l.layout.so), int(l.layout.si)
	for o0 := 0; o0 < l.Out; o0 += tile {
		for i0 := 0; i0 < l.In; i0 += tile {
			for o := o0; o < min(o0+tile, l.Out); o++ {
				for i := i0; i < min(i0+tile, l.In); i++ {
					dst[o*l.In+i] = src[o*so+i*si]
				}
			}
		}
	}
}

// ReadBias reads the bias of a linear as float32 [out].
func (m *Model) ReadBias(ctx context.Context, l *Linear, dst []float32) error {
	dst = dst[:l.Out]
	if l.biasLay.so == 1 {
		if err := m.src.ReadF32(ctx, l.bias, dst, l.biasLay.base); err != nil {
			return err
		}
	} else {
		buf := make([]float32, int64(l.Out-1)*l.biasLay.so+1)
		if err := m.src.ReadF32(ctx, l.bias, buf, l.biasLay.base); err != nil {
			return err
		}
		for o := range dst {
			dst[o] = buf[int64(o)*l.biasLay.so]
		}
	}
	if !kernels.AllFinite(dst) {
		return nonFinite(l.bias, l.Layer, dst, l.Out)
	}
	return nil
}

func nonFinite(tensor string, layer int, v []float32, cols int) *Error {
	at := 0
	for i, x := range v {
		if x-x != 0 {
			at = i
			break
		}
	}
	return &Error{Kind: ErrNonFinite, What: fmt.Sprintf("column %d is %v", at%cols, v[at]), Where: Where{Tensor: tensor, Layer: layer, Row: at / cols}, Try: tries[ErrNonFinite]}
}

// grow gives a slice of n elements, keeping memory where it fits.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
