package format_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"quire/capture/model"
	"quire/engine/format"
	"quire/kernels"
)

// decodedSource gives the decoded modules of a published checkpoint to the product's forward.
type decodedSource struct {
	config  []byte
	tensors map[string][]float32
	shapes  map[string][]int
}

func newDecodedSource(t *testing.T, dir string, modules map[string]*format.Module, plain map[string]format.TensorData) *decodedSource {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	// This test is about weights. Which spellings of the expert count a family reads is tested with the families.
	raw = bytes.Replace(raw, []byte(`"num_local_experts"`), []byte(`"num_experts"`), 1)
	s := &decodedSource{config: raw, tensors: map[string][]float32{}, shapes: map[string][]int{}}
	for n, m := range modules {
		w := make([]float32, m.Out*m.In)
		m.Dequantize(w)
		s.tensors[n+".weight"], s.shapes[n+".weight"] = w, []int{m.Out, m.In}
	}
	for n, d := range plain {
		s.tensors[n], s.shapes[n] = floats(t, d), d.Shape
	}
	return s
}

func (s *decodedSource) ConfigJSON() []byte { return s.config }

func (s *decodedSource) Logical() []model.Tensor {
	var out []model.Tensor
	for n, shape := range s.shapes {
		out = append(out, model.Tensor{Name: n, DType: "F32", Shape: shape})
	}
	slices.SortFunc(out, func(a, b model.Tensor) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func (s *decodedSource) ReadF32(_ context.Context, name string, dst []float32, off int64) error {
	t, ok := s.tensors[name]
	if !ok || off+int64(len(dst)) > int64(len(t)) {
		return fmt.Errorf("%s: no elements %d to %d", name, off, off+int64(len(dst)))
	}
	copy(dst, t[off:])
	return nil
}

func (s *decodedSource) ReadBF16(context.Context, string, []uint16, int64) error {
	return fmt.Errorf("this source is float32")
}

// forward gives the logits of one prompt.
func forward(ctx context.Context, r *model.Runner, layers int, ids []int32) ([]float32, error) {
	x, err := r.Embed(ctx, ids)
	if err != nil {
		return nil, err
	}
	for l := range layers {
		run, err := r.OpenLayer(ctx, l)
		if err != nil {
			return nil, err
		}
		span, err := run.NewSpan([]int{len(ids)}, x)
		for err == nil && !span.Done() {
			err = span.Advance(ctx)
		}
		if err == nil {
			x, err = span.Output()
		}
		run.Close()
		if err != nil {
			return nil, err
		}
	}
	head, err := r.OpenHead(ctx)
	if err != nil {
		return nil, err
	}
	logits := make([]float32, len(ids)*r.Model().Vocab)
	head.Logits(x, logits)
	return logits, nil
}

// TestPublishedThroughOurForward: the recorded logits of other tools' checkpoints, through the forward that quire
// calibrates with.
func TestPublishedThroughOurForward(t *testing.T) {
	ctx := context.Background()
	for _, c := range published {
		t.Run(c.dir, func(t *testing.T) {
			dir := shared(t, "fixtures", "quant", "checkpoints", c.dir)
			modules, plain := readPublished(t, dir, c.format, c.scheme)
			m, err := model.Open(ctx, newDecodedSource(t, dir, modules, plain), model.Options{Compute: model.F32})
			if err != nil {
				t.Fatal(err)
			}
			pool := kernels.NewPool(1)
			defer pool.Close()
			r := m.NewRunner(model.RunnerOptions{Pool: pool})
			record := readTensors(t, filepath.Join(dir, "logits.safetensors"))
			for _, p := range []string{"prompt0", "prompt1", "prompt2"} {
				got, err := forward(ctx, r, len(m.Layers), int32s(record[p+".tokens"]))
				if err != nil {
					t.Fatal(err)
				}
				worst := 0.0
				for i, v := range floats(t, record[p+".logits"]) {
					worst = max(worst, math.Abs(float64(got[i])-float64(v)))
				}
				if worst > 2e-3 {
					t.Errorf("%s: logits differ by %g", p, worst)
				}
				t.Logf("%s: largest difference %g", p, worst)
			}
		})
	}
}
