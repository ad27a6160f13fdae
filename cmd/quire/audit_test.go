package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quire/capture/checkpoint"
	"quire/engine"
)

// trailLine is what the test reads of the last line of `audit RUN MODULE --json`.
type trailLine struct {
	Type  string `json:"type"`
	Scale struct {
		Bits string  `json:"bits"`
		Lo   float64 `json:"lo"`
		Hi   float64 `json:"hi"`
	} `json:"scale"`
	Record     engine.DecisionRecord `json:"record"`
	Statistics []struct {
		Record  engine.StatisticRecord `json:"record"`
		Batches []struct {
			Rows    int64
			Samples []int
		} `json:"batches"`
	} `json:"statistics"`
	Sources []struct{ Key, Digest string } `json:"sources"`
	Samples []struct{ File, Fate string }  `json:"samples"`
}

// TestAuditOfEveryModule asks the command line about every module of a finished run. A column loop of its own, in float64 from the
// stored statistic, the source weight and the recorded order and damping, arrives at the printed ranges and at the stored codes; the
// printed ranges give the stored bits of the scales.
func TestAuditOfEveryModule(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dir := bed(t)
	out := filepath.Join(dir, "out")
	exit, _, stderr := quire("run", filepath.Join(dir, "demo"), "-o", out, "--group-size", "32", "--block-size", "32", "--calibration", filepath.Join(dir, "tokens", "self_generated512.u16"),
		"--samples", "4", "--seq-len", "60", "--min-rows", "48", "--retain", "all", "--quiet", `--dynamic=-:layers\.[123]\.`)
	require.Equal(t, 0, exit, stderr)
	_, list, _ := quire("audit", out+".run", "--json")
	v, err := engine.OpenRun(out + ".run")
	require.NoError(t, err)
	defer v.Close()
	source, err := checkpoint.OpenShard(filepath.Join(dir, "demo", "model.safetensors"))
	require.NoError(t, err)
	defer source.Close()

	modules, fallbacks, solved, codes, ties := 0, 0, 0, 0, 0
	for _, line := range strings.Split(strings.TrimSpace(list), "\n") {
		var m struct{ Type, Module string }
		require.NoError(t, json.Unmarshal([]byte(line), &m))
		if m.Type != "module" {
			continue
		}
		modules++
		e, ok, err := v.Get(engine.KeyDecision(0, m.Module))
		require.NoError(t, err)
		require.True(t, ok)
		var rec engine.DecisionRecord
		require.NoError(t, json.Unmarshal(e.Record, &rec))
		if rec.Fallback != "" {
			fallbacks++
		}
		s := rec.Solver
		groups := s.In / s.GroupSize
		w := sourceWeight(t, source, m.Module)
		lo, hi := rangesOfRTN(w, s.Out, s.In, s.GroupSize)
		if rec.Method == "gptq" {
			solved++
			require.Empty(t, s.Dead)
			require.Equal(t, s.GroupSize, s.Block)
			d, _, err := engine.ReadDecision(ctx, v, 0, m.Module, s.Out, s.In, true)
			require.NoError(t, err)
			c := column{t: t, out: s.Out, in: s.In, group: s.GroupSize, perm: d.Perm, scales: d.Groups.Scales, codes: d.Codes, lo: lo, hi: hi}
			c.loop(w, dampedInverseFactor(t, statisticOf(ctx, t, v, &rec), s.In, d.Perm, s.Damping.Share))
			codes, ties = codes+len(d.Codes), ties+c.ties
		}
		for _, at := range [][2]int{{0, 0}, {s.Out / 3, groups - 1}, {s.Out - 1, groups / 2}} {
			exit, stdout, stderr := quire("audit", out+".run", m.Module, "--channel", strconv.Itoa(at[0]), "--group", strconv.Itoa(at[1]), "--json")
			require.Equal(t, 0, exit, stderr)
			lines := strings.Split(strings.TrimSpace(stdout), "\n")
			var a trailLine
			require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &a))
			require.Equal(t, "result", a.Type)
			i := at[0]*groups + at[1]
			tol := 1e-4 * (hi[i] - lo[i])
			require.InDelta(t, lo[i], a.Scale.Lo, tol, "%s %v", m.Module, at)
			require.InDelta(t, hi[i], a.Scale.Hi, tol, "%s %v", m.Module, at)
			// The range gives the scale: 2·absmax/15, rounded to the model's bfloat16.
			u := math.Float32bits(2 * float32(max(-a.Scale.Lo, a.Scale.Hi)) / 15)
			u = (u + 0x7fff + u>>16&1) &^ 0xffff
			require.Equal(t, u, bitsOf(t, a.Scale.Bits), "%s %v", m.Module, at)
			require.NotEmpty(t, a.Sources)
			require.NotEmpty(t, a.Samples)
			require.NotEmpty(t, a.Statistics)
			for _, st := range a.Statistics {
				var rows int64
				for _, b := range st.Batches {
					rows += b.Rows
					require.NotEmpty(t, b.Samples)
				}
				require.Equal(t, st.Record.Rows, rows)
			}
		}
	}
	require.Equal(t, 28, modules)
	require.Positive(t, fallbacks)
	require.Greater(t, solved, 20)
	require.Less(t, float64(ties), 1e-3*float64(codes), "codes on the other side of a tie")
	t.Logf("%d modules (%d by fallback), %d solved again: ranges within 1e-4 of the group's width, %d codes of which %d at a tie", modules, fallbacks, solved, codes, ties)
}

func bitsOf(t *testing.T, hex string) uint32 {
	u, err := strconv.ParseUint(hex, 16, 32)
	require.NoError(t, err)
	return uint32(u)
}

// sourceWeight reads a bfloat16 weight [out,in].
func sourceWeight(t *testing.T, sh *checkpoint.Shard, module string) []float64 {
	for _, x := range sh.Tensors() {
		if x.Name == module+".weight" {
			b := make([]byte, x.Bytes())
			require.NoError(t, sh.ReadAt(x, b, 0))
			w := make([]float64, len(b)/2)
			for i := range w {
				w[i] = float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[2*i:])) << 16))
			}
			return w
		}
	}
	t.Fatalf("no weight of %s", module)
	return nil
}

// statisticOf is the matrix [in,in] that a decision used: the mean 2/rows·XᵀX, or the blend of two.
func statisticOf(ctx context.Context, t *testing.T, v *engine.RunView, rec *engine.DecisionRecord) []float64 {
	n := rec.Solver.In
	read := func(key string) ([]float64, float64) {
		e, ok, err := v.Get(key)
		require.NoError(t, err)
		require.True(t, ok, key)
		var st engine.StatisticRecord
		require.NoError(t, json.Unmarshal(e.Record, &st))
		h := make([]float64, n*n)
		if st.Rows == 0 {
			return h, 0
		}
		b, err := v.ReadPayload(ctx, e, "xtx")
		require.NoError(t, err)
		for i := range n {
			for j := i; j < n; j++ {
				x := float64(math.Float32frombits(binary.LittleEndian.Uint32(b))) * 2 / float64(st.Rows)
				h[i*n+j], h[j*n+i] = x, x
				b = b[4:]
			}
		}
		return h, float64(st.Rows)
	}
	if rec.HessianAll == "" {
		h, _ := read(rec.HessianKey)
		return h
	}
	own, rows := read(rec.HessianKey)
	all, _ := read(rec.HessianAll)
	for i := range own {
		own[i] = (rows*own[i] + rec.Treatment.Kappa*all[i]) / (rows + rec.Treatment.Kappa)
	}
	return own
}

// dampedInverseFactor is U [n,n] in visiting order with (H + share·mean·I)⁻¹ = UᵀU, by Gauss-Jordan and the textbook's Cholesky.
func dampedInverseFactor(t *testing.T, h []float64, n int, perm []int32, share float64) []float64 {
	mean := 0.0
	for i := range n {
		mean += h[i*n+i] / float64(n)
	}
	a, inv := make([]float64, n*n), make([]float64, n*n)
	for i := range n {
		for j := range n {
			a[i*n+j] = h[columnAt(perm, i)*n+columnAt(perm, j)]
		}
		a[i*n+i] += share * mean
		inv[i*n+i] = 1
	}
	for i := range n {
		p := a[i*n+i]
		require.Positive(t, p)
		for r := range n {
			if r == i {
				continue
			}
			f := a[r*n+i] / p
			for j := range n {
				a[r*n+j] -= f * a[i*n+j]
				inv[r*n+j] -= f * inv[i*n+j]
			}
		}
		for j := range n {
			a[i*n+j] /= p
			inv[i*n+j] /= p
		}
	}
	u := make([]float64, n*n)
	for i := range n {
		for j := i; j < n; j++ {
			x := (inv[i*n+j] + inv[j*n+i]) / 2
			for k := range i {
				x -= u[k*n+i] * u[k*n+j]
			}
			if u[i*n+j] = x / u[i*n+i]; i == j {
				require.Positive(t, x)
				u[i*n+i] = math.Sqrt(x)
			}
		}
	}
	return u
}

func columnAt(perm []int32, p int) int {
	if perm == nil {
		return p
	}
	return int(perm[p])
}

func rangesOfRTN(w []float64, out, in, group int) (lo, hi []float64) {
	groups := in / group
	lo, hi = make([]float64, out*groups), make([]float64, out*groups)
	for i, x := range w {
		k := i/in*groups + i%in/group
		lo[k], hi[k] = min(lo[k], x), max(hi[k], x)
	}
	return lo, hi
}

// column is the textbook's column loop: one column at a time, its error spread over all columns behind it at once. A group's range is taken
// from the weights at the start of its block, which here is one group.
type column struct {
	t              *testing.T
	out, in, group int
	perm           []int32
	scales         []float32 // [out,G]
	codes          []uint8   // [out,in]
	lo, hi         []float64 // [out,G], the loop's outcome
	ties           int
}

func (c *column) loop(w, u []float64) {
	groups := c.in / c.group
	for row := range c.out {
		now := make([]float64, c.in)
		for p := range now {
			now[p] = w[row*c.in+columnAt(c.perm, p)]
		}
		for p := range c.in {
			col := columnAt(c.perm, p)
			k := row*groups + col/c.group
			if p%c.group == 0 {
				c.lo[k], c.hi[k] = 0, 0
				for _, x := range now[p : p+c.group] {
					c.lo[k], c.hi[k] = min(c.lo[k], x), max(c.hi[k], x)
				}
			}
			scale, code := float64(c.scales[k]), float64(c.codes[row*c.in+col])
			if q := max(0, min(15, math.RoundToEven(now[p]/scale)+8)); q != code {
				c.ties++ // float32 stands on the other side: the value lies between the two codes
				require.InDelta(c.t, (q+code)/2, now[p]/scale+8, 5e-3, "row %d, column %d", row, col)
			}
			e := (now[p] - scale*(code-8)) / u[p*c.in+p]
			for j := p; j < c.in; j++ {
				now[j] -= e * u[p*c.in+j]
			}
		}
	}
}
