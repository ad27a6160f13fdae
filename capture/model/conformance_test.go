package model_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"quire/capture/model"
	"quire/kernels"
)

// conformance is the table of fixtures: tolerance of hidden states and logits (relative to the largest value) and absolute
// tolerance of router weights, both from fixtures/arch/README.md.
var conformance = []struct {
	name string
	tol  float64
	wtol float64
}{
	{"llama", 2e-5, 0}, {"qwen2", 2e-5, 0}, {"qwen3", 2e-5, 0}, {"mistral", 2e-5, 0}, {"phi3", 2e-5, 0}, {"gemma3_text", 2e-5, 0},
	{"mixtral", 2e-5, 2e-5}, {"mixtral_bf16_sharded", 2e-5, 2e-5}, {"qwen2_moe", 2e-5, 2e-5}, {"qwen3_moe", 2e-5, 2e-5},
	{"qwen3_moe_bf16_sharded", 2e-5, 1e-5}, {"olmoe", 2e-5, 2e-5}, {"phimoe", 2e-5, 1e-5}, {"granitemoe", 1e-5, 1e-5},
	{"dots1", 2e-5, 1e-5}, {"deepseek_v2", 3e-5, 2e-5}, {"deepseek_v3", 3e-5, 2e-5}, {"deepseek_v3_bf16_sharded", 6e-5, 2e-5},
	{"kimi_k2", 2e-5, 1e-5}, {"glm4_moe", 2e-5, 2e-5}, {"glm4_moe_lite", 2e-5, 1e-5}, {"minimax_m2", 1e-5, 1e-5},
	{"ernie4_5_moe", 2e-5, 1e-5}, {"hunyuan_v1_moe", 2e-5, 1e-5}, {"exaone_moe", 2e-5, 2e-5}, {"afmoe", 2e-5, 2e-5},
	{"cohere2_moe", 1e-5, 2e-5}, {"gpt_oss", 3e-5, 2e-5}, {"gpt_oss_bf16_sharded", 4e-5, 2e-5}, {"llama4", 2e-5, 1e-5},
}

// largest gives max|got-want| / max|want|.
func largest(got, want []float32) float64 {
	d, m := 0.0, 0.0
	for i := range min(len(want), len(got)) {
		d = max(d, math.Abs(float64(got[i])-float64(want[i])))
		m = max(m, math.Abs(float64(want[i])))
	}
	if len(got) != len(want) {
		return math.Inf(1)
	}
	if m == 0 {
		return d
	}
	return d / m
}

func widen(x kernels.Rows) []float32 {
	out := make([]float32, x.M*x.K)
	model.CopyF32(out, x)
	return out
}

// TestConformance runs every family's fixture and compares all that the reference implementation recorded.
func TestConformance(t *testing.T) {
	for _, f := range conformance {
		t.Run(f.name, func(t *testing.T) {
			src, want := fixture(t, f.name)
			m, err := model.Open(context.Background(), src, model.Options{})
			if err != nil {
				t.Fatal(err)
			}
			for p := range 3 {
				checkPrompt(t, m, want, p, f.tol, f.wtol)
			}
		})
	}
}

func checkPrompt(t *testing.T, m *model.Model, want map[string]entry, p int, tol, wtol float64) {
	t.Helper()
	ctx := context.Background()
	key := func(format string, a ...any) string { return fmt.Sprintf("p%d.", p) + fmt.Sprintf(format, a...) }
	same := func(k string, got []float32) {
		t.Helper()
		w, ok := want[k]
		if !ok {
			t.Fatalf("fixture lacks %s", k)
		}
		if d := largest(got, w.f32()); !(d <= tol) {
			t.Errorf("%s: relative difference %.2g > %.2g", k, d, tol)
		}
	}
	ids := want[key("input_ids")].i32()
	pool := kernels.NewPool(2)
	defer pool.Close()
	r := m.NewRunner(model.RunnerOptions{Pool: pool})
	x, err := r.Embed(ctx, ids)
	if err != nil {
		t.Fatal(err)
	}
	same(key("embed"), widen(x))
	seen := 0
	for i := range m.Layers {
		run, err := r.OpenLayer(ctx, i)
		if err != nil {
			t.Fatal(err)
		}
		s, err := run.NewSpan([]int{len(ids)}, x)
		if err != nil {
			t.Fatal(err)
		}
		for !s.Done() {
			st := run.Layer.Stages[s.Stage()]
			for _, site := range st.Sites {
				rows, err := s.Rows(site)
				if err != nil {
					t.Fatal(err)
				}
				for _, l := range site.Linears {
					if w, ok := want[key("in.%s", strings.TrimSuffix(l.Tensor(), ".weight"))]; ok {
						seen++
						if d := largest(widen(rows), w.f32()); !(d <= tol) {
							t.Errorf("input of %s: relative difference %.2g", l.Tensor(), d)
						}
					}
				}
			}
			if st.Block != nil {
				seen += checkBlock(t, m, run, s, want, key, tol, wtol)
			}
			if err := s.Advance(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if x, err = s.Output(); err != nil {
			t.Fatal(err)
		}
		same(key("hidden.%d", i), widen(x))
		run.Close()
	}
	h, err := r.OpenHead(ctx)
	if err != nil {
		t.Fatal(err)
	}
	logits := make([]float32, len(ids)*m.Vocab)
	h.Logits(x, logits)
	same(key("logits"), logits)
	same(key("final_norm"), widen(h.Normed(x)))
	recorded := 0
	for k := range want {
		if strings.HasPrefix(k, key("in.")) {
			recorded++
		}
	}
	if seen < recorded {
		t.Errorf("prompt %d: %d of %d recorded linear inputs were compared", p, seen, recorded)
	}
}

// checkBlock compares routing and expert rows; it gives the number of recorded inputs it compared.
func checkBlock(t *testing.T, m *model.Model, run *model.LayerRun, s *model.Span, want map[string]entry, key func(string, ...any) string, tol, wtol float64) int {
	t.Helper()
	ctx, i, seen := context.Background(), run.Layer.Index, 0
	r := s.Routing()
	if d := largest(r.Logits, want[key("router_logits.%d", i)].f32()); !(d <= 5*tol) {
		t.Errorf("layer %d: router logits differ by %.2g", i, d)
	}
	if !slices.Equal(r.Choice, want[key("router_topk.%d", i)].i32()) {
		t.Errorf("layer %d: router choice differs", i)
	}
	for j, w := range want[key("router_weights.%d", i)].f32() {
		if d := math.Abs(float64(w - r.Weight[j])); !(d <= wtol) {
			t.Errorf("layer %d: router weight %d is %v, want %v", i, j, r.Weight[j], w)
			break
		}
	}
	var buf, buf2 model.RowBuf
	for e := range run.Layer.Block.Experts {
		ids, _ := r.Native(e)
		if len(ids) == 0 {
			continue
		}
		if err := run.LoadExperts(ctx, e, e+1); err != nil {
			t.Fatal(err)
		}
		in, err := s.ExpertRows(&buf, e, ids)
		if err != nil {
			t.Fatal(err)
		}
		mid, err := s.ExpertMid(&buf2, e, in)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range run.Layer.Expert(e) {
			rows := in
			if l.Site.Name == model.SiteExpertMid {
				rows = mid
			}
			path := strings.TrimSuffix(l.Tensor(), ".weight")
			if l.Fused() {
				path = fmt.Sprintf("%s.%d", path, e)
			}
			w, ok := want[key("in.%s", path)]
			if !ok {
				continue
			}
			if l.Role != model.RoleUp || !l.Fused() { // gate and up share one fused entry
				seen++
			}
			if got := want[key("rows.%s", path)].i32(); !slices.Equal(got, ids) {
				t.Errorf("%s: rows %v, want %v", path, ids, got)
			}
			if d := largest(widen(rows), w.f32()); !(d <= tol) {
				t.Errorf("input of %s: relative difference %.2g", path, d)
			}
		}
		if err := s.AddExpert(e, mid); err != nil {
			t.Fatal(err)
		}
		run.UnloadExperts(e, e+1)
	}
	if site := run.Layer.Block.SharedMid; site != nil {
		mid, err := s.SharedMid(&buf)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range site.Linears {
			if w, ok := want[key("in.%s", strings.TrimSuffix(l.Tensor(), ".weight"))]; ok {
				seen++
				if d := largest(widen(mid), w.f32()); !(d <= tol) {
					t.Errorf("input of %s: relative difference %.2g", l.Tensor(), d)
				}
			}
		}
	}
	return seen
}

// TestBF16Bound holds compute: bf16 against the float32 recording. Site rows and weights have 8 bits of significand, so single
// values move by 2^-9; over the few layers of a fixture the residual stays within 3 % of its largest value. Dense families only:
// in a block, a router score near another's may choose another expert, which no bound on values covers.
func TestBF16Bound(t *testing.T) {
	for _, name := range []string{"llama", "qwen2", "qwen3", "mistral", "phi3", "gemma3_text"} {
		t.Run(name, func(t *testing.T) {
			src, want := fixture(t, name)
			m, err := model.Open(context.Background(), src, model.Options{Compute: model.BF16})
			if err != nil {
				t.Fatal(err)
			}
			for p := range 3 {
				ids := want[fmt.Sprintf("p%d.input_ids", p)].i32()
				got := final(t, m, [][]int32{ids}, how{threads: 1, together: 1})
				d := largest(got, want[fmt.Sprintf("p%d.hidden.%d", p, len(m.Layers)-1)].f32())
				t.Logf("prompt %d: %.3g", p, d)
				if !(d <= 0.03) || d == 0 {
					t.Errorf("prompt %d: relative difference %.3g", p, d)
				}
			}
		})
	}
}

// TestEveryFamilyHasAFixture: a family joins the table together with the recording that proves it.
func TestEveryFamilyHasAFixture(t *testing.T) {
	have := map[string]bool{}
	for _, f := range conformance {
		have[f.name] = true
	}
	for name, types := range model.Families() {
		if !have[name] {
			t.Errorf("family %s (%v) has no row in the conformance table", name, types)
		}
	}
}
