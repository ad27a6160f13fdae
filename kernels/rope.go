package kernels

import "fmt"

// RopePairs says which elements of a head rotate together.
type RopePairs int

const (
	// RopeHalf pairs element i with i + rotDim/2 (Llama, Qwen, NeoX).
	RopeHalf RopePairs = iota
	// RopeInterleaved pairs element 2i with 2i+1 (GPT-J, DeepSeek, GLM).
	RopeInterleaved
)

// RopeInvFreq is θ^(−2i/rotDim) for i < rotDim/2 in float64.
func RopeInvFreq(theta float64, rotDim int) []float64 {
	f := make([]float64, rotDim/2)
	l := Log64(theta)
	for i := range f {
		f[i] = Exp64(-float64(l * float64(2*i) / float64(rotDim)))
	}
	return f
}

// RopeTables fills sin and cos, [count,len(invFreq)], for positions
// start..start+count−1: angle = float32(position)·invFreq rounded to float32 (as
// the published implementations form it), then sine and cosine times factor
// (1 unless the scaling rule of the model has an attention factor).
func RopeTables(sin, cos, invFreq []float32, start, count int, factor float32) {
	n := len(invFreq)
	sameLength("RopeTables", count*n, len(sin), len(cos))
	for p := range count {
		pos := float32(start + p)
		for i, f := range invFreq {
			s, c := SinCos32(pos * f)
			sin[p*n+i], cos[p*n+i] = s*factor, c*factor
		}
	}
}

// RopeLayout says where the rotated part of each head lies in a row.
type RopeLayout struct {
	// Heads and HeadDim: a row holds Heads heads of HeadDim elements.
	Heads, HeadDim int
	// Offset is the first rotated element of a head; RotDim how many rotate (even).
	Offset, RotDim int
	Pairs          RopePairs
}

// ApplyRope rotates rows of x in place: row r, at x[r·ldx:], has position pos[r],
// which selects a line of sin and cos, [positions,RotDim/2]. For a pair (u,v):
//
//	u' = u·cos − v·sin, v' = v·cos + u·sin
//
// with both products rounded before the sum.
func ApplyRope(x []float32, ldx int, pos []int32, sin, cos []float32, l RopeLayout) {
	half := l.RotDim / 2
	if l.RotDim%2 != 0 || l.Offset < 0 || l.Offset+l.RotDim > l.HeadDim || l.Heads*l.HeadDim > ldx || len(sin) != len(cos) {
		panic(fmt.Sprintf("kernels.ApplyRope: layout %+v does not fit rows of %d", l, ldx))
	}
	if half == 0 {
		return
	}
	t := elem()
	full := 0
	if l.Pairs == RopeHalf {
		full = half &^ (laneWidth - 1)
	}
	for r, p := range pos {
		s, c := sin[int(p)*half:][:half], cos[int(p)*half:][:half]
		for h := range l.Heads {
			head := x[r*ldx+h*l.HeadDim+l.Offset:][:l.RotDim]
			if full > 0 {
				t.rotate(&head[0], &head[half], &s[0], &c[0], full)
			}
			if l.Pairs == RopeInterleaved {
				for i := range half {
					head[2*i], head[2*i+1] = rotatePair(head[2*i], head[2*i+1], s[i], c[i])
				}
				continue
			}
			for i := full; i < half; i++ {
				head[i], head[half+i] = rotatePair(head[i], head[half+i], s[i], c[i])
			}
		}
	}
}

func rotatePair(u, v, s, c float32) (float32, float32) {
	return float32(u*c) - float32(v*s), float32(v*c) + float32(u*s)
}
