package ledger

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

const socketName = "ledger.sock"

// ask is one request on the socket: a line of JSON. The answer is lines of JSON, the last of type "end" or "error".
type ask struct {
	Op      string `json:"op"` // status, head, get, at, scan, since, prove, backup
	Key     string `json:"key,omitempty"`
	Prefix  string `json:"prefix,omitempty"`
	Seq     uint64 `json:"seq,omitempty"`
	Follow  bool   `json:"follow,omitempty"`
	To      string `json:"to,omitempty"`
	Compact bool   `json:"compact,omitempty"`
}

// keepAlive is how often an answer that has nothing to say yet sends a line of type "wait": so the one who asked can tell
// a writer that works from one that is stuck, and the writer notices one who went away.
const keepAlive = 10 * time.Second

// reply is one line of an answer.
type reply struct {
	Type    string     `json:"type"` // event, status, head, proof, wait, end, error
	Event   *Event     `json:"event,omitempty"`
	Where   []Location `json:"where,omitempty"` // of the event's payloads
	Status  *Status    `json:"status,omitempty"`
	Head    *Head      `json:"head,omitempty"`
	Proof   *Proof     `json:"proof,omitempty"`
	Message string     `json:"message,omitempty"`
	Code    string     `json:"code,omitempty"`
	Exit    int        `json:"exit,omitempty"`
	Hint    string     `json:"hint,omitempty"`
}

// server answers questions about a running ledger on a unix socket in its directory.
type server struct {
	l       *Ledger
	ln      net.Listener
	ctx     context.Context
	cancel  context.CancelFunc
	release func()
	wg      sync.WaitGroup

	ended chan struct{} // closed when the last event is durable

	mu        sync.Mutex
	conns     map[net.Conn]struct{}
	following int           // answers that follow
	fewer     chan struct{} // told when one of them ended
}

func startServer(l *Ledger) (*server, error) {
	path := l.path(socketName)
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	addr, release, err := socketAddress(l.dir, socketName)
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("unix", addr)
	if err != nil {
		release()
		return nil, err
	}
	_ = os.Chmod(path, 0o600)
	s := &server{l: l, ln: ln, release: release, conns: map[net.Conn]struct{}{}, ended: make(chan struct{}), fewer: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Add(1)
	go s.accept()
	return s, nil
}

const maxConnections = 32

func (s *server) accept() {
	defer s.wg.Done()
	for {
		c, err := s.ln.Accept()
		if err != nil {
			if s.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			select { // no descriptors left, perhaps: those who ask must not wait for one who never accepts
			case <-time.After(100 * time.Millisecond):
				continue
			case <-s.ctx.Done():
				return
			}
		}
		s.mu.Lock()
		if s.ctx.Err() != nil || len(s.conns) >= maxConnections {
			s.mu.Unlock()
			_ = c.SetWriteDeadline(time.Now().Add(time.Second))
			_ = json.NewEncoder(c).Encode(errorReply(busy("%d others are asking this writer", maxConnections)))
			c.Close()
			continue
		}
		s.conns[c] = struct{}{}
		s.wg.Add(1)
		s.mu.Unlock()
		go s.serve(c)
	}
}

// lastWords is how long the end of a stay waits for those who follow: one that does not read must not hold it up.
const lastWords = time.Second

// finish lets those who follow see the last event, which is durable, and tells them that it was.
func (s *server) finish() {
	close(s.ended)
	timer := time.NewTimer(lastWords)
	defer timer.Stop()
	for {
		s.mu.Lock()
		n := s.following
		s.mu.Unlock()
		if n == 0 {
			return
		}
		select {
		case <-s.fewer:
		case <-timer.C:
			return
		}
	}
}

// follows counts an answer that follows in, and the function given out.
func (s *server) follows() (end func()) {
	s.mu.Lock()
	s.following++
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		s.following--
		s.mu.Unlock()
		select {
		case s.fewer <- struct{}{}:
		default:
		}
	}
}

func (s *server) close() {
	s.cancel()
	_ = s.ln.Close()
	_ = os.Remove(s.l.path(socketName))
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	s.release()
}

func (s *server) serve(c net.Conn) {
	defer s.wg.Done()
	ctx, gone := context.WithCancel(s.ctx)
	var reading sync.WaitGroup
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		gone()
		c.Close()
		reading.Wait()
	}()
	asks := make(chan ask)
	reading.Add(1)
	go func() { // reads on while an answer is given, so that one who goes away is noticed
		defer reading.Done()
		defer close(asks)
		defer gone()
		in := bufio.NewScanner(c)
		in.Buffer(make([]byte, 4096), 64<<10)
		for in.Scan() {
			var q ask
			if json.Unmarshal(in.Bytes(), &q) != nil {
				q = ask{Op: "not JSON"}
			}
			select {
			case asks <- q:
			case <-ctx.Done():
				return
			}
		}
	}()
	w := &answerWriter{c: c, out: bufio.NewWriter(c)}
	w.enc = json.NewEncoder(w.out)
	for q := range asks {
		over := func() {}
		if q.Follow {
			over = s.follows()
		}
		stop := w.keepAlive()
		err := s.answer(ctx, q, func(r reply) error { return w.send(r, q.Follow) })
		stop()
		end := reply{Type: "end"}
		if err != nil {
			end = errorReply(err)
		}
		err = w.send(end, true)
		over()
		if err != nil {
			return
		}
	}
}

// answerWriter writes the lines of answers to one connection.
type answerWriter struct {
	mu  sync.Mutex
	c   net.Conn
	out *bufio.Writer
	enc *json.Encoder
}

func (w *answerWriter) send(r reply, now bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.c.SetWriteDeadline(time.Now().Add(30 * time.Second))
	if err := w.enc.Encode(r); err != nil {
		return err
	}
	if now || w.out.Buffered() > 32<<10 {
		return w.out.Flush()
	}
	return nil
}

// keepAlive sends "wait" lines until the function given is called.
func (w *answerWriter) keepAlive() (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(keepAlive)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if w.send(reply{Type: "wait"}, true) != nil {
					return
				}
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

func errorReply(err error) reply {
	r := reply{Type: "error", Message: err.Error(), Code: "E1700", Exit: exitFailure}
	var c interface {
		ErrorCode() string
		ExitCode() int
		Remedy() string
	}
	if errors.As(err, &c) {
		r.Code, r.Exit, r.Hint = c.ErrorCode(), c.ExitCode(), c.Remedy()
	}
	return r
}

func (s *server) answer(ctx context.Context, q ask, send func(reply) error) error {
	event := func(e Event) error {
		r := reply{Type: "event", Event: &e}
		for _, p := range e.Payloads {
			loc, err := s.l.Locate(e, p.Role)
			if err != nil {
				return err
			}
			r.Where = append(r.Where, loc)
		}
		return send(r)
	}
	switch q.Op {
	case "status":
		st := s.l.currentStatus()
		return send(reply{Type: "status", Status: &st})
	case "head":
		h := s.l.Head()
		return send(reply{Type: "head", Head: &h})
	case "get", "at":
		var e Event
		var ok bool
		var err error
		if q.Op == "at" {
			e, err = s.l.At(q.Seq)
			ok = err == nil
		} else {
			e, ok, err = s.l.Get(q.Key)
		}
		if err != nil {
			return err
		}
		if !ok {
			return notFound("no event has the key %q", q.Key)
		}
		return event(e)
	case "scan":
		for e, err := range s.l.Scan(q.Prefix) {
			if err != nil {
				return err
			}
			if err := event(e); err != nil {
				return err
			}
		}
		return nil
	case "since":
		for at, last := q.Seq, false; ; {
			grown := s.l.grown.wait()
			for e, err := range s.l.Since(at) {
				if err != nil {
					return err
				}
				if err := event(e); err != nil {
					return err
				}
				at = e.Seq
			}
			if !q.Follow || last {
				return nil
			}
			select {
			case <-grown:
			case <-s.ended:
				last = true
			case <-ctx.Done():
				return nil
			}
		}
	case "prove":
		p, err := s.l.Prove(q.Seq)
		if err != nil {
			return err
		}
		return send(reply{Type: "proof", Proof: &p})
	case "backup":
		return s.l.Backup(ctx, q.To, BackupOptions{Compact: q.Compact})
	}
	return usage("unknown request %q", q.Op)
}
