package ledger

import (
	"context"
	"sync"
)

// claims lets one goroutine at a time work for a key.
type claims struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

func (c *claims) acquire(ctx context.Context, key string) (release func(), err error) {
	for {
		c.mu.Lock()
		if c.held == nil {
			c.held = map[string]chan struct{}{}
		}
		wait, taken := c.held[key]
		if !taken {
			mine := make(chan struct{})
			c.held[key] = mine
			c.mu.Unlock()
			return func() {
				c.mu.Lock()
				delete(c.held, key)
				c.mu.Unlock()
				close(mine)
			}, nil
		}
		c.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
