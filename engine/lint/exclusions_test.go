package lint_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"quire/engine/format"
	"quire/engine/lint"
)

// TestDerivedExclusions draws which fused sets of a checkpoint are left alone and which get other bits, writes the config
// that engine/format derives, and evaluates it as every loader does: what it says must be what was written, except where
// a loader has no way to be told.
func TestDerivedExclusions(t *testing.T) {
	rounds := 25
	src := rand.New(rand.NewPCG(5, 13))
	for _, name := range []string{"compressed-tensors", "compressed-tensors-w8a8", "gptq", "gptq_v2", "awq"} {
		for round := range rounds {
			o := buildOptions{format: name, scheme: sym4, mixed: map[string]format.Scheme{}}
			switch name {
			case "compressed-tensors-w8a8":
				o.scheme = format.Scheme{Bits: 8, GroupSize: -1, Sym: true}
			case "awq":
				o.scheme = asym4
			}
			mixes := name == "compressed-tensors" || name == "gptq" || name == "gptq_v2"
			if src.IntN(4) == 0 {
				o.leaves = []string{"w1", "w3", "w2"}
			}
			want := map[string]bool{}
			expertSchemes := map[int]bool{}
			var layerBits []int // of experts
			quantized := 0
			for l := range layers {
				for _, set := range setsOf(l, o.leaves) {
					isExperts := len(set) > 3
					choice := src.IntN(4)
					switch {
					case choice == 0:
						o.left = append(o.left, set...)
						if isExperts && (name == "gptq" || name == "gptq_v2") {
							want["E_IGNORE_MISSING sglang"] = true // no rule reaches its fused experts
						}
						continue
					case choice == 1 && mixes:
						for _, n := range set {
							o.mixed[n] = format.Scheme{Bits: 8, GroupSize: 32, Sym: true}
						}
						if isExperts {
							expertSchemes[8] = true
							layerBits = append(layerBits, 8)
						}
					case isExperts:
						expertSchemes[4] = true
						layerBits = append(layerBits, 4)
					}
					quantized++
				}
			}
			if quantized == 0 {
				continue
			}
			if name == "compressed-tensors" && len(expertSchemes) > 1 {
				want["E_EXPERT_SCHEME transformers"] = true // one scheme for all experts
				want["E_TARGET_LINEAR sglang"] = true       // and one target
			}
			b := newBuild(t, o)
			r := run(t, b.write(t), lint.Options{})
			var wantList []string
			for w := range want {
				wantList = append(wantList, w)
			}
			slices.Sort(wantList)
			if got := codes(r); !slices.Equal(got, wantList) {
				t.Errorf("%s, round %d: findings %v, want %v; left %v; experts %v", name, round, got, wantList, o.left, layerBits)
				for _, f := range r.Findings {
					t.Logf("%s %s %s: %s", f.Code, f.Profile, f.Subject, f.Message)
				}
				t.Logf("%s", mustJSON(t, b.quant))
				return
			}
		}
	}
}

// setsOf lists what loaders fuse in a layer.
func setsOf(l int, leaves []string) [][]string {
	if leaves == nil {
		leaves = []string{"gate_proj", "up_proj", "down_proj"}
	}
	p := fmt.Sprintf("model.layers.%d.", l)
	sets := [][]string{{p + "self_attn.q_proj", p + "self_attn.k_proj", p + "self_attn.v_proj"}, {p + "self_attn.o_proj"}}
	var all []string
	for e := range experts {
		for _, n := range leaves {
			all = append(all, fmt.Sprintf("%smlp.experts.%d.%s", p, e, n))
		}
	}
	return append(sets, all)
}
