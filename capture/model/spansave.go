package model

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"quire/kernels"
)

// A saved span, little-endian:
//
//	u32 magic "QSP1" │ u32 layer │ u32 stage │ u32 next expert │ u32 batches │ u32 length … │
//	f32 residual [rows,hidden] │ u32 planes │ per plane: u8 name length, name, u8 bf16, u32 columns, elements │
//	u8 block │ if 1: f32 block output [rows,hidden], u32 E, u32 k, i32 choice, f32 weight [rows,k], u8 logits, f32 [rows,E]
const spanMagic = 0x31505351

// Save writes everything a span holds, so that its memory may be dropped between two calls. The form is for the run that
// wrote it, not for keeping.
func (s *Span) Save(w io.Writer) error {
	b := &spanWriter{w: bufio.NewWriterSize(w, 1<<16)}
	b.u32(spanMagic, uint32(s.run.Layer.Index), uint32(s.stage), uint32(s.next), uint32(len(s.seqs)))
	for _, q := range s.seqs {
		b.u32(uint32(q.Len))
	}
	b.f32(s.x)
	b.u32(uint32(len(s.planes)))
	for _, p := range s.planes {
		b.bytes([]byte{byte(len(p.name))})
		b.bytes([]byte(p.name))
		if p.rows.BF16 != nil {
			b.bytes([]byte{1})
			b.u32(uint32(p.rows.K))
			b.u16(p.rows.BF16)
		} else {
			b.bytes([]byte{0})
			b.u32(uint32(p.rows.K))
			b.f32(p.rows.F32)
		}
	}
	if s.routing == nil {
		b.bytes([]byte{0})
		return b.flush()
	}
	b.bytes([]byte{1})
	b.f32(s.block)
	r := s.routing
	b.u32(uint32(r.Experts), uint32(r.TopK))
	for _, c := range r.Choice {
		b.u32(uint32(c))
	}
	b.f32(r.Weight)
	if r.Logits == nil {
		b.bytes([]byte{0})
		return b.flush()
	}
	b.bytes([]byte{1})
	b.f32(r.Logits)
	return b.flush()
}

// LoadSpan reads a span that Save wrote for the same layer.
func (run *LayerRun) LoadSpan(r io.Reader) (*Span, error) {
	b := &spanReader{r: bufio.NewReaderSize(r, 1<<16)}
	s := &Span{run: run}
	magic, layer := b.u32(), b.u32()
	s.stage, s.next = int(b.u32()), int(b.u32())
	n := int(b.u32())
	if b.err == nil && (magic != spanMagic || int(layer) != run.Layer.Index || s.stage > len(run.Layer.Stages) || n < 1 || n > 1<<28) {
		return nil, s.err(ErrInput, -1, "not a saved span of this layer")
	}
	for i := 0; i < n && b.err == nil; i++ {
		l := int(b.u32())
		s.seqs = append(s.seqs, kernels.Seq{Start: s.rows, Len: l})
		s.rows += l
	}
	s.x = b.f32(s.rows * run.m.Hidden)
	for range b.u32() {
		if b.err != nil {
			break
		}
		name := string(b.bytes(int(b.bytes(1)[0])))
		bf16 := b.bytes(1)[0] == 1
		k := int(b.u32())
		if bf16 {
			s.planes = append(s.planes, plane{name, kernels.RowsBF16(b.u16(s.rows*k), s.rows, k)})
		} else {
			s.planes = append(s.planes, plane{name, kernels.RowsF32(b.f32(s.rows*k), s.rows, k)})
		}
	}
	if b.bytes(1)[0] == 1 && b.err == nil {
		s.block = b.f32(s.rows * run.m.Hidden)
		rt := &Routing{Experts: int(b.u32()), TopK: int(b.u32())}
		rt.Choice = make([]int32, s.rows*rt.TopK)
		for i := range rt.Choice {
			rt.Choice[i] = int32(b.u32())
		}
		rt.Weight = b.f32(s.rows * rt.TopK)
		if b.bytes(1)[0] == 1 {
			rt.Logits = b.f32(s.rows * rt.Experts)
		}
		if b.err == nil {
			rt.index()
		}
		s.routing = rt
	}
	if b.err != nil {
		return nil, fmt.Errorf("saved span: %w", b.err)
	}
	return s, nil
}

type spanWriter struct {
	w   *bufio.Writer
	err error
	buf [8]byte
}

func (b *spanWriter) bytes(p []byte) {
	if b.err == nil {
		_, b.err = b.w.Write(p)
	}
}

func (b *spanWriter) u32(vs ...uint32) {
	for _, v := range vs {
		binary.LittleEndian.PutUint32(b.buf[:], v)
		b.bytes(b.buf[:4])
	}
}

func (b *spanWriter) f32(vs []float32) {
	for _, v := range vs {
		b.u32(math.Float32bits(v))
	}
}

func (b *spanWriter) u16(vs []uint16) {
	for _, v := range vs {
		binary.LittleEndian.PutUint16(b.buf[:], v)
		b.bytes(b.buf[:2])
	}
}

func (b *spanWriter) flush() error {
	if b.err != nil {
		return b.err
	}
	return b.w.Flush()
}

type spanReader struct {
	r   *bufio.Reader
	err error
	buf [4]byte
}

func (b *spanReader) bytes(n int) []byte {
	p := make([]byte, n)
	if b.err == nil {
		_, b.err = io.ReadFull(b.r, p)
	}
	return p
}

func (b *spanReader) u32() uint32 {
	if b.err == nil {
		_, b.err = io.ReadFull(b.r, b.buf[:])
	}
	if b.err != nil {
		return 0
	}
	return binary.LittleEndian.Uint32(b.buf[:])
}

func (b *spanReader) f32(n int) []float32 {
	if b.err != nil {
		return nil
	}
	out := make([]float32, n)
	for i := range out {
		out[i] = math.Float32frombits(b.u32())
	}
	return out
}

func (b *spanReader) u16(n int) []uint16 {
	if b.err != nil {
		return nil
	}
	out := make([]uint16, n)
	p := b.bytes(2 * n)
	for i := range out {
		out[i] = binary.LittleEndian.Uint16(p[2*i:])
	}
	return out
}
