package capture

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"

	"quire/capture/model"
	"quire/kernels"
)

// Store holds hidden states by batch: a layer's input. The ledger's captures implement it too.
type Store interface {
	// Put keeps the rows [length(batch), hidden] of a batch; the caller may reuse them.
	Put(ctx context.Context, batch int, x kernels.Rows) error
	// Get copies the rows of a batch into dst, which has their shape and type.
	Get(ctx context.Context, batch int, dst kernels.Rows) error
}

// Hidden is a Store in memory up to a budget and in a file beyond it.
type Hidden struct {
	lengths []int
	width   int
	bf16    bool
	mem     []kernels.Rows // by batch; M 0: in the file or absent
	offset  []int64        // in the file, -1: in memory
	put     []bool
	file    *os.File
	spilled int64
	held    int64
	buf     []byte
}

// NewHidden makes a store for batches of the given lengths, hidden features wide, in the type that c keeps. The first batches
// that fit into budgetBytes lie in memory, the others in a scratch file in dir, which is removed at once where the system
// allows and by Close otherwise. A negative budget means all memory.
func NewHidden(lengths []int, hidden int, c model.Compute, budgetBytes int64, dir string) (*Hidden, error) {
	h := &Hidden{lengths: lengths, width: hidden, bf16: c == model.BF16, mem: make([]kernels.Rows, len(lengths)), offset: make([]int64, len(lengths)), put: make([]bool, len(lengths))}
	for b, n := range lengths {
		size := int64(n) * int64(hidden) * c.ElemBytes()
		h.offset[b] = -1
		if budgetBytes >= 0 && h.held+size > budgetBytes {
			h.offset[b] = h.spilled
			h.spilled += size
			continue
		}
		h.held += size
	}
	if h.spilled > 0 {
		f, err := os.CreateTemp(dir, "hidden-*.rows")
		if err != nil {
			return nil, fmt.Errorf("hidden states beyond the memory budget: %w", err)
		}
		h.file = f
	}
	return h, nil
}

// SpilledBytes is what lies in the file, HeldBytes what lies in memory, when all batches are there.
func (h *Hidden) SpilledBytes() int64 { return h.spilled }

// HeldBytes is what lies in memory when all batches are there.
func (h *Hidden) HeldBytes() int64 { return h.held }

func (h *Hidden) fits(b int, x kernels.Rows) error {
	if b < 0 || b >= len(h.lengths) || x.M != h.lengths[b] || x.K != h.width || (x.BF16 != nil) != h.bf16 {
		return &Error{Kind: ErrBatch, What: fmt.Sprintf("batch %d with rows [%d,%d]", b, x.M, x.K)}
	}
	return nil
}

// Put keeps the rows of a batch.
func (h *Hidden) Put(_ context.Context, b int, x kernels.Rows) error {
	if err := h.fits(b, x); err != nil {
		return err
	}
	h.put[b] = true
	if h.offset[b] < 0 {
		if h.mem[b].M == 0 {
			h.mem[b] = newRows(h.bf16, x.M, x.K)
		}
		copyRows(h.mem[b], x)
		return nil
	}
	h.encode(x)
	_, err := h.file.WriteAt(h.buf, h.offset[b])
	return err
}

// Get copies the rows of a batch into dst.
func (h *Hidden) Get(_ context.Context, b int, dst kernels.Rows) error {
	if err := h.fits(b, dst); err != nil {
		return err
	}
	if !h.put[b] {
		return &Error{Kind: ErrAbsent, What: fmt.Sprintf("batch %d", b)}
	}
	if h.offset[b] < 0 {
		copyRows(dst, h.mem[b])
		return nil
	}
	h.buf = grow(h.buf, dst.M*dst.K*h.elem())
	if _, err := h.file.ReadAt(h.buf, h.offset[b]); err != nil {
		return fmt.Errorf("spilled batch %d: %w", b, err)
	}
	h.decode(dst)
	return nil
}

// Close removes the scratch file.
func (h *Hidden) Close() error {
	if h.file == nil {
		return nil
	}
	f := h.file
	h.file = nil
	err := f.Close()
	if e := os.Remove(f.Name()); err == nil {
		err = e
	}
	return err
}

func (h *Hidden) elem() int {
	if h.bf16 {
		return 2
	}
	return 4
}

func (h *Hidden) encode(x kernels.Rows) {
	h.buf = grow(h.buf, x.M*x.K*h.elem())
	for r := range x.M {
		if h.bf16 {
			for i, v := range x.BF16[r*x.Stride : r*x.Stride+x.K] {
				binary.LittleEndian.PutUint16(h.buf[2*(r*x.K+i):], v)
			}
			continue
		}
		for i, v := range x.F32[r*x.Stride : r*x.Stride+x.K] {
			binary.LittleEndian.PutUint32(h.buf[4*(r*x.K+i):], math.Float32bits(v))
		}
	}
}

func (h *Hidden) decode(dst kernels.Rows) {
	for r := range dst.M {
		for i := range dst.K {
			if h.bf16 {
				dst.BF16[r*dst.Stride+i] = binary.LittleEndian.Uint16(h.buf[2*(r*dst.K+i):])
			} else {
				dst.F32[r*dst.Stride+i] = math.Float32frombits(binary.LittleEndian.Uint32(h.buf[4*(r*dst.K+i):]))
			}
		}
	}
}

func newRows(bf16 bool, m, k int) kernels.Rows {
	if bf16 {
		return kernels.RowsBF16(make([]uint16, m*k), m, k)
	}
	return kernels.RowsF32(make([]float32, m*k), m, k)
}

func copyRows(dst, src kernels.Rows) {
	for r := range src.M {
		if src.BF16 != nil {
			copy(dst.BF16[r*dst.Stride:r*dst.Stride+src.K], src.BF16[r*src.Stride:])
		} else {
			copy(dst.F32[r*dst.Stride:r*dst.Stride+src.K], src.F32[r*src.Stride:])
		}
	}
}

// rowsOf is rows a..b-1 of x.
func rowsOf(x kernels.Rows, a, b int) kernels.Rows {
	y := kernels.Rows{M: b - a, K: x.K, Stride: x.Stride}
	if x.BF16 != nil {
		y.BF16 = x.BF16[a*x.Stride : b*x.Stride]
	} else {
		y.F32 = x.F32[a*x.Stride : b*x.Stride]
	}
	return y
}

func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
