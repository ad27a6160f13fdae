package ledger

import (
	"context"
	"sync"
)

// aheadChunks is how many chunks a sequential reader holds: one with the caller, one waiting, one being read.
const aheadChunks = 3

// ahead reads and decodes the chunks of a payload in order, beside the hashing and the work of who takes them.
type ahead struct {
	ctx  context.Context
	read chan aheadChunk
	free chan *chunkBuffer
	stop chan struct{}
	once sync.Once
	done sync.WaitGroup
	mine *chunkBuffer // with the caller
	all  []*chunkBuffer
}

// chunkBuffers recycles the memory of readers: a megabyte is not taken from the system, cleared and collected for each.
var chunkBuffers = sync.Pool{New: func() any { return &chunkBuffer{} }}

type aheadChunk struct {
	b   *chunkBuffer
	err error
}

// readAhead begins at the first chunk.
func (s *segmentSource) readAhead(ctx context.Context) *ahead {
	n := s.chunks()
	buffers := min(n, aheadChunks)
	a := &ahead{ctx: ctx, read: make(chan aheadChunk, buffers), free: make(chan *chunkBuffer, buffers), stop: make(chan struct{})}
	for range buffers {
		b := chunkBuffers.Get().(*chunkBuffer)
		a.all = append(a.all, b)
		a.free <- b
	}
	a.done.Go(func() {
		for i := range n {
			var b *chunkBuffer
			select {
			case b = <-a.free:
			case <-a.stop:
				return
			case <-ctx.Done():
				return
			}
			err := s.load(i, b)
			a.read <- aheadChunk{b, err} // there is room for every buffer
			if err != nil {
				return
			}
		}
	})
	return a
}

// next gives the bytes of the next chunk, valid until it is called again.
func (a *ahead) next() ([]byte, error) {
	if a.mine != nil {
		a.free <- a.mine
		a.mine = nil
	}
	select {
	case c := <-a.read:
		if c.err != nil {
			a.read <- c // it stays the answer
			return nil, c.err
		}
		a.mine = c.b
		return c.b.raw, nil
	case <-a.ctx.Done():
		return nil, context.Cause(a.ctx)
	}
}

// close ends the reading; what next gave is no longer valid.
func (a *ahead) close() {
	a.once.Do(func() {
		close(a.stop)
		a.done.Wait()
		for _, b := range a.all {
			chunkBuffers.Put(b)
		}
	})
}
