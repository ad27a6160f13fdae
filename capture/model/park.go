package model

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"unsafe"
)

// Park writes the span's rows to w and lets their memory go; Unpark takes them back. In between the span answers nothing
// but Len, Seqs, Stage and Routing. Parked bytes are for this process only.
func (s *Span) Park(w io.Writer) error {
	b := bufio.NewWriterSize(w, 1<<20)
	for _, v := range s.parts() {
		if err := writeWords(b, *v.f32, v.bf16); err != nil {
			return fmt.Errorf("parking rows of layer %d: %w", s.run.Layer.Index, err)
		}
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("parking rows of layer %d: %w", s.run.Layer.Index, err)
	}
	for i := range s.planes {
		p := &s.planes[i].rows
		s.parked = append(s.parked, len(p.F32), len(p.BF16))
		p.F32, p.BF16 = emptied(p.F32), emptied(p.BF16)
	}
	s.parked = append(s.parked, len(s.x), len(s.block))
	s.x, s.block = nil, emptied(s.block)
	return nil
}

// Unpark reads back what Park wrote.
func (s *Span) Unpark(r io.Reader) error {
	b := bufio.NewReaderSize(r, 1<<20)
	n := s.parked
	for i := range s.planes {
		p := &s.planes[i].rows
		if p.F32 != nil {
			p.F32 = make([]float32, n[2*i])
		}
		if p.BF16 != nil {
			p.BF16 = make([]uint16, n[2*i+1])
		}
	}
	n = n[2*len(s.planes):]
	s.x = make([]float32, n[0])
	if s.block != nil {
		s.block = make([]float32, n[1])
	}
	s.parked = nil
	for _, v := range s.parts() {
		if err := readWords(b, *v.f32, v.bf16); err != nil {
			return fmt.Errorf("taking back rows of layer %d: %w", s.run.Layer.Index, err)
		}
	}
	return nil
}

// ParkedBytes is the size of what Park writes now.
func (s *Span) ParkedBytes() int64 {
	var n int64
	for _, v := range s.parts() {
		n += 4*int64(len(*v.f32)) + 2*int64(len(v.bf16))
	}
	return n
}

// matrix is one of a span's matrices, in either type.
type matrix struct {
	f32  *[]float32
	bf16 []uint16
}

func (s *Span) parts() []matrix {
	var out []matrix
	for i := range s.planes {
		p := &s.planes[i].rows
		out = append(out, matrix{&p.F32, p.BF16})
	}
	return append(out, matrix{f32: &s.x}, matrix{f32: &s.block})
}

// emptied keeps the type of a plane visible: an empty slice instead of nil.
func emptied[T any](v []T) []T {
	if v == nil {
		return nil
	}
	return []T{}
}

var hostLittleEndian = func() bool {
	x := uint16(1)
	return *(*byte)(unsafe.Pointer(&x)) == 1
}()

func asBytes[T float32 | uint16](v []T) []byte {
	if len(v) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), len(v)*int(unsafe.Sizeof(v[0])))
}

// writeWords writes values in the machine's own order: nobody else reads them.
func writeWords(w io.Writer, f32 []float32, bf16 []uint16) error {
	if !hostLittleEndian {
		if err := binary.Write(w, binary.LittleEndian, f32); err != nil {
			return err
		}
		return binary.Write(w, binary.LittleEndian, bf16)
	}
	if _, err := w.Write(asBytes(f32)); err != nil {
		return err
	}
	_, err := w.Write(asBytes(bf16))
	return err
}

func readWords(r io.Reader, f32 []float32, bf16 []uint16) error {
	if !hostLittleEndian {
		if err := binary.Read(r, binary.LittleEndian, f32); err != nil {
			return err
		}
		return binary.Read(r, binary.LittleEndian, bf16)
	}
	if _, err := io.ReadFull(r, asBytes(f32)); err != nil {
		return err
	}
	_, err := io.ReadFull(r, asBytes(bf16))
	return err
}
