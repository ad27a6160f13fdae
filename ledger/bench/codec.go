package main

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"time"

	"quire/ledger/codec"
)

func lognormal(r *rand.Rand, sigma float64) float64 { return math.Exp(sigma * r.NormFloat64()) }

// studentT gives a sample of Student's distribution with k degrees of freedom.
func studentT(r *rand.Rand, k int) float64 {
	var chi float64
	for range k {
		x := r.NormFloat64()
		chi += x * x
	}
	return r.NormFloat64() / math.Sqrt(chi/float64(k))
}

// writeNormalised appends a row as bf16 with RMS 1, rounded to nearest even, up to limit bytes in all.
func writeNormalised(out *bytes.Buffer, row []float32, sumSquares float64, limit int) {
	inv := float32(1 / math.Sqrt(sumSquares/float64(len(row))))
	for _, v := range row {
		if out.Len() == limit {
			return
		}
		x := math.Float32bits(v * inv)
		x += 0x7fff + x>>16&1
		out.WriteByte(byte(x >> 16))
		out.WriteByte(byte(x >> 24))
	}
}

// gram gives the upper triangle of XᵀX of such rows, f32, as a Hessian's payload holds it.
func gram(width int) []byte {
	const rows = 256
	x := hiddenStates(rows * 2048)
	v := make([]float32, rows*width)
	for r := range rows {
		for c := range width {
			at := 2 * (r*2048 + c)
			v[r*width+c] = math.Float32frombits(uint32(x[at])<<16 | uint32(x[at+1])<<24)
		}
	}
	var out []byte
	acc := make([]float32, width)
	for i := range width {
		clear(acc)
		for r := range rows {
			c := v[r*width+i]
			for j := i; j < width; j++ {
				acc[j] += c * v[r*width+j]
			}
		}
		for _, a := range acc[i:] {
			bits := math.Float32bits(a)
			out = append(out, byte(bits), byte(bits>>8), byte(bits>>16), byte(bits>>24))
		}
	}
	return out
}

// codec measures encoding and decoding in chunks of 1 MiB as Put does it, in processor time of the one thread that does it.
func (b *bench) codec() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const chunk = 1 << 20
	for _, c := range []struct {
		name       string
		id         codec.ID
		raw        []byte
		rate, size float64 // targets
	}{
		{"bf16 hidden states", codec.Planes2, hiddenStates(b.pick(4<<20, 4<<20, 128<<10)), 350, 1.35},
		{"f32 Hessian triangle", codec.Planes4, gram(b.pick(1024, 1024, 256)), 0, 0},
	} {
		var encode, decode []float64
		var stored [][]byte
		var ids []codec.ID
		var ratio float64
		buf := make([]byte, 0, chunk+64)
		for range b.pick(15, 6, 1) {
			total := 0
			stored, ids = stored[:0], ids[:0]
			var spent time.Duration
			for at := 0; at < len(c.raw); at += chunk {
				raw := c.raw[at:min(at+chunk, len(c.raw))]
				start := threadTime()
				enc, id, err := codec.Encode(buf[:0], c.id, raw)
				spent += threadTime() - start
				if err != nil {
					return err
				}
				total += len(enc)
				stored, ids = append(stored, bytes.Clone(enc)), append(ids, id)
			}
			encode = append(encode, float64(len(c.raw))/spent.Seconds()/1e6)
			ratio = float64(len(c.raw)) / float64(total)
			spent = 0
			for i, s := range stored {
				raw := c.raw[i*chunk : min((i+1)*chunk, len(c.raw))]
				start := threadTime()
				dec, err := codec.Decode(buf[:0], ids[i], s, len(raw))
				spent += threadTime() - start
				if err != nil {
					return err
				}
				if !bytes.Equal(dec, raw) {
					return fmt.Errorf("%s: chunk %d does not decode to its input", c.name, i)
				}
			}
			decode = append(decode, float64(len(c.raw))/spent.Seconds()/1e6)
		}
		rate := Result{Name: "encode " + c.name, Unit: "MB/s", Runs: len(encode), Note: "a second of processor time"}
		size := Result{Name: "ratio " + c.name, Unit: "x", Ours: ratio, Median: ratio, Runs: 1}
		if c.rate > 0 {
			rate.Target, rate.Of, size.Target, size.Of = c.rate, "ours", c.size, "ours"
		}
		rate.Ours, rate.Median = most(encode)
		b.report(rate)
		b.report(size)
		back := Result{Name: "decode " + c.name, Unit: "MB/s", Runs: len(decode), Note: "a second of processor time"}
		back.Ours, back.Median = most(decode)
		b.report(back)
	}
	return nil
}
