package ledger

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Client asks the process that writes a ledger.
type Client struct {
	dir  string
	conn net.Conn
	in   *bufio.Reader
	stop func() bool

	patience time.Duration // longest silence of the writer
}

// A writer that is alive says something every keepAlive, whatever it is asked.
const patience = 6 * keepAlive

// Dial reaches the writer of the ledger in dir. The connection ends with ctx.
func Dial(ctx context.Context, dir string) (*Client, error) {
	addr, release, err := socketAddress(dir, socketName)
	if err != nil {
		return nil, err
	}
	defer release()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", addr)
	if err != nil {
		return nil, fmt.Errorf("ledger: no live writer answers in %s: %w", dir, err)
	}
	return &Client{dir: dir, conn: conn, in: bufio.NewReaderSize(conn, 64<<10), stop: context.AfterFunc(ctx, func() { conn.Close() }), patience: patience}, nil
}

// Close ends the connection.
func (c *Client) Close() error {
	c.stop()
	return c.conn.Close()
}

// remoteError is an error of the writer, as told.
type remoteError struct{ r reply }

func (e *remoteError) Error() string     { return e.r.Message }
func (e *remoteError) ErrorCode() string { return e.r.Code }
func (e *remoteError) ExitCode() int     { return e.r.Exit }
func (e *remoteError) Remedy() string    { return e.r.Hint }

// Is matches the sentinel of the code.
func (e *remoteError) Is(t error) bool {
	return t == ErrNotFound && e.r.Code == "E1713" || t == ErrDamaged && e.r.Code == "E1701" || t == ErrDiskFull && e.r.Code == "E1704"
}

// do sends a request and calls f for each line of the answer; io.EOF from f ends it early and the connection with it.
func (c *Client) do(q ask, f func(reply) error) error {
	_ = c.conn.SetWriteDeadline(time.Now().Add(c.patience))
	if err := json.NewEncoder(c.conn).Encode(q); err != nil {
		return err
	}
	for {
		_ = c.conn.SetReadDeadline(time.Now().Add(c.patience))
		line, err := c.in.ReadBytes('\n')
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return fmt.Errorf("ledger: the writer in %s has not answered for %s: it is stopped or stuck; status.json tells its last state: %w", c.dir, c.patience, err)
			}
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("ledger: the writer went away: %w", io.ErrUnexpectedEOF)
			}
			return err
		}
		var r reply
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("ledger: answer of the writer: %w", err)
		}
		switch r.Type {
		case "end":
			return nil
		case "error":
			return &remoteError{r}
		case "wait":
			continue
		}
		if err := f(r); err != nil {
			return err
		}
	}
}

// Status gives the writer's status.
func (c *Client) Status() (Status, error) {
	var s Status
	err := c.do(ask{Op: "status"}, func(r reply) error { s = *r.Status; return nil })
	return s, err
}

// Head gives the newest durable state.
func (c *Client) Head() (Head, error) {
	var h Head
	err := c.do(ask{Op: "head"}, func(r reply) error { h = *r.Head; return nil })
	return h, err
}

// LiveEvent is an event with where its payloads are.
type LiveEvent struct {
	Event
	Where []Location `json:"where,omitempty"` // one for each payload
}

func (c *Client) stream(q ask) iter.Seq2[LiveEvent, error] {
	return func(yield func(LiveEvent, error) bool) {
		err := c.do(q, func(r reply) error {
			if r.Event == nil {
				return nil
			}
			if !yield(LiveEvent{Event: *r.Event, Where: r.Where}, nil) {
				return io.EOF
			}
			return nil
		})
		if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			c.conn.Close() // the rest of the answer is unread
			return
		}
		if err != nil {
			yield(LiveEvent{}, err)
		}
	}
}

// Scan gives the events whose key starts with prefix.
func (c *Client) Scan(prefix string) iter.Seq2[LiveEvent, error] {
	return c.stream(ask{Op: "scan", Prefix: prefix})
}

// Since gives the events after seq, and with follow every event to come until the writer closes or ctx ends.
func (c *Client) Since(seq uint64, follow bool) iter.Seq2[LiveEvent, error] {
	return c.stream(ask{Op: "since", Seq: seq, Follow: follow})
}

// Get gives the event with a key.
func (c *Client) Get(key string) (LiveEvent, error) { return c.one(ask{Op: "get", Key: key}) }

// At gives the event with a sequence number.
func (c *Client) At(seq uint64) (LiveEvent, error) { return c.one(ask{Op: "at", Seq: seq}) }

func (c *Client) one(q ask) (e LiveEvent, err error) {
	err = c.do(q, func(r reply) error {
		if r.Event != nil {
			e = LiveEvent{Event: *r.Event, Where: r.Where}
		}
		return nil
	})
	return e, err
}

// Prove gives an inclusion proof of an event in the newest head.
func (c *Client) Prove(seq uint64) (p Proof, err error) {
	err = c.do(ask{Op: "prove", Seq: seq}, func(r reply) error { p = *r.Proof; return nil })
	return p, err
}

// Backup lets the writer copy itself to a directory of its machine.
func (c *Client) Backup(to string, o BackupOptions) error {
	abs, err := filepath.Abs(to)
	if err != nil {
		return err
	}
	return c.do(ask{Op: "backup", To: abs, Compact: o.Compact}, func(reply) error { return nil })
}

// statusWithin is how long ReadStatus waits for a writer that may be stopped.
const statusWithin = 3 * time.Second

// ReadStatus gives the status of a ledger: from its writer, or the last that it wrote to status.json, with Live false
// unless LOCK is held. A writer that is stopped or stuck does not hold it up for more than three seconds.
func ReadStatus(ctx context.Context, dir string) (Status, error) {
	if err := present(dir); err != nil {
		return Status{}, err
	}
	if c, err := Dial(ctx, dir); err == nil {
		defer c.Close()
		c.patience = statusWithin
		if s, err := c.Status(); err == nil {
			return s, nil
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, statusName))
	if err != nil {
		return Status{}, notFound("no %s in %s", statusName, dir)
	}
	var s Status
	if err := json.Unmarshal(b, &s); err != nil {
		return s, damagedf(statusName, "%v", err)
	}
	_, s.Live, _ = ReadHolder(dir)
	return s, nil
}
