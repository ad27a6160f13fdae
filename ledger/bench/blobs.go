package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"quire/ledger"
	"quire/ledger/codec"
)

// payloadBytes is the length of a payload: 8 MiB.
func (b *bench) payloadBytes() int { return b.pick(8<<20, 8<<20, 128<<10) }

// options of a ledger that is measured: no socket, everything else as by default.
func options() ledger.Options { return ledger.Options{NoServe: true} }

func (b *bench) create(o ledger.Options) (*ledger.Ledger, error) {
	return ledger.Create(b.ctx, b.fresh(), ledger.Genesis{Record: []byte(`{"bench":true}`)}, o)
}

// finish closes a ledger and removes it.
func (b *bench) finish(l *ledger.Ledger) error {
	if err := l.Close(b.ctx, "measured"); err != nil {
		return err
	}
	return os.RemoveAll(l.Dir())
}

// blobs measures payloads: their rate, their write amplification, the memory they take.
func (b *bench) blobs() error {
	payload := hiddenStates(b.payloadBytes() / 2)
	var amplification []float64
	for _, callers := range []int{1, 4} {
		x, err := b.append(payload, callers)
		if err != nil {
			return err
		}
		amplification = append(amplification, x...)
	}
	r := Result{Name: "write amplification, 8 MiB with an event", Unit: "x", Target: 1.06, Of: "ours", Most: true, Runs: len(amplification)}
	if len(amplification) == 0 {
		r.Note = "the kernel does not count written bytes here"
		r.Of = ""
	} else {
		r.Ours, r.Median = least(amplification)
	}
	b.report(r)
	return b.writerHeap()
}

// append measures payloads put by some callers at a time, each with its event, against as many writes to a plain file,
// each with its fdatasync. It gives the write amplification of ours.
func (b *bench) append(payload []byte, callers int) (amplification []float64, err error) {
	l, err := b.create(options())
	if err != nil {
		return nil, err
	}
	f, err := os.Create(filepath.Join(b.dir, "plain"))
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	// The segment exists before the clock starts, as the plain file does.
	if _, err := l.PutBytes(b.ctx, ledger.ClassLayer, "L0000", codec.None, nil); err != nil {
		return nil, err
	}
	n := 0
	count := callers // payloads of one run: several callers need some to get into step
	if callers > 1 {
		count = 3 * callers
	}
	events := make([]*ledger.Future, count)
	ours := func() (float64, error) {
		before, counted := bytesWritten()
		start := time.Now()
		err := each(callers, count, func(i int) error {
			ref, err := l.PutBytes(b.ctx, ledger.ClassLayer, "L0000", codec.None, payload) // durable when it returns
			if err != nil {
				return err
			}
			events[i] = l.Append(b.ctx, ledger.Event{Type: "capture", Schema: 1, Key: fmt.Sprintf("capture/q/L0000/input/b%07d", n+i),
				Record: []byte(`{"rows":2048,"width":2048,"dtype":"bf16"}`), Payloads: []ledger.Payload{ref.Payload("rows")}})
			return nil
		})
		if err != nil {
			return 0, err
		}
		took := time.Since(start) // a run goes on with the next payload; the event follows within a millisecond
		for _, e := range events {
			if _, err := e.Wait(b.ctx); err != nil {
				return 0, err
			}
		}
		n += count
		if after, _ := bytesWritten(); counted {
			amplification = append(amplification, float64(after-before)/float64(count*len(payload)))
		}
		return float64(count*len(payload)) / took.Seconds() / 1e6, nil
	}
	plain := func() (float64, error) {
		start := time.Now()
		for range count {
			if _, err := f.Write(payload); err != nil {
				return 0, err
			}
			if err := fdatasync(f); err != nil {
				return 0, err
			}
		}
		return float64(count*len(payload)) / time.Since(start).Seconds() / 1e6, nil
	}
	r := Result{Name: fmt.Sprintf("append 8 MiB bf16, none, %d at a time", callers), Unit: "MB/s", Against: "write + fdatasync of the same bytes to one file", Target: 0.8, Of: "ratio"}
	if err := b.pairs(r, max(b.pick(80, 24, 1)/count, b.pick(5, 5, 1)), ours, plain); err != nil {
		return nil, err
	}
	return amplification, b.finish(l)
}

// each calls f(0..n-1) from k goroutines.
func each(k, n int, f func(i int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, k)
	for c := range k {
		wg.Go(func() {
			for i := c; i < n && errs[c] == nil; i += k {
				errs[c] = f(i)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// stream gives n bytes that repeat a block, without holding them.
type stream struct {
	block []byte
	left  int64
	at    int
}

func (s *stream) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(int64(len(p)), s.left)], s.block[s.at:])
	s.at = (s.at + n) % len(s.block)
	s.left -= int64(n)
	return n, nil
}

// writerHeap is the greatest heap while payloads of 64 MiB stream through, above what the process held before.
func (b *bench) writerHeap() error {
	size := int64(b.pick(64<<20, 64<<20, 1<<20))
	block := hiddenStates(b.pick(1<<19, 1<<19, 1<<15))
	limit := float64(64<<20) + 2.5*float64(8<<20)
	var worst []float64
	for _, how := range []struct {
		name string
		id   codec.ID
	}{{"none", codec.None}, {"planes2", codec.Planes2}} {
		l, err := b.create(options())
		if err != nil {
			return err
		}
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		base := m.HeapAlloc
		stop, done := make(chan struct{}), make(chan uint64)
		go func() {
			var peak uint64
			var m runtime.MemStats
			tick := time.NewTicker(2 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					runtime.ReadMemStats(&m)
					peak = max(peak, m.HeapAlloc)
				case <-stop:
					done <- peak
					return
				}
			}
		}()
		err = each(2, b.pick(12, 4, 2), func(i int) error {
			ref, err := l.Put(b.ctx, ledger.ClassLayer, "L0000", how.id, &stream{block: block, left: size})
			if err != nil {
				return err
			}
			_, err = l.Append(b.ctx, ledger.Event{Type: "capture", Schema: 1, Key: fmt.Sprintf("capture/%s/%d", how.name, i), Payloads: []ledger.Payload{ref.Payload("rows")}}).Wait(b.ctx)
			return err
		})
		close(stop)
		peak := <-done
		if err != nil {
			return err
		}
		if err := b.finish(l); err != nil {
			return err
		}
		worst = append(worst, float64(max(peak, base)-base)/(1<<20))
	}
	r := Result{Name: "peak heap, 64 MiB payloads, 2 at a time", Unit: "MiB", Target: limit / (1 << 20), Of: "ours", Most: true, Runs: len(worst), Note: "the worst of the codecs none and planes2"}
	r.Ours, _ = most(worst)
	r.Median = r.Ours
	b.report(r)
	return nil
}

// hiddenStates gives n bf16 values like the input of a decoder layer, 2,048 wide: low rank plus noise, a Student-t(5)
// scale for each token, a lognormal one for each channel, six outlier channels of 30 to 100, normalised to RMS 1.
func hiddenStates(n int) []byte {
	const width, rank = 2048, 64
	r := rand.New(rand.NewPCG(5, 2048))
	basis := make([]float32, rank*width)
	for i := range basis {
		basis[i] = float32(r.NormFloat64() / 8)
	}
	scale := make([]float32, width)
	for i := range scale {
		scale[i] = float32(lognormal(r, 0.5))
	}
	for range 6 {
		scale[r.IntN(width)] *= float32(30 + 70*r.Float64())
	}
	out := bytes.NewBuffer(make([]byte, 0, 2*n))
	row := make([]float32, width)
	for out.Len() < 2*n {
		for i := range row {
			row[i] = float32(r.NormFloat64())
		}
		for k := range rank {
			c := float32(r.NormFloat64())
			for i, v := range basis[k*width : (k+1)*width] {
				row[i] += c * v
			}
		}
		token := float32(studentT(r, 5))
		var sum float64
		for i := range row {
			row[i] *= scale[i] * token
			sum += float64(row[i]) * float64(row[i])
		}
		writeNormalised(out, row, sum, 2*n)
	}
	return out.Bytes()
}
