package checkpoint_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"quire/capture/checkpoint"
)

// BenchmarkDecode reads one 2048 × 2048 expert matrix per format into bf16; the rate is of decoded elements. The first
// case, a plain bf16 tensor, is what the others are measured against.
func BenchmarkDecode(b *testing.B) {
	const n = 2048
	zero := func(d checkpoint.DType, name string, shape ...int) checkpoint.TensorSpec {
		return checkpoint.TensorSpec{Name: name, DType: d, Shape: shape}
	}
	for _, c := range []struct {
		name, tensor, config string
		specs                []checkpoint.TensorSpec
	}{
		{"plain", "m.weight", `{}`, []checkpoint.TensorSpec{zero("BF16", "m.weight", n, n)}},
		{"fp8-block", "m.weight", `{}`, []checkpoint.TensorSpec{zero("F8_E4M3", "m.weight", n, n), zero("F32", "m.weight_scale_inv", n/128, n/128)}},
		{"mxfp4-transposed", "m", `{}`, []checkpoint.TensorSpec{zero("U8", "m_blocks", 1, n, n/32, 16), zero("U8", "m_scales", 1, n, n/32)}},
		{"pack-quantized", "m.weight", `{"quantization_config":{"bits":4,"group_size":32}}`, []checkpoint.TensorSpec{zero("I32", "m.weight_packed", n, n/8), zero("BF16", "m.weight_scale", n, n/32)}},
		{"gptq", "m.weight", `{"quantization_config":{"quant_method":"gptq","bits":4,"group_size":128}}`, []checkpoint.TensorSpec{zero("I32", "m.qweight", n/8, n), zero("I32", "m.qzeros", n/128, n/8), zero("F16", "m.scales", n/128, n)}},
	} {
		b.Run(c.name, func(b *testing.B) {
			dir := b.TempDir()
			w, err := checkpoint.CreateShard(dir, "model.safetensors", c.specs)
			if err != nil {
				b.Fatal(err)
			}
			for _, s := range c.specs {
				size, _ := s.Bytes()
				if err := w.Write(s.Name, make([]byte, size)); err != nil {
					b.Fatal(err)
				}
			}
			if _, err := w.Close(); err != nil {
				b.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(c.config), 0o644); err != nil {
				b.Fatal(err)
			}
			src, err := checkpoint.Open(context.Background(), dir)
			if err != nil {
				b.Fatal(err)
			}
			defer src.Close()
			dst := make([]uint16, n*n)
			b.SetBytes(2 * n * n)
			for b.Loop() {
				if err := src.DecodeBF16(b.Context(), c.tensor, dst, 0); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
